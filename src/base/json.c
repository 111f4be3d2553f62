/*
 * json.c - JSON in and out: jansson's parser behind limits and precise errors, typed field access.
 *
 * Called by load, text, cli and the server. jansson allocates through sv_alloc's hooks. Duplicate
 * keys are refused: two readers of one file must not see different values. Must not: know any
 * field's name.
 */
#include "base/internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Texts may hold NUL characters (prompts do); sv_json_str_opt refuses them where a C string would
 * be cut. */
#define PARSE_FLAGS (JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL)
#define MAX_TEXT_BYTES ((size_t)1 << 30) /* jansson counts positions in an int */

/* Before main, because jansson must not see two allocators in one life. */
__attribute__((constructor)) static void use_our_allocator(void)
{
    json_set_alloc_funcs(sv_alloc_small, sv_free);
}

/* ---------------------------------------------------------------- parsing */

/* Rewrites the n digits of an integer as d.ddde<n-1> in the same n bytes, so positions stay
 * true. */
static void shrink_integer(char *digits, size_t n)
{
    char tail[24];
    int n_tail = snprintf(tail, sizeof tail, "e%zu", n - 1);
    memmove(digits + 2, digits + 1, n - 2);
    digits[1] = '.';
    memcpy(digits + n - (size_t)n_tail, tail, (size_t)n_tail);
}

/* jansson refuses integers beyond 64 bits, but published tokenizer_config.json files hold
 * 1000000000000000019884624838656 for "no limit". Turns such integers into reals. */
static void shrink_big_integers(char *text, size_t n)
{
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        size_t end = i;
        if (in_string) {
            if (text[i] == '\\')
                i++;
            else if (text[i] == '"')
                in_string = false;
            continue;
        }
        in_string = text[i] == '"';
        while (end < n && text[end] >= '0' && text[end] <= '9')
            end++;
        if (end == i)
            continue;
        bool fraction = i && (text[i - 1] == '.' || text[i - 1] == 'e' || text[i - 1] == 'E' ||
                              text[i - 1] == '+');
        bool real = end < n && (text[end] == '.' || text[end] == 'e' || text[end] == 'E');
        if (!fraction && !real && end - i >= 19 && text[i] != '0') {
            char word[24];
            bool big = end - i > 19;
            if (!big) {
                memcpy(word, text + i, end - i);
                word[end - i] = 0;
                errno = 0;
                (void)strtoll(word, NULL, 10);
                big = errno == ERANGE;
            }
            if (big)
                shrink_integer(text + i, end - i);
        }
        i = end - 1;
    }
}

/* A second try for texts with integers beyond 64 bits. */
static json_t *parse_shrunk(const char *text, size_t n, json_error_t *e)
{
    char *copy = sv_alloc_small(n);
    json_t *root;

    if (!copy)
        return NULL;
    memcpy(copy, text, n);
    shrink_big_integers(copy, n);
    root = json_loadb(copy, n, PARSE_FLAGS, e);
    sv_free(copy);
    return root;
}

/* The offset of the error, from 0. jansson reports a misplaced word at its end and, unless it is
 * long, quotes it; other errors at their beginning. */
static int where(const json_error_t *e, const char *text)
{
    static const char *const exact[] = {"unexpected newline", "control character",
                                        "unable to decode"};
    const char *near = strstr(e->text, " near ");
    size_t n = near && near[6] == '\'' ? strlen(near + 7) - 1 : 0;

    for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++)
        if (strncmp(e->text, exact[i], strlen(exact[i])) == 0)
            return e->position;
    if (!near && e->position > 0)
        return e->position - 1;
    if (!n || (size_t)e->position < n || memcmp(text + e->position - n, near + 7, n) != 0)
        return e->position;
    return e->position - (int)n;
}

json_t *sv_json_parse(const char *text, size_t n, struct sv_err *err)
{
    uint64_t failures = sv_alloc_failures();
    json_error_t e = {0};
    json_t *root;

    if (n > MAX_TEXT_BYTES) {
        sv_fail(err, SV_EINVAL, (int64_t)MAX_TEXT_BYTES, "JSON text of %zu bytes is too long", n);
        return NULL;
    }
    root = json_loadb(text ? text : "", n, PARSE_FLAGS, &e);
    if (!root && json_error_code(&e) == json_error_numeric_overflow)
        root = parse_shrunk(text, n, &e);
    if (sv_alloc_failures() != failures) { /* jansson reports some of these as syntax errors */
        json_decref(root);
        sv_fail(err, SV_ENOMEM, -1, "out of memory while parsing JSON");
        return NULL;
    }
    if (!root) {
        const char *near = strstr(e.text, " near ");
        const int at = where(&e, text);
        /* A file that is not JSON from its first byte on may be a link to a private one: its text
         * is not shown. */
        const int n_shown = at == 0 && near ? (int)(near - e.text) : (int)strlen(e.text);
        sv_fail(err, SV_EFORMAT, at, "JSON, byte %d (line %d): %.*s", at, e.line, n_shown, e.text);
    }
    return root;
}

