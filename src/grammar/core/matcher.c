/*
 * matcher.c - one sequence's position in a grammar: advance by tokens, roll back to a mark, and the
 * tokens allowed next.
 *
 * Called by engine. A position is the number of a state of the shared automaton; a rollback
 * restores an older number. Must not: allocate once it is open.
 */
#include "grammar/core/automaton.h"

#include <string.h>

#define N_STATES (SV_MATCHER_BACK + 1)

int sv_matcher_open(struct sv_matcher **out, struct sv_grammar *g, struct sv_vocab *v,
                    struct sv_err *err)
{
    struct sv_matcher *m = sv_calloc(1, sizeof *m);
    int code;

    if (!m)
        return sv_fail(err, SV_ENOMEM, -1, "grammar: out of memory");
    code = sv_automaton_get(&m->a, g, v, err);
    if (code != SV_OK) {
        sv_free(m);
        return code;
    }
    m->g = sv_grammar_ref(g);
    m->states[0] = m->a->start;
    m->next = m->a->matchers;
    if (m->next)
        m->next->prev = m;
    m->a->matchers = m;
    *out = m;
    return SV_OK;
}

void sv_matcher_close(struct sv_matcher *m)
{
    if (!m)
        return;
    if (m->next)
        m->next->prev = m->prev;
    if (m->prev)
        m->prev->next = m->next;
    else
        m->a->matchers = m->next;
    sv_grammar_unref(m->g);
    sv_free(m);
}

static uint32_t state_of(const struct sv_matcher *m)
{
    return m->states[m->n_taken % N_STATES];
}

static bool is_end(const struct sv_vocab *v, int32_t id)
{
    return v->end_mask[id / 32] >> (id % 32) & 1;
}

/* Whether a call that exceeded its budget is repeated with empty caches. Not for tokens that are
 * only tried: if the text gets to the same position, it is computed with the full budget. */
static bool try_again(struct sv_matcher *m, int attempt)
{
    if (!m->tries && attempt == 0) {
        sv_sets_collect(m->a);
        return true;
    }
    m->failure = m->a->full ? "the grammar needs more states at once than there is room for"
                            : "the grammar is too ambiguous: a step of it takes too long";
    return false;
}

/* The state after a token's bytes. SV_SET_DEAD: not legal. */
static uint32_t state_after(struct sv_matcher *m, int32_t id)
{
    struct sv_automaton *a = m->a;
    const struct sv_vocab *v = a->v;
    const uint32_t begin = v->text_at[id], end = v->text_at[id + 1];

    if (begin == end)
        return SV_SET_DEAD;
    for (int attempt = 0;; attempt++) {
        uint32_t set = state_of(m);
        for (uint32_t i = begin; i < end && set != SV_SET_DEAD && set != SV_NO_SET; i++)
            set = sv_step(a, set, v->text[i]);
        if (set != SV_NO_SET)
            return set;
        if (!try_again(m, attempt))
            return SV_SET_DEAD;
    }
}

bool sv_matcher_allows(struct sv_matcher *m, int32_t id)
{
    if (m->failure || id < 0 || id >= m->a->v->n_tokens)
        return false;
    if (is_end(m->a->v, id))
        return sv_matcher_may_end(m);
    return state_after(m, id) != SV_SET_DEAD;
}

bool sv_matcher_advance(struct sv_matcher *m, int32_t id)
{
    uint32_t to;

    if (m->failure || id < 0 || id >= m->a->v->n_tokens)
        return false;
    if (is_end(m->a->v,
               id)) { /* the dead state marks the end here: tokens never lead to it otherwise */
        if (!sv_matcher_may_end(m))
            return false;
        to = SV_SET_DEAD;
    } else {
        to = state_after(m, id);
        if (to == SV_SET_DEAD)
            return false;
    }
    m->n_taken++;
    m->states[m->n_taken % N_STATES] = to;
    if (m->n_taken - m->oldest == N_STATES)
        m->oldest++;
    return true;
}

void sv_matcher_mask(struct sv_matcher *m, uint32_t *words)
{
    const size_t n_bytes = m->a->v->n_words * sizeof *words;

    for (int attempt = 0; !m->failure; attempt++) {
        const uint32_t *mask = sv_mask_of(m->a, state_of(m));
        if (mask) {
            memcpy(words, mask, n_bytes);
            return;
        }
        if (!try_again(m, attempt))
            break;
    }
    memset(words, 0, n_bytes);
}

bool sv_matcher_may_end(const struct sv_matcher *m)
{
    return !m->failure && sv_set_accepts(m->a, state_of(m));
}

bool sv_matcher_must_end(const struct sv_matcher *m)
{
    return sv_matcher_may_end(m) && m->a->sets[state_of(m)].n == 1;
}

bool sv_matcher_ended(const struct sv_matcher *m)
{
    return state_of(m) == SV_SET_DEAD;
}

uint64_t sv_matcher_mark(const struct sv_matcher *m)
{
    return m->n_taken;
}

void sv_matcher_back(struct sv_matcher *m, uint64_t mark)
{
    SV_REQUIRE(mark <= m->n_taken && mark >= m->oldest);
    m->n_taken = mark;
    if (!m->tries)
        return;
    m->tries = false;
    m->failure = NULL;
    m->a->work += m->reserve;
}

uint64_t sv_matcher_try(struct sv_matcher *m)
{
    struct sv_automaton *a = m->a;

    SV_REQUIRE(!m->tries);
    m->tries = !m->failure;
    m->reserve = a->work > SV_WORK_TRIED ? a->work - SV_WORK_TRIED : 0;
    a->work -= m->tries ? m->reserve : 0;
    return m->n_taken;
}

void sv_matcher_settle(struct sv_matcher *m)
{
    SV_REQUIRE(!m->tries);
    m->oldest = m->n_taken;
}

const char *sv_matcher_failure(const struct sv_matcher *m)
{
    return m->failure;
}
