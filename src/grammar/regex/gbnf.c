/*
 * gbnf.c - reads GBNF, llama-server's notation of grammars, and the EBNF of SGLang and xgrammar,
 * which differs in details.
 *
 * Called for requests. A rule's body may span lines: it ends at the next rule's name and ::=, or at
 * the end of the text. Must not: recurse deeper than SV_MAX_GROUPS.
 */
#include "grammar/regex/scan.h"

#include <string.h>

/* A rule's name where it was first seen. */
struct name {
    const char *text;
    size_t n;
    sv_expr rule;
};

struct gbnf {
    struct sv_scan s;
    struct sv_build *b;
    struct name *names; /* by hash, n_names of cap */
    uint32_t n_names, cap;
    uint32_t n_probes; /* of all names; a hostile grammar's may all have one hash */
};

/* ---------------------------------------------------------------- words */

static void skip_space(struct sv_scan *s)
{
    for (; s->at < s->n; s->at++) {
        char c = s->text[s->at];
        if (c == '#') {
            while (s->at < s->n && s->text[s->at] != '\n')
                s->at++;
            if (s->at == s->n)
                break;
        } else if (c != ' ' && c != '\t' && c != '\r' && c != '\n') {
            break;
        }
    }
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
}

/* The length of the name at the cursor; 0: none. A dot does not begin one. */
static size_t name_length(const struct sv_scan *s)
{
    size_t n = 0;

    while (sv_scan_peek(s, 0) != '.' && is_name(sv_scan_peek(s, n)))
        n++;
    return n;
}

/* Whether "name ::=" is at the cursor. */
static bool at_definition(const struct sv_scan *s)
{
    struct sv_scan ahead = *s;
    size_t n = name_length(s);

    ahead.at += n;
    skip_space(&ahead);
    return n && sv_scan_peek(&ahead, 0) == ':' && sv_scan_peek(&ahead, 1) == ':' &&
           sv_scan_peek(&ahead, 2) == '=';
}

/* ---------------------------------------------------------------- names */

#define MAX_PROBES (1u << 24)

static struct name *name_slot(struct gbnf *g, struct name *names, uint32_t cap, const char *text,
                              size_t n)
{
    uint32_t hash = 2166136261u;

    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (uint8_t)text[i]) * 16777619u;
    for (uint32_t i = hash ^ hash >> 15;; i++) {
        struct name *at = &names[i % cap];
        g->n_probes++;
        if (!at->text || (at->n == n && memcmp(at->text, text, n) == 0))
            return at;
    }
}

static bool grow_names(struct gbnf *g)
{
    uint32_t cap = g->cap ? 2 * g->cap : 64;
    struct name *names = sv_calloc(cap, sizeof *names);

    if (!names) {
        sv_build_fail(g->b, SV_ENOMEM, -1, "grammar: out of memory");
        return false;
    }
    for (uint32_t i = 0; i < g->cap; i++) {
        if (g->names[i].text)
            *name_slot(g, names, cap, g->names[i].text, g->names[i].n) = g->names[i];
    }
    sv_free(g->names);
    g->names = names;
    g->cap = cap;
    return true;
}

/* The rule whose name, n bytes, is at the cursor; advances past it. */
static sv_expr read_name(struct gbnf *g, size_t n)
{
    struct sv_scan *s = &g->s;
    const char *text = s->text + s->at;
    struct name *slot;

    if (g->n_probes > MAX_PROBES)
        sv_scan_fail(s, SV_EFULL, s->at, "the rules' names collide");
    if (g->b->err.code || (2 * g->n_names >= g->cap && !grow_names(g)))
        return 0;
    slot = name_slot(g, g->names, g->cap, text, n);
    if (!slot->text) {
        sv_expr rule = sv_build_rule(g->b, text, n, s->pos + (int64_t)s->at);
        *slot = (struct name){text, n, rule};
        g->n_names++;
    }
    s->at += n;
    return slot->rule;
}

/* ---------------------------------------------------------------- bodies */

static sv_expr read_string(struct gbnf *g)
{
    struct sv_scan *s = &g->s;
    const size_t start = s->at - 1;
    const uint32_t base = g->s.parts.n;

    while (s->at < s->n && s->text[s->at] != '"') {
        s->ranges.n = 0;
        if (sv_scan_skip(s, '\\')) {
            sv_scan_escape(s);
        } else {
            uint32_t c = sv_scan_char(s);
            sv_scan_add(s, c, c);
        }
        if (!g->b->err.code)
            sv_scan_push(s, sv_build_chars(g->b, s->ranges.data, s->ranges.n, false));
    }
    if (!sv_scan_skip(s, '"'))
        sv_scan_fail(s, SV_EINVAL, start, "the text in quotes does not end");
    return sv_scan_seq(&g->s, base);
}

