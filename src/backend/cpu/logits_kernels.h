/*
 * logits_kernels.h - template: maxima, sums and searches over a row of logits, written once over
 * the operations of a simd_*.h.
 *
 * Included exactly once by each vec_*.c, after vec_kernels.h. All orders of summation depend on the
 * row's length alone. Must not: be included elsewhere, or contain an intrinsic.
 */

static SIMD_LOCALS float k_max(const float *x, int32_t n, int32_t *n_nan)
{
    const vf low = v_set1(-INFINITY);
    vf a[4] = {low, low, low, low};
    int32_t i = 0, nan = 0;
    for (; i + 4 * SIMD_W <= n; i += 4 * SIMD_W)
        for (int k = 0; k < 4; k++) {
            vf v = v_load(x + i + k * SIMD_W);
            nan += __builtin_popcount((unsigned)v_nan_mask(v));
            a[k] = v_max(v, a[k]);
        }
    float m = v_hmax(v_max(v_max(a[0], a[1]), v_max(a[2], a[3])));
    for (; i < n; i++) {
        nan += x[i] != x[i];
        if (x[i] > m)
            m = x[i];
    }
    *n_nan = nan;
    return m;
}

static void k_block_max(float *out, const float *x, int32_t n)
{
    for (int32_t b = 0; b * 64 < n; b++) {
        int32_t i = b * 64, end = n < i + 64 ? n : i + 64;
        vf a = v_set1(-INFINITY);
        for (; i + SIMD_W <= end; i += SIMD_W)
            a = v_max(v_load(x + i), a);
        float m = v_hmax(a);
        for (; i < end; i++)
            m = x[i] > m ? x[i] : m;
        out[b] = m;
    }
}

static int32_t k_find_ge(int32_t *ids, const float *x, int32_t n, float t)
{
    const vf tv = v_set1(t);
    int32_t i = 0, found = 0;
    for (; i + SIMD_W <= n; i += SIMD_W) {
        unsigned mask = (unsigned)v_ge_mask(v_load(x + i), tv);
        for (; mask; mask &= mask - 1)
            ids[found++] = i + __builtin_ctz(mask);
    }
    for (; i < n; i++)
        if (x[i] >= t)
            ids[found++] = i;
    return found;
}

static SIMD_LOCALS float k_mass_ge(const float *w, const float *x, int32_t n, float t)
{
    const vf tv = v_set1(t);
    vf a[4] = {v_set1(0), v_set1(0), v_set1(0), v_set1(0)};
    int32_t i = 0;
    for (; i + 4 * SIMD_W <= n; i += 4 * SIMD_W)
        for (int k = 0; k < 4; k++)
            a[k] =
                v_add(a[k], v_where_ge(v_load(x + i + k * SIMD_W), tv, v_load(w + i + k * SIMD_W)));
    float sum = finish_sum(a);
    for (; i < n; i++)
        sum += x[i] >= t ? w[i] : 0;
    return sum;
}

static void k_exp_weights(float *w, const float *x, int32_t n, float max, float inv_t)
{
    const vf m = v_set1(max), s = v_set1(inv_t);
    int32_t i = 0;
    for (; i + SIMD_W <= n; i += SIMD_W)
        v_store(w + i, v_exp(v_mul(v_sub(v_load(x + i), m), s)));
    if (i < n)
        v_store_n(w + i, v_exp(v_mul(v_sub(v_load_n(x + i, n - i), m), s)), n - i);
}

static SIMD_LOCALS double k_sum(const float *w, int32_t n)
{
    double a[16] = {0};
    int32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++)
            a[k] += (double)w[i + k];
    for (int k = 0; i < n; i++, k++)
        a[k] += (double)w[i];
    for (int step = 8; step; step /= 2)
        for (int k = 0; k < step; k++)
            a[k] += a[k + step];
    return a[0];
}
