/*
 * schema_emit.c - nodes as rules: the texts of the values that satisfy them.
 *
 * Called by schema.c when all nodes are known and those without values marked; schema_text.c emits
 * strings and numbers. Objects and arrays are small automata: a position between two members is a
 * state, the text between two positions an arc, so optional members cost one arc each. Must not:
 * emit a path that leads to a node without values.
 */
#include "grammar/schema/schema.h"

#include <string.h>

static bool live(const struct sv_emit *e, int32_t node)
{
    return e->s->nodes[node].live != 0;
}

/* The node's values by one of the rules that all schemas share; false: it needs its own rule. */
static bool shared(const struct sv_emit *e, const struct sv_schema_node *n, sv_expr *rule)
{
    const struct sv_leaf *leaf = n->leaf;

    if (!leaf || leaf->has_values)
        return false;
    if (n->live == SV_STRING && !leaf->strings)
        *rule = e->string;
    else if (n->live == SV_WHOLE && !leaf->number_text[1])
        *rule = e->integer;
    else if (n->live == (SV_WHOLE | SV_BROKEN) && !leaf->number_text[0])
        *rule = e->number;
    else
        return false;
    return true;
}

/* Calls the node's rule. A node's first call queues its body. */
static sv_expr call(struct sv_emit *e, int32_t node)
{
    struct sv_schema_node *n = &e->s->nodes[node];

    SV_REQUIRE(n->live);
    if (!n->has_rule && !shared(e, n, &n->rule)) {
        n->rule = sv_build_rule(e->b, n->path, strlen(n->path), -1);
        e->waiting[e->n_waiting++] = node;
    }
    n->has_rule = true;
    return n->rule;
}

/* [, then nothing or the inside, then ], with space where it is allowed. may_be_empty and
 * may_be_full: not both false. */
static sv_expr bracketed(struct sv_emit *e, bool may_be_empty, bool may_be_full, sv_expr inside)
{
    sv_expr close = sv_build_bytes(e->b, "]", 1);
    sv_expr full = sv_build_seq(e->b, (sv_expr[]){inside, e->space, close}, 3);
    sv_expr rest = !may_be_full ? close : may_be_empty ? sv_build_or(e->b, close, full) : full;

    return sv_build_seq(e->b, (sv_expr[]){sv_build_bytes(e->b, "[", 1), e->space, rest}, 3);
}

/* ---------------------------------------------------------------- arrays */

static sv_expr emit_array(struct sv_emit *e, const struct sv_leaf *leaf)
{
    struct sv_build *b = e->b;
    int64_t max = leaf->max_items, min = leaf->min_items;
    int32_t n = leaf->n_prefix;
    sv_expr rest, inside;

    /* the array must end before an item that no value satisfies */
    if (!live(e, leaf->items) && (max < 0 || max > n))
        max = n;
    for (int32_t i = n - 1; i >= 0; i--)
        if (!live(e, leaf->prefix[i]) && (max < 0 || max > i))
            max = i;
    if (max == 0)
        return bracketed(e, true, false, 0);
    if (max >= 0 && max <= n) {
        n = (int32_t)max;
        rest = sv_build_empty(b);
    } else {
        int64_t begun = n ? n : 1;
        rest = sv_build_repeat(b, sv_build_then(b, e->comma, call(e, leaf->items)),
                               (int32_t)(min > begun ? min - begun : 0),
                               (int32_t)(max < 0 ? -1 : max - begun));
    }
    /* items by position, from the last: each with all that may follow it */
    for (int32_t i = n - 1; i >= 1; i--) {
        rest = sv_build_seq(b, (sv_expr[]){e->comma, call(e, leaf->prefix[i]), rest}, 3);
        if (i >= min)
            rest = sv_build_or(b, sv_build_empty(b), rest);
    }
    inside = sv_build_then(b, call(e, leaf->n_prefix ? leaf->prefix[0] : leaf->items), rest);
    return bracketed(e, min == 0, true, inside);
}

/* ---------------------------------------------------------------- objects */

/* The automaton of an object. Row i of its states is before member i, row n after the members, row
 * n + 1 after another name; a row has a state for each number of members so far, up to the largest
 * that matters. */
struct object {
    struct sv_emit *e;
    const struct sv_leaf *leaf;
    int64_t min, max; /* max -1: none */
    int32_t n_counts;
    sv_expr extra; /* "name": value, of the other names; only when has_extra */
    bool has_extra;
    bool *reached;    /* ((n + 2) * n_counts) */
    int32_t out;      /* the end state */
    sv_expr close[2]; /* the bracket, and with space before it */
    struct sv_arc *arcs;
    int32_t n_arcs;
};

