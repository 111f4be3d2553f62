/*
 * gemm_plain.c - matrix product kernels without instruction sets: the reference of all others, and
 * for machines without them.
 *
 * Entered through sv_gemm_kern_plain by gemm.c. GCC's and Clang's four-float vectors are plain C on
 * every target they know and keep the order of additions explicit. Must not: rely on contraction of
 * a * b + c (the project builds with it off).
 */
#include "backend/cpu/gemm.h"

#include <math.h>
#include <string.h>

#define VEC vec4
#define VIN vec4
#define VSTEP 4
#define DOT_X float
#define DOT_NX 2
#define DOT_NW(nx) 4

typedef float vec4 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));
typedef uint16_t u16x4 __attribute__((vector_size(8)));

static inline vec4 vec_zero(void)
{
    return (vec4){0, 0, 0, 0};
}

static inline vec4 vec_load(const float *p)
{
    vec4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline vec4 vec_load_part(const float *p, int n)
{
    vec4 v = vec_zero();
    memcpy(&v, p, (size_t)n * 4);
    return v;
}

static inline vec4 vec_fma(vec4 a, vec4 b, vec4 acc)
{
    return a * b + acc;
}

static inline float vec_sum(vec4 v)
{
    return (v[0] + v[2]) + (v[1] + v[3]);
}

static inline vec4 vec_load_w_part(const void *p, enum sv_dtype dt, int n)
{
    if (dt == SV_F32)
        return vec_load_part(p, n);
    u16x4 h = {0, 0, 0, 0};
    memcpy(&h, p, (size_t)n * 2);
    if (dt == SV_BF16)
        return (vec4)(__builtin_convertvector(h, u32x4) << 16);
    return (vec4){sv_f16_to_f32(h[0]), sv_f16_to_f32(h[1]), sv_f16_to_f32(h[2]),
                  sv_f16_to_f32(h[3])};
}

static inline vec4 vec_load_w(const void *p, enum sv_dtype dt)
{
    return vec_load_w_part(p, dt, VSTEP);
}

#define dot_emit sv_gemm_emit_plain
#include "backend/cpu/gemm_dot.h"

static void store_y(const struct sv_gemm_span *s, int32_t n0, int nn, int32_t m, int nm,
                    const float *tile, int ld)
{
    const struct sv_gemm_call *c = s->call;
    float bias[SV_GEMM_UNIT];
    sv_gemm_bias(s->item, n0, nn, bias);
    for (int j = 0; j < nm; j++) {
        float *y = c->y + ((m + j) * c->ldy + s->item->col0 + n0);
        for (int i = 0; i < nn; i++)
            y[i] = tile[i * ld + j] + bias[i];
    }
}

void sv_gemm_emit_plain(const struct sv_gemm_span *s, int32_t n0, int nn, int32_t m, int nm,
                        const float *tile, int ld)
{
    if (s->call->y) {
        store_y(s, n0, nn, m, nm, tile, ld);
        return;
    }
    for (int j = 0; j < nm; j++) {
        float *best = &s->thread->best_val[m - s->call->m0 + j];
        int32_t *id = &s->thread->best_id[m - s->call->m0 + j];
        for (int i = 0; i < nn; i++) {
            float v = tile[i * ld + j];
            if (!isnan(v) && (isnan(*best) || v > *best)) {
                *best = v;
                *id = n0 + i;
            }
        }
    }
}

void sv_gemm_pack_round(const struct sv_gemm_call *c, void *xp, int i, int n)
{
    const int32_t kp = sv_gemm_kpad(c->k), rows = c->m1 - c->m0;
    for (int32_t r = (int32_t)((int64_t)rows * i / n); r < (int32_t)((int64_t)rows * (i + 1) / n);
         r++) {
        const float *x = sv_gemm_row(c, c->m0 + r);
        float *out = (float *)xp + (size_t)r * kp;
        for (int32_t p = 0; p < c->k; p++)
            out[p] = sv_bf16_to_f32(sv_f32_to_bf16(x[p]));
        memset(out + c->k, 0, (size_t)(kp - c->k) * sizeof *out);
    }
}

const struct sv_gemm_kern *sv_gemm_kern_plain(enum sv_dtype w, bool rounded)
{
    static const struct sv_gemm_kern f32 = {SV_GEMM_X_RAW, NULL, run_f32, NULL, NULL};
    static const struct sv_gemm_kern f16 = {SV_GEMM_X_RAW, NULL, run_f16, NULL, NULL};
    static const struct sv_gemm_kern bf16 = {SV_GEMM_X_RAW, NULL, run_bf16, NULL, NULL};
    static const struct sv_gemm_kern both16 = {SV_GEMM_X_ROUND, sv_gemm_pack_round, run_bf16, NULL,
                                               NULL};
    if (w == SV_BF16)
        return rounded ? &both16 : &bf16;
    return w == SV_F32 ? &f32 : w == SV_F16 ? &f16 : NULL;
}
