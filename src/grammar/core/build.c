/*
 * build.c - expressions, which the readers of grammars build before they are compiled.
 *
 * Called by the readers through build.h. Must not: compile anything, or keep a caller's pointers
 * (except grammars to copy, which live until sv_build_finish).
 */
#include "grammar/core/rules.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TEXT_BYTES (8u << 20) /* of all literals of one grammar */

int sv_build_open(struct sv_build **out, struct sv_err *err)
{
    struct sv_build *b = sv_calloc(1, sizeof *b);

    if (!b)
        return sv_fail(err, SV_ENOMEM, -1, "grammar: out of memory");
    b->pos = -1;
    sv_build_nothing(b); /* expression 0, what calls return after an error */
    if (b->err.code) {
        int code = sv_fail(err, b->err.code, -1, "%s", b->err.msg);
        sv_build_close(b);
        return code;
    }
    *out = b;
    return SV_OK;
}

void sv_build_close(struct sv_build *b)
{
    if (!b)
        return;
    for (uint32_t i = 0; i < b->rules.n; i++)
        sv_free(sv_build_rule_at(b, i)->name);
    sv_free(b->exprs.data);
    sv_free(b->kids.data);
    sv_free(b->bytes.data);
    sv_free(b->ranges.data);
    sv_free(b->rules.data);
    sv_free(b->imports.data);
    sv_free(b->nodes.data);
    sv_free(b->edges.data);
    sv_free(b);
}

void sv_build_at(struct sv_build *b, int64_t pos)
{
    b->pos = pos;
}

void sv_build_fail(struct sv_build *b, int code, int64_t pos, const char *fmt, ...)
{
    char msg[sizeof b->err.msg];
    va_list args;

    if (b->err.code)
        return;
    va_start(args, fmt);
    vsnprintf(msg, sizeof msg, fmt, args);
    va_end(args);
    if (pos >= 0)
        sv_fail(&b->err, code, pos, "byte %lld: %s", (long long)pos, msg);
    else
        sv_fail(&b->err, code, pos, "%s", msg);
}

bool sv_build_failed(const struct sv_build *b)
{
    return b->err.code != 0;
}

int sv_build_error(const struct sv_build *b, struct sv_err *err)
{
    return b->err.code ? sv_fail(err, b->err.code, b->err.pos, "%s", b->err.msg) : SV_OK;
}

void *sv_build_grow(struct sv_build *b, struct sv_list *list, uint32_t n, size_t item_bytes,
                    uint32_t max, const char *what)
{
    if (b->err.code)
        return NULL;
    if (n > max || list->n > max - n) {
        sv_build_fail(b, SV_EFULL, b->pos, "the grammar is too large: more than %u %s", max, what);
        return NULL;
    }
    if (list->n + n > list->cap || !list->data) {
        uint32_t cap = list->cap ? list->cap * 2 : 16;
        void *data;
        while (cap < list->n + n)
            cap *= 2;
        data = sv_realloc(list->data, list->cap * item_bytes, cap * item_bytes);
        if (!data) {
            sv_build_fail(b, SV_ENOMEM, -1, "grammar: out of memory");
            return NULL;
        }
        list->data = data;
        list->cap = cap;
    }
    list->n += n;
    return (char *)list->data + (list->n - n) * item_bytes;
}

/* ---------------------------------------------------------------- leaves */

static sv_expr add_expr(struct sv_build *b, struct sv_expr_node x)
{
    struct sv_expr_node *at =
        sv_build_grow(b, &b->exprs, 1, sizeof *at, SV_MAX_EXPRS, "expressions");

    if (!at)
        return 0;
    if (x.size > SV_MAX_NODES)
        x.size = SV_MAX_NODES;
    if (x.depth > SV_MAX_EXPR_DEPTH)
        sv_build_fail(b, SV_EFULL, b->pos, "the grammar nests deeper than %d", SV_MAX_EXPR_DEPTH);
    *at = x;
    return b->exprs.n - 1;
}

sv_expr sv_build_empty(struct sv_build *b)
{
    return add_expr(b, (struct sv_expr_node){.kind = SV_EXPR_BYTES});
}

sv_expr sv_build_nothing(struct sv_build *b)
{
    return add_expr(b, (struct sv_expr_node){.kind = SV_EXPR_NOTHING, .size = 1});
}

