/*
 * dfa.c - sets of strings as finite automata: the walk that finds states, and the sets that need
 * nothing else.
 *
 * Called by the schema files through dfa.h. One walk makes them all (products, lengths, words,
 * numbers, regular expressions): a state is a key, a hash table finds known ones, and finally
 * states that cannot reach an end are removed. Must not: handle JSON's escapes or bytes;
 * schema_text.c does.
 */
#include "grammar/regex/dfa.h"

#include <stdlib.h>
#include <string.h>

#define MAX_STATES (1 << 16)

int sv_dfa_spend(struct sv_dfa_room *room, int64_t n, struct sv_err *err)
{
    if (n > room->work) {
        room->work = 0;
        return sv_fail(err, SV_EFULL, -1, "too large or too intricate to be made into a grammar");
    }
    room->work -= n;
    return SV_OK;
}

/* ---------------------------------------------------------------- the walk */

struct sv_dfa_walk {
    struct sv_dfa_room *room;
    size_t key_bytes;
    uint8_t *keys; /* (cap_states, key_bytes) */
    int32_t n_states, cap_states;
    int32_t *table; /* (n_table) state + 1, or 0; n_table is a power of two */
    uint32_t n_table;
    struct sv_dfa_edge *edges;
    int32_t n_edges, cap_edges;
    int32_t from_edge; /* the first edge of the current state */
    int status;
    struct sv_err *err;
};

/* Arrays grow in the arena by doubling; old copies are freed with the arena. */
static void *grown(struct sv_dfa_walk *w, const void *old, size_t old_bytes, size_t new_bytes)
{
    void *p = sv_arena_alloc(w->room->arena, new_bytes);

    if (!p) {
        w->status = sv_fail(w->err, SV_ENOMEM, -1, "out of memory");
        return NULL;
    }
    if (old_bytes)
        memcpy(p, old, old_bytes);
    return p;
}

static uint32_t hash(const uint8_t *key, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < n; i++)
        h = (h ^ key[i]) * 0x100000001b3u;
    return (uint32_t)(h ^ (h >> 32));
}

static void rehash(struct sv_dfa_walk *w)
{
    uint32_t n = w->n_table ? w->n_table * 4 : 64;
    int32_t *table = grown(w, NULL, 0, n * sizeof *table);

    if (!table)
        return;
    for (int32_t s = 0; s < w->n_states; s++) {
        uint32_t at = hash(w->keys + (size_t)s * w->key_bytes, w->key_bytes) & (n - 1);
        while (table[at])
            at = (at + 1) & (n - 1);
        table[at] = s + 1;
    }
    w->table = table;
    w->n_table = n;
}

/* The number of the state with this key, a new one when it was not seen; -1 after an error. */
static int32_t state_of(struct sv_dfa_walk *w, const void *key)
{
    uint32_t at;

    if ((uint32_t)w->n_states * 2 >= w->n_table)
        rehash(w);
    if (w->status != SV_OK)
        return -1;
    at = hash(key, w->key_bytes) & (w->n_table - 1);
    for (; w->table[at]; at = (at + 1) & (w->n_table - 1))
        if (!memcmp(w->keys + (size_t)(w->table[at] - 1) * w->key_bytes, key, w->key_bytes))
            return w->table[at] - 1;
    if (w->n_states == MAX_STATES) {
        w->status =
            sv_fail(w->err, SV_EFULL, -1, "needs an automaton of more than %d states", MAX_STATES);
        return -1;
    }
    if (w->n_states == w->cap_states) {
        int32_t cap = w->cap_states ? w->cap_states * 2 : 16;
        uint8_t *keys =
            grown(w, w->keys, (size_t)w->n_states * w->key_bytes, (size_t)cap * w->key_bytes);
        if (!keys)
            return -1;
        w->keys = keys;
        w->cap_states = cap;
    }
    memcpy(w->keys + (size_t)w->n_states * w->key_bytes, key, w->key_bytes);
    w->table[at] = w->n_states + 1;
    return w->n_states++;
}

