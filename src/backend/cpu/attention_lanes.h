/*
 * attention_lanes.h - template: one chunk of positions against a tile of queries, queries in lanes:
 * products in bf16, softmax and sums in f32. For machines with bf16 products.
 *
 * Included once each by attention_amx.c and attention_bf16_avx512.c, which define before:
 *   lane_scores(c, block, q, s)                s[position][16 queries] = keys times packed queries
 *   lane_values(c, w, acc, out, n, half0, half1)  out = acc + P V for n (or 16) of a group
 * struct work and the helpers they need come from attention_lanes_work.h.
 *
 * Entered from attention.c when the device computes in bf16, the cache is bf16, head_dim and v_dim
 * are multiples of 32; then for every row of every call, so that one row and many take the same
 * steps. Queries come in groups of 16 lanes. Scores are computed transposed, positions by queries:
 * keys are read in place, with packed queries, and the softmax never crosses lanes. Then weights
 * (queries by positions, bf16) times values (pairs of positions interleaved).
 *
 * A lane's bits depend on its own sequence only: its products are independent of other lanes; a
 * position outside a lane's range has weight +0 there, which adds nothing to a sum, because values
 * are made finite first; bf16 products flush denormal sums in every chunk; -0 becomes +0 at the
 * end. Must not: read a page that no query of the tile sees.
 */

/* 16 x 16 values of 32 bits: row i of `in` (ld in elements) becomes column i of `out`. */
static inline SIMD_LOCALS void transpose16(uint32_t *out, const uint32_t *in, int64_t ld)
{
    const void *rows[16];
    for (int i = 0; i < 16; i++)
        rows[i] = in + i * ld;
    for (int c = 0; c < 16; c += 4) {
        vf col[4];
        v_columns4(col, rows, c);
        for (int k = 0; k < 4; k++)
            v_store((float *)(void *)(out + (c + k) * 16), col[k]);
    }
}

/* q (n_q <= 16 rows of head_dim, row stride ld) as tiles [head_dim / 32][16 pairs][16 queries][2]
 * of bf16; missing queries are 0. */
static SIMD_LOCALS void pack_queries(uint16_t *tiles, const float *const *q, int32_t n_q,
                                     int32_t hd)
{
    _Alignas(64) uint16_t rows[LANES * SV_ATTN_LANES_DIM];
    for (int32_t j = 0; j < LANES; j++)
        for (int32_t d = 0; d < hd; d += 16)
            _mm256_store_si256((__m256i *)(void *)(rows + j * hd + d),
                               (__m256i)_mm512_cvtneps_pbh(j < n_q ? v_load(q[j] + d) : v_set1(0)));
    for (int32_t t = 0; t < hd / 32; t++)
        transpose16((uint32_t *)(void *)tiles + t * 256,
                    (const uint32_t *)(const void *)rows + t * 16, hd / 2);
}

/* Row i of the values, or zeros when it is not in [lo, hi). */
static inline const uint16_t *row_or_zero(const struct sv_cpu_attn_chunk *c, int32_t i, int32_t lo,
                                          int32_t hi)
{
    static const uint16_t zero[SV_ATTN_LANES_V_DIM];
    return i >= lo && i < hi ? c->v_rows[i] : zero;
}

/* Values of positions [lo, hi) (others 0) as tiles [2 halves][v_dim / 16][16 pairs][16][2]. */
static void pack_values(const struct sv_cpu_attn_chunk *c, int32_t lo, int32_t hi)
{
    const __m512i even =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                         37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i odd = _mm512_add_epi16(even, _mm512_set1_epi16(16));
    const int32_t n_blocks = c->v_dim / 16;
    uint32_t *out = (uint32_t *)(void *)c->vv;
    for (int32_t pair = lo / 32 * 16; pair < (hi + 31) / 32 * 16; pair++) {
        const uint16_t *r0 = row_or_zero(c, 2 * pair, lo, hi);
        const uint16_t *r1 = row_or_zero(c, 2 * pair + 1, lo, hi);
        uint32_t *to = out + (pair / 16 * n_blocks * 16 + pair % 16) * 16;
        for (int32_t d = 0; d < c->v_dim; d += 32, to += 2 * 256) {
            __m512i a = _mm512_loadu_si512(r0 + d), b = _mm512_loadu_si512(r1 + d);
            _mm512_store_si512(to, _mm512_permutex2var_epi16(a, even, b));
            _mm512_store_si512(to + 256, _mm512_permutex2var_epi16(a, odd, b));
        }
    }
}

static bool values_finite(const struct sv_cpu_attn_chunk *c)
{
    const __m512i mask = _mm512_set1_epi16(0x7fff);
    __m512i top = _mm512_setzero_si512();
    for (int32_t i = c->lo; i < c->hi; i++)
        for (int32_t d = 0; d < c->v_dim; d += 32) {
            __m512i v = _mm512_loadu_si512((const uint16_t *)c->v_rows[i] + d);
            top = _mm512_max_epu16(top, _mm512_and_si512(mask, v));
        }
    return _mm512_cmpge_epu16_mask(top, _mm512_set1_epi16(0x7f80)) == 0;
}

