/*
 * ranked.h - the guarantees for a model that is divided among ranks, for any pair of models: shared
 * by test_ranks.c, test_rank_families.c and test_dp_attention.c.
 */
#ifndef SV_TEST_RANKED_H
#define SV_TEST_RANKED_H

#include "engine/run.h"

struct ranked {
    const struct run_pair *pair;
    enum sv_data_type dtype;
    bool mixed; /* requests of all kinds, else greedy ones */
    struct run_ranks ranks;
    int32_t n; /* requests */
};

/* Ranks of a case that wants n: two where it runs on GPUs, of which there are not so many. */
int32_t ranked_most(int32_t n);
/* Requests with temperatures, penalties, biases, log probabilities. */
void ranked_mix(struct run_case *c, int32_t n);
/* No arrangement changes a token; the reference is plain decoding, one sequence at a time. Ranks
 * have the same bits after every pass. */
void ranked_lossless(const struct ranked *r, const struct run_arrangement *arrangements,
                     size_t n_arrangements);
/* Each request alone and plain, then all of them together, with enough pages and with too few,
 * twice each, so that prefixes are found. ahead: a step ahead of the host, and padded. */
void ranked_together(const struct ranked *r, bool ahead);
/* Widths that a policy chooses leave the text as plain decoding has it. */
void ranked_policy(const struct run_pair *pair, int32_t vocab, struct run_ranks ranks);
/* Opens with the nth allocation failing, for growing nth (steps of 1 + nth / rate), on whatever
 * rank it is: an error each time, and nothing leaks. */
void ranked_no_memory(const struct sv_engine_options *o, int64_t rate);
/* Log probabilities of the same tokens, at 1 rank and at these: other low bits, and no more. */
void ranked_close(const struct run_pair *pair, int32_t vocab, struct run_ranks ranks);

#endif
