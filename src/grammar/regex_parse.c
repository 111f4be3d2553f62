/*
 * regex_parse.c - reads regular expressions into trees.
 *
 * Called by regex.c and schema_string.c. Characters, classes, escapes, groups, alternatives,
 * repetitions and anchors; what is not regular (references back, looking around) is refused with
 * its position. Must not: recurse deeper than MAX_DEPTH groups.
 */
#include "grammar/regex.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 200
#define MAX_NODES 200000
#define MAX_REPEAT 100000
#define CP_LAST 0x10FFFFu

struct parser {
    struct sv_regex_tree *t;
    const char *text;
    size_t n, at;
    int64_t pos;
    int depth;
    int status;
    struct sv_err *err;
    struct sv_range *set; /* the class being read, in any order */
    int32_t n_set, cap_set;
};

static void fail(struct parser *p, int code, size_t at, const char *what)
{
    if (p->status == SV_OK)
        p->status = sv_fail(p->err, code, p->pos + (int64_t)at, "regex, byte %lld: %s",
                            (long long)(p->pos + (int64_t)at), what);
}

/* Room for one more; false after an error. */
static bool grow(struct parser *p, void *array, int32_t n, int32_t *cap, size_t size)
{
    void *old, *more;
    int32_t want = *cap ? *cap * 2 : 32;

    if (p->status != SV_OK || n < *cap)
        return p->status == SV_OK;
    memcpy(&old, array, sizeof old);
    more = n < MAX_NODES ? sv_realloc(old, (size_t)*cap * size, (size_t)want * size) : NULL;
    if (!more) {
        if (n < MAX_NODES)
            fail(p, SV_ENOMEM, p->at, "out of memory");
        else
            fail(p, SV_EFULL, p->at, "the expression is too long");
        return false;
    }
    memcpy(array, &more, sizeof more);
    *cap = want;
    return true;
}

/* 0 after an error, which is a valid number to go on with: parsing ends soon. */
static int32_t node(struct parser *p, struct sv_regex_node x)
{
    struct sv_regex_tree *t = p->t;

    x.pos = p->pos + (int64_t)p->at;
    if (!grow(p, &t->nodes, t->n_nodes, &t->cap_nodes, sizeof x))
        return 0;
    t->nodes[t->n_nodes] = x;
    return t->n_nodes++;
}

/* ---------------------------------------------------------------- sets */

static void add_range(struct parser *p, uint32_t lo, uint32_t hi)
{
    if (lo <= hi && grow(p, &p->set, p->n_set, &p->cap_set, sizeof *p->set))
        p->set[p->n_set++] = (struct sv_range){lo, hi};
}

