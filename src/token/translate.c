/*
 * translate.c - rewrites a split expression from Oniguruma's dialect into PCRE2's, or refuses it.
 *
 * Called by regex.c. The reference library matches with Oniguruma (Ruby syntax); where PCRE2 reads
 * the same text differently the expression is rewritten, and what is not known to be equivalent is
 * refused with its position: an inexact tokenizer is worse than none. Differences handled: \s and
 * \w (PCRE2 10.42 counts U+180E as space and no marks as word), \h, \v, \uHHHH, {,n}, {n,m}+
 * (repeated, not possessive), scripts (\p{Han} is Script there, Script_Extensions here), ^ and $
 * (always by line).
 */
#include "token/tok.h"
#include "token/unicode_new.h"

#include <string.h>

#define SPACES                                                                                     \
    "\\t-\\r\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"   \
    "\\x{3000}"
#define WORDS                                                                                      \
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}" SV_NEW_LU SV_NEW_LL SV_NEW_LM SV_NEW_LO SV_NEW_ND SV_NEW_M
/* Oniguruma alone: outside of a class \w also takes the superscripts and fractions of Latin-1. */
#define WORDS_ALONE WORDS "\\xb2\\xb3\\xb9\\xbc-\\xbe"
#define DIGITS "\\p{Nd}" SV_NEW_ND
#define HEX "0-9a-fA-F"

struct rewrite {
    const char *s;
    size_t n, i;
    struct sv_buf *out;
    struct sv_err *err;
    size_t group[64]; /* output offsets of open groups */
    int depth;
    size_t atom; /* output offset of the last atom; SIZE_MAX: nothing to repeat */
};

static int refuse(struct rewrite *r, size_t at, const char *what)
{
    return sv_fail(r->err, SV_EUNSUPPORTED, (int64_t)at, "expression, character %zu: %s", at, what);
}

static void put(struct rewrite *r, const char *text)
{
    sv_buf_append(r->out, text, strlen(text));
}

static char at(const struct rewrite *r, size_t i)
{
    return i < r->n ? r->s[i] : 0;
}

