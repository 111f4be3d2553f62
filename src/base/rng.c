/*
 * rng.c - random numbers: Philox for draws that depend on (seed, position), splitmix64 for set-up.
 *
 * Called by sample, the fake drafters and tests. Must not: read a clock or keep hidden state.
 */
#include "base/base.h"

#include <math.h>

void sv_philox(uint64_t key, uint64_t counter_lo, uint64_t counter_hi, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32);
    uint32_t c2 = (uint32_t)counter_hi, c3 = (uint32_t)(counter_hi >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint64_t sv_rng_next(struct sv_rng *r)
{
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Lemire's multiplication with rejection: no bias for any n. */
uint32_t sv_rng_below(struct sv_rng *r, uint32_t n)
{
    uint32_t least;
    uint64_t m;

    SV_REQUIRE(n > 0);
    least = (uint32_t)(-n) % n;
    do {
        m = (sv_rng_next(r) >> 32) * n;
    } while ((uint32_t)m < least);
    return (uint32_t)(m >> 32);
}

float sv_rng_float(struct sv_rng *r)
{
    return sv_unit_float((uint32_t)(sv_rng_next(r) >> 32));
}

float sv_rng_normal(struct sv_rng *r)
{
    const double two_pi = 6.283185307179586;
    double u = ((double)(sv_rng_next(r) >> 11) + 1) * 0x1p-53; /* (0, 1], so log is finite */
    double v = (double)(sv_rng_next(r) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(two_pi * v));
}
