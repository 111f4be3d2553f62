/*
 * attention_kernels.h - template: one chunk of positions against a tile of queries, in f32, written
 * once over the operations of a simd_*.h.
 *
 * Included exactly once by each vec_*.c, after vec_kernels.h. Per query and chunk the steps are:
 * score = one chain of multiply-adds over head_dim in ascending order; maximum; e^(score -
 * maximum); their sum in a fixed tree over the 64 lanes; acc = acc * correction, then one
 * multiply-add per visible position in ascending order. Lanes are positions for the scores and
 * dimensions for the values, so a query's bits do not depend on other queries. Invisible positions
 * are excluded by range, never multiplied by zero: their contents, NaN included, have no effect.
 * Must not: contain an intrinsic.
 */

#define CHUNK SV_ATTN_CHUNK
#define N_PV (CHUNK / SIMD_W) /* vectors of one query's scores */

/* ---------------------------------------------------------------- keys and values into scratch */

/* kt[d][i] = key i element d for the SIMD_W-blocks that meet [lo, hi); unseen lanes repeat a seen
 * row. */
static SIMD_LOCALS void load_keys(const struct sv_cpu_attn_chunk *c)
{
    const int32_t hd = c->head_dim;
    for (int32_t i = c->lo / SIMD_W * SIMD_W; i < c->hi; i += SIMD_W) {
        const void *rows[SIMD_W];
        for (int k = 0; k < SIMD_W; k++) {
            int32_t j = i + k;
            rows[k] = c->k_rows[j < c->lo ? c->lo : j >= c->hi ? c->hi - 1 : j];
        }
        int32_t d = 0;
        if (c->dtype == SV_F32) {
            const float *const *r = (const float *const *)(const void *)rows;
            for (; d + SIMD_W <= hd; d += SIMD_W)
                v_transpose_f32(c->kt + (int64_t)d * CHUNK + i, CHUNK, r, d);
            for (; d < hd; d++)
                for (int k = 0; k < SIMD_W; k++)
                    c->kt[(int64_t)d * CHUNK + i + k] = r[k][d];
        } else {
            const uint16_t *const *r = (const uint16_t *const *)(const void *)rows;
            for (; d + 2 * SIMD_W <= hd; d += 2 * SIMD_W)
                v_transpose_bf16(c->kt + (int64_t)d * CHUNK + i, CHUNK, r, d);
            for (; d < hd; d++)
                for (int k = 0; k < SIMD_W; k++)
                    c->kt[(int64_t)d * CHUNK + i + k] = sv_bf16_to_f32(r[k][d]);
        }
    }
}

/* Values as f32 rows padded to whole vectors; f32 caches of whole vectors are read in place. */
static SIMD_LOCALS void load_values(const struct sv_cpu_attn_chunk *c, const float *v[CHUNK])
{
    const int32_t hd = c->v_dim;
    if (c->dtype == SV_F32 && hd % 16 == 0) {
        for (int32_t i = c->lo; i < c->hi; i++)
            v[i] = c->v_rows[i];
        return;
    }
    for (int32_t i = c->lo; i < c->hi; i++) {
        float *row = c->vv + (int64_t)i * c->acc_ld;
        v[i] = row;
        int32_t d = 0;
        for (; d + SIMD_W <= hd; d += SIMD_W)
            v_store(row + d, w_load(c->v_rows[i], c->dtype, d, SIMD_W));
        for (; d < c->acc_ld; d += SIMD_W)
            v_store(row + d, d < hd ? w_load(c->v_rows[i], c->dtype, d, hd - d) : v_set1(0));
    }
}

/* ---------------------------------------------------------------- scores */

/* s[j][p0 ..] for nq queries and nv vectors of positions; both are constants after inlining. */
static inline SIMD_LOCALS __attribute__((always_inline)) void
score_block(const struct sv_cpu_attn_chunk *c, float *s, int32_t q0, int32_t p0, int nq, int nv)
{
    const int32_t hd = c->head_dim;
    const float *q = c->q + (int64_t)q0 * hd;
    vf a[SIMD_QB][SIMD_NV1];
    for (int j = 0; j < nq; j++)
        for (int k = 0; k < nv; k++)
            a[j][k] = v_set1(0);
    for (int32_t d = 0; d < hd; d++) {
        const float *kt = c->kt + (int64_t)d * CHUNK + p0;
        vf key[SIMD_NV1];
        for (int k = 0; k < nv; k++)
            key[k] = v_load(kt + k * SIMD_W);
        for (int j = 0; j < nq; j++) {
            vf qv = v_set1(q[(int64_t)j * hd + d]);
            for (int k = 0; k < nv; k++)
                a[j][k] = v_fma(qv, key[k], a[j][k]);
        }
    }
    for (int j = 0; j < nq; j++)
        for (int k = 0; k < nv; k++)
            v_store(s + (int64_t)(q0 + j) * CHUNK + p0 + k * SIMD_W, a[j][k]);
}

