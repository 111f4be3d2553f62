/*
 * vec_kernels.h - template: row kernels except those of attention and logits, written once over the
 * operations of a simd_*.h (vf, SIMD_W, v_*).
 *
 * Included exactly once by each vec_*.c. All orders of summation depend on the row's length alone.
 * Must not: be included elsewhere, or contain an intrinsic.
 */

#define LN2_HI 0.693359375f
#define LN2_LO -2.12194440e-4f

/* e^x, relative error about 1e-7 (checked by tests): n = round(x / ln 2), a degree-5 polynomial of
 * Cephes' expf on the rest, times 2^n. x below -87.33 gives 0, above 88.0 the value at 88.0; NaN
 * stays NaN and e^0 is exactly 1. The same steps in every lane of every kernel. */
static inline vf v_exp(vf x)
{
    vf c = v_max(v_set1(-87.33f), v_min(v_set1(88.0f), x));
    vf n = v_rint(v_mul(c, v_set1(1.44269504088896341f)));
    vf r = v_fma(n, v_set1(-LN2_HI), c);
    r = v_fma(n, v_set1(-LN2_LO), r);
    vf p = v_set1(1.9875691500e-4f);
    p = v_fma(p, r, v_set1(1.3981999507e-3f));
    p = v_fma(p, r, v_set1(8.3334519073e-3f));
    p = v_fma(p, r, v_set1(4.1665795894e-2f));
    p = v_fma(p, r, v_set1(1.6666665459e-1f));
    p = v_fma(p, r, v_set1(5.0000001201e-1f));
    p = v_fma(p, v_mul(r, r), r);
    p = v_add(p, v_set1(1.0f));
    return v_zero_below(x, -87.33f, v_scale2(p, n));
}

static inline SIMD_LOCALS float exp1(float x)
{
    float t[SIMD_W];
    v_store(t, v_exp(v_set1(x)));
    return t[0];
}

/* Whole vector at element i of a weight vector; dtype is a constant where it matters. */
static inline __attribute__((always_inline)) vf w_load(const void *w, enum sv_dtype dtype,
                                                       int32_t i, int n)
{
    if (dtype == SV_F32)
        return n == SIMD_W ? v_load((const float *)w + i) : v_load_n((const float *)w + i, n);
    if (dtype == SV_BF16)
        return n == SIMD_W ? v_load_bf16((const uint16_t *)w + i)
                           : v_load_bf16_n((const uint16_t *)w + i, n);
    return v_load_f16_n((const uint16_t *)w + i, n);
}

/* ---------------------------------------------------------------- norm */

/* Four partial sums of SIMD_W lanes each, then one tree: the order depends on d only. */
static inline SIMD_LOCALS float finish_sum(const vf a[4])
{
    return v_hsum(v_add(v_add(a[0], a[2]), v_add(a[1], a[3])));
}

/* x + delta at element i, stored where asked. */
static inline __attribute__((always_inline)) vf norm_in(const struct sv_cpu_norm_row *r, int32_t i,
                                                        int n)
{
    bool full = n == SIMD_W;
    vf v = full ? v_load(r->x + i) : v_load_n(r->x + i, n);
    if (r->delta)
        v = v_add(v, full ? v_load(r->delta + i) : v_load_n(r->delta + i, n));
    return v;
}

static inline __attribute__((always_inline)) void norm_put(const struct sv_cpu_norm_row *r,
                                                           int32_t i, int n, vf v)
{
    if (r->write_x)
        v_store_n(r->x + i, v, n);
    if (r->tap)
        v_store_n(r->tap + i, v, n);
}

/* Stores x that is not read soon, past the caches where possible. */
static void k_stream(float *out, const float *x, int32_t n)
{
    int32_t i = 0;
    if ((uintptr_t)out % (SIMD_W * sizeof *out) == 0)
        for (; i + SIMD_W <= n; i += SIMD_W)
            v_stream(out + i, v_load(x + i));
    memcpy(out + i, x + i, (size_t)(n - i) * sizeof *out);
}

static void k_fence(void)
{
    v_fence();
}

static SIMD_LOCALS float norm_sum(const struct sv_cpu_norm_row *r)
{
    vf a[4] = {v_set1(0), v_set1(0), v_set1(0), v_set1(0)};
    int32_t i = 0;
    bool put = r->write_x || r->tap;
    for (; i + 4 * SIMD_W <= r->d; i += 4 * SIMD_W)
        for (int k = 0; k < 4; k++) {
            vf v = norm_in(r, i + k * SIMD_W, SIMD_W);
            if (put) {
                if (r->write_x)
                    v_store(r->x + i + k * SIMD_W, v);
                if (r->tap)
                    v_store(r->tap + i + k * SIMD_W, v);
            }
            a[k] = v_fma(v, v, a[k]);
        }
    for (int k = 0; i < r->d; i += SIMD_W, k++) {
        int n = r->d - i < SIMD_W ? r->d - i : SIMD_W;
        vf v = norm_in(r, i, n);
        norm_put(r, i, n, v);
        a[k] = v_fma(v, v, a[k]);
    }
    return finish_sum(a);
}

static inline __attribute__((always_inline)) void norm_scale(const struct sv_cpu_norm_row *r,
                                                             float inv, enum sv_dtype dtype)
{
    const vf s = v_set1(inv);
    int32_t i = 0;
    for (; i + SIMD_W <= r->d; i += SIMD_W) {
        /* After write_x, x already holds the sum. */
        vf v = r->write_x ? v_load(r->x + i) : norm_in(r, i, SIMD_W);
        v_store(r->out + i, v_mul(v_mul(v, s), w_load(r->w->data, dtype, i, SIMD_W)));
    }
    if (i < r->d) {
        int n = r->d - i;
        vf v = r->write_x ? v_load_n(r->x + i, n) : norm_in(r, i, n);
        v_store_n(r->out + i, v_mul(v_mul(v, s), w_load(r->w->data, dtype, i, n)), n);
    }
}

