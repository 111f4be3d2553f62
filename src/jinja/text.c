/*
 * text.c - Python's string operations on UTF-8: counting, case, stripping, splitting,
 * replacing.
 *
 * Called by the operators, methods and filters. Slices share the bytes of their source. Must not:
 * get text that is not UTF-8, or count bytes where Python counts code points.
 */
#define _GNU_SOURCE /* memmem, which is linear */

#include "jinja/run.h"
#include "jinja/text.h"
#include "jinja/case.h"

#include <utf8proc.h>

bool sv_j_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

static int category(uint32_t cp)
{
    return (int)utf8proc_category((utf8proc_int32_t)cp);
}

bool sv_j_printable(uint32_t cp)
{
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return cp == ' ';
    default:
        return true;
    }
}

size_t sv_j_n_cp(struct sv_jx *x, const char *p, size_t n)
{
    size_t count = 0;

    sv_j_read(x, n);
    for (size_t i = 0; i < n; i++)
        count += ((uint8_t)p[i] & 0xC0) != 0x80;
    return count;
}

size_t sv_j_cp_to_byte(struct sv_jx *x, const char *p, size_t n, size_t cp)
{
    size_t i = 0;
    int len;

    for (; i < n && cp; cp--) {
        (void)sv_utf8_get(p + i, &len);
        i += (size_t)len;
    }
    sv_j_read(x, i);
    return i;
}

const char *sv_j_find(struct sv_jx *x, const char *p, size_t n, const char *q, size_t m)
{
    const char *hit = !m ? p : m <= n ? memmem(p, n, q, m) : NULL;

    sv_j_read(x, hit ? (size_t)(hit - p) + m : m <= n ? n : 0);
    return hit;
}

const char *sv_j_rfind(struct sv_jx *x, const char *p, size_t n, const char *q, size_t m)
{
    size_t i;

    if (m > n)
        return NULL;
    if (!m)
        return p + n;
    for (i = n - m + 1; i-- > 0;) {
        if (p[i] != q[0])
            continue;
        sv_j_copied(x, m);
        if (memcmp(p + i, q, m) == 0)
            break;
    }
    sv_j_read(x, n - m - i); /* the whole text when i is below 0 */
    return i < n ? p + i : NULL;
}

/* ---------------------------------------------------------------- stripping */

static bool in_set(const struct sv_jval *chars, const char *c, size_t len)
{
    return memmem(chars->u.s.p, chars->u.s.n, c, len) != NULL;
}

static bool to_strip(struct sv_jx *x, const struct sv_jval *chars, const char *c, int *len)
{
    uint32_t cp = sv_utf8_get(c, len);

    sv_j_read(x, chars ? chars->u.s.n : 0);
    return chars ? in_set(chars, c, (size_t)*len) : sv_j_space(cp);
}

struct sv_jval sv_j_strip(struct sv_jx *x, struct sv_jval s, const struct sv_jval *chars, int sides)
{
    const char *p = s.u.s.p, *end = p + s.u.s.n;
    int len;

    while ((sides & SV_J_LEFT) && p < end && to_strip(x, chars, p, &len))
        p += len;
    while ((sides & SV_J_RIGHT) && end > p) {
        const char *last = end - 1;
        while (((uint8_t)*last & 0xC0) == 0x80)
            last--;
        if (!to_strip(x, chars, last, &len))
            break;
        end = last;
    }
    sv_j_read(x, s.u.s.n - (size_t)(end - p));
    s.u.s.p = p;
    s.u.s.n = (size_t)(end - p);
    return s;
}

/* ---------------------------------------------------------------- case */

enum casing { UPPER, LOWER, TITLE };

static const struct sv_jcase *special(const struct sv_jcase *table, size_t n, uint32_t cp)
{
    for (size_t i = 0; i < n && table[i].from <= cp; i++)
        if (table[i].from == cp)
            return &table[i];
    return NULL;
}