json_t *sv_json_load(const char *path, size_t max_bytes, struct sv_err *err)
{
    struct sv_buf text;
    json_t *root = NULL;

    sv_buf_init(&text);
    if (sv_file_read(&text, path, max_bytes, err) == SV_OK) {
        root = sv_json_parse(text.data, text.len, err);
        if (!root)
            sv_err_prefix(err, "%s", path);
    }
    sv_buf_fini(&text);
    return root;
}

/* ---------------------------------------------------------------- fields */

/* *out = the field or NULL; an error when obj is no object or a needed field is missing. */
static int find(const json_t *obj, const char *key, bool needed, const json_t **out,
                struct sv_err *err)
{
    const json_t *v;

    *out = NULL;
    if (!json_is_object(obj))
        return sv_fail(err, SV_EINVAL, -1, "field '%s': its parent is not an object", key);
    v = json_object_get(obj, key);
    if (v && !json_is_null(v)) {
        *out = v;
        return SV_OK;
    }
    if (!needed)
        return SV_OK;
    return sv_fail(err, SV_EINVAL, -1, "field '%s' is %s", key, v ? "null" : "missing");
}

/* Integers, and reals that are whole numbers (1e6) and small enough to be exact. */
static bool whole(const json_t *v, int64_t *out)
{
    double x;

    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    if (!json_is_real(v))
        return false;
    x = json_real_value(v);
    if (!(fabs(x) <= 0x1p53) || x != floor(x))
        return false;
    *out = (int64_t)x;
    return true;
}

static int get_int(const json_t *obj, const char *key, bool needed, int64_t lo, int64_t hi,
                   int64_t *out, struct sv_err *err)
{
    const json_t *v;
    int64_t x;
    int status = find(obj, key, needed, &v, err);

    if (status != SV_OK || !v)
        return status;
    if (!whole(v, &x) || x < lo || x > hi)
        return sv_fail(err, SV_EINVAL, -1, "field '%s' must be an integer in [%lld, %lld]", key,
                       (long long)lo, (long long)hi);
    *out = x;
    return SV_OK;
}

static int get_num(const json_t *obj, const char *key, bool needed, double lo, double hi,
                   double *out, struct sv_err *err)
{
    const json_t *v;
    double x;
    int status = find(obj, key, needed, &v, err);

    if (status != SV_OK || !v)
        return status;
    x = json_number_value(v); /* 0 for anything else */
    if (!json_is_number(v) || !(x >= lo && x <= hi))
        return sv_fail(err, SV_EINVAL, -1, "field '%s' must be a number in [%g, %g]", key, lo, hi);
    *out = x;
    return SV_OK;
}

int sv_json_int(const json_t *obj, const char *key, int64_t lo, int64_t hi, int64_t *out,
                struct sv_err *err)
{
    return get_int(obj, key, true, lo, hi, out, err);
}

int sv_json_int_opt(const json_t *obj, const char *key, int64_t lo, int64_t hi, int64_t *out,
                    struct sv_err *err)
{
    return get_int(obj, key, false, lo, hi, out, err);
}

int sv_json_num(const json_t *obj, const char *key, double lo, double hi, double *out,
                struct sv_err *err)
{
    return get_num(obj, key, true, lo, hi, out, err);
}

int sv_json_num_opt(const json_t *obj, const char *key, double lo, double hi, double *out,
                    struct sv_err *err)
{
    return get_num(obj, key, false, lo, hi, out, err);
}

int sv_json_bool_opt(const json_t *obj, const char *key, bool *out, struct sv_err *err)
{
    const json_t *v;
    int status = find(obj, key, false, &v, err);

    if (status != SV_OK || !v)
        return status;
    if (!json_is_boolean(v))
        return sv_fail(err, SV_EINVAL, -1, "field '%s' must be true or false", key);
    *out = json_is_true(v);
    return SV_OK;
}

int sv_json_str_opt(const json_t *obj, const char *key, const char **out, struct sv_err *err)
{
    const json_t *v;
    int status = find(obj, key, false, &v, err);

    if (status != SV_OK || !v)
        return status;
    if (!json_is_string(v))
        return sv_fail(err, SV_EINVAL, -1, "field '%s' must be a string", key);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return sv_fail(err, SV_EINVAL, -1, "field '%s' must not hold a NUL character", key);
    *out = json_string_value(v);
    return SV_OK;
}

