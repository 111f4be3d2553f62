/*
 * ranks.c - what all backends share of ranks: names of joins, the first failure.
 *
 * Called by backends, dist and engine. Must not: wait.
 */
#include "backend/ranks.h"

const char *sv_join_name(enum sv_join kind)
{
    static const char *const name[] = {"none", "mixer",  "ffn",    "taps",
                                       "best", "logits", "logits", "rows"};
    return (unsigned)kind < SV_JOINS ? name[kind] : "unknown";
}

void sv_failure_set(struct sv_failure *f, int32_t rank, const char *text)
{
    if (__atomic_exchange_n(&f->claimed, 1, __ATOMIC_ACQ_REL))
        return;
    f->rank = rank;
    snprintf(f->text, sizeof f->text, "%s", text);
    __atomic_store_n(&f->stop, 1, __ATOMIC_RELEASE);
}
