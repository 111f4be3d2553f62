/*
 * join_need.h - what the tests of joins share: windows large enough for their rows, and waiting.
 *
 * Included by test_join.c and join_rig.h, behind _POSIX_C_SOURCE. Must not: know of
 * devices.
 */
#ifndef SV_TESTS_JOIN_NEED_H
#define SV_TESTS_JOIN_NEED_H

#include "backend/ops.h"

#include <time.h>

static inline void nap_us(int64_t us)
{
    const struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

/* Of n_rows rows of d numbers in f32, and of as many rows of logits. */
static inline struct sv_window_need join_need(size_t n_rows, size_t d, size_t vocab)
{
    const size_t sum = sizeof(float) * n_rows * d, logits = sizeof(float) * n_rows * vocab;
    return (struct sv_window_need){.n_bytes = {[SV_JOIN_MIXER] = sum,
                                               [SV_JOIN_FFN] = sum,
                                               [SV_JOIN_TAPS] = sum,
                                               [SV_JOIN_BEST] = sizeof(uint64_t) * n_rows,
                                               [SV_JOIN_LOGITS_A] = logits,
                                               [SV_JOIN_LOGITS_B] = logits,
                                               [SV_JOIN_ROWS] = logits}};
}

#endif
