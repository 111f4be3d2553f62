/*
 * put_avx512.h - output of the kernels with sixteen weight rows in lanes, for gemm_bf16_avx512.c
 * and gemm_i8_avx512.c. Needs MUST_INLINE and UNIT.
 */
UNCHECKED static inline __m512 bias_of(const struct sv_gemm_span *s, int32_t n0, int nn)
{
    if (!s->item->bias)
        return _mm512_setzero_ps();
    float b[UNIT];
    sv_gemm_bias(s->item, n0, nn, b);
    return _mm512_loadu_ps(b);
}

/* Rarely does any of the sixteen exceed the maximum. "not (v <= best)" also lets the first number
 * replace the initial NaN. */
static void argmax_lanes(float *best, int32_t *id, int32_t n0, __mmask16 lanes, __m512 v)
{
    lanes = _mm512_mask_cmp_ps_mask(lanes, v, v, _CMP_ORD_Q);
    if (!lanes)
        return;
    const float top = _mm512_mask_reduce_max_ps(lanes, v);
    if (top <= *best)
        return;
    *best = top;
    *id = n0 + __builtin_ctz(_mm512_mask_cmp_ps_mask(lanes, v, _mm512_set1_ps(top), _CMP_EQ_OQ));
}

/* Sums of 16 weight rows from n0 by nr output rows from m: bias and store, or the argmax. */
UNCHECKED MUST_INLINE void put(const struct sv_gemm_span *s, int32_t n0, int32_t m, const int nr,
                               const __m512 *sum, const int stride)
{
    const struct sv_gemm_call *c = s->call;
    const int nn = s->n1 - n0 < UNIT ? s->n1 - n0 : UNIT;
    const __mmask16 lanes = (__mmask16)((1u << nn) - 1);
    if (c->y) {
        const __m512 bias = bias_of(s, n0, nn);
        float *y = c->y + (m * c->ldy + s->item->col0 + n0);
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++)
            _mm512_mask_storeu_ps(y + r * c->ldy, lanes, _mm512_add_ps(sum[r * stride], bias));
        return;
    }
    float *best = s->thread->best_val + (m - c->m0);
    int32_t *id = s->thread->best_id + (m - c->m0);
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++) {
        const __m512 v = sum[r * stride];
        if (_mm512_mask_cmp_ps_mask(lanes, v, _mm512_set1_ps(best[r]), _CMP_NLE_UQ))
            argmax_lanes(best + r, id + r, n0, lanes, v);
    }
}
