/*
 * search.c - expressions that are searched for in a text while it grows.
 *
 * Opened by serve and library callers, advanced by the engine's sequences. Each expression becomes
 * an automaton of the texts that contain a match, so a character costs one step however long the
 * text is. Must not: change once it is open; sequences share it.
 */
#include "grammar/regex/dfa.h"
#include "grammar/regex/regex.h"

#include <stdatomic.h>
#include <string.h>

/* For all expressions together: about ten milliseconds, and some 7,000 edges. */
#define MAX_WORK (1 << 17)
#define MAX_TEXT 4096

struct sv_search {
    atomic_int refs;
    int32_t n;
    struct sv_arena arena;
    const struct sv_dfa **dfa; /* (n) */
};

/* A copy without the intermediate results of its construction. */
static const struct sv_dfa *keep(struct sv_arena *arena, const struct sv_dfa *d)
{
    const size_t n = (size_t)d->n_states, n_edges = n ? (size_t)d->first[n] : 0;
    struct sv_dfa *own = sv_arena_alloc(arena, sizeof *own);

    if (!own)
        return NULL;
    own->n_states = d->n_states;
    own->first = sv_arena_alloc(arena, (n + 1) * sizeof *own->first);
    own->edges = sv_arena_alloc(arena, (n_edges + 1) * sizeof *own->edges);
    own->final = sv_arena_alloc(arena, (n + 1) * sizeof *own->final);
    if (!own->first || !own->edges || !own->final)
        return NULL;
    if (n) {
        memcpy(own->first, d->first, (n + 1) * sizeof *own->first);
        memcpy(own->edges, d->edges, n_edges * sizeof *own->edges);
        memcpy(own->final, d->final, n * sizeof *own->final);
    }
    return own;
}

static int read_one(struct sv_dfa_room *room, const char *text, const struct sv_dfa **out,
                    struct sv_err *err)
{
    const struct sv_regex_style style = {.search = true};
    struct sv_build *b;
    int status = sv_build_open(&b, err);

    if (status != SV_OK)
        return status;
    sv_expr x = sv_regex_expr(b, text, strlen(text), &style);
    status = sv_build_error(b, err);
    if (status == SV_OK)
        status = sv_dfa_expr(room, b, x, out, err);
    sv_build_close(b);
    if (status == SV_OK && (*out)->n_states && (*out)->final[0])
        status = sv_fail(err, SV_EINVAL, -1, "the empty text matches, so every text would");
    return status;
}

/* One expression's automaton; the limit's error gets a message for searches. */
static int one(struct sv_search *s, int64_t *work, const char *text, const struct sv_dfa **out,
               struct sv_err *err)
{
    struct sv_arena arena;
    const struct sv_dfa *d = NULL;

    sv_arena_init(&arena);
    struct sv_dfa_room room = {.arena = &arena, .work = *work, .nul = true};
    int status = read_one(&room, text, &d, err);
    if (status == SV_EFULL)
        status = sv_fail(err, SV_EFULL, -1, "the expression is too large or too intricate");
    *work = room.work;
    *out = status == SV_OK ? keep(&s->arena, d) : NULL;
    if (status == SV_OK && !*out)
        status = sv_fail(err, SV_ENOMEM, -1, "out of memory");
    sv_arena_fini(&arena);
    return status;
}

int sv_search_open(struct sv_search **out, const char *const *texts, size_t n, struct sv_err *err)
{
    int64_t work = MAX_WORK;
    size_t n_bytes = 0;
    struct sv_search *s = sv_calloc(1, sizeof *s);

    *out = NULL;
    if (!s)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    atomic_init(&s->refs, 1);
    sv_arena_init(&s->arena);
    s->dfa = sv_arena_alloc(&s->arena, (n + 1) * sizeof *s->dfa);
    int status = s->dfa ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "out of memory");
    if (status == SV_OK && n > SV_SEARCH_MAX)
        status = sv_fail(err, SV_EFULL, -1, "%zu expressions are more than %d", n, SV_SEARCH_MAX);
    for (size_t i = 0; i < n && status == SV_OK; i++) {
        n_bytes += strlen(texts[i]);
        if (n_bytes > MAX_TEXT)
            status =
                sv_fail(err, SV_EFULL, -1, "the expressions have more than %d bytes", MAX_TEXT);
        else
            status = one(s, &work, texts[i], &s->dfa[i], err);
        if (status != SV_OK && n > 1)
            sv_err_prefix(err, "[%zu]", i);
        s->n++;
    }
    if (status != SV_OK)
        sv_search_unref(s);
    else
        *out = s;
    return status;
}