static void k_add_rms_norm(const struct sv_cpu_norm_row *r)
{
    float inv = 1.0f / sqrtf(norm_sum(r) / (float)r->d + r->eps);
    if (r->w->fmt.elem == SV_F32)
        norm_scale(r, inv, SV_F32);
    else if (r->w->fmt.elem == SV_BF16)
        norm_scale(r, inv, SV_BF16);
    else
        norm_scale(r, inv, SV_F16);
}

/* ---------------------------------------------------------------- one head: norm and rotation */

static void k_norm_rope(float *out, const float *x, const struct sv_weight *w, float eps,
                        const float *cos, const float *sin, int32_t head_dim, int32_t rot_dim)
{
    if (w->data) {
        struct sv_cpu_norm_row r = {
            .x = (float *)(uintptr_t)x, .w = w, .d = head_dim, .eps = eps, .out = out};
        k_add_rms_norm(&r);
    } else if (out != x) {
        memcpy(out, x, (size_t)head_dim * sizeof *out);
    }
    const int32_t half = rot_dim / 2;
    for (int32_t i = 0; i < half; i += SIMD_W) {
        int n = half - i < SIMD_W ? half - i : SIMD_W;
        vf a = v_load_n(out + i, n), b = v_load_n(out + half + i, n);
        vf c = v_load_n(cos + i, n), s = v_load_n(sin + i, n);
        v_store_n(out + i, v_sub(v_mul(a, c), v_mul(b, s)), n);
        v_store_n(out + half + i, v_add(v_mul(b, c), v_mul(a, s)), n);
    }
}

/* ---------------------------------------------------------------- activation, conversion */

static inline vf silu_mul(vf g, vf up)
{
    vf silu = v_div(g, v_add(v_set1(1.0f), v_exp(v_sub(v_set1(0.0f), g))));
    return v_mul(silu, up);
}

static void k_act_mul(float *out, const float *gate, const float *up, int32_t d)
{
    int32_t i = 0;
    for (; i + 2 * SIMD_W <= d; i += 2 * SIMD_W) {
        vf a = silu_mul(v_load(gate + i), v_load(up + i));
        vf b = silu_mul(v_load(gate + i + SIMD_W), v_load(up + i + SIMD_W));
        v_store(out + i, a);
        v_store(out + i + SIMD_W, b);
    }
    for (; i < d; i += SIMD_W) {
        int n = d - i < SIMD_W ? d - i : SIMD_W;
        v_store_n(out + i, silu_mul(v_load_n(gate + i, n), v_load_n(up + i, n)), n);
    }
}

static void k_weighted_sum(float *out, const float *const *x, const float *w, int32_t k, int32_t d)
{
    for (int32_t i = 0; i < d; i += SIMD_W) {
        const int n = d - i < SIMD_W ? d - i : SIMD_W;
        vf sum = v_mul(v_set1(w[0]), v_load_n(x[0] + i, n));
        for (int32_t j = 1; j < k; j++)
            sum = v_fma(v_set1(w[j]), v_load_n(x[j] + i, n), sum);
        v_store_n(out + i, sum, n);
    }
}

static void k_widen(float *out, const void *in, enum sv_dtype dtype, int32_t n, float scale)
{
    const vf s = v_set1(scale);
    int32_t i = 0;
    for (; dtype == SV_F32 && i + SIMD_W <= n; i += SIMD_W)
        v_store(out + i, v_mul(v_load((const float *)in + i), s));
    for (; dtype == SV_BF16 && i + SIMD_W <= n; i += SIMD_W)
        v_store(out + i, v_mul(v_load_bf16((const uint16_t *)in + i), s));
    for (; dtype == SV_F8 && i < n; i += SIMD_W) {
        uint8_t code[SIMD_W] = {0};
        int m = n - i < SIMD_W ? n - i : SIMD_W;
        memcpy(code, (const uint8_t *)in + i, (size_t)m);
        v_store_n(out + i, v_mul(v_load_f8(code), s), m);
    }
    for (; i < n; i += SIMD_W) {
        int m = n - i < SIMD_W ? n - i : SIMD_W;
        v_store_n(out + i, v_mul(w_load(in, dtype, i, m), s), m);
    }
}

static void k_narrow(void *dst, enum sv_dtype dtype, const float *in, int32_t n)
{
    if (dtype == SV_F32) {
        memcpy(dst, in, (size_t)n * sizeof *in);
        return;
    }
    uint16_t *out = dst;
    int32_t i = 0;
    for (; i + SIMD_W <= n; i += SIMD_W)
        v_store_bf16(out + i, v_load(in + i));
    if (i < n)
        v_store_bf16_n(out + i, v_load_n(in + i, n - i), n - i);
}

/* ---------------------------------------------------------------- bandwidth */

static SIMD_LOCALS uint64_t k_read(const void *p, size_t n_bytes)
{
    const float *x = p;
    const size_t n = n_bytes / sizeof *x;
    vf a[8];
    for (int k = 0; k < 8; k++)
        a[k] = v_set1(0);
    for (size_t i = 0; i + 64 <= n; i += 64)
        for (int k = 0; k < 64 / SIMD_W; k++)
            a[k % 8] = v_max(v_load(x + i + (size_t)k * SIMD_W), a[k % 8]);
    for (int k = 1; k < 8; k++)
        a[0] = v_max(a[k], a[0]);
    float m = v_hmax(a[0]);
    uint32_t bits;
    memcpy(&bits, &m, sizeof bits);
    return bits;
}