#define MAX_STATES 200000 /* of one object */

static void arc(struct object *o, int32_t from, int32_t row, int32_t count, sv_expr label)
{
    int32_t to = row * o->n_counts + (count < o->n_counts ? count : o->n_counts - 1);

    o->reached[to] = true;
    o->arcs[o->n_arcs++] = (struct sv_arc){from, to, label};
}

/* name, ":" and value; a comma before it unless it is the first. */
static sv_expr named(struct sv_emit *e, sv_expr name, int32_t node)
{
    sv_expr colon = sv_build_bytes(e->b, ":", 1);

    return sv_build_seq(e->b, (sv_expr[]){name, colon, e->space, call(e, node)}, 4);
}

static sv_expr after(struct sv_emit *e, int32_t count, sv_expr text)
{
    return count ? sv_build_then(e->b, e->comma, text) : text;
}

static void set_extra(struct object *o)
{
    struct sv_emit *e = o->e;

    o->extra = sv_build_nothing(e->b);
    for (int32_t i = 0; i < o->leaf->n_extras; i++) {
        const struct sv_extra *x = &o->leaf->extras[i];
        if (!live(e, x->node))
            continue;
        o->extra = sv_build_or(e->b, o->extra, named(e, sv_emit_string(e, x->names), x->node));
        o->has_extra = true;
    }
}

/* How far members must be counted. Whether there is one is always distinguished, for the comma. */
static void set_counts(struct object *o)
{
    int64_t n_required = 0, n_live = 0;

    for (int32_t i = 0; i < o->leaf->n_members; i++) {
        n_required += o->leaf->members[i].required;
        n_live += live(o->e, o->leaf->members[i].node);
    }
    o->min = o->leaf->min_members > n_required ? o->leaf->min_members : 0;
    o->max = o->leaf->max_members;
    if (o->max >= n_live && !o->has_extra)
        o->max = -1;
    o->n_counts = (int32_t)(o->max >= 0 ? o->max + 1 : o->min > 1 ? o->min + 1 : 2);
}

/* The arcs from the states before member i. */
static void member_arcs(struct object *o, int32_t i)
{
    const struct sv_member *m = &o->leaf->members[i];
    struct sv_emit *e = o->e;
    const bool possible = live(e, m->node);
    sv_expr text = possible ? named(e, sv_emit_name(e, m->name, m->n_name), m->node) : 0;

    for (int32_t c = 0; c < o->n_counts; c++) {
        int32_t from = i * o->n_counts + c;
        if (!o->reached[from])
            continue;
        if (!m->required)
            arc(o, from, i + 1, c, sv_build_empty(e->b));
        if (possible && (o->max < 0 || c < o->max))
            arc(o, from, i + 1, c + 1, after(e, c, text));
    }
}

/* After the members: the end, or other names. These may be repeated, so only the first of them
 * counts towards the minimum. Without members there is no space before the closing bracket, as the
 * opening bracket may be followed by space already. */
static void last_arcs(struct object *o)
{
    const int32_t n = o->leaf->n_members;

    for (int32_t c = 0; c < o->n_counts; c++) {
        const int32_t from = n * o->n_counts + c, again = from + o->n_counts;
        const bool room = o->has_extra && (o->max < 0 || c < o->max);
        if (o->reached[from] && c >= o->min)
            o->arcs[o->n_arcs++] = (struct sv_arc){from, o->out, o->close[c > 0]};
        if (o->reached[from] && room && c + 1 >= o->min)
            arc(o, from, n + 1, c + 1, after(o->e, c, o->extra));
        if (o->reached[again])
            o->arcs[o->n_arcs++] = (struct sv_arc){again, o->out, o->close[1]};
        if (o->reached[again] && room)
            arc(o, again, n + 1, c + 1, after(o->e, 1, o->extra));
    }
}

