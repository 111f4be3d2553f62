/*
 * attention_bf16_avx512.c - attention's products with vdpbf16ps, for the kernels of
 * attention_lanes.h, on machines that have no AMX.
 *
 * Entered from attention.c, by its conditions. Each instruction takes a pair of sixteen queries (or
 * dimensions) times one key's (or weight's) pair, broadcast from memory; an output is one chain
 * over pairs in ascending order, independent of others. Must not: be reached without AVX512-BF16.
 */
#include "backend/cpu/attention_lanes_work.h"

#define MUST_INLINE static inline __attribute__((always_inline))

/* Sixteen positions in a row, one sum each. */
MUST_INLINE void score_block(const uint8_t *keys, const uint16_t *q, float *s, const int32_t hd)
{
    __m512 sum[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        sum[i] = _mm512_setzero_ps();
    for (int32_t p = 0; p < hd / 2; p++, q += 2 * LANES, keys += 4) {
        const __m512bh qv = (__m512bh)_mm512_loadu_si512(q);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            int pair;
            memcpy(&pair, keys + (size_t)i * (size_t)hd * 2, sizeof pair);
            sum[i] = _mm512_dpbf16_ps(sum[i], qv, (__m512bh)_mm512_set1_epi32(pair));
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        v_store(s + i * LANES, sum[i]);
}

static void lane_scores(const struct sv_cpu_attn_chunk *c, const uint8_t *const *block,
                        const uint16_t *q, float *s)
{
    for (int b = 0; b < 4; b++, s += 16 * LANES) {
        if (!block[b])
            continue;
        if (c->head_dim == 64) /* constant strides are encoded in the instruction */
            score_block(block[b], q, s, 64);
        else if (c->head_dim == 128)
            score_block(block[b], q, s, 128);
        else if (c->head_dim == 576) /* latents */
            score_block(block[b], q, s, 576);
        else
            score_block(block[b], q, s, c->head_dim);
    }
}

/* nq rows by nd blocks of 16 dimensions. */
MUST_INLINE void value_block(const struct work *w, const uint32_t *v0, const uint32_t *v1,
                             const float *acc, float *out, int64_t ld, const int nq, const int nd,
                             bool half0, bool half1)
{
    __m512 sum[16];
#pragma GCC unroll 16
    for (int j = 0; j < nq; j++)
#pragma GCC unroll 2
        for (int d = 0; d < nd; d++)
            sum[j * nd + d] = v_load(acc + j * ld + d * 16);
    for (int half = 0; half < 2; half++) {
        const uint32_t *v = half ? v1 : v0, *p = w->p[half];
        if (half ? !half1 : !half0)
            continue;
        for (int pair = 0; pair < 16; pair++, v += 16, p++) {
            __m512bh vv[2];
#pragma GCC unroll 2
            for (int d = 0; d < nd; d++)
                vv[d] = (__m512bh)_mm512_loadu_si512(v + d * 256);
#pragma GCC unroll 16
            for (int j = 0; j < nq; j++) {
                const __m512bh pv = (__m512bh)_mm512_set1_epi32((int)p[j * 16]);
#pragma GCC unroll 2
                for (int d = 0; d < nd; d++)
                    sum[j * nd + d] = _mm512_dpbf16_ps(sum[j * nd + d], vv[d], pv);
            }
        }
    }
#pragma GCC unroll 16
    for (int j = 0; j < nq; j++)
#pragma GCC unroll 2
        for (int d = 0; d < nd; d++)
            v_store(out + j * ld + d * 16, sum[j * nd + d]);
}

/* out = acc + P V for a group; acc and out (16, acc_ld). Halves without a visible position are
 * skipped, and so are lanes after the last query. */
static void lane_values(const struct sv_cpu_attn_chunk *c, const struct work *w, const float *acc,
                        float *out, int32_t n_q, bool half0, bool half1)
{
    const int32_t n_blocks = c->v_dim / 16;
    const uint32_t *v0 = (const uint32_t *)(const void *)c->vv, *v1 = v0 + n_blocks * 256;
    for (int32_t b = 0; b < n_blocks; b += 2, acc += 32, out += 32, v0 += 512, v1 += 512) {
        if (n_q <= 4) {
            value_block(w, v0, v1, acc, out, c->acc_ld, 4, 2, half0, half1);
            continue;
        }
        for (int d = 0; d < 2; d++)
            if (n_q <= 8)
                value_block(w, v0 + d * 256, v1 + d * 256, acc + d * 16, out + d * 16, c->acc_ld, 8,
                            1, half0, half1);
            else
                value_block(w, v0 + d * 256, v1 + d * 256, acc + d * 16, out + d * 16, c->acc_ld,
                            16, 1, half0, half1);
    }
}

#include "backend/cpu/attention_lanes.h"

static void nothing(void)
{
}

const struct sv_cpu_attn_lanes *sv_cpu_attn_bf16_avx512(void)
{
    static const struct sv_cpu_attn_lanes k = {nothing, nothing, pack_queries, run_chunk};
    return &k;
}
