/*
 * regex_dfa.c - a regular expression as an automaton over code points.
 *
 * Called by schema_string.c, which takes automata together: a pattern with a length, names that
 * match one pattern and not another. The tree becomes a nondeterministic network, whose sets of
 * places are then walked. Anchors are ways that are open only at the begin or at the end. Must not:
 * make networks larger than a set of places can hold (MAX_PLACES).
 */
#include "grammar/dfa.h"
#include "grammar/regex.h"

#include <stdlib.h>
#include <string.h>

#define N_WORDS 64 /* of a set of places */
#define MAX_PLACES (64 * N_WORDS)
#define MAX_EDGES (4 * MAX_PLACES)

enum way { FREE, AT_BEGIN, AT_END };

struct place_set {
    uint64_t bits[N_WORDS];
};

/* From one place to another, over a character of ranges or over none. */
struct link {
    int32_t from, to, n; /* n 0: no character */
    const struct sv_range *ranges;
    enum way way;
};

struct network {
    struct sv_dfa_room *room;
    const struct sv_regex_tree *tree;
    struct link *links; /* (n_links), by `from` when complete */
    int32_t n_links, cap_links, n_places;
    int32_t *first; /* (n_places + 1) into links */
    int32_t accept;
    struct cut *cuts; /* scratch of one step */
    int32_t cap_cuts;
    int status;
    struct sv_err *err;
};

/* A link that is in reach, as a range of characters and where it leads. */
struct cut {
    uint32_t lo, hi;
    int32_t to;
};

static int32_t place(struct network *n)
{
    if (n->n_places == MAX_PLACES && n->status == SV_OK)
        n->status = sv_fail(n->err, SV_EFULL, -1,
                            "the expression takes more than %d places (repetitions count each "
                            "time)",
                            MAX_PLACES);
    return n->status == SV_OK ? n->n_places++ : 0;
}

static void link(struct network *n, struct link l)
{
    if (n->n_links == n->cap_links && n->status == SV_OK) {
        int32_t cap = n->cap_links ? n->cap_links * 2 : 64;
        struct link *more = sv_arena_alloc(n->room->arena, (size_t)cap * sizeof *more);
        if (!more)
            n->status = sv_fail(n->err, SV_ENOMEM, -1, "out of memory");
        else if (n->n_links)
            memcpy(more, n->links, (size_t)n->n_links * sizeof *more);
        n->links = more;
        n->cap_links = cap;
    }
    if (n->status == SV_OK)
        n->links[n->n_links++] = l;
}

static void skip(struct network *n, int32_t from, int32_t to, enum way way)
{
    link(n, (struct link){.from = from, .to = to, .way = way});
}

/* ---------------------------------------------------------------- tree to network */

static int32_t build(struct network *n, int32_t x, int32_t from);

/* A row of parts hangs together by its first ones, so these are gone down in a loop. */
static int32_t build_row(struct network *n, int32_t x, int32_t from)
{
    const struct sv_regex_node *nodes = n->tree->nodes;
    int32_t n_parts = 1, at = x;

    while (nodes[at].kind == SV_REGEX_THEN) {
        n_parts++;
        at = nodes[at].a;
    }
    from = build(n, at, from);
    /* From the innermost outwards: the k-th part is `b` of the node that many steps down. */
    int32_t *row = sv_arena_alloc(n->room->arena, (size_t)n_parts * sizeof *row);
    if (!row) {
        n->status = sv_fail(n->err, SV_ENOMEM, -1, "out of memory");
        return from;
    }
    at = x;
    for (int32_t i = n_parts - 1; i > 0; i--, at = nodes[at].a)
        row[i] = nodes[at].b;
    for (int32_t i = 1; i < n_parts && n->status == SV_OK; i++)
        from = build(n, row[i], from);
    return from;
}

