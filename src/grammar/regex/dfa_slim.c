/*
 * dfa_slim.c - minimises an automaton: equivalent states become one. Fewer states are fewer masks
 * for a matcher to compute.
 *
 * Called by schema_leaf.c and schema_string.c for automata that become rules. States are split into
 * classes until all states of a class lead to the same classes (Moore). Must not: take long; where
 * it would, the automaton stays as it is, which is equivalent.
 */
#include "grammar/regex/dfa.h"

#include <string.h>

#define MAX_LOOKS 4000000 /* at edges */

struct slim {
    const struct sv_dfa *d;
    int32_t *class_of, *next; /* (n_states) classes, and those of the next round */
    int32_t *table;           /* (n_table) a state of each class + 1 */
    uint32_t n_table;
};

/* The edge at *i, merged with the next ones that lead to the same class; *i moves past them. */
static struct sv_dfa_edge joined(const struct slim *s, int32_t *i, int32_t end)
{
    struct sv_dfa_edge e = s->d->edges[(*i)++];

    e.to = s->class_of[e.to];
    for (; *i < end; (*i)++) {
        const struct sv_dfa_edge *more = &s->d->edges[*i];
        if (more->lo != e.hi + 1 || s->class_of[more->to] != e.to)
            break;
        e.hi = more->hi;
    }
    return e;
}

static uint32_t hash(const struct slim *s, int32_t state)
{
    uint64_t h = 0xcbf29ce484222325u ^ (uint32_t)s->class_of[state];

    for (int32_t i = s->d->first[state], end = s->d->first[state + 1]; i < end;) {
        struct sv_dfa_edge e = joined(s, &i, end);
        h = (h ^ e.lo) * 0x100000001b3u;
        h = (h ^ e.hi) * 0x100000001b3u;
        h = (h ^ (uint32_t)e.to) * 0x100000001b3u;
    }
    return (uint32_t)(h ^ (h >> 32));
}

static bool alike(const struct slim *s, int32_t a, int32_t b)
{
    int32_t i = s->d->first[a], i_end = s->d->first[a + 1];
    int32_t j = s->d->first[b], j_end = s->d->first[b + 1];

    if (s->class_of[a] != s->class_of[b])
        return false;
    while (i < i_end && j < j_end) {
        struct sv_dfa_edge e = joined(s, &i, i_end), f = joined(s, &j, j_end);
        if (e.lo != f.lo || e.hi != f.hi || e.to != f.to)
            return false;
    }
    return i == i_end && j == j_end;
}

/* Splits classes once and returns their number. Classes are numbered by their first states, so the
 * start stays 0. */
static int32_t split(struct slim *s)
{
    int32_t n = 0;

    memset(s->table, 0, s->n_table * sizeof *s->table);
    for (int32_t i = 0; i < s->d->n_states; i++) {
        uint32_t at = hash(s, i) & (s->n_table - 1);
        while (s->table[at] && !alike(s, s->table[at] - 1, i))
            at = (at + 1) & (s->n_table - 1);
        if (!s->table[at]) {
            s->table[at] = i + 1;
            s->next[i] = n++;
        } else {
            s->next[i] = s->next[s->table[at] - 1];
        }
    }
    memcpy(s->class_of, s->next, (size_t)s->d->n_states * sizeof *s->next);
    return n;
}

/* One state for each class. */
static int rebuild(struct sv_dfa_room *room, const struct slim *s, int32_t n,
                   const struct sv_dfa **out, struct sv_err *err)
{
    const size_t n_edges = (size_t)s->d->first[s->d->n_states];
    struct sv_dfa *d = sv_arena_alloc(room->arena, sizeof *d);
    int32_t n_made = 0, at = 0;

    if (!d)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    d->n_states = n;
    d->first = sv_arena_alloc(room->arena, ((size_t)n + 1) * sizeof *d->first);
    d->final = sv_arena_alloc(room->arena, (size_t)n * sizeof *d->final);
    d->edges = sv_arena_alloc(room->arena, n_edges * sizeof *d->edges);
    if (!d->first || !d->final || !d->edges)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    for (int32_t i = 0; i < s->d->n_states; i++) {
        if (s->class_of[i] != n_made)
            continue; /* the class has its state already */
        d->final[n_made] = s->d->final[i];
        for (int32_t e = s->d->first[i], end = s->d->first[i + 1]; e < end;)
            d->edges[at++] = joined(s, &e, end);
        d->first[++n_made] = at;
    }
    *out = d;
    return SV_OK;
}

int sv_dfa_slim(struct sv_dfa_room *room, const struct sv_dfa **d, struct sv_err *err)
{
    const size_t n = (size_t)(*d)->n_states;
    struct slim s = {.d = *d, .n_table = 64};
    int32_t n_classes = 0, n_before = -1;
    int64_t looks = 0;

    if (n < 2)
        return SV_OK;
    while (s.n_table < 2 * n)
        s.n_table *= 2;
    s.class_of = sv_arena_alloc(room->arena, n * sizeof *s.class_of);
    s.next = sv_arena_alloc(room->arena, n * sizeof *s.next);
    s.table = sv_arena_alloc(room->arena, s.n_table * sizeof *s.table);
    if (!s.class_of || !s.next || !s.table)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    for (size_t i = 0; i < n; i++)
        s.class_of[i] = (*d)->final[i];
    while (n_classes > n_before) {
        looks += (*d)->first[n] + (int64_t)n;
        if (looks > MAX_LOOKS)
            return SV_OK;
        n_before = n_classes;
        n_classes = split(&s);
    }
    return (size_t)n_classes < n ? rebuild(room, &s, n_classes, d, err) : SV_OK;
}