/* Scores of all queries for the vector blocks that meet [lo, hi). */
static SIMD_LOCALS void scores(const struct sv_cpu_attn_chunk *c, float *s)
{
    const int32_t blocked = c->n_q / SIMD_QB * SIMD_QB;
    int32_t step = SIMD_NV * SIMD_W;
    for (int32_t p = c->lo / step * step; p < c->hi && blocked; p += step)
        for (int32_t q = 0; q < blocked; q += SIMD_QB)
            score_block(c, s, q, p, SIMD_QB, SIMD_NV);
    step = SIMD_NV1 * SIMD_W;
    for (int32_t p = c->lo / step * step; p < c->hi; p += step)
        for (int32_t q = blocked; q < c->n_q; q++)
            score_block(c, s, q, p, 1, SIMD_NV1);
}

/* ---------------------------------------------------------------- softmax */

static inline vf soft_cap(vf x, float cap)
{
    const vf one = v_set1(1.0f), two = v_set1(2.0f);
    vf e = v_exp(v_mul(two, v_div(x, v_set1(cap))));
    return v_mul(v_set1(cap), v_sub(one, v_div(two, v_add(e, one))));
}

/* Scores of one query become weights (0 outside [lo, hi)); returns the correction of earlier sums.
 */
static SIMD_LOCALS float soft_max(float *s, int32_t lo, int32_t hi, float softcap, float *m,
                                  float *l)
{
    vf x[N_PV], top = v_set1(-INFINITY);
    for (int k = 0; k < N_PV; k++) {
        vf v = v_load(s + k * SIMD_W);
        if (softcap > 0)
            v = soft_cap(v, softcap);
        x[k] = v_keep(v, k * SIMD_W, lo, hi, -INFINITY);
        top = v_max(x[k], top); /* NaN is ignored here; it reaches the sum below */
    }
    float mc = v_hmax(top), m_new = *m > mc ? *m : mc;
    float base = m_new == -INFINITY ? 0.0f : m_new;
    for (int k = 0; k < N_PV; k++) {
        x[k] = v_keep(v_exp(v_sub(x[k], v_set1(base))), k * SIMD_W, lo, hi, 0.0f);
        v_store(s + k * SIMD_W, x[k]);
    }
    for (int step = N_PV / 2; step; step /= 2)
        for (int k = 0; k < step; k++)
            x[k] = v_add(x[k], x[k + step]);
    float corr = exp1(*m - base);
    float carried = *l * corr;
    *l = carried + v_hsum(x[0]);
    *m = m_new;
    return corr;
}

/* ---------------------------------------------------------------- values */

/* acc[j] = acc[j] * corr[j] + sum over positions [lo, hi) of s[j][i] * v[i], nv vectors from
 * dimension d. */
static inline SIMD_LOCALS __attribute__((always_inline)) void
value_block(const struct sv_cpu_attn_chunk *c, const float *s, const float *const *v,
            const float *corr, int32_t q0, int32_t d, int32_t lo, int32_t hi, int nq, int nv)
{
    vf a[SIMD_QB][SIMD_NV1];
    float *acc = c->acc + (int64_t)q0 * c->acc_ld + d;
    for (int j = 0; j < nq; j++)
        for (int k = 0; k < nv; k++)
            a[j][k] = v_mul(v_load(acc + (int64_t)j * c->acc_ld + k * SIMD_W), v_set1(corr[j]));
    for (int32_t i = lo; i < hi; i++) {
        vf val[SIMD_NV1];
        for (int k = 0; k < nv; k++)
            val[k] = v_load(v[i] + d + k * SIMD_W);
        for (int j = 0; j < nq; j++) {
            vf p = v_set1(s[(int64_t)(q0 + j) * CHUNK + i]);
            for (int k = 0; k < nv; k++)
                a[j][k] = v_fma(p, val[k], a[j][k]);
        }
    }
    for (int j = 0; j < nq; j++)
        for (int k = 0; k < nv; k++)
            v_store(acc + (int64_t)j * c->acc_ld + k * SIMD_W, a[j][k]);
}