static int32_t build_repeat(struct network *n, const struct sv_regex_node *x, int32_t from)
{
    int32_t end;

    for (int32_t i = 0; i < x->min && n->status == SV_OK; i++)
        from = build(n, x->a, from);
    end = place(n);
    if (x->max < 0) {
        int32_t loop = place(n);
        skip(n, from, loop, FREE);
        skip(n, build(n, x->a, loop), loop, FREE);
        skip(n, loop, end, FREE);
        return end;
    }
    for (int32_t i = x->min; i < x->max && n->status == SV_OK; i++) {
        skip(n, from, end, FREE);
        from = build(n, x->a, from);
    }
    skip(n, from, end, FREE);
    return end;
}

/* Alternatives hang together as rows do. */
static int32_t build_or(struct network *n, int32_t x, int32_t from)
{
    const struct sv_regex_node *nodes = n->tree->nodes;
    int32_t end = place(n);

    for (; nodes[x].kind == SV_REGEX_OR && n->status == SV_OK; x = nodes[x].a)
        skip(n, build(n, nodes[x].b, from), end, FREE);
    skip(n, build(n, x, from), end, FREE);
    return end;
}

/* Adds node x behind place `from`; the place behind it. */
static int32_t build(struct network *n, int32_t x, int32_t from)
{
    const struct sv_regex_node *node = &n->tree->nodes[x];
    int32_t end;

    if (n->status == SV_OK)
        n->status = sv_dfa_spend(n->room, 4, n->err);
    if (n->status != SV_OK)
        return 0;
    switch ((enum sv_regex_kind)node->kind) {
    case SV_REGEX_EMPTY:
        return from;
    case SV_REGEX_THEN:
        return build_row(n, x, from);
    case SV_REGEX_OR:
        return build_or(n, x, from);
    case SV_REGEX_REPEAT:
        return build_repeat(n, node, from);
    case SV_REGEX_SET:
        end = place(n);
        if (node->n)
            link(n, (struct link){from, end, node->n, n->tree->ranges + node->at, FREE});
        return end;
    case SV_REGEX_BEGIN:
    case SV_REGEX_END:
        end = place(n);
        skip(n, from, end, node->kind == SV_REGEX_BEGIN ? AT_BEGIN : AT_END);
        return end;
    }
    sv_panic("unknown node %d", node->kind);
}

static int by_from(const void *a, const void *b)
{
    const struct link *x = a, *y = b;

    return (x->from > y->from) - (x->from < y->from);
}

/* Places' links in a row, so that a place finds its own. */
static int index_links(struct network *n)
{
    int32_t at = 0;

    n->first = sv_arena_alloc(n->room->arena, ((size_t)n->n_places + 1) * sizeof *n->first);
    if (!n->first)
        return sv_fail(n->err, SV_ENOMEM, -1, "out of memory");
    if (n->n_links)
        qsort(n->links, (size_t)n->n_links, sizeof *n->links, by_from);
    for (int32_t p = 0; p <= n->n_places; p++) {
        while (at < n->n_links && n->links[at].from < p)
            at++;
        n->first[p] = at;
    }
    return SV_OK;
}

/* ---------------------------------------------------------------- sets of places */

static bool in_set(const struct place_set *s, int32_t p)
{
    return s->bits[p / 64] >> (p % 64) & 1;
}

/* Adds p and all that is reached from it without a character; at_end: through $ too. */
static void add(const struct network *n, struct place_set *s, int32_t p, bool begin, bool end)
{
    int32_t stack[MAX_PLACES], depth = 0;

    if (in_set(s, p))
        return;
    s->bits[p / 64] |= 1ull << (p % 64);
    stack[depth++] = p;
    while (depth) {
        p = stack[--depth];
        for (int32_t i = n->first[p]; i < n->first[p + 1]; i++) {
            const struct link *l = &n->links[i];
            if (l->n || in_set(s, l->to) || (l->way == AT_BEGIN && !begin) ||
                (l->way == AT_END && !end))
                continue;
            s->bits[l->to / 64] |= 1ull << (l->to % 64);
            stack[depth++] = l->to;
        }
    }
}