/* First row of each block of 16 keys that is seen; in place when the cache has them side by
 * side. */
static SIMD_LOCALS void key_blocks(const struct sv_cpu_attn_chunk *c, const uint8_t *block[4])
{
    const int32_t hd = c->head_dim;
    const size_t row = (size_t)hd * 2;
    uint8_t *copy = (uint8_t *)(void *)c->kt;
    for (int b = 0; b < 4; b++) {
        int32_t first = b * 16 > c->lo ? b * 16 : c->lo,
                last = b * 16 + 16 < c->hi ? b * 16 + 16 : c->hi;
        block[b] = NULL;
        if (first >= last)
            continue;
        if (c->k_blocks16) {
            block[b] = (const uint8_t *)c->k_rows[first] - (size_t)(first - b * 16) * row;
            continue;
        }
        block[b] = copy + (size_t)b * 16 * row;
        for (int32_t i = b * 16; i < b * 16 + 16; i++) {
            uint8_t *to = copy + (size_t)i * row;
            if (i >= first && i < last)
                memcpy(to, c->k_rows[i], row);
            else
                memset(to, 0, row);
        }
    }
}

/* ---------------------------------------------------------------- scores to weights */

/* 2^x, relative error about 2e-7: with r = x - floor(x), a minimax polynomial of degree 5 for 2^r
 * on [0, 1) whose constant is 1, times 2^floor(x). -inf gives 0, NaN stays NaN, 2^0 is exactly 1.
 */
static inline vf exp2_lanes(vf x)
{
    const vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf p = v_set1(1.86713007e-3f);
    p = v_fma(p, r, v_set1(9.01703032e-3f));
    p = v_fma(p, r, v_set1(5.57999131e-2f));
    p = v_fma(p, r, v_set1(2.4016445e-1f));
    p = v_fma(p, r, v_set1(6.93151312e-1f));
    p = v_fma(p, r, v_set1(1.0f));
    return _mm512_scalef_ps(p, x); /* takes the floor of x itself */
}

static inline vf tanh_lanes(vf x)
{
    const vf one = v_set1(1.0f), two = v_set1(2.0f);
    vf e = exp2_lanes(v_min(v_set1(100.0f), v_mul(x, v_set1(2 * LOG2E))));
    return v_sub(one, v_div(two, v_add(e, one)));
}

/* Lanes that see position i. */
static inline __mmask16 sees(__m512i lo, __m512i hi, int i)
{
    const __m512i at = _mm512_set1_epi32(i);
    return _mm512_mask_cmpgt_epi32_mask(_mm512_cmple_epi32_mask(lo, at), hi, at);
}

/* Scores to weights for 16 queries; `ragged`: they do not all see all 64 positions. Returns the
 * correction of earlier sums. The order of the sum: four chains by position mod 4. */
static inline __attribute__((always_inline)) SIMD_LOCALS vf
weights(const struct sv_cpu_attn_chunk *c, struct work *w, float *s, int32_t q0, bool ragged)
{
    const vf scale = v_set1(c->scale), low = v_set1(-INFINITY);
    const __m512i lo = _mm512_loadu_si512(c->q_lo + q0), hi = _mm512_loadu_si512(c->q_hi + q0);
    vf top[4] = {low, low, low, low};
    for (int i = 0; i < CHUNK; i += 4)
        for (int k = 0; k < 4; k++) {
            vf x = v_load(s + (i + k) * LANES);
            if (c->softcap > 0) {
                x = v_div(v_mul(x, scale), v_set1(c->softcap));
                x = v_mul(v_set1(c->softcap), tanh_lanes(x));
                v_store(s + (i + k) * LANES, x);
            }
            if (ragged)
                x = _mm512_mask_mov_ps(low, sees(lo, hi, i + k), x);
            top[k] = v_max(x, top[k]); /* NaN is ignored; it reaches the sum below */
        }
    vf best = v_max(v_max(top[0], top[1]), v_max(top[2], top[3]));
    if (!(c->softcap > 0))
        best = v_mul(best, scale); /* which is positive */
    const vf m_old = v_load(c->m + q0);
    const vf m = v_max(m_old, best);
    v_store(c->m + q0, m);
    /* A lane that has seen nothing but -inf subtracts 0. */
    const __mmask16 some = _mm512_cmp_ps_mask(m, low, _CMP_NEQ_UQ);
    const vf base = _mm512_maskz_mul_ps(some, m, v_set1(-LOG2E));
    const vf factor = v_set1(c->softcap > 0 ? LOG2E : c->scale * LOG2E);
    const __m512i mix = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    vf sum[4] = {v_set1(0), v_set1(0), v_set1(0), v_set1(0)};
    for (int i = 0; i < CHUNK; i += 4) {
        vf e[4];
        for (int k = 0; k < 4; k++) {
            e[k] = exp2_lanes(v_fma(v_load(s + (i + k) * LANES), factor, base));
            if (ragged)
                e[k] = _mm512_maskz_mov_ps(sees(lo, hi, i + k), e[k]);
            sum[k] = v_add(sum[k], e[k]);
        }
        for (int k = 0; k < 4; k += 2) {
            __m512i both = (__m512i)_mm512_cvtne2ps_pbh(e[k + 1], e[k]);
            _mm512_store_si512(w->pairs + (i + k) / 2 * LANES, _mm512_permutexvar_epi16(mix, both));
        }
    }
    /* Exactly 1 when the maximum stays, so that a chunk invisible to a lane does not change it. */
    const vf corr = exp2_lanes(v_mul(_mm512_maskz_sub_ps(some, m_old, m), v_set1(LOG2E)));
    const vf all = v_add(v_add(sum[0], sum[2]), v_add(sum[1], sum[3]));
    v_store(c->l + q0, v_fma(v_load(c->l + q0), corr, all));
    transpose16(w->p[0], w->pairs, LANES);
    transpose16(w->p[1], w->pairs + 16 * LANES, LANES);
    return corr;
}

