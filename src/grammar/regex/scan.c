/*
 * scan.c - the cursor over the text of a grammar (scan.h).
 *
 * Called by gbnf.c and regex.c. Must not: read past n, or continue after an error.
 */
#include "grammar/regex/scan.h"

#include <string.h>

void sv_scan_init(struct sv_scan *s, struct sv_build *b, const char *text, size_t n, int64_t pos)
{
    *s = (struct sv_scan){.b = b, .text = text, .n = n, .pos = pos < 0 ? 0 : pos};
}

void sv_scan_fini(struct sv_scan *s)
{
    sv_free(s->ranges.data);
    sv_free(s->parts.data);
}

void sv_scan_fail(struct sv_scan *s, int code, size_t at, const char *fmt, ...)
{
    char msg[300];
    va_list args;

    va_start(args, fmt);
    vsnprintf(msg, sizeof msg, fmt, args);
    va_end(args);
    sv_build_fail(s->b, code, s->pos + (int64_t)at, "%s", msg);
    s->at = s->n;
}

bool sv_scan_skip(struct sv_scan *s, char c)
{
    if (s->at == s->n || s->text[s->at] != c)
        return false;
    s->at++;
    return true;
}

uint32_t sv_scan_char(struct sv_scan *s)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const uint8_t *p = (const uint8_t *)s->text + s->at;
    size_t left = s->n - s->at, len;
    uint32_t c;

    if (left == 0)
        return SV_SCAN_END;
    len = p[0] < 0x80 ? 1 : p[0] < 0xC0 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    c = len == 1 ? p[0] : p[0] & (0x7Fu >> len);
    for (size_t i = 1; i < len; i++) {
        if (i >= left || (p[i] & 0xC0) != 0x80)
            len = 0;
        else
            c = c << 6 | (p[i] & 0x3F);
    }
    if (len == 0 || c < least[len] || c > SV_MAX_CODE_POINT || (c >= 0xD800 && c < 0xE000)) {
        sv_scan_fail(s, SV_EINVAL, s->at, "not UTF-8");
        return SV_SCAN_END;
    }
    s->at += len;
    return c;
}

void sv_scan_add(struct sv_scan *s, uint32_t lo, uint32_t hi)
{
    struct sv_range *r =
        sv_build_grow(s->b, &s->ranges, 1, sizeof *r, SV_MAX_NODES, "ranges of characters");

    if (r)
        *r = (struct sv_range){lo, hi};
}

/* ---------------------------------------------------------------- escapes */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Exactly n digits, or with n = 0 one to eight in braces. */
static uint32_t hex(struct sv_scan *s, int n, size_t start)
{
    bool braces = n == 0;
    uint32_t c = 0;
    int k = 0;

    if (braces)
        s->at++;
    for (; k < (braces ? 8 : n) && hex_digit(sv_scan_peek(s, 0)) >= 0; k++)
        c = c << 4 | (uint32_t)hex_digit(s->text[s->at++]);
    if (k == 0 || (!braces && k < n) || (braces && !sv_scan_skip(s, '}')))
        sv_scan_fail(s, SV_EINVAL, start, "the escape lacks hexadecimal digits");
    return c;
}