/* Numbers of states and edges, then the arrays, automaton after automaton. */
void sv_search_pack(const struct sv_search *s, struct sv_buf *b)
{
    sv_buf_append(b, &s->n, sizeof s->n);
    for (int32_t i = 0; i < s->n; i++) {
        const struct sv_dfa *d = s->dfa[i];
        const size_t n = (size_t)d->n_states, n_edges = n ? (size_t)d->first[n] : 0;
        const int32_t sizes[2] = {d->n_states, (int32_t)n_edges};
        sv_buf_append(b, sizes, sizeof sizes);
        sv_buf_append(b, d->first, n ? (n + 1) * sizeof *d->first : 0);
        sv_buf_append(b, d->edges, n_edges * sizeof *d->edges);
        sv_buf_append(b, d->final, n * sizeof *d->final);
    }
}

/* Copies the next n_bytes of *data; false: too few are left, or out of memory. */
static bool take(struct sv_arena *arena, const char **data, size_t *left, void *to, size_t n_bytes)
{
    void *own = n_bytes > *left ? NULL : sv_arena_alloc(arena, n_bytes + 1);

    if (!own)
        return false;
    memcpy(own, *data, n_bytes);
    memcpy(to, &own, sizeof own);
    *data += n_bytes;
    *left -= n_bytes;
    return true;
}

static bool take_dfa(struct sv_arena *arena, const char **data, size_t *left,
                     const struct sv_dfa **out)
{
    struct sv_dfa *d = sv_arena_alloc(arena, sizeof *d);
    const int32_t *sizes;

    if (!d || !take(arena, data, left, &sizes, 2 * sizeof *sizes) || sizes[0] < 0 || sizes[1] < 0)
        return false;
    const size_t n = (size_t)sizes[0], n_edges = (size_t)sizes[1];
    d->n_states = sizes[0];
    *out = d;
    return take(arena, data, left, &d->first, n ? (n + 1) * sizeof *d->first : 0) &&
           take(arena, data, left, &d->edges, n_edges * sizeof *d->edges) &&
           take(arena, data, left, &d->final, n * sizeof *d->final);
}

int sv_search_unpack(struct sv_search **out, const char *data, size_t n, struct sv_err *err)
{
    struct sv_search *s = sv_calloc(1, sizeof *s);
    int32_t most = 0;

    if (!s)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    atomic_init(&s->refs, 1);
    sv_arena_init(&s->arena);
    if (n >= sizeof most)
        memcpy(&most, data, sizeof most);
    size_t left = n - sizeof most;
    data += sizeof most;
    s->dfa = most > 0 && most <= SV_SEARCH_MAX
                 ? sv_arena_alloc(&s->arena, (size_t)most * sizeof *s->dfa)
                 : NULL;
    while (s->dfa && s->n < most && take_dfa(&s->arena, &data, &left, &s->dfa[s->n]))
        s->n++;
    if (!s->dfa || s->n < most || left) {
        sv_search_unref(s);
        return sv_fail(err, SV_EINVAL, -1, "%d expressions in %zu bytes", most, n);
    }
    *out = s;
    return SV_OK;
}

struct sv_search *sv_search_ref(struct sv_search *s)
{
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

void sv_search_unref(struct sv_search *s)
{
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) > 1)
        return;
    sv_arena_fini(&s->arena);
    sv_free(s);
}

int32_t sv_search_count(const struct sv_search *s)
{
    return s->n;
}

/* The state after a character, or -1: no match is possible any more. */
static int32_t next_state(const struct sv_dfa *d, int32_t state, uint32_t c)
{
    int32_t lo = d->first[state], hi = d->first[state + 1];

    while (lo < hi) { /* the first edge that does not end before c */
        const int32_t mid = lo + (hi - lo) / 2;
        if (d->edges[mid].hi < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < d->first[state + 1] && d->edges[lo].lo <= c ? d->edges[lo].to : -1;
}

int32_t sv_search_next(const struct sv_search *s, int32_t *at, const char *text, size_t n)
{
    int32_t found = -1;

    for (int32_t i = 0; i < s->n; i++) {
        const struct sv_dfa *d = s->dfa[i];
        int32_t state = d->n_states ? at[i] : -1;
        for (size_t k = 0; k < n && state >= 0;)
            state = next_state(d, state, sv_dfa_next(text, &k));
        at[i] = state;
        if (found < 0 && state >= 0 && d->final[state])
            found = i;
    }
    return found;
}
