/*
 * gdn_kernels.h - template: the row kernels of the gated delta rule and of gated attention, over
 * the operations of a simd_*.h.
 *
 * Included exactly once by each vec_*.c, after vec_kernels.h. Lanes are columns of a state, so that
 * every sum over the key dimension or over rows of a chunk is one ascending chain of its column:
 * register blocking changes no bit. Dimensions are multiples of 16. Must not: be included
 * elsewhere, or contain an intrinsic.
 */

/* Sum of a[i] * b[i]: four partial sums of SIMD_W lanes, then one tree. */
static SIMD_LOCALS float k_dot(const float *a, const float *b, int32_t n)
{
    vf sum[4] = {v_set1(0), v_set1(0), v_set1(0), v_set1(0)};
    for (int32_t i = 0, k = 0; i < n; i += SIMD_W, k = (k + 1) % 4)
        sum[k] = v_fma(v_load(a + i), v_load(b + i), sum[k]);
    return finish_sum(sum);
}

/* out = x * sigmoid(gate); out may be x */
static void k_sigmoid_mul(float *out, const float *x, const float *gate, int32_t n)
{
    for (int32_t i = 0; i < n; i += SIMD_W) {
        const int m = n - i < SIMD_W ? n - i : SIMD_W;
        const vf g = v_load_n(gate + i, m);
        const vf one = v_add(v_set1(1.0f), v_exp(v_sub(v_set1(0.0f), g)));
        v_store_n(out + i, v_div(v_load_n(x + i, m), one), m);
    }
}

/* out = silu(sum over taps, ascending, of w[t] * tap[t]) */
static void k_conv_silu(float *out, const float *const tap[SV_GDN_TAPS], const float *w,
                        int64_t ldw, int32_t n)
{
    for (int32_t i = 0; i < n; i += SIMD_W) {
        vf sum = v_mul(v_load(w + i), v_load(tap[0] + i));
        for (int t = 1; t < SV_GDN_TAPS; t++)
            sum = v_fma(v_load(w + t * ldw + i), v_load(tap[t] + i), sum);
        v_store(out + i, silu_mul(sum, v_set1(1.0f)));
    }
}

/* ---------------------------------------------------------------- products with a state */

static inline __attribute__((always_inline)) SIMD_LOCALS void
state_block(float *out, int32_t ldo, const float *const *x, int n_x, const float *s, int64_t lds,
            int32_t k_dim, int n_v)
{
    vf acc[SIMD_QB][SIMD_NV];
    for (int r = 0; r < n_x; r++)
        for (int v = 0; v < n_v; v++)
            acc[r][v] = v_set1(0);
    for (int32_t d = 0; d < k_dim; d++)
        for (int r = 0; r < n_x; r++) {
            const vf xd = v_set1(x[r][d]);
            for (int v = 0; v < n_v; v++)
                acc[r][v] = v_fma(xd, v_load(s + d * lds + v * SIMD_W), acc[r][v]);
        }
    for (int r = 0; r < n_x; r++)
        for (int v = 0; v < n_v; v++)
            v_store(out + r * ldo + v * SIMD_W, acc[r][v]);
}

static inline __attribute__((always_inline)) SIMD_LOCALS void
state_rows(float *out, int32_t ldo, const float *const *x, int n_x, const float *s, int64_t lds,
           int32_t k_dim, int n_v)
{
    int r = 0;
    for (; r + SIMD_QB <= n_x; r += SIMD_QB)
        state_block(out + r * ldo, ldo, x + r, SIMD_QB, s, lds, k_dim, n_v);
    for (; r + 2 <= n_x; r += 2)
        state_block(out + r * ldo, ldo, x + r, 2, s, lds, k_dim, n_v);
    for (; r < n_x; r++)
        state_block(out + r * ldo, ldo, x + r, 1, s, lds, k_dim, n_v);
}

/* out[r][c] = sum over d, ascending, of x[r][d] * s[d][c] */
static SIMD_LOCALS void k_gdn_product(float *out, int32_t ldo, const float *const *x, int32_t n_x,
                                      const float *s, int64_t lds, int32_t k_dim, int32_t n_cols)
{
    int32_t c = 0;
    for (; c + SIMD_NV * SIMD_W <= n_cols; c += SIMD_NV * SIMD_W)
        state_rows(out + c, ldo, x, n_x, s + c, lds, k_dim, SIMD_NV);
    for (; c < n_cols; c += SIMD_W)
        state_rows(out + c, ldo, x, n_x, s + c, lds, k_dim, 1);
}

/* ---------------------------------------------------------------- a row, a chunk's end */

static void k_gdn_row(const struct sv_cpu_gdn_row *r)
{
    const vf decay = v_set1(r->decay), beta = v_set1(r->beta);
    for (int32_t c = 0; c < r->n_cols; c += SIMD_W) {
        vf sum = v_set1(0);
        for (int32_t j = 0; j < r->n_before; j++)
            sum = v_fma(v_set1(r->kk[j]), v_load(r->u + j * r->ldu + c), sum);
        const vf rest = v_sub(v_load(r->v + c), v_mul(decay, v_load(r->sk + c)));
        v_store(r->u + r->n_before * r->ldu + c, v_mul(beta, v_sub(rest, sum)));
        vf out = v_mul(decay, v_load(r->sq + c));
        for (int32_t j = 0; j <= r->n_before; j++)
            out = v_fma(v_set1(r->qk[j]), v_load(r->u + j * r->ldu + c), out);
        v_store(r->out + c, out);
    }
}

/* to[d][c] = decay * s[d][c] + sum over rows j, ascending, of kw[d][j] * u[j][c]; to may be s. */
static SIMD_LOCALS void k_gdn_fold(float *to, int64_t ldto, const float *s, int64_t lds,
                                   const float *kw, const float *u, int32_t ldu, float decay,
                                   int32_t k_dim, int32_t n_cols)
{
    const vf a = v_set1(decay);
    for (int32_t d = 0; d < k_dim; d++) {
        for (int32_t c = 0; c < n_cols; c += SIMD_W) {
            vf sum = v_mul(a, v_load(s + d * lds + c));
            for (int j = 0; j < SV_GDN_CHUNK; j++)
                sum = v_fma(v_set1(kw[d * SV_GDN_CHUNK + j]), v_load(u + j * ldu + c), sum);
            v_store(to + d * ldto + c, sum);
        }
    }
}