/* \uXXXX; a pair of surrogates, each an escape of its own, is one character. */
static uint32_t hex_u(struct sv_scan *s, size_t start)
{
    uint32_t c = hex(s, sv_scan_peek(s, 0) == '{' ? 0 : 4, start), low;

    if (c >= 0xD800 && c < 0xDC00 && sv_scan_peek(s, 0) == '\\' && sv_scan_peek(s, 1) == 'u') {
        s->at += 2;
        low = hex(s, 4, start);
        if (low >= 0xDC00 && low < 0xE000)
            return 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    return c;
}

struct named_class {
    char letter;
    uint8_t n;
    struct sv_range ranges[10];
};

/* \d and \w as ECMAScript has them (ASCII), \s with Unicode's spaces. */
static const struct named_class named[] = {
    {'d', 1, {{'0', '9'}}},
    {'w', 4, {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}},
    {'s',
     10,
     {{'\t', '\r'},
      {' ', ' '},
      {0xA0, 0xA0},
      {0x1680, 0x1680},
      {0x2000, 0x200A},
      {0x2028, 0x2029},
      {0x202F, 0x202F},
      {0x205F, 0x205F},
      {0x3000, 0x3000},
      {0xFEFF, 0xFEFF}}},
};

/* Adds \d, \w, \s or, as a capital letter, its complement. */
static bool add_named(struct sv_scan *s, char letter)
{
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        struct sv_range r[SV_TIDY_ROOM(10)];
        uint32_t n = named[i].n;
        if ((letter | 0x20) != named[i].letter)
            continue;
        memcpy(r, named[i].ranges, n * sizeof *r);
        n = sv_ranges_tidy(r, n, letter < 'a');
        for (uint32_t k = 0; k < n; k++)
            sv_scan_add(s, r[k].lo, r[k].hi);
        return true;
    }
    return false;
}

uint32_t sv_scan_escape(struct sv_scan *s)
{
    static const char letters[] = "nrtfv0", values[] = "\n\r\t\f\v";
    const size_t start = s->at - 1;
    uint32_t c = sv_scan_char(s);
    const char *letter = c && c < 128 ? strchr(letters, (int)c) : NULL;

    if (c == SV_SCAN_END) {
        sv_scan_fail(s, SV_EINVAL, start, "a backslash at the end");
        return SV_SCAN_END;
    }
    if (c < 128 && add_named(s, (char)c))
        return SV_SCAN_END;
    if (letter && *letter)
        c = (uint32_t)values[letter - letters];
    else if (c == 'x')
        c = hex(s, sv_scan_peek(s, 0) == '{' ? 0 : 2, start);
    else if (c == 'u')
        c = hex_u(s, start);
    else if (c == 'U')
        c = hex(s, 8, start);
    else if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'))
        sv_scan_fail(s, SV_EUNSUPPORTED, start, "the escape \\%c is not supported", (char)c);
    if (c > SV_MAX_CODE_POINT || (c >= 0xD800 && c < 0xE000))
        sv_scan_fail(s, SV_EINVAL, start, "the escape is no character");
    if (s->b->err.code)
        return SV_SCAN_END;
    sv_scan_add(s, c, c);
    return c;
}

/* ---------------------------------------------------------------- classes */

/* Adds one character of a class to the ranges, or a named class. Returns the character, SV_SCAN_END
 * for a class. */
static uint32_t class_char(struct sv_scan *s)
{
    uint32_t c;

    if (sv_scan_peek(s, 0) == '\\' && sv_scan_peek(s, 1) == 'b') { /* in a class: backspace */
        s->at += 2;
        c = '\b';
    } else if (sv_scan_skip(s, '\\')) {
        return sv_scan_escape(s);
    } else {
        c = sv_scan_char(s);
    }
    if (c != SV_SCAN_END)
        sv_scan_add(s, c, c);
    return c;
}

void sv_scan_class(struct sv_scan *s, bool first_bracket)
{
    const size_t start = s->at - 1;
    bool negate = sv_scan_skip(s, '^'), first = first_bracket;

    s->ranges.n = 0;
    while (s->at < s->n && (first || s->text[s->at] != ']')) {
        size_t at = s->at;
        uint32_t lo = class_char(s), hi;
        struct sv_range *r;
        first = false;
        if (s->b->err.code)
            return;
        if (lo == SV_SCAN_END || sv_scan_peek(s, 0) != '-' || sv_scan_peek(s, 1) == ']' ||
            s->n - s->at < 2)
            continue;
        s->at++;
        hi = class_char(s);
        if (hi == SV_SCAN_END || hi < lo) {
            sv_scan_fail(s, SV_EINVAL, at, "the range of characters ends before it begins");
        }
        if (s->b->err.code)
            return;
        s->ranges.n--; /* the two ends become one range */
        r = (struct sv_range *)s->ranges.data + s->ranges.n - 1;
        r->hi = hi;
    }
    if (!sv_scan_skip(s, ']')) {
        sv_scan_fail(s, SV_EINVAL, start, "[ without ]");
        return;
    }
    if (sv_build_grow(s->b, &s->ranges, SV_TIDY_ROOM(s->ranges.n) - s->ranges.n,
                      sizeof(struct sv_range), 4 * SV_MAX_NODES, "ranges of characters")) {
        uint32_t n = (s->ranges.n - 6) / 3;
        s->ranges.n = sv_ranges_tidy(s->ranges.data, n, negate);
    }
}