/* All dimensions of nq queries over one range. */
static inline SIMD_LOCALS __attribute__((always_inline)) void
value_rows(const struct sv_cpu_attn_chunk *c, const float *s, const float *const *v,
           const float *corr, int32_t q0, int32_t lo, int32_t hi, int nq)
{
    const int nv = nq == 1 ? SIMD_NV1 : SIMD_NV;
    int32_t d = 0;
    for (; d + nv * SIMD_W <= c->acc_ld; d += nv * SIMD_W)
        value_block(c, s, v, corr, q0, d, lo, hi, nq, nv);
    for (; d < c->acc_ld; d += SIMD_W)
        value_block(c, s, v, corr, q0, d, lo, hi, nq, 1);
}

/* A block of queries: positions that only some see come first and last, one by one, in order. */
static SIMD_LOCALS void value_group(const struct sv_cpu_attn_chunk *c, const float *s,
                                    const float *const *v, float *corr, int32_t q0)
{
    const float one = 1.0f;
    int32_t lo = 0, hi = CHUNK;
    for (int j = 0; j < SIMD_QB; j++) {
        lo = c->q_lo[q0 + j] > lo ? c->q_lo[q0 + j] : lo;
        hi = c->q_hi[q0 + j] < hi ? c->q_hi[q0 + j] : hi;
    }
    bool common = lo < hi, even = common;
    for (int j = 0; j < SIMD_QB && even; j++)
        even = c->q_lo[q0 + j] == lo && c->q_hi[q0 + j] == hi;
    if (even) {
        value_rows(c, s, v, corr, q0, lo, hi, SIMD_QB);
        return;
    }
    for (int j = 0; j < SIMD_QB; j++) {
        int32_t to = common ? lo : c->q_hi[q0 + j];
        if (c->q_lo[q0 + j] < to) {
            value_rows(c, s, v, corr + j, q0 + j, c->q_lo[q0 + j], to, 1);
            corr[j] = 1.0f;
        }
    }
    if (!common)
        return;
    value_rows(c, s, v, corr, q0, lo, hi, SIMD_QB);
    for (int j = 0; j < SIMD_QB; j++)
        if (hi < c->q_hi[q0 + j])
            value_rows(c, s, v, &one, q0 + j, hi, c->q_hi[q0 + j], 1);
}

static SIMD_LOCALS void k_attn_chunk(const struct sv_cpu_attn_chunk *c)
{
    _Alignas(64) float s[SV_ATTN_TILE * CHUNK];
    const float *v[CHUNK];
    float corr[SV_ATTN_TILE];
    load_keys(c);
    load_values(c, v);
    scores(c, s);
    for (int32_t q = 0; q < c->n_q; q++)
        if (c->q_lo[q] < c->q_hi[q])
            corr[q] = soft_max(s + (int64_t)q * CHUNK, c->q_lo[q], c->q_hi[q], c->softcap, &c->m[q],
                               &c->l[q]);
    int32_t q = 0;
    for (; q + SIMD_QB <= c->n_q; q += SIMD_QB)
        value_group(c, s, v, corr + q, q);
    for (; q < c->n_q; q++)
        if (c->q_lo[q] < c->q_hi[q])
            value_rows(c, s, v, corr + q, q, c->q_lo[q], c->q_hi[q], 1);
}

/* ---------------------------------------------------------------- parts */

static void k_attn_merge(float *m, float *l, float *acc, float m2, float l2, const float *acc2,
                         int32_t n)
{
    float top = *m > m2 ? *m : m2, base = top == -INFINITY ? 0.0f : top;
    float a = exp1(*m - base), b = exp1(m2 - base);
    float la = *l * a, lb = l2 * b;
    *l = la + lb;
    *m = top;
    for (int32_t i = 0; i < n; i += SIMD_W)
        v_store(acc + i, v_fma(v_load(acc2 + i), v_set1(b), v_mul(v_load(acc + i), v_set1(a))));
}

static void k_attn_finish(float *out, const float *acc, float m, float l, const float *sink,
                          int32_t n)
{
    float scale = 1.0f;
    if (sink) {
        float top = m > *sink ? m : *sink;
        scale = exp1(m - top);
        float seen = l * scale;
        l = seen + exp1(*sink - top);
    }
    /* l is 0 when every score was -inf: no weight, no value. A NaN passes. */
    scale = l == 0.0f ? 0.0f : scale / l;
    for (int32_t i = 0; i < n; i += SIMD_W) {
        int k = n - i < SIMD_W ? n - i : SIMD_W;
        /* + 0 makes -0, which depends on the order of adding zeros, 0. */
        v_store_n(out + i, v_add(v_mul(v_load_n(acc + i, k), v_set1(scale)), v_set1(0.0f)), k);
    }
}
