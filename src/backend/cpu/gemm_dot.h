/*
 * gemm_dot.h - the body of the dot-product kernels, instantiated by gemm_plain.c, gemm_avx2.c and
 * gemm_avx512.c over their own vector types. Included by these only.
 *
 * The including file defines, before the include:
 *   VEC, VIN, DOT_X      vector of sums (floats); vector of inputs; element of x
 *   VSTEP                elements of k that one vector of inputs takes
 *   vec_zero(), vec_load(DOT_X *), vec_load_part(DOT_X *, n), vec_fma(w, x, sums), vec_sum(sums)
 *   vec_load_w(void *, dtype), vec_load_w_part(void *, dtype, n)
 *   DOT_NX               most input rows in a tile
 *   DOT_NW(nx)           weight rows (1, 2, 4, 8 or 16) that go with nx of them
 *   dot_emit             one of the sv_gemm_emit functions
 *   VEC_SUM4             when it can sum four vectors at once: to out[0..3], each as vec_sum would
 *
 * Every accumulator is one (weight row, input row) pair and walks k in steps of VSTEP, for any
 * shape of its tile: that is the fixed order.
 */
#define DOT_INLINE static inline __attribute__((always_inline))

/* Prefetch distance in a weight row, where few rows of x make memory the limit. */
#define DOT_AHEAD 512

/* out[i * nx + j] = w[i] . x[j]; nw is a multiple of four; ahead: prefetch distance in bytes, 0 =
 * none */
DOT_INLINE void dot_tile(const int nw, const int nx, const enum sv_dtype dt,
                         const uint8_t *const *w, const DOT_X *const *x, int32_t k, float *out,
                         const size_t ahead)
{
    const int wb = dt == SV_F32 ? 4 : 2;
    VEC acc[32];
#pragma GCC unroll 32
    for (int i = 0; i < nw * nx; i++)
        acc[i] = vec_zero();
    int32_t p = 0;
    for (; p + VSTEP <= k; p += VSTEP) {
        VIN xv[DOT_NX];
#pragma GCC unroll 8
        for (int j = 0; j < nx; j++)
            xv[j] = vec_load(x[j] + p);
#pragma GCC unroll 16
        for (int i = 0; i < nw; i++) {
            VIN wv = vec_load_w(w[i] + (size_t)p * wb, dt);
            if (ahead)
                __builtin_prefetch((const void *)((uintptr_t)w[i] + (size_t)p * wb + ahead));
#pragma GCC unroll 8
            for (int j = 0; j < nx; j++)
                acc[i * nx + j] = vec_fma(wv, xv[j], acc[i * nx + j]);
        }
    }
    if (p < k) {
#pragma GCC unroll 16
        for (int i = 0; i < nw; i++) {
            VIN wv = vec_load_w_part(w[i] + (size_t)p * wb, dt, k - p);
#pragma GCC unroll 8
            for (int j = 0; j < nx; j++)
                acc[i * nx + j] = vec_fma(wv, vec_load_part(x[j] + p, k - p), acc[i * nx + j]);
        }
    }
#ifdef VEC_SUM4
#pragma GCC unroll 8
    for (int i = 0; i < nw * nx; i += 4)
        VEC_SUM4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3], out + i);
#else
#pragma GCC unroll 32
    for (int i = 0; i < nw * nx; i++)
        out[i] = vec_sum(acc[i]);
#endif
}

/* One unit (16 row pointers; those past the end repeat the last row) times nx rows of x. */
DOT_INLINE void dot_unit(const int nx, const enum sv_dtype dt, const uint8_t *const *w,
                         const DOT_X *const *x, int32_t k, float *out, const size_t ahead)
{
    for (int i = 0; i < SV_GEMM_UNIT; i += DOT_NW(nx))
        dot_tile(DOT_NW(nx), nx, dt, w + i, x, k, out + i * nx, ahead);
}

/* Rows of x that share a level-2 cache with streamed weights. */
#define DOT_X_BYTES (768 << 10)

DOT_INLINE void dot_run(const struct sv_gemm_span *s, const enum sv_dtype dt)
{
    const struct sv_gemm_call *c = s->call;
    const size_t row_bytes = (size_t)c->k * (dt == SV_F32 ? 4 : 2);
    const int32_t fit = DOT_X_BYTES / 4 / (c->k + 1) / DOT_NX * DOT_NX;
    const int32_t step = fit < DOT_NX ? DOT_NX : fit;
    float tile[SV_GEMM_UNIT * DOT_NX];
    for (int32_t mb = c->m0; mb < c->m1; mb += step) {
        const int32_t me = mb + step < c->m1 ? mb + step : c->m1;
        for (int32_t n = s->n0; n < s->n1; n += SV_GEMM_UNIT) {
            const int nn = s->n1 - n < SV_GEMM_UNIT ? s->n1 - n : SV_GEMM_UNIT;
            const uint8_t *w[SV_GEMM_UNIT];
            for (int i = 0; i < SV_GEMM_UNIT; i++)
                w[i] =
                    (const uint8_t *)s->item->w + (size_t)(n + (i < nn ? i : nn - 1)) * row_bytes;
            for (int32_t m = mb; m < me; m += DOT_NX) {
                const int nm = me - m < DOT_NX ? me - m : DOT_NX;
                const DOT_X *x[DOT_NX];
                for (int j = 0; j < nm; j++)
                    x[j] = s->xp
                               ? (const DOT_X *)s->xp + (size_t)(m - c->m0 + j) * sv_gemm_kpad(c->k)
                               : (const DOT_X *)(const void *)sv_gemm_row(c, m + j);
                /* the first rows of x prefetch the next weights */
                const size_t ahead = m > mb              ? 0
                                     : row_bytes <= 2048 ? row_bytes * SV_GEMM_UNIT
                                                         : DOT_AHEAD;
                switch (nm) {
                case 1:
                    dot_unit(1, dt, w, x, c->k, tile, ahead);
                    break;
#if DOT_NX >= 2
                case 2:
                    dot_unit(2, dt, w, x, c->k, tile, ahead);
                    break;
#endif
#if DOT_NX >= 3
                case 3:
                    dot_unit(3, dt, w, x, c->k, tile, ahead);
                    break;
#endif
#if DOT_NX >= 4
                case 4:
                    dot_unit(4, dt, w, x, c->k, tile, ahead);
                    break;
#endif
#if DOT_NX >= 6
                case 5:
                    dot_unit(5, dt, w, x, c->k, tile, ahead);
                    break;
                case 6:
                    dot_unit(6, dt, w, x, c->k, tile, ahead);
                    break;
#endif
                default:
                    break;
                }
                dot_emit(s, n, nn, m, nm, tile, nm);
            }
        }
    }
}

static void run_f32(const struct sv_gemm_span *s)
{
    dot_run(s, SV_F32);
}

static void run_bf16(const struct sv_gemm_span *s)
{
    dot_run(s, SV_BF16);
}

static void run_f16(const struct sv_gemm_span *s)
{
    dot_run(s, SV_F16);
}