static void add_edge(struct sv_dfa_walk *w, uint32_t lo, uint32_t hi, int32_t to)
{
    struct sv_dfa_edge *last = w->n_edges > w->from_edge ? &w->edges[w->n_edges - 1] : NULL;

    SV_REQUIRE(!last || lo > last->hi);
    if (last && last->to == to && last->hi + 1 == lo) {
        last->hi = hi;
        return;
    }
    if (w->n_edges == w->cap_edges) {
        int32_t cap = w->cap_edges ? w->cap_edges * 2 : 32;
        struct sv_dfa_edge *edges =
            grown(w, w->edges, (size_t)w->n_edges * sizeof *edges, (size_t)cap * sizeof *edges);
        if (!edges)
            return;
        w->edges = edges;
        w->cap_edges = cap;
    }
    w->edges[w->n_edges++] = (struct sv_dfa_edge){lo, hi, to};
}

void sv_dfa_step(struct sv_dfa_walk *w, uint32_t lo, uint32_t hi, const void *to)
{
    int32_t s;

    if (hi > SV_CP_LAST)
        hi = SV_CP_LAST;
    if (lo < SV_CP_FIRST && !w->room->nul)
        lo = SV_CP_FIRST;
    if (lo > hi || w->status != SV_OK)
        return;
    w->status = sv_dfa_spend(w->room, 1 + (int64_t)w->key_bytes / 32, w->err);
    s = w->status == SV_OK ? state_of(w, to) : -1;
    if (s < 0)
        return;
    /* surrogates are not characters */
    if (lo < 0xD800)
        add_edge(w, lo, hi < 0xD800 ? hi : 0xD7FF, s);
    if (hi > 0xDFFF)
        add_edge(w, lo > 0xDFFF ? lo : 0xE000, hi, s);
}

/* Marks the states from which an end can be reached, walking backwards over edges in rounds. */
static int mark_useful(struct sv_dfa_room *room, const struct sv_dfa *d, bool *useful,
                       struct sv_err *err)
{
    bool again = true;
    int status = SV_OK;

    memcpy(useful, d->final, (size_t)d->n_states * sizeof *useful);
    while (again && status == SV_OK) {
        again = false;
        status = sv_dfa_spend(room, 1 + d->n_states / 8, err);
        for (int32_t s = d->n_states - 1; s >= 0; s--)
            for (int32_t e = d->first[s]; !useful[s] && e < d->first[s + 1]; e++)
                if (useful[d->edges[e].to])
                    useful[s] = again = true;
    }
    return status;
}

/* Removes states that cannot reach an end, and the edges to them. Numbers keep their order. */
static int trim(struct sv_dfa_room *room, struct sv_dfa *d, struct sv_err *err)
{
    size_t n = (size_t)d->n_states;
    bool *useful = sv_arena_alloc(room->arena, n * sizeof *useful);
    int32_t *number = sv_arena_alloc(room->arena, n * sizeof *number);
    int32_t n_kept = 0, n_edges = 0, begin = 0;
    int status;

    if (!useful || !number)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    status = mark_useful(room, d, useful, err);
    if (status != SV_OK)
        return status;
    if (!n || !useful[0]) {
        d->n_states = 0;
        return SV_OK;
    }
    for (size_t s = 0; s < n; s++)
        number[s] = useful[s] ? n_kept++ : -1;
    for (size_t s = 0; s < n; s++) {
        int32_t end = d->first[s + 1];
        if (useful[s]) {
            d->first[number[s]] = n_edges;
            d->final[number[s]] = d->final[s];
            for (int32_t e = begin; e < end; e++)
                if (useful[d->edges[e].to]) {
                    d->edges[n_edges] = d->edges[e];
                    d->edges[n_edges++].to = number[d->edges[e].to];
                }
        }
        begin = end;
    }
    d->n_states = n_kept;
    d->first[n_kept] = n_edges;
    return SV_OK;
}

