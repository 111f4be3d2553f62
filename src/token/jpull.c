/*
 * jpull.c - a pull reader for JSON text: strings, integers, containers, each error with its byte.
 *
 * Called by the tokenizer.json parser, whose vocabulary and merges are too many for a tree of
 * nodes. Must not: allocate except into the caller's buffers, or recurse without the depth limit.
 */
#include "token/tok.h"

#include <string.h>

int sv_jpull_fail(struct sv_jpull *j, size_t pos, const char *fmt, ...)
{
    char text[320];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return sv_fail(j->err, SV_EFORMAT, (int64_t)pos, "byte %zu: %s", pos, text);
}

int sv_jpull_peek(struct sv_jpull *j)
{
    while (j->pos < j->n) {
        char c = j->text[j->pos];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r')
            return (unsigned char)c;
        j->pos++;
    }
    return -1;
}

static int hex4(struct sv_jpull *j, uint32_t *out)
{
    uint32_t v = 0;

    if (j->n - j->pos < 4)
        return sv_jpull_fail(j, j->pos, "the text ends inside \\u");
    for (int i = 0; i < 4; i++) {
        char c = j->text[j->pos++];
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (d < 0)
            return sv_jpull_fail(j, j->pos - 1, "\\u needs four hexadecimal digits");
        v = v << 4 | (uint32_t)d;
    }
    *out = v;
    return SV_OK;
}

/* After "\u": one code point, surrogate pairs joined. */
static int unicode_escape(struct sv_jpull *j, struct sv_buf *out)
{
    size_t start = j->pos;
    uint32_t cp = 0, low = 0;
    char utf8[4];
    int rc = hex4(j, &cp);

    if (rc < 0)
        return rc;
    if (cp >= 0xDC00 && cp < 0xE000)
        return sv_jpull_fail(j, start, "a low surrogate without a high one");
    if (cp >= 0xD800 && cp < 0xDC00) {
        if (j->n - j->pos < 2 || j->text[j->pos] != '\\' || j->text[j->pos + 1] != 'u')
            return sv_jpull_fail(j, start, "a high surrogate without a low one");
        j->pos += 2;
        rc = hex4(j, &low);
        if (rc < 0)
            return rc;
        if (low < 0xDC00 || low >= 0xE000)
            return sv_jpull_fail(j, start, "a high surrogate without a low one");
        cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
    }
    sv_buf_append(out, utf8, (size_t)sv_utf8_put(cp, utf8));
    return SV_OK;
}

static int escape(struct sv_jpull *j, struct sv_buf *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *at;
    char c;

    if (j->pos >= j->n)
        return sv_jpull_fail(j, j->pos, "the text ends inside a string");
    c = j->text[j->pos++];
    if (c == 'u')
        return unicode_escape(j, out);
    at = c ? strchr(from, c) : NULL;
    if (!at)
        return sv_jpull_fail(j, j->pos - 1, "unknown escape in a string");
    sv_buf_append(out, to + (at - from), 1);
    return SV_OK;
}

int sv_jpull_string(struct sv_jpull *j, struct sv_buf *out)
{
    size_t start;

    sv_buf_clear(out);
    if (sv_jpull_peek(j) != '"')
        return sv_jpull_fail(j, j->pos, "expected a string");
    start = j->pos++;
    for (;;) {
        size_t from = j->pos;
        unsigned char c = 0;
        while (j->pos < j->n) {
            c = (unsigned char)j->text[j->pos];
            if (c == '"' || c == '\\' || c < 0x20)
                break;
            j->pos++;
        }
        if (j->pos >= j->n)
            return sv_jpull_fail(j, start, "this string has no end");
        size_t good = sv_utf8_valid(j->text + from, j->pos - from);
        if (good != j->pos - from)
            return sv_jpull_fail(j, from + good, "not UTF-8");
        sv_buf_append(out, j->text + from, j->pos - from);
        if (c < 0x20)
            return sv_jpull_fail(j, j->pos, "a control character inside a string");
        j->pos++;
        if (c == '"')
            break;
        int rc = escape(j, out);
        if (rc < 0)
            return rc;
    }
    return out->failed ? sv_fail(j->err, SV_ENOMEM, -1, "out of memory") : SV_OK;
}