/* ---------------------------------------------------------------- writing */

/* Bytes of the well-formed UTF-8 sequence at p, or 0. Then *bad is how many bytes one U+FFFD stands
 * for: the longest start of a well-formed sequence, as the Unicode standard recommends. */
static size_t utf8_len(const unsigned char *p, size_t n, size_t *bad)
{
    unsigned lo = 0x80, hi = 0xBF; /* range of the second byte */
    size_t need;

    *bad = 1;
    if (p[0] < 0x80)
        return 1;
    if (p[0] < 0xC2 || p[0] > 0xF4)
        return 0;
    need = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    if (p[0] == 0xE0)
        lo = 0xA0; /* overlong */
    else if (p[0] == 0xED)
        hi = 0x9F; /* surrogates */
    else if (p[0] == 0xF0)
        lo = 0x90; /* overlong */
    else if (p[0] == 0xF4)
        hi = 0x8F; /* above U+10FFFF */
    for (size_t i = 1; i < need; i++) {
        if (i == n || p[i] < lo || p[i] > hi)
            return 0;
        lo = 0x80;
        hi = 0xBF;
        *bad = i + 1;
    }
    return need;
}

static inline bool is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

/* Characters that stand for themselves: so many of p's first n bytes. Long runs eight at a time: a
 * byte that is no such character sets its highest bit in one of the four terms, and what it borrows
 * from those behind it does not matter then. */
static inline size_t plain_run(const unsigned char *p, size_t n)
{
    const uint64_t ones = 0x0101010101010101u;
    size_t i = 0, few = n < 16 ? n : 16;

    while (i < few && is_plain(p[i]))
        i++;
    if (i < few)
        return i;
    for (; i + 8 <= n; i += 8) {
        uint64_t v, quotes, slashes;
        memcpy(&v, p + i, 8);
        quotes = v ^ ones * '"';
        slashes = v ^ ones * '\\';
        if ((v | (v - ones * 0x20) | (quotes - ones) | (slashes - ones)) & ones * 0x80)
            break;
    }
    while (i < n && is_plain(p[i]))
        i++;
    return i;
}

/* The same of well-formed characters of several bytes; with 0, *bad as above. */
static inline size_t wide_run(const unsigned char *p, size_t n, size_t *bad)
{
    size_t i = 0, len = 1;

    while (i < n && p[i] >= 0x80 && len) {
        /* What most texts have, without looking closer. */
        if (n - i >= 3 && p[i] > 0xE0 && p[i] < 0xED && (p[i + 1] & 0xC0) == 0x80 &&
            (p[i + 2] & 0xC0) == 0x80)
            len = 3;
        else if (n - i >= 2 && p[i] >= 0xC2 && p[i] < 0xE0 && (p[i + 1] & 0xC0) == 0x80)
            len = 2;
        else
            len = utf8_len(p + i, n - i, bad);
        i += len;
    }
    return i;
}

/* Where there is room, without a call. */
static inline void put(struct sv_buf *b, const char *text, size_t n)
{
    if (b->cap - b->len <= n || b->failed) {
        sv_buf_append(b, text, n);
        return;
    }
    memcpy(b->data + b->len, text, n);
    b->len += n;
    b->data[b->len] = 0;
}

static void escape(struct sv_buf *b, unsigned char c)
{
    static const char hex[] = "0123456789abcdef";
    static const char letters[0x60] = {['"'] = '"',  ['\\'] = '\\', ['\n'] = 'n', ['\r'] = 'r',
                                       ['\t'] = 't', ['\b'] = 'b',  ['\f'] = 'f'};
    char text[6] = {'\\', letters[c], '0', '0', hex[c >> 4], hex[c & 15]};

    if (letters[c]) {
        put(b, text, 2);
    } else {
        text[1] = 'u';
        put(b, text, 6);
    }
}

void sv_json_quote(struct sv_buf *b, const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t start = 0, i = 0; /* [start, i) is copied as it is */

    if (n < PTRDIFF_MAX / 2)
        sv_buf_reserve(b, n + n / 8 + 2);
    put(b, "\"", 1);
    while (i < n) {
        size_t bad = 0, len = p[i] < 0x80 ? plain_run(p + i, n - i) : wide_run(p + i, n - i, &bad);
        i += len;
        if (len)
            continue;
        put(b, text + start, i - start);
        if (p[i] < 0x80) {
            escape(b, p[i++]);
        } else {
            put(b, "\xEF\xBF\xBD", 3);
            i += bad;
        }
        start = i;
    }
    put(b, text + start, n - start);
    put(b, "\"", 1);
}