int sv_dfa_walk(struct sv_dfa_room *room, const struct sv_dfa_kind *kind, void *arg,
                const void *start, const struct sv_dfa **out, struct sv_err *err)
{
    struct sv_dfa_walk w = {.room = room, .key_bytes = kind->key_bytes, .err = err};
    struct sv_dfa *d = sv_arena_alloc(room->arena, sizeof *d);
    int32_t cap = 0;

    if (!d)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    state_of(&w, start);
    for (int32_t s = 0; s < w.n_states && w.status == SV_OK; s++) {
        if (s + 1 >= cap) {
            int32_t more = cap ? cap * 2 : 16;
            d->first = grown(&w, d->first, (size_t)cap * sizeof *d->first,
                             (size_t)more * sizeof *d->first);
            d->final = grown(&w, d->final, (size_t)cap * sizeof *d->final,
                             (size_t)more * sizeof *d->final);
            cap = more;
        }
        if (w.status != SV_OK)
            break;
        d->first[s] = w.from_edge = w.n_edges;
        /* keys move when the table grows, so the current one is copied */
        uint64_t key[64];
        SV_REQUIRE(kind->key_bytes <= sizeof key);
        memcpy(key, w.keys + (size_t)s * w.key_bytes, w.key_bytes);
        d->final[s] = kind->final(arg, key);
        kind->steps(arg, key, &w);
        d->first[s + 1] = w.n_edges;
    }
    /* steps() may have stopped early because the work has run out. */
    if (w.status == SV_OK)
        w.status = sv_dfa_spend(room, w.n_states, err);
    if (w.status != SV_OK)
        return w.status;
    d->n_states = w.n_states;
    d->edges = w.edges;
    *out = d;
    return trim(room, d, err);
}

/* ---------------------------------------------------------------- lengths */

struct length {
    int64_t min, max;
};

static void length_steps(void *arg, const void *state, struct sv_dfa_walk *w)
{
    const struct length *l = arg;
    int64_t n = *(const int64_t *)state + 1;

    if (l->max >= 0 && n > l->max)
        return;
    if (l->max < 0 && n > l->min)
        n = l->min;
    sv_dfa_step(w, 0, SV_CP_LAST, &n);
}

static bool length_final(void *arg, const void *state)
{
    return *(const int64_t *)state >= ((const struct length *)arg)->min;
}

int sv_dfa_length(struct sv_dfa_room *room, int64_t min, int64_t max, const struct sv_dfa **out,
                  struct sv_err *err)
{
    static const struct sv_dfa_kind kind = {sizeof(int64_t), length_steps, length_final};
    struct length l = {min, max};
    int64_t start = 0;

    return sv_dfa_walk(room, &kind, &l, &start, out, err);
}

/* ---------------------------------------------------------------- both, without */

struct product {
    const struct sv_dfa *a, *b;
    bool without;
};

struct pair {
    int32_t a, b; /* b -1: b has no such string; only `without` continues */
};

static void product_steps(void *arg, const void *state, struct sv_dfa_walk *w)
{
    const struct product *p = arg;
    const struct pair *s = state;
    const struct sv_dfa *b = p->b;
    int32_t j = s->b < 0 ? 0 : b->first[s->b], j_end = s->b < 0 ? 0 : b->first[s->b + 1];

    for (int32_t i = p->a->first[s->a]; i < p->a->first[s->a + 1]; i++) {
        const struct sv_dfa_edge *e = &p->a->edges[i];
        uint32_t at = e->lo;
        while (j < j_end && b->edges[j].hi < at)
            j++;
        /* Edges of b that overlap this one; the last may overlap the next one too, so it stays. */
        for (int32_t k = j; at <= e->hi; k++) {
            bool meets = k < j_end && b->edges[k].lo <= e->hi;
            uint32_t from = meets ? b->edges[k].lo : e->hi + 1;
            if (p->without && at < from)
                sv_dfa_step(w, at, from - 1, &(struct pair){e->to, -1});
            if (!meets)
                break;
            if (from < at)
                from = at;
            uint32_t last = b->edges[k].hi < e->hi ? b->edges[k].hi : e->hi;
            sv_dfa_step(w, from, last, &(struct pair){e->to, b->edges[k].to});
            at = last + 1;
        }
    }
}

static bool product_final(void *arg, const void *state)
{
    const struct product *p = arg;
    const struct pair *s = state;
    bool in_b = s->b >= 0 && p->b->final[s->b];

    return p->a->final[s->a] && in_b != p->without;
}