/* The bytes as an expression of a kind that stores them. */
static sv_expr add_bytes(struct sv_build *b, enum sv_expr_kind kind, const void *bytes, size_t n,
                         int32_t max)
{
    uint32_t len = n > MAX_TEXT_BYTES ? MAX_TEXT_BYTES + 1 : (uint32_t)n;
    uint32_t at = b->bytes.n;
    uint8_t *to =
        n ? sv_build_grow(b, &b->bytes, len, 1, MAX_TEXT_BYTES, "bytes of literal text") : NULL;

    if (b->err.code)
        return 0;
    if (to)
        memcpy(to, bytes, n);
    return add_expr(
        b, (struct sv_expr_node){.kind = kind, .at = at, .n = len, .size = len, .max = max});
}

sv_expr sv_build_bytes(struct sv_build *b, const void *bytes, size_t n)
{
    return add_bytes(b, SV_EXPR_BYTES, bytes, n, 0);
}

sv_expr sv_build_byte(struct sv_build *b, uint8_t lo, uint8_t hi)
{
    SV_REQUIRE(lo <= hi);
    return add_expr(b, (struct sv_expr_node){.kind = SV_EXPR_BYTE, .at = lo, .n = hi, .size = 1});
}

sv_expr sv_build_until(struct sv_build *b, const void *marker, size_t n)
{
    if (n == 0)
        sv_build_fail(b, SV_EINVAL, b->pos, "the marker is empty");
    return add_bytes(b, SV_EXPR_UNTIL, marker, n, 1);
}

sv_expr sv_build_without(struct sv_build *b, const void *marker, size_t n)
{
    return add_bytes(b, SV_EXPR_UNTIL, marker, n, 0);
}

sv_expr sv_build_grammar(struct sv_build *b, const struct sv_grammar *g)
{
    struct sv_import *to =
        sv_build_grow(b, &b->imports, 1, sizeof *to, SV_MAX_RULES, "parts that are grammars");

    if (!to)
        return 0;
    *to = (struct sv_import){.grammar = g};
    return add_expr(
        b, (struct sv_expr_node){.kind = SV_EXPR_GRAMMAR, .at = b->imports.n - 1, .size = 1});
}

/* ---------------------------------------------------------------- sets of code points */

static int by_lo(const void *a, const void *b)
{
    const struct sv_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Sorts by lo and merges overlapping and adjacent ranges; returns how many are left. */
static uint32_t tidy_ranges(struct sv_range *r, uint32_t n)
{
    uint32_t n_out = 0;

    if (n > 1)
        qsort(r, n, sizeof *r, by_lo);
    for (uint32_t i = 0; i < n; i++) {
        if (n_out && r[i].lo <= r[n_out - 1].hi + 1) {
            if (r[i].hi > r[n_out - 1].hi)
                r[n_out - 1].hi = r[i].hi;
        } else {
            r[n_out++] = r[i];
        }
    }
    return n_out;
}

/* The complement of tidy ranges in 0..SV_MAX_CODE_POINT, into out (n + 1 ranges). */
static uint32_t invert_ranges(const struct sv_range *r, uint32_t n, struct sv_range *out)
{
    uint32_t next = 0, n_out = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (r[i].lo > next)
            out[n_out++] = (struct sv_range){next, r[i].lo - 1};
        next = r[i].hi + 1;
    }
    if (next <= SV_MAX_CODE_POINT)
        out[n_out++] = (struct sv_range){next, SV_MAX_CODE_POINT};
    return n_out;
}

uint32_t sv_ranges_tidy(struct sv_range *r, uint32_t n, bool negate)
{
    static const struct sv_range surrogates = {0xD800, 0xDFFF};
    uint32_t len = tidy_ranges(r, n);

    if (!negate) {
        struct sv_range *inverted = r + n + 2;
        len = invert_ranges(r, len, inverted);
        memmove(r, inverted, len * sizeof *r);
    }
    /* r is now the complement; surrogates, which are not UTF-8, are added to it */
    r[len++] = surrogates;
    len = tidy_ranges(r, len);
    memmove(r + len, r, len * sizeof *r);
    return invert_ranges(r + len, len, r);
}

