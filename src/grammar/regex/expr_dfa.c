/*
 * expr_dfa.c - an expression over characters, as regex.c reads it, as an automaton.
 *
 * Called by schema_string.c, which combines automata: a pattern with a length, names that match one
 * pattern and not another. The expression becomes a nondeterministic automaton of places (its
 * states), then deterministic by the subset construction. Must not: exceed the size of a set of
 * places (MAX_PLACES), or be given expressions over bytes or recursive rules.
 */
#include "grammar/regex/dfa.h"
#include "grammar/core/rules.h"

#include <stdlib.h>
#include <string.h>

#define N_WORDS 64 /* of a set of places */
#define MAX_PLACES (64 * N_WORDS)

struct place_set {
    uint64_t bits[N_WORDS];
};

/* From one place to another, over a character of ranges or over none. */
struct link {
    int32_t from, to, n; /* n 0: no character */
    const struct sv_range *ranges;
};

/* A link that can be taken, as a range of characters and its target. */
struct cut {
    uint32_t lo, hi;
    int32_t to;
};

struct network {
    struct sv_dfa_room *room;
    const struct sv_build *b;
    struct link *links; /* (n_links), by `from` when complete */
    int32_t n_links, cap_links, n_places;
    int32_t *first; /* (n_places + 1) into links */
    int32_t accept;
    struct cut *cuts; /* scratch of one step */
    int32_t cap_cuts;
    int status;
    struct sv_err *err;
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

static void skip(struct network *n, int32_t from, int32_t to)
{
    link(n, (struct link){.from = from, .to = to});
}

/* ---------------------------------------------------------------- expression to network */

static int32_t build(struct network *n, sv_expr x, int32_t from);

static sv_expr kid(const struct network *n, const struct sv_expr_node *x, uint32_t k)
{
    return ((const sv_expr *)n->b->kids.data)[x->at + k];
}

static int32_t build_repeat(struct network *n, sv_expr x, int32_t min, int32_t max, int32_t from)
{
    int32_t end, loop;

    for (int32_t i = 0; i < min && n->status == SV_OK; i++)
        from = build(n, x, from);
    end = place(n);
    if (max < 0) {
        loop = place(n);
        skip(n, from, loop);
        skip(n, build(n, x, loop), loop);
        skip(n, loop, end);
        return end;
    }
    for (int32_t i = min; i < max && n->status == SV_OK; i++) {
        skip(n, from, end);
        from = build(n, x, from);
    }
    skip(n, from, end);
    return end;
}

/* Adds expression x after place `from`; returns the place after x. */
static int32_t build(struct network *n, sv_expr i, int32_t from)
{
    const struct sv_expr_node x = *sv_build_expr(n->b, i);
    int32_t end;

    if (n->status == SV_OK)
        n->status = sv_dfa_spend(n->room, 4, n->err);
    if (n->status != SV_OK)
        return 0;
    switch ((enum sv_expr_kind)x.kind) {
    case SV_EXPR_NOTHING:
        return place(n);
    case SV_EXPR_CHARS:
        end = place(n);
        link(n, (struct link){from, end, (int32_t)x.n,
                              (const struct sv_range *)n->b->ranges.data + x.at});
        return end;
    case SV_EXPR_SEQ:
        for (uint32_t k = 0; k < x.n && n->status == SV_OK; k++)
            from = build(n, kid(n, &x, k), from);
        return from;
    case SV_EXPR_ALT:
        end = place(n);
        for (uint32_t k = 0; k < x.n && n->status == SV_OK; k++)
            skip(n, build(n, kid(n, &x, k), from), end);
        return end;
    case SV_EXPR_REPEAT:
        return build_repeat(n, x.at, (int32_t)x.n, x.max, from);
    case SV_EXPR_RULE: /* a repetition's, never recursive */
        return build(n, sv_build_rule_at(n->b, x.at)->body, from);
    case SV_EXPR_BYTES:
        SV_REQUIRE(x.n == 0); /* the empty text */
        return from;
    default:
        sv_panic("an expression of kind %d is not about characters", x.kind);
    }
}

static int by_from(const void *a, const void *b)
{
    const struct link *x = a, *y = b;

    return (x->from > y->from) - (x->from < y->from);
}

/* Sorts links by place. */
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

/* Adds p and all that is reached from it without a character. */
static void add(const struct network *n, struct place_set *s, int32_t p)
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
            if (l->n || in_set(s, l->to))
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

/* The ranges of the links from a set of places, sorted; -1 after an error. */
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

/* Splits the characters where a range begins or ends; each piece leads to the places of all ranges
 * that contain it. */
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
                add(n, &to, c.to);
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
    return in_set(state, ((const struct network *)arg)->accept);
}

int sv_dfa_expr(struct sv_dfa_room *room, const struct sv_build *b, sv_expr x,
                const struct sv_dfa **out, struct sv_err *err)
{
    static const struct sv_dfa_kind kind = {sizeof(struct place_set), steps, final};
    struct network n = {.room = room, .b = b, .err = err};
    struct place_set start = {{0}};

    n.accept = build(&n, x, place(&n));
    if (n.status == SV_OK)
        n.status = index_links(&n);
    if (n.status != SV_OK)
        return n.status;
    for (int32_t i = 0; i < n.n_links; i++)
        n.cap_cuts += n.links[i].n;
    n.cuts = sv_arena_alloc(room->arena, ((size_t)n.cap_cuts + 1) * sizeof *n.cuts);
    if (!n.cuts)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    add(&n, &start, 0);
    return sv_dfa_walk(room, &kind, &n, &start, out, err);
}