int sv_jpull_int(struct sv_jpull *j, int64_t lo, int64_t hi, int64_t *out)
{
    uint64_t v = 0;
    size_t start;
    bool minus = false;
    int n_digits = 0;

    (void)sv_jpull_peek(j);
    start = j->pos;
    if (j->pos < j->n && j->text[j->pos] == '-') {
        minus = true;
        j->pos++;
    }
    while (j->pos < j->n && j->text[j->pos] >= '0' && j->text[j->pos] <= '9') {
        if (++n_digits > 18)
            return sv_jpull_fail(j, start, "the number is out of range [%lld, %lld]", (long long)lo,
                                 (long long)hi);
        v = v * 10 + (uint64_t)(j->text[j->pos++] - '0');
    }
    if (!n_digits)
        return sv_jpull_fail(j, start, "expected an integer");
    if (j->pos < j->n && strchr(".eE", j->text[j->pos]) && j->text[j->pos])
        return sv_jpull_fail(j, start, "expected an integer, not a fraction");
    *out = minus ? -(int64_t)v : (int64_t)v;
    if (*out < lo || *out > hi)
        return sv_jpull_fail(j, start, "%lld is out of range [%lld, %lld]", (long long)*out,
                             (long long)lo, (long long)hi);
    return SV_OK;
}

static bool word(struct sv_jpull *j, const char *w)
{
    size_t n = strlen(w);
    if (j->n - j->pos < n || memcmp(j->text + j->pos, w, n) != 0)
        return false;
    j->pos += n;
    return true;
}

int sv_jpull_bool(struct sv_jpull *j, bool *out)
{
    (void)sv_jpull_peek(j);
    if (word(j, "true"))
        *out = true;
    else if (word(j, "false"))
        *out = false;
    else
        return sv_jpull_fail(j, j->pos, "expected true or false");
    return SV_OK;
}

static int skip_string(struct sv_jpull *j)
{
    size_t start = j->pos++;
    while (j->pos < j->n) {
        char c = j->text[j->pos++];
        if (c == '"')
            return SV_OK;
        if (c == '\\')
            j->pos++;
    }
    return sv_jpull_fail(j, start, "this string has no end");
}

/* Brackets are only counted here: the reader of the span checks the rest of the grammar. */
int sv_jpull_skip(struct sv_jpull *j)
{
    char stack[SV_JPULL_DEPTH];
    int depth = 0;

    do {
        int c = sv_jpull_peek(j), rc;
        switch (c) {
        case -1:
            return sv_jpull_fail(j, j->pos, "the text ends inside a value");
        case '"':
            rc = skip_string(j);
            if (rc < 0)
                return rc;
            break;
        case '{':
        case '[':
            if (depth == SV_JPULL_DEPTH)
                return sv_jpull_fail(j, j->pos, "nested deeper than %d", SV_JPULL_DEPTH);
            stack[depth++] = c == '{' ? '}' : ']';
            j->pos++;
            break;
        case '}':
        case ']':
            if (!depth || stack[depth - 1] != c)
                return sv_jpull_fail(j, j->pos, "unexpected '%c'", c);
            depth--;
            j->pos++;
            break;
        case ',':
        case ':':
            if (!depth)
                return sv_jpull_fail(j, j->pos, "unexpected '%c'", c);
            j->pos++;
            break;
        default: {
            size_t from = j->pos;
            while (j->pos < j->n && j->text[j->pos] &&
                   strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzE", j->text[j->pos]))
                j->pos++;
            if (j->pos == from)
                return sv_jpull_fail(j, from, "unexpected byte 0x%02x", (unsigned)c);
        }
        }
    } while (depth);
    return SV_OK;
}

int sv_jpull_enter(struct sv_jpull *j, char open)
{
    if (sv_jpull_peek(j) != open)
        return sv_jpull_fail(j, j->pos, "expected %s", open == '{' ? "an object" : "an array");
    j->pos++;
    return SV_OK;
}

int sv_jpull_more(struct sv_jpull *j, char close, bool *first, struct sv_buf *key)
{
    int c = sv_jpull_peek(j), rc;

    if (c == close) {
        j->pos++;
        return 0;
    }
    if (!*first) {
        if (c != ',')
            return sv_jpull_fail(j, j->pos, "expected ',' or '%c'", close);
        j->pos++;
    }
    *first = false;
    if (sv_jpull_peek(j) < 0)
        return sv_jpull_fail(j, j->pos, "the text ends early");
    if (!key)
        return 1;
    rc = sv_jpull_string(j, key);
    if (rc < 0)
        return rc;
    if (sv_jpull_peek(j) != ':')
        return sv_jpull_fail(j, j->pos, "expected ':'");
    j->pos++;
    return 1;
}
