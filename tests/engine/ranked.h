/*
 * ranked.h - what is promised of a model that is divided among ranks, for any pair of models: tests
 * of test_ranks.c and test_rank_families.c.
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

/* Requests with temperatures, penalties, biases, log probabilities. */
void ranked_mix(struct run_case *c, int32_t n);
/* No arrangement changes a token; the reference is plain decoding, one sequence at a time. Ranks
 * have the same bits after every pass. */
void ranked_lossless(const struct ranked *r, const struct run_arrangement *arrangements,
                     size_t n_arrangements);
/* Each request alone and plain, then all of them together, with enough pages and with too few,
 * twice each, so that prefixes are found. ahead: a step ahead of the host, and padded. */
void ranked_together(const struct ranked *r, bool ahead);
/* Log probabilities of the same tokens, at 1 rank and at these: other low bits, and no more. */
void ranked_close(const struct run_pair *pair, int32_t vocab, struct run_ranks ranks);

#endif