/* ---------------------------------------------------------------- values */

static SIMD_LOCALS void correct(const struct sv_cpu_attn_chunk *c, float *acc, vf corr)
{
    float by[LANES];
    if (_mm512_cmp_ps_mask(corr, v_set1(1.0f), _CMP_NEQ_UQ) == 0)
        return;
    v_store(by, corr);
    for (int j = 0; j < LANES; j++) {
        const vf f = v_set1(by[j]);
        float *row = acc + (int64_t)j * c->acc_ld;
        for (int32_t d = 0; d < c->v_dim; d += 16)
            v_store(row + d, v_mul(v_load(row + d), f));
    }
}

/* Values that are not finite, in a chunk that not all queries see whole: 0 times them is NaN. So
 * every query gets its own product over its visible positions. */
static void values_one_by_one(const struct sv_cpu_attn_chunk *c, struct work *w, float *acc,
                              int32_t q0)
{
    for (int32_t j = 0; j < LANES && q0 + j < c->n_q; j++) {
        const int32_t lo = c->q_lo[q0 + j], hi = c->q_hi[q0 + j];
        if (lo >= hi)
            continue;
        pack_values(c, lo, hi);
        lane_values(c, w, acc, w->out, j + 1, lo<32, hi> 32);
        memcpy(acc + (int64_t)j * c->acc_ld, w->out + (int64_t)j * c->acc_ld,
               (size_t)c->v_dim * sizeof *acc);
    }
}

/* ---------------------------------------------------------------- one chunk */

static bool sees_all(const struct sv_cpu_attn_chunk *c, int32_t q0)
{
    for (int32_t j = q0; j < q0 + LANES; j++)
        if (c->q_lo[j] > 0 || c->q_hi[j] < CHUNK)
            return false;
    return true;
}

/* The next group after q0 that sees part of this chunk; n_q or more when there is none. */
static int32_t next_group(const struct sv_cpu_attn_chunk *c, int32_t q0)
{
    for (q0 += LANES; q0 < c->n_q && !c->whole; q0 += LANES)
        for (int32_t j = q0; j < q0 + LANES; j++)
            if (c->q_lo[j] < c->q_hi[j])
                return q0;
    return q0;
}

static SIMD_LOCALS void run_chunk(const struct sv_cpu_attn_chunk *c)
{
    struct work *w = c->work;
    const uint8_t *block[4];
    const bool plain = c->whole || values_finite(c);
    key_blocks(c, block);
    if (plain)
        pack_values(c, c->lo, c->hi);
    /* AMX: scores of the next group use the tile unit while this group's weights use the vector
     * units. */
    int32_t q0 = next_group(c, -LANES), turn = 0;
    if (q0 < c->n_q)
        lane_scores(c, block, c->q_tiles + (int64_t)q0 * c->head_dim, w->s[turn]);
    for (int32_t next; q0 < c->n_q; q0 = next, turn ^= 1) {
        float *acc = c->acc + (int64_t)q0 * c->acc_ld;
        next = next_group(c, q0);
        if (next < c->n_q)
            lane_scores(c, block, c->q_tiles + (int64_t)next * c->head_dim, w->s[turn ^ 1]);
        vf corr = c->whole || sees_all(c, q0) ? weights(c, w, w->s[turn], q0, false)
                                              : weights(c, w, w->s[turn], q0, true);
        correct(c, acc, corr);
        if (plain)
            lane_values(c, w, acc, acc, c->n_q - q0, c->lo<32, c->hi> 32);
        else
            values_one_by_one(c, w, acc, q0);
    }
}