static int by_lo(const void *a, const void *b)
{
    const struct cut *x = a, *y = b;

    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* The ranges that leave a set of places, sorted; -1 after an error. */
static int32_t collect(struct network *n, const struct place_set *s)
{
    int32_t n_cuts = 0;

    for (int32_t p = 0; p < n->n_places; p++) {
        if (!s->bits[p / 64]) {
            p |= 63;
            continue;
        }
        for (int32_t i = n->first[p]; in_set(s, p) && i < n->first[p + 1]; i++)
            for (int32_t r = 0; r < n->links[i].n; r++) {
                if (n_cuts == n->cap_cuts)
                    return -1;
                const struct sv_range *range = &n->links[i].ranges[r];
                n->cuts[n_cuts++] = (struct cut){range->lo, range->hi, n->links[i].to};
            }
    }
    qsort(n->cuts, (size_t)n_cuts, sizeof *n->cuts, by_lo);
    return n_cuts;
}

/* Cuts the characters where some range begins or ends; each piece leads to the places of all the
 * ranges that cover it. */
static void steps(void *arg, const void *state, struct sv_dfa_walk *w)
{
    struct network *n = arg;
    int32_t n_cuts = collect(n, state);
    uint32_t at = 0;

    SV_REQUIRE(n_cuts >= 0);
    while (n_cuts) {
        struct place_set to = {{0}};
        uint32_t next = UINT32_MAX;
        int32_t kept = 0;
        bool any = false;
        for (int32_t i = 0; i < n_cuts; i++) {
            const struct cut *c = &n->cuts[i];
            if (c->lo > at)
                next = c->lo - 1 < next ? c->lo - 1 : next;
            else if (c->hi >= at)
                next = c->hi < next ? c->hi : next;
            if (c->lo > at)
                break;
        }
        for (int32_t i = 0; i < n_cuts; i++) {
            const struct cut c = n->cuts[i];
            if (c.lo <= at && c.hi >= at) {
                add(n, &to, c.to, false, false);
                any = true;
            }
            if (c.hi > next)
                n->cuts[kept++] = c;
        }
        if (sv_dfa_spend(n->room, 1 + n_cuts / 4, NULL) != SV_OK)
            n_cuts = 0; /* the walk's next step finds that nothing is left */
        else
            n_cuts = kept;
        if (any)
            sv_dfa_step(w, at, next, &to);
        at = next + 1;
    }
}

static bool final(void *arg, const void *state)
{
    const struct network *n = arg;
    const struct place_set *s = state;
    struct place_set at_end = {{0}};

    for (int32_t p = 0; p < n->n_places; p++)
        if (in_set(s, p))
            add(n, &at_end, p, false, true);
    return in_set(&at_end, n->accept);
}

int sv_dfa_regex(struct sv_dfa_room *room, const struct sv_regex_tree *tree, bool search,
                 const struct sv_dfa **out, struct sv_err *err)
{
    static const struct sv_dfa_kind kind = {sizeof(struct place_set), steps, final};
    static const struct sv_range any = {0, SV_CP_LAST};
    struct network n = {.room = room, .tree = tree, .err = err};
    struct place_set start = {{0}};
    int32_t begin = place(&n), from = place(&n);

    skip(&n, begin, from, FREE);
    if (search)
        link(&n, (struct link){from, from, 1, &any, FREE});
    n.accept = build(&n, tree->root, from);
    if (search)
        link(&n, (struct link){n.accept, n.accept, 1, &any, FREE});
    if (n.status == SV_OK)
        n.status = index_links(&n);
    for (int32_t i = 0; i < n.n_links; i++)
        n.cap_cuts += n.links[i].n;
    n.cuts = n.status == SV_OK
                 ? sv_arena_alloc(room->arena, ((size_t)n.cap_cuts + 1) * sizeof *n.cuts)
                 : NULL;
    if (n.status == SV_OK && !n.cuts)
        n.status = sv_fail(err, SV_ENOMEM, -1, "out of memory");
    if (n.status != SV_OK)
        return n.status;
    add(&n, &start, begin, true, false);
    return sv_dfa_walk(room, &kind, &n, &start, out, err);
}