static int by_lo(const void *a, const void *b)
{
    const struct sv_range *x = a, *y = b;

    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Sorted and disjoint from `from` on; negated when asked. */
static void tidy(struct parser *p, int32_t from, bool negate)
{
    int32_t n = from, end;
    uint32_t next = 0;

    if (p->n_set > from)
        qsort(p->set + from, (size_t)(p->n_set - from), sizeof *p->set, by_lo);
    for (int32_t i = from; i < p->n_set; i++) {
        if (n > from && p->set[i].lo <= p->set[n - 1].hi + 1) {
            if (p->set[i].hi > p->set[n - 1].hi)
                p->set[n - 1].hi = p->set[i].hi;
        } else {
            p->set[n++] = p->set[i];
        }
    }
    p->n_set = end = n;
    if (!negate)
        return;
    for (int32_t i = from; i < end; i++) {
        if (p->set[i].lo > next)
            add_range(p, next, p->set[i].lo - 1);
        next = p->set[i].hi + 1;
    }
    add_range(p, next, CP_LAST);
    if (p->status != SV_OK)
        return;
    memmove(p->set + from, p->set + end, (size_t)(p->n_set - end) * sizeof *p->set);
    p->n_set = from + p->n_set - end;
}

/* \d, \w, \s and their opposites join the set at hand. */
static bool add_class(struct parser *p, char letter)
{
    static const struct sv_range digits[] = {{'0', '9'}};
    static const struct sv_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const struct sv_range spaces[] = {
        {'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
        {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    const struct sv_range *list = NULL;
    int32_t n = 0, from = p->n_set;
    const char lower = (char)(letter | 0x20);

    if (lower == 'd')
        list = digits, n = 1;
    else if (lower == 'w')
        list = words, n = 4;
    else if (lower == 's')
        list = spaces, n = 10;
    for (int32_t i = 0; i < n; i++)
        add_range(p, list[i].lo, list[i].hi);
    if (list)
        tidy(p, from, letter != lower);
    return list != NULL;
}

/* The set at hand becomes a node. */
static int32_t set_node(struct parser *p, bool negate)
{
    struct sv_regex_tree *t = p->t;
    int32_t at = t->n_ranges;

    tidy(p, 0, negate);
    for (int32_t i = 0; i < p->n_set; i++)
        if (grow(p, &t->ranges, t->n_ranges, &t->cap_ranges, sizeof *t->ranges))
            t->ranges[t->n_ranges++] = p->set[i];
    p->n_set = 0;
    return node(p, (struct sv_regex_node){.kind = SV_REGEX_SET, .at = at, .n = t->n_ranges - at});
}

/* ---------------------------------------------------------------- characters */

static bool more(const struct parser *p)
{
    return p->status == SV_OK && p->at < p->n;
}

static bool next_is(const struct parser *p, char c)
{
    return more(p) && p->text[p->at] == c;
}

/* One code point of the source, which must be UTF-8. */
static uint32_t code_point(struct parser *p)
{
    const unsigned char *s = (const unsigned char *)p->text + p->at;
    size_t left = p->n - p->at, len = s[0] < 0x80 ? 1 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t c = len == 1 ? s[0] : s[0] & (0x7Fu >> len);
    bool ok = len <= left && !(s[0] >= 0x80 && s[0] < 0xC2) && s[0] < 0xF5;

    for (size_t i = 1; i < len && ok; i++) {
        ok = (s[i] & 0xC0) == 0x80;
        c = c << 6 | (s[i] & 0x3F);
    }
    if (!ok || c < least[len] || c > CP_LAST || (c >= 0xD800 && c < 0xE000)) {
        fail(p, SV_EINVAL, p->at, "not UTF-8");
        return 0;
    }
    p->at += len;
    return c;
}

/* digits hexadecimal digits; false: they are not there. */
static bool hex_digits(struct parser *p, int digits, uint32_t *c)
{
    *c = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        char d = more(p) ? p->text[p->at] : 0;
        if (!((d >= '0' && d <= '9') || ((d | 0x20) >= 'a' && (d | 0x20) <= 'f')))
            return false;
        *c = *c * 16 + (uint32_t)(d <= '9' ? d - '0' : (d | 0x20) - 'a' + 10);
    }
    return true;
}

/* Behind \x and \u: two or four digits, or any number in braces. A pair of surrogates is one
 * character. */
static uint32_t coded(struct parser *p, int digits, size_t from)
{
    uint32_t c = 0, low = 0;
    bool ok = true;

    if (next_is(p, '{')) {
        p->at++;
        for (int i = 0; ok && !next_is(p, '}'); i++) {
            uint32_t d = 0;
            ok = i < 6 && hex_digits(p, 1, &d);
            c = c * 16 + d;
        }
        p->at++;
    } else {
        ok = hex_digits(p, digits, &c);
        if (ok && c >= 0xD800 && c < 0xDC00 && p->n - p->at >= 6 && p->text[p->at] == '\\' &&
            p->text[p->at + 1] == 'u') {
            p->at += 2;
            ok = hex_digits(p, 4, &low) && low >= 0xDC00 && low < 0xE000;
            c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        }
    }
    if (!ok || c > CP_LAST || (c >= 0xD800 && c < 0xE000)) {
        fail(p, SV_EINVAL, from, "not the code of a character");
        return 0;
    }
    return c;
}

/* Behind a backslash. true: one character, in *c; false: a class, which joined the set. */
static bool escape(struct parser *p, uint32_t *c)
{
    static const char letters[] = "n\nt\tr\rf\fv\v";
    const size_t from = p->at - 1;
    const char *at;
    char letter = more(p) ? p->text[p->at] : 0;

    *c = 0;
    if (!letter) {
        fail(p, SV_EINVAL, from, "ends behind a backslash");
        return true;
    }
    if ((unsigned char)letter >= 0x80) {
        *c = code_point(p);
        return true;
    }
    p->at++;
    if (add_class(p, letter))
        return false;
    at = strchr(letters, letter);
    if (at && (at - letters) % 2 == 0)
        *c = (uint32_t)at[1];
    else if (letter == '0' && !(more(p) && p->text[p->at] >= '0' && p->text[p->at] <= '9'))
        *c = 0;
    else if (letter == 'x' || letter == 'u')
        *c = coded(p, letter == 'x' ? 2 : 4, from);
    else if (letter == 'c' && more(p) && ((p->text[p->at] | 0x20) >= 'a') &&
             ((p->text[p->at] | 0x20) <= 'z'))
        *c = (uint32_t)(p->text[p->at++] & 0x1F);
    else if (letter >= '0' && letter <= '9')
        fail(p, SV_EUNSUPPORTED, from, "references back are not regular");
    else if (letter == 'b' || letter == 'B')
        fail(p, SV_EUNSUPPORTED, from, "word boundaries are not supported");
    else if (letter == 'p' || letter == 'P')
        fail(p, SV_EUNSUPPORTED, from, "classes of Unicode properties are not supported");
    else if ((letter | 0x20) >= 'a' && (letter | 0x20) <= 'z' && letter != 'A' && letter != 'Z' &&
             letter != 'z')
        fail(p, SV_EUNSUPPORTED, from, "this escape is not supported");
    else
        *c = (uint32_t)letter;
    return true;
}

/* One end of a range in brackets. false: it was a class. */
static bool class_end(struct parser *p, uint32_t *c)
{
    if (p->text[p->at] != '\\') {
        *c = code_point(p);
        return true;
    }
    p->at++;
    if (next_is(p, 'b')) { /* a backspace, only here */
        p->at++;
        *c = '\b';
        return true;
    }
    return escape(p, c);
}

/* Behind [. */
static int32_t bracket(struct parser *p)
{
    const size_t from = p->at - 1;
    bool negate = next_is(p, '^'), first = true;
    uint32_t lo, hi;

    p->at += negate;
    for (; more(p) && (first || p->text[p->at] != ']'); first = false) {
        const size_t begin = p->at;
        /* [] and [^] differ between dialects, so ] comes first only behind a backslash. */
        if (first && p->text[p->at] == ']')
            break;
        if (p->text[p->at] == '[' && p->at + 1 < p->n && p->text[p->at + 1] == ':')
            fail(p, SV_EUNSUPPORTED, p->at, "named classes are not supported");
        if (!class_end(p, &lo))
            continue;
        hi = lo;
        if (next_is(p, '-') && p->at + 1 < p->n && p->text[p->at + 1] != ']') {
            p->at++;
            if (!class_end(p, &hi) || hi < lo)
                fail(p, SV_EINVAL, begin, "the range ends before it begins");
        }
        add_range(p, lo, hi);
    }
    if (!next_is(p, ']') || first)
        fail(p, SV_EINVAL, from, first ? "an empty class" : "the class has no ]");
    p->at++;
    return set_node(p, negate);
}

/* ---------------------------------------------------------------- structure */

static int32_t alternatives(struct parser *p);

/* Behind (. */
static int32_t group(struct parser *p)
{
    const size_t from = p->at - 1;
    int32_t x;

    if (next_is(p, '?')) {
        char kind = p->at + 1 < p->n ? p->text[p->at + 1] : 0;
        char after = p->at + 2 < p->n ? p->text[p->at + 2] : 0;
        bool named = (kind == 'P' && after == '<') || (kind == '<' && after != '=' && after != '!');
        if (kind != ':' && !named)
            fail(p, SV_EUNSUPPORTED, from,
                 "only plain groups: looking around, conditions and flags are not supported");
        p->at += 2;
        while (named && more(p) && p->text[p->at] != '>')
            p->at++;
        p->at += named;
    }
    if (++p->depth > MAX_DEPTH)
        fail(p, SV_EFULL, from, "groups are nested too deeply");
    x = alternatives(p);
    p->depth--;
    if (!next_is(p, ')'))
        fail(p, SV_EINVAL, from, "the group has no )");
    p->at++;
    return x;
}

/* What a repetition can follow. *plain: it cannot (an anchor). */
static int32_t atom(struct parser *p, bool *anchor)
{
    const char c = p->text[p->at];
    uint32_t code;

    *anchor = c == '^' || c == '$';
    if (c == '[' || c == '(' || c == '^' || c == '$' || c == '.' || c == '\\')
        p->at++;
    if (c == '[')
        return bracket(p);
    if (c == '(')
        return group(p);
    if (*anchor)
        return node(p, (struct sv_regex_node){.kind = c == '^' ? SV_REGEX_BEGIN : SV_REGEX_END});
    if (c == '.') {
        add_range(p, '\n', '\n');
        return set_node(p, true);
    }
    if (c == '\\' && (next_is(p, 'A') || next_is(p, 'Z') || next_is(p, 'z'))) {
        *anchor = true;
        return node(p, (struct sv_regex_node){.kind = p->text[p->at++] == 'A' ? SV_REGEX_BEGIN
                                                                              : SV_REGEX_END});
    }
    if (c == '*' || c == '+' || c == '?')
        fail(p, SV_EINVAL, p->at, "nothing to repeat");
    code = 0;
    if (c != '\\')
        code = code_point(p);
    else if (!escape(p, &code))
        return set_node(p, false);
    add_range(p, code, code);
    return set_node(p, false);
}

/* {m}, {m,}, {m,n}, {,n}; false: it is no repetition, and nothing was read. */
static bool counts(struct parser *p, int32_t *min, int32_t *max)
{
    size_t at = p->at + 1;
    int64_t value[2] = {-1, -1};
    int i = 0;

    for (; at < p->n && p->text[at] != '}'; at++) {
        char c = p->text[at];
        if (c == ',' && i == 0)
            i = 1;
        else if (c >= '0' && c <= '9' && value[i] < MAX_REPEAT * 10)
            value[i] = (value[i] < 0 ? 0 : value[i]) * 10 + (c - '0');
        else if (!(c >= '0' && c <= '9'))
            return false;
    }
    if (at >= p->n || (value[0] < 0 && value[1] < 0))
        return false;
    *min = value[0] < 0 ? 0 : value[0] > MAX_REPEAT ? MAX_REPEAT + 1 : (int32_t)value[0];
    *max = i == 0                  ? *min
           : value[1] < 0          ? -1
           : value[1] > MAX_REPEAT ? MAX_REPEAT + 1
                                   : (int32_t)value[1];
    if (*min > MAX_REPEAT || *max > MAX_REPEAT)
        fail(p, SV_EFULL, p->at, "too many repetitions");
    else if (*max >= 0 && *max < *min)
        fail(p, SV_EINVAL, p->at, "a repetition's bounds are in the wrong order");
    p->at = at + 1;
    return true;
}

static int32_t repeated(struct parser *p)
{
    bool anchor;
    int32_t x = atom(p, &anchor);

    for (int n = 0; more(p); n++) {
        int32_t min = 0, max = -1;
        char c = p->text[p->at];
        if (c == '{') {
            if (!counts(p, &min, &max))
                break;
        } else if (c == '*' || c == '+' || c == '?') {
            min = c == '+';
            max = c == '?' ? 1 : -1;
            p->at++;
        } else {
            break;
        }
        if (anchor || n)
            fail(p, SV_EINVAL, p->at - 1, "nothing to repeat");
        /* Which text is taken does not matter here, only which texts match. */
        if (next_is(p, '?'))
            p->at++;
        else if (next_is(p, '+'))
            fail(p, SV_EUNSUPPORTED, p->at, "possessive repetitions are not supported");
        x = node(p,
                 (struct sv_regex_node){.kind = SV_REGEX_REPEAT, .a = x, .min = min, .max = max});
    }
    return x;
}

static int32_t sequence(struct parser *p)
{
    int32_t all = -1;

    while (more(p) && p->text[p->at] != '|' && p->text[p->at] != ')') {
        int32_t x = repeated(p);
        all =
            all < 0 ? x : node(p, (struct sv_regex_node){.kind = SV_REGEX_THEN, .a = all, .b = x});
    }
    return all < 0 ? node(p, (struct sv_regex_node){.kind = SV_REGEX_EMPTY}) : all;
}

static int32_t alternatives(struct parser *p)
{
    int32_t all = sequence(p);

    while (next_is(p, '|')) {
        p->at++;
        int32_t x = sequence(p);
        all = node(p, (struct sv_regex_node){.kind = SV_REGEX_OR, .a = all, .b = x});
    }
    return all;
}

int sv_regex_parse(struct sv_regex_tree *tree, const char *text, size_t n, int64_t pos,
                   struct sv_err *err)
{
    struct parser p = {.t = tree, .text = text, .n = n, .pos = pos, .err = err};

    *tree = (struct sv_regex_tree){0};
    tree->root = alternatives(&p);
    if (p.status == SV_OK && p.at < n)
        fail(&p, SV_EINVAL, p.at, "a ) without its (");
    sv_free(p.set);
    return p.status;
}

void sv_regex_tree_close(struct sv_regex_tree *tree)
{
    sv_free(tree->nodes);
    sv_free(tree->ranges);
    *tree = (struct sv_regex_tree){0};
}