static sv_expr emit_object(struct sv_emit *e, const struct sv_leaf *leaf, const char *path)
{
    struct object o = {.e = e, .leaf = leaf};
    struct sv_build *b = e->b;
    int64_t n;

    o.close[0] = sv_build_bytes(b, "}", 1);
    o.close[1] = sv_build_then(b, e->space, o.close[0]);
    set_extra(&o);
    set_counts(&o);
    n = ((int64_t)leaf->n_members + 2) * o.n_counts;
    if (n > MAX_STATES) {
        sv_build_fail(
            b, SV_EFULL, -1,
            "%.200s: so many members with 'minProperties' or 'maxProperties' are too many", path);
        return 0;
    }
    o.out = (int32_t)n;
    o.reached = sv_schema_alloc(e->s, (size_t)n, sizeof *o.reached);
    o.arcs = sv_schema_alloc(e->s, (size_t)n * 2, sizeof *o.arcs);
    if (!o.reached || !o.arcs)
        return sv_emit_no_memory(e);
    o.reached[0] = true;
    for (int32_t i = 0; i < leaf->n_members; i++)
        member_arcs(&o, i);
    last_arcs(&o);
    return sv_build_seq(b,
                        (sv_expr[]){sv_build_bytes(b, "{", 1), e->space,
                                    sv_build_states(b, o.out, o.arcs, (size_t)o.n_arcs)},
                        3);
}

/* ---------------------------------------------------------------- nodes */

static sv_expr emit_values(struct sv_emit *e, const struct sv_leaf *leaf)
{
    sv_expr *texts = sv_schema_alloc(e->s, leaf->n_values + 1, sizeof *texts);
    struct sv_word *words = sv_schema_alloc(e->s, leaf->n_values, sizeof *words);
    const struct sv_dfa *strings;
    size_t n = 0, n_words = 0;

    for (size_t i = 0; i < leaf->n_values && texts && words; i++) {
        const json_t *v = leaf->values[i];
        if (json_is_string(v))
            words[n_words++] = (struct sv_word){json_string_value(v), json_string_length(v)};
        else
            texts[n++] = sv_emit_literal(e, v);
    }
    if (n_words && texts && words) {
        int status = sv_dfa_words(&e->s->room, words, n_words, &strings, e->s->err);
        if (status == SV_OK)
            texts[n++] = sv_emit_string(e, strings);
        else
            sv_build_fail(e->b, status, -1, "enum: too large");
    }
    return texts && words ? sv_build_alt(e->b, texts, n) : sv_emit_no_memory(e);
}

static sv_expr emit_leaf(struct sv_emit *e, const struct sv_schema_node *node)
{
    const struct sv_leaf *leaf = node->leaf;
    const uint32_t live = node->live;
    sv_expr by_type[8];
    size_t n = 0;

    if (leaf->has_values)
        return emit_values(e, leaf);
    if (live & SV_NULL)
        by_type[n++] = sv_build_bytes(e->b, "null", 4);
    if (live & SV_BOOL)
        by_type[n++] =
            sv_build_or(e->b, sv_build_bytes(e->b, "true", 4), sv_build_bytes(e->b, "false", 5));
    if (live & SV_BROKEN)
        by_type[n++] = leaf->number_text[0] ? sv_emit_number(e, leaf->number_text[0]) : e->number;
    else if (live & SV_WHOLE)
        by_type[n++] = leaf->number_text[1] ? sv_emit_number(e, leaf->number_text[1]) : e->integer;
    if (live & SV_STRING)
        by_type[n++] = sv_emit_string(e, leaf->strings);
    if (live & SV_ARRAY)
        by_type[n++] = emit_array(e, leaf);
    if (live & SV_OBJECT)
        by_type[n++] = emit_object(e, leaf, node->path);
    return sv_build_alt(e->b, by_type, n);
}

static sv_expr emit_union(struct sv_emit *e, const struct sv_schema_node *node)
{
    sv_expr *alts = sv_schema_alloc(e->s, (size_t)node->n_alts, sizeof *alts);
    size_t n = 0;

    if (!alts)
        return sv_emit_no_memory(e);
    for (int32_t i = 0; i < node->n_alts; i++) {
        bool again = false;
        for (int32_t k = 0; k < i && i < 64; k++)
            again |= node->alts[k] == node->alts[i];
        if (live(e, node->alts[i]) && !again)
            alts[n++] = call(e, node->alts[i]);
    }
    return sv_build_alt(e->b, alts, n);
}

sv_expr sv_node_emit(struct sv_schema *s, struct sv_build *b, int32_t node)
{
    struct sv_emit e = {.s = s, .b = b};
    sv_expr start;

    e.waiting = sv_schema_alloc(s, (size_t)s->n_nodes, sizeof *e.waiting);
    if (!e.waiting)
        return sv_emit_no_memory(&e);
    sv_emit_open(&e);
    start = call(&e, node);
    for (int32_t i = 0; i < e.n_waiting && !sv_build_failed(b); i++) {
        const struct sv_schema_node *n = &s->nodes[e.waiting[i]];
        sv_build_define(b, n->rule, n->leaf ? emit_leaf(&e, n) : emit_union(&e, n));
    }
    return start;
}