sv_expr sv_build_chars(struct sv_build *b, const struct sv_range *ranges, size_t n, bool negate)
{
    uint32_t at = b->ranges.n, len;
    struct sv_range *r;

    if (n > SV_MAX_NODES)
        n = SV_MAX_NODES;
    len = SV_TIDY_ROOM((uint32_t)n);
    r = sv_build_grow(b, &b->ranges, len, sizeof *r, 4 * SV_MAX_NODES, "ranges of characters");
    if (!r)
        return 0;
    for (size_t i = 0; i < n; i++) {
        SV_REQUIRE(ranges[i].lo <= ranges[i].hi && ranges[i].hi <= SV_MAX_CODE_POINT);
        r[i] = ranges[i];
    }
    len = sv_ranges_tidy(r, (uint32_t)n, negate);
    b->ranges.n = at + len;
    if (len == 0)
        return sv_build_nothing(b);
    return add_expr(
        b, (struct sv_expr_node){
               .kind = SV_EXPR_CHARS, .at = at, .n = len, .size = r[len - 1].hi < 128 ? 1 : 8});
}

/* ---------------------------------------------------------------- combinations */

static sv_expr add_list(struct sv_build *b, enum sv_expr_kind kind, const sv_expr *parts, size_t n)
{
    struct sv_expr_node x = {.kind = kind, .at = b->kids.n, .n = (uint32_t)n, .size = 1};
    sv_expr *to;

    if (n > SV_MAX_EXPRS)
        n = SV_MAX_EXPRS + 1;
    to = sv_build_grow(b, &b->kids, (uint32_t)n, sizeof *to, 4 * SV_MAX_EXPRS, "expressions");
    if (!to)
        return 0;
    memcpy(to, parts, n * sizeof *to);
    for (size_t i = 0; i < n; i++) {
        const struct sv_expr_node *part = sv_build_expr(b, parts[i]);
        if (part->depth >= x.depth)
            x.depth = part->depth + 1;
        x.size = x.size + part->size > SV_MAX_NODES ? SV_MAX_NODES : x.size + part->size;
    }
    return add_expr(b, x);
}

sv_expr sv_build_seq(struct sv_build *b, const sv_expr *parts, size_t n)
{
    if (n == 0)
        return sv_build_empty(b);
    return n == 1 ? parts[0] : add_list(b, SV_EXPR_SEQ, parts, n);
}

sv_expr sv_build_alt(struct sv_build *b, const sv_expr *parts, size_t n)
{
    if (n == 0)
        return sv_build_nothing(b);
    return n == 1 ? parts[0] : add_list(b, SV_EXPR_ALT, parts, n);
}

sv_expr sv_build_then(struct sv_build *b, sv_expr first, sv_expr second)
{
    const sv_expr parts[] = {first, second};
    return sv_build_seq(b, parts, 2);
}

sv_expr sv_build_or(struct sv_build *b, sv_expr one, sv_expr other)
{
    const sv_expr parts[] = {one, other};
    return sv_build_alt(b, parts, 2);
}

sv_expr sv_build_states(struct sv_build *b, int32_t n_states, const struct sv_arc *arcs, size_t n)
{
    struct sv_expr_node x = {.kind = SV_EXPR_STATES,
                             .at = b->kids.n,
                             .n = (uint32_t)n_states,
                             .max = (int32_t)n,
                             .size = (uint32_t)n_states};
    sv_expr *to;

    if (n > SV_MAX_EXPRS)
        n = SV_MAX_EXPRS + 1;
    to = sv_build_grow(b, &b->kids, 3 * (uint32_t)n, sizeof *to, 4 * SV_MAX_EXPRS, "expressions");
    if (!to)
        return 0;
    for (size_t i = 0; i < n; i++) {
        const struct sv_expr_node *label = sv_build_expr(b, arcs[i].label);
        SV_REQUIRE(arcs[i].from >= 0 && arcs[i].from < n_states && arcs[i].to >= 0 &&
                   arcs[i].to <= n_states);
        to[3 * i] = (uint32_t)arcs[i].from;
        to[3 * i + 1] = (uint32_t)arcs[i].to;
        to[3 * i + 2] = arcs[i].label;
        if (label->depth >= x.depth)
            x.depth = label->depth + 1;
        x.size = x.size + label->size > SV_MAX_NODES ? SV_MAX_NODES : x.size + label->size;
    }
    return add_expr(b, x);
}

/* A repetition that copies more than this calls a rule instead, so that copies of copies do not
 * multiply. */
#define COPIED_SIZE 2