static sv_expr read_alternatives(struct gbnf *g);

static sv_expr read_group(struct gbnf *g)
{
    struct sv_scan *s = &g->s;
    const size_t start = s->at - 1;
    sv_expr x;

    if (sv_scan_peek(s, 0) == '=' || sv_scan_peek(s, 0) == '?')
        sv_scan_fail(s, SV_EUNSUPPORTED, start, "look-ahead is not supported");
    sv_scan_enter(s, start);
    x = read_alternatives(g);
    sv_scan_leave(s, start);
    return x;
}

static sv_expr read_atom(struct gbnf *g)
{
    struct sv_scan *s = &g->s;
    const size_t n = name_length(s);

    if (n)
        return read_name(g, n);
    if (sv_scan_skip(s, '"'))
        return read_string(g);
    if (sv_scan_skip(s, '('))
        return read_group(g);
    if (sv_scan_skip(s, '.'))
        return sv_build_chars(g->b, NULL, 0, true);
    if (sv_scan_skip(s, '[')) {
        sv_scan_class(s, false);
        return sv_build_chars(g->b, s->ranges.data, s->ranges.n, false);
    }
    if (sv_scan_peek(s, 0) == '<' || sv_scan_peek(s, 0) == '!')
        sv_scan_fail(s, SV_EUNSUPPORTED, s->at, "tokens in grammars are not supported");
    else
        sv_scan_fail(s, SV_EINVAL, s->at, "a rule's name, a text in quotes, [ or ( expected");
    return 0;
}

static sv_expr read_repeated(struct gbnf *g)
{
    struct sv_scan *s = &g->s;
    sv_expr x = read_atom(g);
    int32_t min, max;

    for (;;) {
        size_t at;
        skip_space(s);
        at = s->at;
        if (!sv_scan_repeat(s, &min, &max)) {
            if (sv_scan_peek(s, 0) == '{')
                sv_scan_fail(s, SV_EINVAL, at, "{m}, {m,} or {m,n} expected");
            return x;
        }
        sv_build_at(g->b, s->pos + (int64_t)at);
        x = sv_build_repeat(g->b, x, min, max);
    }
}

static sv_expr read_sequence(struct gbnf *g)
{
    struct sv_scan *s = &g->s;
    const uint32_t base = g->s.parts.n;

    skip_space(s);
    while (s->at < s->n && s->text[s->at] != '|' && s->text[s->at] != ')' && !at_definition(s))
        sv_scan_push(s, read_repeated(g));
    return sv_scan_seq(&g->s, base);
}

static sv_expr read_alternatives(struct gbnf *g)
{
    const uint32_t base = g->s.parts.n;

    do {
        sv_scan_push(&g->s, read_sequence(g));
    } while (sv_scan_skip(&g->s, '|'));
    return sv_scan_alt(&g->s, base);
}

static void read_rule(struct gbnf *g)
{
    struct sv_scan *s = &g->s;
    const size_t at = s->at;
    sv_expr rule;

    if (!at_definition(s)) {
        sv_scan_fail(s, SV_EINVAL, at, "a rule's name and ::= expected");
        return;
    }
    rule = read_name(g, name_length(s));
    if (sv_build_defined(g->b, rule)) {
        sv_scan_fail(s, SV_EINVAL, at, "the rule is defined twice");
        return;
    }
    skip_space(s);
    s->at += 3; /* ::= */
    sv_build_define(g->b, rule, read_alternatives(g));
}

static sv_expr read_rules(struct gbnf *g)
{
    struct sv_scan *s = &g->s;
    struct name *root = NULL;

    for (skip_space(s); s->at < s->n; skip_space(s))
        read_rule(g);
    if (g->cap)
        root = name_slot(g, g->names, g->cap, "root", 4);
    if (!root || !root->text || !sv_build_defined(g->b, root->rule)) {
        sv_build_fail(g->b, SV_EINVAL, -1, "the grammar has no rule named root");
        return 0;
    }
    return root->rule;
}

int sv_grammar_gbnf(struct sv_grammar **out, const char *text, size_t n, struct sv_err *err)
{
    struct gbnf g = {0};
    int code = sv_build_open(&g.b, err);

    if (code != SV_OK)
        return code;
    sv_scan_init(&g.s, g.b, text, n, 0);
    code = sv_build_finish(g.b, read_rules(&g), out, err);
    sv_scan_fini(&g.s);
    sv_free(g.names);
    sv_build_close(g.b);
    return code;
}