static int product(struct sv_dfa_room *room, const struct product *p, const struct sv_dfa **out,
                   struct sv_err *err)
{
    static const struct sv_dfa_kind kind = {sizeof(struct pair), product_steps, product_final};
    struct pair start = {0, p->b->n_states ? 0 : -1};
    static const struct sv_dfa nothing;
    struct product mine = *p;

    if (!p->a->n_states || (!p->without && !p->b->n_states)) {
        *out = &nothing;
        return SV_OK;
    }
    return sv_dfa_walk(room, &kind, &mine, &start, out, err);
}

int sv_dfa_both(struct sv_dfa_room *room, const struct sv_dfa *a, const struct sv_dfa *b,
                const struct sv_dfa **out, struct sv_err *err)
{
    return product(room, &(struct product){a, b, false}, out, err);
}

int sv_dfa_without(struct sv_dfa_room *room, const struct sv_dfa *a, const struct sv_dfa *b,
                   const struct sv_dfa **out, struct sv_err *err)
{
    return product(room, &(struct product){a, b, true}, out, err);
}

/* ---------------------------------------------------------------- words */

uint32_t sv_dfa_next(const char *text, size_t *at)
{
    uint8_t b = (uint8_t)text[(*at)++];
    int n_more = b < 0x80 ? 0 : b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3;
    uint32_t c = n_more ? b & (0x3Fu >> n_more) : b;

    while (n_more--)
        c = c << 6 | ((uint8_t)text[(*at)++] & 0x3F);
    return c;
}

/* A state: the sorted words with a common prefix, and its length in bytes. */
struct prefix {
    int32_t first, last; /* last is not included */
    int64_t n_bytes;
};

static int by_text(const void *a, const void *b)
{
    const struct sv_word *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);

    return order ? order : (x->n > y->n) - (x->n < y->n);
}

static void word_steps(void *arg, const void *state, struct sv_dfa_walk *w)
{
    const struct sv_word *sorted = arg;
    const struct prefix *p = state;
    size_t begin = (size_t)p->n_bytes, end;
    int32_t i = p->first, next;

    while (i < p->last && sorted[i].n == begin)
        i++; /* this word ends here; duplicates do too */
    for (; i < p->last; i = next) {
        end = begin;
        uint32_t c = sv_dfa_next(sorted[i].text, &end);
        next = i + 1;
        while (next < p->last && sorted[next].n >= end &&
               !memcmp(sorted[i].text + begin, sorted[next].text + begin, end - begin))
            next++;
        sv_dfa_step(w, c, c, &(struct prefix){i, next, (int64_t)end});
    }
}

static bool word_final(void *arg, const void *state)
{
    const struct sv_word *sorted = arg;
    const struct prefix *p = state;

    return p->first < p->last && sorted[p->first].n == (size_t)p->n_bytes;
}

int sv_dfa_words(struct sv_dfa_room *room, const struct sv_word *words, size_t n,
                 const struct sv_dfa **out, struct sv_err *err)
{
    static const struct sv_dfa_kind kind = {sizeof(struct prefix), word_steps, word_final};
    struct prefix start = {0, (int32_t)n, 0};
    struct sv_word *sorted = sv_arena_alloc(room->arena, n * sizeof *sorted);

    if (!sorted)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    SV_REQUIRE(n <= INT32_MAX);
    if (n) {
        memcpy(sorted, words, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, by_text);
    }
    return sv_dfa_walk(room, &kind, sorted, &start, out, err);
}

bool sv_dfa_has(const struct sv_dfa *d, const char *text, size_t n)
{
    size_t at = 0;
    int32_t s = d->n_states ? 0 : -1;

    while (s >= 0 && at < n) {
        uint32_t c = sv_dfa_next(text, &at);
        int32_t to = -1;
        for (int32_t e = d->first[s]; e < d->first[s + 1]; e++)
            if (d->edges[e].lo <= c && c <= d->edges[e].hi)
                to = d->edges[e].to;
        s = to;
    }
    return s >= 0 && d->final[s];
}