/* ---------------------------------------------------------------- repetitions */

/* Digits at the cursor; -1: none. More than SV_MAX_REPEAT becomes one more than that. */
static int32_t number(struct sv_scan *s)
{
    int32_t x = -1;

    for (; sv_scan_peek(s, 0) >= '0' && sv_scan_peek(s, 0) <= '9'; s->at++) {
        x = (x < 0 ? 0 : x * 10) + (s->text[s->at] - '0');
        if (x > SV_MAX_REPEAT)
            x = SV_MAX_REPEAT + 1;
    }
    return x;
}

bool sv_scan_repeat(struct sv_scan *s, int32_t *min, int32_t *max)
{
    const size_t start = s->at;
    bool comma;

    *min = sv_scan_peek(s, 0) == '+';
    *max = sv_scan_peek(s, 0) == '?' ? 1 : -1;
    if (sv_scan_skip(s, '*') || sv_scan_skip(s, '+') || sv_scan_skip(s, '?'))
        return true;
    if (!sv_scan_skip(s, '{'))
        return false;
    *min = number(s);
    comma = sv_scan_skip(s, ',');
    *max = comma ? number(s) : *min;
    if (!sv_scan_skip(s, '}') || (*min < 0 && *max < 0)) {
        s->at = start;
        return false;
    }
    *min = *min < 0 ? 0 : *min;
    if (*min > SV_MAX_REPEAT || *max > SV_MAX_REPEAT)
        sv_scan_fail(s, SV_EFULL, start, "more than %d repetitions", SV_MAX_REPEAT);
    else if (*max != -1 && *max < *min)
        sv_scan_fail(s, SV_EINVAL, start, "the most repetitions are fewer than the least");
    if (s->b->err.code)
        *min = *max = 1;
    return true;
}

/* ---------------------------------------------------------------- parts and groups */

void sv_scan_push(struct sv_scan *s, sv_expr x)
{
    sv_expr *to = sv_build_grow(s->b, &s->parts, 1, sizeof x, SV_MAX_EXPRS, "expressions");

    if (to)
        *to = x;
}

typedef sv_expr (*combine_fn)(struct sv_build *b, const sv_expr *parts, size_t n);

static sv_expr combine(struct sv_scan *s, uint32_t base, combine_fn fn)
{
    uint32_t n = s->parts.n - base;

    s->parts.n = base;
    if (s->b->err.code || n == 0)
        return fn(s->b, NULL, 0);
    return fn(s->b, (const sv_expr *)s->parts.data + base, n);
}

sv_expr sv_scan_seq(struct sv_scan *s, uint32_t base)
{
    return combine(s, base, sv_build_seq);
}

sv_expr sv_scan_alt(struct sv_scan *s, uint32_t base)
{
    return combine(s, base, sv_build_alt);
}

void sv_scan_enter(struct sv_scan *s, size_t start)
{
    if (++s->depth > SV_MAX_GROUPS)
        sv_scan_fail(s, SV_EFULL, start, "more than %d groups in one another", SV_MAX_GROUPS);
}

void sv_scan_leave(struct sv_scan *s, size_t start)
{
    if (!sv_scan_skip(s, ')'))
        sv_scan_fail(s, SV_EINVAL, start, "( without )");
    s->depth--;
}