static bool cased(uint32_t cp)
{
    int c = category(cp);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT ||
           cp == 0xAA || cp == 0xBA || (cp >= 0x2160 && cp <= 0x217F) ||
           (cp >= 0x24B6 && cp <= 0x24E9);
}

static bool case_ignorable(uint32_t cp)
{
    int c = category(cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK || cp == '\'' || cp == '.' ||
           cp == ':' || cp == 0xB7 || cp == 0x2018 || cp == 0x2019 || cp == 0x2024 || cp == 0x2027;
}

/* Whether the capital sigma at byte i ends a word. */
static bool final_sigma(const struct sv_jval *s, size_t i)
{
    const char *p = s->u.s.p;
    bool before = false;
    size_t k = i;
    int len;

    while (k > 0) {
        k--;
        while (((uint8_t)p[k] & 0xC0) == 0x80)
            k--;
        uint32_t cp = sv_utf8_get(p + k, &len);
        if (case_ignorable(cp))
            continue;
        before = cased(cp);
        break;
    }
    for (k = i + 2; before && k < s->u.s.n; k += (size_t)len) {
        uint32_t cp = sv_utf8_get(p + k, &len);
        if (!case_ignorable(cp))
            return !cased(cp);
    }
    return before;
}

static void put_cased(struct sv_jx *x, struct sv_jbuild *b, const struct sv_jval *s, size_t i,
                      uint32_t cp, enum casing to)
{
    const struct sv_jcase *more = NULL;

    if (cp < 0x80) {
        bool lower = cp >= 'a' && cp <= 'z', upper = cp >= 'A' && cp <= 'Z';
        sv_j_putc(x, b, (char)(to == LOWER ? cp + 32 * upper : cp - 32 * lower));
        return;
    }
    if (to == LOWER) {
        if (cp == 0x130)
            sv_j_puts(x, b, "i\xCC\x87");
        else if (cp == 0x3A3)
            sv_j_put_cp(x, b, final_sigma(s, i) ? 0x3C2 : 0x3C3);
        else
            sv_j_put_cp(x, b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
        return;
    }
    more = to == UPPER ? special(special_upper, sizeof special_upper / sizeof *special_upper, cp)
                       : special(special_title, sizeof special_title / sizeof *special_title, cp);
    if (!more)
        sv_j_put_cp(x, b,
                    (uint32_t)(to == UPPER ? utf8proc_toupper((utf8proc_int32_t)cp)
                                           : utf8proc_totitle((utf8proc_int32_t)cp)));
    for (int k = 0; more && k < 3 && more->to[k]; k++)
        sv_j_put_cp(x, b, more->to[k]);
}

/* The mapping of a code point depends on its position. */
enum rule { ALL_UPPER, ALL_LOWER, FIRST_TITLE, WORDS, SWAP, AFTER_MARK };

static bool begins_word(uint32_t cp) /* the title filter's word separators */
{
    return sv_j_space(cp) || cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<';
}

static struct sv_jval recase(struct sv_jx *x, struct sv_jval s, enum rule rule)
{
    struct sv_jbuild b = {0};
    bool in_word = false;
    struct sv_jval v;
    int len;

    sv_j_step(x, s.u.s.n / 4);
    for (size_t i = 0; i < s.u.s.n; i += (size_t)len) {
        uint32_t cp = sv_utf8_get(s.u.s.p + i, &len);
        enum casing to = LOWER;
        if (rule == ALL_UPPER || (rule == AFTER_MARK && !in_word))
            to = UPPER;
        else if ((rule == FIRST_TITLE && i == 0) || (rule == WORDS && !in_word))
            to = TITLE;
        else if (rule == SWAP)
            to = category(cp) == UTF8PROC_CATEGORY_LU ? LOWER : UPPER;
        put_cased(x, &b, &s, i, cp, to);
        in_word = rule == AFTER_MARK ? !begins_word(cp) : cased(cp);
    }
    v = sv_j_built(&b);
    v.sub = s.sub;
    return v;
}

struct sv_jval sv_j_upper(struct sv_jx *x, struct sv_jval s)
{
    return recase(x, s, ALL_UPPER);
}

struct sv_jval sv_j_lower(struct sv_jx *x, struct sv_jval s)
{
    return recase(x, s, ALL_LOWER);
}

struct sv_jval sv_j_capitalize(struct sv_jx *x, struct sv_jval s)
{
    return recase(x, s, FIRST_TITLE);
}

struct sv_jval sv_j_title(struct sv_jx *x, struct sv_jval s)
{
    return recase(x, s, WORDS);
}

struct sv_jval sv_j_title_words(struct sv_jx *x, struct sv_jval s)
{
    s.sub = 0; /* "".join gives a plain string */
    return recase(x, s, AFTER_MARK);
}

struct sv_jval sv_j_swapcase(struct sv_jx *x, struct sv_jval s)
{
    return recase(x, s, SWAP);
}

static bool cp_is(uint32_t cp, const char *what)
{
    int c = category(cp);
    bool letter = c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
    bool digit = c == UTF8PROC_CATEGORY_ND;
    bool super = cp == 0xB2 || cp == 0xB3 || cp == 0xB9 || (cp >= 0x2070 && cp <= 0x2089);

    if (strcmp(what, "isalpha") == 0)
        return letter;
    if (strcmp(what, "isalnum") == 0)
        return letter || digit || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
    if (strcmp(what, "isdecimal") == 0)
        return digit;
    if (strcmp(what, "isdigit") == 0)
        return digit || super;
    if (strcmp(what, "isnumeric") == 0)
        return digit || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
    if (strcmp(what, "isspace") == 0)
        return sv_j_space(cp);
    if (strcmp(what, "isascii") == 0)
        return cp < 0x80;
    return strcmp(what, "isprintable") == 0 && sv_j_printable(cp);
}

bool sv_j_str_is(struct sv_jx *x, const struct sv_jval *s, const char *what)
{
    bool upper = strcmp(what, "isupper") == 0, lower = strcmp(what, "islower") == 0, any = false;
    int len;

    sv_j_step(x, s->u.s.n / 4);
    for (size_t i = 0; i < s->u.s.n; i += (size_t)len) {
        uint32_t cp = sv_utf8_get(s->u.s.p + i, &len);
        int c = category(cp);
        if (!upper && !lower) {
            if (!cp_is(cp, what))
                return false;
            continue;
        }
        if (c == UTF8PROC_CATEGORY_LT || (upper && c == UTF8PROC_CATEGORY_LL) ||
            (lower && c == UTF8PROC_CATEGORY_LU))
            return false;
        any = any || cased(cp);
    }
    if (upper || lower)
        return any;
    return s->u.s.n || strcmp(what, "isascii") == 0 || strcmp(what, "isprintable") == 0;
}

/* ---------------------------------------------------------------- cutting and joining */

static struct sv_jval part(const struct sv_jval *s, const char *from, const char *to)
{
    struct sv_jval v = sv_j_str(from, (size_t)(to - from));
    v.sub = s->sub;
    return v;
}

struct sv_jval sv_j_replace(struct sv_jx *x, struct sv_jval s, struct sv_jval old,
                            struct sv_jval new, int64_t count)
{
    const char *p = s.u.s.p, *end = p + s.u.s.n;
    struct sv_jbuild b = {0};
    struct sv_jval v;
    int len;

    while (count != 0) {
        const char *hit = sv_j_find(x, p, (size_t)(end - p), old.u.s.p, old.u.s.n);
        if (!hit)
            break;
        sv_j_put(x, &b, p, (size_t)(hit - p));
        sv_j_put(x, &b, new.u.s.p, new.u.s.n);
        sv_j_step(x, 1);
        p = hit + old.u.s.n;
        count -= count > 0;
        if (!old.u.s.n) { /* between all code points */
            if (p >= end)
                break;
            (void)sv_utf8_get(p, &len);
            sv_j_put(x, &b, p, (size_t)len);
            p += len;
        }
    }
    if (p == s.u.s.p && !b.n)
        return s;
    sv_j_put(x, &b, p, (size_t)(end - p));
    v = sv_j_built(&b);
    v.sub = s.sub;
    return v;
}

static bool line_end(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

struct sv_jlist *sv_j_splitlines(struct sv_jx *x, struct sv_jval s, bool keep)
{
    const char *p = s.u.s.p, *end = p + s.u.s.n, *line = p;
    struct sv_jlist *l = sv_j_list_new(x, 0);
    int len;

    sv_j_read(x, s.u.s.n);
    while (p < end) {
        const char *stop = p;
        uint32_t cp = sv_utf8_get(p, &len);
        p += len;
        if (!line_end(cp))
            continue;
        if (cp == '\r' && p < end && *p == '\n')
            p++;
        sv_j_list_push(x, l, part(&s, line, keep ? p : stop));
        line = p;
    }
    if (line < end)
        sv_j_list_push(x, l, part(&s, line, end));
    return l;
}

static void reverse_list(struct sv_jlist *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct sv_jval v = l->item[i];
        l->item[i] = l->item[l->n - 1 - i];
        l->item[l->n - 1 - i] = v;
    }
}

static void split_space(struct sv_jx *x, struct sv_jval s, int64_t max, bool right,
                        struct sv_jlist *l)
{
    int side = right ? SV_J_RIGHT : SV_J_LEFT, len;

    for (;;) {
        const char *p, *end;
        s = sv_j_strip(x, s, NULL, side);
        p = s.u.s.p;
        end = p + s.u.s.n;
        if (p == end)
            return;
        sv_j_step(x, 1);
        if (max-- == 0) { /* the rest is one piece */
            sv_j_list_push(x, l,
                           sv_j_strip(x, s, NULL, right ? SV_J_LEFT | SV_J_RIGHT : SV_J_LEFT));
            return;
        }
        if (right) {
            const char *cut = end;
            while (cut > p) {
                const char *last = cut - 1;
                while (((uint8_t)*last & 0xC0) == 0x80)
                    last--;
                if (sv_j_space(sv_utf8_get(last, &len)))
                    break;
                cut = last;
            }
            sv_j_read(x, (size_t)(end - cut));
            sv_j_list_push(x, l, part(&s, cut, end));
            s = part(&s, p, cut);
        } else {
            const char *cut = p;
            while (cut < end && !sv_j_space(sv_utf8_get(cut, &len)))
                cut += len;
            sv_j_read(x, (size_t)(cut - p));
            sv_j_list_push(x, l, part(&s, p, cut));
            s = part(&s, cut, end);
        }
    }
}

struct sv_jlist *sv_j_split(struct sv_jx *x, struct sv_jval s, const struct sv_jval *sep,
                            int64_t max, bool right)
{
    struct sv_jlist *l = sv_j_list_new(x, 0);
    const char *p = s.u.s.p, *end = p + s.u.s.n, *hit;

    if (!sep) {
        split_space(x, s, max, right, l);
    } else {
        size_t m = sep->u.s.n;
        if (!m)
            sv_j_throw(x, SV_EINVAL, "empty separator");
        while (max-- != 0) {
            hit = right ? sv_j_rfind(x, p, (size_t)(end - p), sep->u.s.p, m)
                        : sv_j_find(x, p, (size_t)(end - p), sep->u.s.p, m);
            if (!hit)
                break;
            sv_j_step(x, 1);
            sv_j_list_push(x, l, right ? part(&s, hit + m, end) : part(&s, p, hit));
            if (right)
                end = hit;
            else
                p = hit + m;
        }
        sv_j_list_push(x, l, part(&s, p, end));
    }
    if (right)
        reverse_list(l);
    return l;
}