static bool is_alnum(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

static int hex_value(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

/* \xHH, \x{H...} and \uHHHH; i is at the x or u. */
static int code_point(struct rewrite *r)
{
    size_t start = r->i - 1;
    bool braces = r->s[r->i] == 'x' && at(r, r->i + 1) == '{';
    int max = braces ? 6 : r->s[r->i] == 'u' ? 4 : 2, n = 0;
    uint32_t v = 0;
    char text[16];

    r->i += braces ? 2 : 1;
    while (n < max && hex_value(at(r, r->i)) >= 0) {
        v = v << 4 | (uint32_t)hex_value(r->s[r->i++]);
        n++;
    }
    if (!n || (!braces && n < max) || (braces && at(r, r->i++) != '}'))
        return refuse(r, start, "malformed code point");
    if (v > 0x10FFFF || (v >= 0xD800 && v < 0xE000) || (!braces && max == 2 && v >= 0x80))
        return refuse(r, start, "not a code point");
    snprintf(text, sizeof text, "\\x{%x}", v);
    put(r, text);
    return SV_OK;
}

static bool known_property(const char *name)
{
    static const char *const same[] = {"any",        "alphabetic", "white_space",
                                       "whitespace", "uppercase",  "lowercase",
                                       "emoji",      "id_start",   "id_continue"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (strcmp(name, same[i]) == 0)
            return true;
    return false;
}

/* Code points of a general category that PCRE2's tables may lack; NULL: none or unknown. */
static const char *newer_members(const char *name)
{
    static const struct {
        const char *name, *members;
    } table[] = {{"l", SV_NEW_LU SV_NEW_LL SV_NEW_LM SV_NEW_LO},
                 {"lu", SV_NEW_LU},
                 {"ll", SV_NEW_LL},
                 {"lm", SV_NEW_LM},
                 {"lo", SV_NEW_LO},
                 {"m", SV_NEW_M},
                 {"n", SV_NEW_ND SV_NEW_N},
                 {"nd", SV_NEW_ND},
                 {"p", SV_NEW_P},
                 {"s", SV_NEW_S},
                 {"han", "\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(name, table[i].name) == 0)
            return table[i].members;
    return NULL;
}

/* The name between the braces of \p{...} in lower case; i moves after the closing one. */
static int property_name(struct rewrite *r, size_t start, char *name, size_t room)
{
    static const char *const posix[] = {"alnum", "alpha",  "blank", "cntrl", "digit",
                                        "graph", "lower",  "print", "punct", "space",
                                        "upper", "xdigit", "word",  "ascii"};
    size_t n = 0;

    while (r->i < r->n && r->s[r->i] != '}') {
        char c = r->s[r->i++];
        if ((!is_alnum(c) && c != '_') || n + 1 >= room)
            return refuse(r, start, "malformed property name");
        name[n++] = c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
    }
    name[n] = 0;
    if (!n || r->i++ >= r->n)
        return refuse(r, start, "malformed property name");
    for (size_t k = 0; k < sizeof posix / sizeof posix[0]; k++)
        if (strcmp(name, posix[k]) == 0)
            return refuse(r, start, "POSIX property names differ between regex libraries");
    return SV_OK;
}

/* \p{...}, \P{...}; i is at the letter. Two letters at most are a general category. */
static int property(struct rewrite *r, bool in_class)
{
    size_t start = r->i - 1;
    bool negative = r->s[r->i] == 'P';
    const char *newer;
    char name[64], text[96];
    int rc;

    if (at(r, r->i + 1) != '{')
        return refuse(r, start, "\\p needs {}");
    r->i += 2;
    if (at(r, r->i) == '^') {
        negative = !negative;
        r->i++;
    }
    rc = property_name(r, start, name, sizeof name);
    if (rc < 0)
        return rc;
    newer = newer_members(name);
    snprintf(text, sizeof text, "\\%c{%s%s}", negative && (in_class || !newer) ? 'P' : 'p',
             strlen(name) > 2 && !known_property(name) ? "sc:" : "", name);
    if (newer && !in_class)
        put(r, negative ? "[^" : "[");
    put(r, text);
    if (newer && !(in_class && negative)) /* a class cannot exclude members */
        put(r, newer);
    if (newer && !in_class)
        put(r, "]");
    return SV_OK;
}

/* A backslash at i, inside or outside of a class. */
static int escape(struct rewrite *r, bool in_class)
{
    char c = at(r, r->i + 1), text[3] = {'\\', c, 0};

    r->i++;
    if (!c)
        return refuse(r, r->i - 1, "a backslash at the end");
    if (c == 'p' || c == 'P')
        return property(r, in_class);
    if (c == 'x' || c == 'u')
        return code_point(r);
    r->i++;
    if (!is_alnum(c) || strchr("nrtfae", c)) {
        if ((unsigned char)c >= 0x80) {
            r->i--; /* an escaped wide character is literal */
            return SV_OK;
        }
        put(r, text);
    } else if (c == 's') {
        put(r, in_class ? SPACES : "[" SPACES "]");
    } else if (c == 'w') {
        put(r, in_class ? WORDS : "[" WORDS_ALONE "]");
    } else if (c == 'd') {
        put(r, in_class ? DIGITS : "[" DIGITS "]");
    } else if (c == 'h') {
        put(r, in_class ? HEX : "[" HEX "]");
    } else if (c == 'S') {
        put(r, in_class ? "\\P{White_Space}" : "[^" SPACES "]");
    } else if (c == 'v') {
        put(r, "\\x0b");
    } else if (!in_class && (c == 'W' || c == 'H' || c == 'D')) {
        put(r, c == 'W' ? "[^" WORDS_ALONE "]" : c == 'H' ? "[^" HEX "]" : "[^" DIGITS "]");
    } else if (!in_class && (c == 'A' || c == 'z')) {
        put(r, text);
    } else {
        return refuse(r, r->i - 2, "this escape is not supported");
    }
    return SV_OK;
}

static int char_class(struct rewrite *r)
{
    size_t start = r->i++;

    put(r, "[");
    if (at(r, r->i) == '^') {
        put(r, "^");
        r->i++;
    }
    if (at(r, r->i) == ']')
        return refuse(r, start, "an empty class");
    while (r->i < r->n && r->s[r->i] != ']') {
        int rc = SV_OK;
        char c = r->s[r->i];
        if (c == '[')
            return refuse(r, r->i, "a class inside a class");
        if (c == '&' && at(r, r->i + 1) == '&')
            return refuse(r, r->i, "class intersection (&&)");
        if (c == '\\')
            rc = escape(r, true);
        else
            sv_buf_append(r->out, &r->s[r->i++], 1);
        if (rc < 0)
            return rc;
    }
    if (r->i++ >= r->n)
        return refuse(r, start, "this class has no end");
    put(r, "]");
    return SV_OK;
}

static int group(struct rewrite *r)
{
    static const char *const heads[] = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    size_t start = r->i;

    if (start == 0 && r->n >= 4 && memcmp(r->s, "(?i)", 4) == 0) {
        put(r, "(?i)");
        r->i = 4;
        r->atom = SIZE_MAX;
        return SV_OK;
    }
    if (at(r, start + 1) == '*')
        return refuse(r, start, "a verb or callout");
    if (r->depth == 64)
        return refuse(r, start, "groups nested deeper than 64");
    r->group[r->depth++] = r->out->len;
    r->atom = SIZE_MAX;
    if (at(r, start + 1) != '?') {
        put(r, "(?:"); /* groups are never referenced: no captures */
        r->i++;
        return SV_OK;
    }
    for (size_t k = 0; k < sizeof heads / sizeof heads[0]; k++) {
        size_t n = strlen(heads[k]);
        if (r->n - start >= n && memcmp(r->s + start, heads[k], n) == 0) {
            put(r, heads[k]);
            r->i += n;
            return SV_OK;
        }
    }
    return refuse(r, start, "this kind of group is not supported");
}

/* {n}, {n,}, {,m}, {n,m}; anything else after '{' is an ordinary brace. */
static int interval(struct rewrite *r)
{
    size_t i = r->i + 1;
    uint32_t v[2] = {0, 0};
    int n_digits[2] = {0, 0}, k = 0;
    char text[40];

    for (; i < r->n && (is_alnum(r->s[i]) || r->s[i] == ','); i++) {
        if (r->s[i] == ',' && k++ == 0)
            continue;
        if (r->s[i] < '0' || r->s[i] > '9' || k > 1 || ++n_digits[k] > 5)
            break;
        v[k] = v[k] * 10 + (uint32_t)(r->s[i] - '0');
    }
    if (at(r, i) != '}' || n_digits[0] + n_digits[1] == 0) {
        r->atom = r->out->len;
        put(r, "\\{");
        r->i++;
        return SV_OK;
    }
    if (r->atom == SIZE_MAX)
        return refuse(r, r->i, "nothing to repeat");
    if (k == 0)
        snprintf(text, sizeof text, "{%u}", v[0]);
    else if (n_digits[1])
        snprintf(text, sizeof text, "{%u,%u}", v[0], v[1]);
    else
        snprintf(text, sizeof text, "{%u,}", v[0]);
    put(r, text);
    r->i = i + 1;
    if (at(r, r->i) == '+' || (k == 0 && at(r, r->i) == '?'))
        return refuse(r, r->i,
                      "a second quantifier after an interval differs between regex libraries");
    if (at(r, r->i) == '?') {
        put(r, "?");
        r->i++;
    }
    r->atom = SIZE_MAX;
    return SV_OK;
}

static int repeat(struct rewrite *r)
{
    if (r->atom == SIZE_MAX)
        return refuse(r, r->i, "nothing to repeat");
    sv_buf_append(r->out, &r->s[r->i++], 1);
    if (at(r, r->i) == '?' || at(r, r->i) == '+')
        sv_buf_append(r->out, &r->s[r->i++], 1);
    r->atom = SIZE_MAX;
    return SV_OK;
}

static int one(struct rewrite *r)
{
    char c = r->s[r->i];

    switch (c) {
    case '(':
        return group(r);
    case ')':
        if (!r->depth)
            return refuse(r, r->i, "unmatched ')'");
        r->atom = r->group[--r->depth];
        break;
    case '*':
    case '+':
    case '?':
        return repeat(r);
    case '{':
        return interval(r);
    case '|':
    case '^':
        r->atom = SIZE_MAX;
        break;
    case '[':
    case '\\':
        r->atom = r->out->len;
        return c == '[' ? char_class(r) : escape(r, false);
    case ']':
    case '}':
        r->atom = r->out->len;
        put(r, "\\");
        break;
    default:
        if (((unsigned char)c & 0xC0) != 0x80) /* the rest of a wide character follows its start */
            r->atom = r->out->len;
    }
    sv_buf_append(r->out, &r->s[r->i++], 1);
    return SV_OK;
}

int sv_regex_translate(const char *pattern, size_t n, struct sv_buf *out, struct sv_err *err)
{
    struct rewrite r = {.s = pattern, .n = n, .out = out, .err = err, .atom = SIZE_MAX};

    while (r.i < n) {
        int rc = one(&r);
        if (rc < 0)
            return rc;
    }
    if (r.depth)
        return refuse(&r, n, "a group has no end");
    return out->failed ? sv_fail(err, SV_ENOMEM, -1, "out of memory") : SV_OK;
}
