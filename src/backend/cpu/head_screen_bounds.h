/*
 * head_screen_bounds.h - planes to bytes, and sums to bounds (head_screen.h): shared by
 * head_screen_avx512.c and head_screen_amx.c. Needs MUST_INLINE.
 */
/* Prefetch distances of lines, into level 2 and into level 1: units are contiguous, so a thread's
 * share is one stream. */
#define AHEAD 8192
#define NEAR 1344

/* Four quads of a group. */
UNCHECKED MUST_INLINE void screen_expand(const uint8_t *w, const enum sv_screen_plane plane,
                                         __m512i v[4])
{
    if (plane == SV_SCREEN_FINE) {
        const __m512i line = _mm512_loadu_si512(w);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            v[j] =
                _mm512_and_si512(_mm512_srli_epi16(line, (unsigned)(2 * j)), _mm512_set1_epi8(3));
        return;
    }
    v[3] = _mm512_setzero_si512();
#pragma GCC unroll 3
    for (int j = 0; j < 3; j++) {
        const __m512i line = _mm512_loadu_si512(w + j * SV_SCREEN_LINE);
        _mm_prefetch((const char *)((uintptr_t)w + (uintptr_t)(j * SV_SCREEN_LINE + AHEAD)),
                     _MM_HINT_T1);
        _mm_prefetch((const char *)((uintptr_t)w + (uintptr_t)(j * SV_SCREEN_LINE + NEAR)),
                     _MM_HINT_T0);
        v[j] = _mm512_and_si512(line, _mm512_set1_epi8(63));
        v[3] =
            _mm512_ternarylogic_epi32(v[3], _mm512_srli_epi16(line, (unsigned)(6 - 2 * j)),
                                      _mm512_set1_epi8((char)(3 << 2 * j)), 0xf8); /* a | (b & c) */
    }
}

/* From the sums of 16 weight rows with the high and the low bytes of input row r: the unit's upper
 * bound, and the largest of either kind so far. Excess of the sums: a coarse byte is c + 32 and
 * counts as 4 c - 1/2, so in halves the sum counts 8 times, less 257 times the input's; a fine one
 * is f + 2 and counts as f + 1/2. */
UNCHECKED MUST_INLINE void screen_put(const struct sv_gemm_span *s, const uint8_t *unit, int32_t n0,
                                      int r, const enum sv_screen_plane plane, __m512i high,
                                      __m512i low)
{
    const struct sv_gemm_call *c = s->call;
    const struct sv_screen *screen = c->screen;
    const struct sv_screen_x *x = s->xp;
    const int32_t u = n0 / SV_GEMM_UNIT, rows = c->m1 - c->m0,
                  less = plane == SV_SCREEN_COARSE ? 257 : 3;
    const unsigned times = plane == SV_SCREEN_COARSE ? 3 : 1;
    const int nn = s->n1 - n0 < SV_GEMM_UNIT ? s->n1 - n0 : SV_GEMM_UNIT;
    const __mmask16 lanes = (__mmask16)((1u << nn) - 1);
    const __m512 scale = _mm512_loadu_ps(unit), most = _mm512_loadu_ps(unit + SV_SCREEN_LINE),
                 length = _mm512_loadu_ps(unit + 2 * SV_SCREEN_LINE),
                 both = _mm512_loadu_ps(unit + 3 * SV_SCREEN_LINE);
    const __m512 h = _mm512_cvtepi32_ps(
        _mm512_sub_epi32(_mm512_slli_epi32(high, times), _mm512_set1_epi32(less * x->sum[0][r])));
    const __m512 l = _mm512_cvtepi32_ps(
        _mm512_sub_epi32(_mm512_slli_epi32(low, times), _mm512_set1_epi32(less * x->sum[1][r])));
    const __m512 t = _mm512_set1_ps(x->scale[r]);
    __m512 v = _mm512_mul_ps(
        _mm512_fmadd_ps(h, _mm512_mul_ps(t, _mm512_set1_ps(256)), _mm512_mul_ps(l, t)), scale);
    float *coarse = screen->v + ((size_t)u * (size_t)rows + (size_t)r) * SV_GEMM_UNIT;
    if (plane == SV_SCREEN_COARSE)
        _mm512_stream_ps(coarse, v); /* few are read again */
    else
        v = _mm512_add_ps(v, _mm512_load_ps(coarse));
    const __m512 slack = _mm512_fmadd_ps(
        both, _mm512_set1_ps(x->by_both[r]),
        _mm512_add_ps(_mm512_min_ps(_mm512_mul_ps(most, _mm512_set1_ps(x->by_max[r])),
                                    _mm512_mul_ps(length, _mm512_set1_ps(x->by_length[r]))),
                      _mm512_set1_ps(0x1p-60f)));
    const float top = _mm512_mask_reduce_max_ps(lanes, _mm512_add_ps(v, slack));
    screen->top[(size_t)r * (size_t)screen->n_units + (size_t)u] = top;
    float *least = s->thread->best_val + r * SV_GEMM_UNIT,
          *tops = s->thread->best_val + SV_SCREEN_TOPS;
    const __m512 known = _mm512_loadu_ps(least);
    _mm512_storeu_ps(least, _mm512_mask_max_ps(known, lanes, _mm512_sub_ps(v, slack), known));
    if (top > tops[r]) {
        tops[r] = top;
        s->thread->best_id[r] = u;
    }
}