sv_expr sv_build_repeat(struct sv_build *b, sv_expr x, int32_t min, int32_t max)
{
    const struct sv_expr_node *part = sv_build_expr(b, x);
    struct sv_expr_node r = {.kind = SV_EXPR_REPEAT, .depth = part->depth + 1, .max = max};

    SV_REQUIRE(min >= 0 && (max == -1 || max >= min));
    if (max == 0)
        return sv_build_empty(b);
    if (min == 1 && max == 1)
        return x;
    if ((min > 1 || max > 1) && part->size > COPIED_SIZE) {
        sv_expr rule = sv_build_rule(b, NULL, 0, b->pos);
        sv_build_define(b, rule, x);
        x = rule;
        r.depth = 1;
    }
    r.at = x;
    r.n = (uint32_t)min;
    r.size = max > (1 << 24) || min > (1 << 24) ? SV_MAX_NODES
                                                : 2u + 2u * (uint32_t)(max > min ? max : min);
    return add_expr(b, r);
}

/* ---------------------------------------------------------------- rules */

sv_expr sv_build_rule(struct sv_build *b, const char *name, size_t n_name, int64_t pos)
{
    struct sv_build_rule *rule =
        sv_build_grow(b, &b->rules, 1, sizeof *rule, SV_MAX_RULES, "rules");

    if (!rule)
        return 0;
    *rule = (struct sv_build_rule){.pos = pos};
    if (name && !(rule->name = sv_strndup(name, n_name)))
        sv_build_fail(b, SV_ENOMEM, -1, "grammar: out of memory");
    return add_expr(b,
                    (struct sv_expr_node){.kind = SV_EXPR_RULE, .at = b->rules.n - 1, .size = 1});
}

/* The rule that an expression calls; NULL when the builder has failed. */
static struct sv_build_rule *called(const struct sv_build *b, sv_expr rule)
{
    if (b->err.code)
        return NULL;
    SV_REQUIRE(sv_build_expr(b, rule)->kind == SV_EXPR_RULE);
    return sv_build_rule_at(b, sv_build_expr(b, rule)->at);
}

bool sv_build_defined(const struct sv_build *b, sv_expr rule)
{
    const struct sv_build_rule *r = called(b, rule);
    return r && r->defined;
}

/* Whether x is the rule, or a sequence that begins with it; *rest is then the remainder. */
static bool begins_with(struct sv_build *b, sv_expr x, sv_expr rule, sv_expr *rest)
{
    struct sv_expr_node node = *sv_build_expr(b, x);
    const struct sv_expr_node *first = &node, *r = sv_build_expr(b, rule);

    if (node.kind == SV_EXPR_SEQ)
        first = sv_build_expr(b, ((const sv_expr *)b->kids.data)[node.at]);
    if (first->kind != SV_EXPR_RULE || first->at != r->at)
        return false;
    if (node.kind != SV_EXPR_SEQ) {
        *rest = sv_build_empty(b);
        return true;
    }
    node.at++;
    node.n--;
    *rest = add_expr(b, node); /* the same parts but the first */
    return true;
}

/* a = a x | a y | u | v is (u | v) (x | y)*. */
static sv_expr without_left_recursion(struct sv_build *b, sv_expr rule, sv_expr body)
{
    const struct sv_expr_node node = *sv_build_expr(b, body);
    const uint32_t n = node.kind == SV_EXPR_ALT ? node.n : 1, at = b->kids.n;
    struct sv_expr_node list = {.kind = SV_EXPR_ALT, .depth = node.depth, .size = node.size};
    uint32_t n_base = 0, n_more = 0;
    sv_expr base, more;

    if (!sv_build_grow(b, &b->kids, n, sizeof(sv_expr), 4 * SV_MAX_EXPRS, "expressions"))
        return body;
    for (uint32_t i = 0; i < n && !b->err.code; i++) {
        sv_expr *kids = b->kids.data, rest, x = n > 1 ? kids[node.at + i] : body;
        if (begins_with(b, x, rule, &rest))
            kids[at + n - ++n_more] = rest;
        else
            kids[at + n_base++] = x;
    }
    if (n_more == 0 || b->err.code) {
        b->kids.n = at;
        return body;
    }
    list.at = at;
    list.n = n_base;
    base = add_expr(b, list); /* without base: no alternative, so nothing */
    list.at = at + n_base;
    list.n = n_more;
    more = add_expr(b, list);
    return sv_build_then(b, base, sv_build_repeat(b, more, 0, -1));
}

void sv_build_define(struct sv_build *b, sv_expr rule, sv_expr body)
{
    struct sv_build_rule *r = called(b, rule);

    if (!r)
        return;
    SV_REQUIRE(!r->defined);
    body = without_left_recursion(b, rule, body);
    if ((r = called(b, rule))) { /* the array may have moved */
        r->defined = true;
        r->body = body;
    }
}
