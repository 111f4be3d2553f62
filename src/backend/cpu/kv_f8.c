/*
 * kv_f8.c - keys, values and latents of the cache, written and, of e4m3, read back.
 *
 * Called by rope.c, context_kv.c, mla.c and attention.c. A row of e4m3 is stored with the least
 * power of two that keeps its largest number in range, so that bf16 holds its values exactly, or
 * with the scale that a checkpoint states for all rows; a latent with such a power for each
 * SV_LATENT_TILE numbers, and its rotated key in bf16. A row's result depends on the row alone.
 * Must not: expose a number before it was rounded.
 */
#include "backend/cpu/vec.h"

#include "backend/ops_mla.h"
#include "backend/quant.h"

#include <math.h>
#include <string.h>

enum { E8M0_ONE = 127, E8M0_NAN = 255, MAX_EXPONENT = 119 }; /* 448 * 2^119 is an f32 */

/* The exponent of a row's own scale. */
static int32_t exponent_of(float top)
{
    int e;
    if (!(top > 0))
        return 0;
    if (isinf(top))
        return MAX_EXPONENT;
    const float m = frexpf(top, &e); /* top = m * 2^e, 448 = 0.875 * 2^9 */
    e -= 9 - (m > 0.875f);
    return e < 1 - E8M0_ONE ? 1 - E8M0_ONE : e > MAX_EXPONENT ? MAX_EXPONENT : e;
}

static void put_f8(uint8_t *row, uint8_t *own, const float *x, int32_t n, float scale)
{
    float top = 0;
    bool nan = false;
    for (int32_t i = 0; i < n; i++) {
        top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
        nan |= isnan(x[i]);
    }
    const int32_t e = scale > 0 ? 0 : exponent_of(top);
    const float by = scale > 0 ? 1 : ldexpf(1, -e); /* exact */
    for (int32_t i = 0; i < n; i++)
        row[i] = nan ? 0 : sv_f32_to_f8(scale > 0 ? x[i] / scale : x[i] * by);
    *own = (uint8_t)(nan ? E8M0_NAN : E8M0_ONE + e);
}

void sv_cpu_kv_put(const struct sv_cpu *cpu, const struct sv_kv *kv, int64_t at, const float *key,
                   const float *value)
{
    uint8_t *k = (uint8_t *)kv->k + at, *v = (uint8_t *)kv->v + at;
    if (kv->dtype == SV_F8) {
        put_f8(k, kv->k_own + at / kv->head_dim, key, kv->head_dim, kv->k_scale);
        put_f8(v, kv->v_own + at / kv->head_dim, value, kv->head_dim, kv->v_scale);
        return;
    }
    cpu->vec->narrow(k, kv->dtype, key, kv->head_dim);
    cpu->vec->narrow(v, kv->dtype, value, kv->head_dim);
}

void sv_cpu_kv_widen(const struct sv_cpu *cpu, void *out, enum sv_dtype dtype, const void *row,
                     uint8_t own_scale, int32_t head_dim, float scale)
{
    _Alignas(64) float wide[256];
    float *to = dtype == SV_F32 ? out : wide;
    const float own = sv_e8m0_to_f32(own_scale);
    cpu->vec->widen(to, row, SV_F8, head_dim, scale > 0 ? scale * own : own);
    if (dtype != SV_F32)
        cpu->vec->narrow(out, dtype, wide, head_dim);
}

/* Tiles of a latent's codes, and the offsets of their scales and of the rotated key in a row. */
static int32_t n_tiles(const struct sv_kv *kv)
{
    return (kv->latent + SV_LATENT_TILE - 1) / SV_LATENT_TILE;
}

static int32_t tile_numbers(const struct sv_kv *kv, int32_t tile)
{
    const int32_t left = kv->latent - tile * SV_LATENT_TILE;
    return left < SV_LATENT_TILE ? left : SV_LATENT_TILE;
}

void sv_cpu_latent_put(const struct sv_cpu *cpu, const struct sv_kv *kv, int64_t at,
                       const float *kept)
{
    uint8_t *row = (uint8_t *)kv->k + at;
    if (kv->dtype != SV_F8) {
        cpu->vec->narrow(row, kv->dtype, kept, kv->head_dim);
        return;
    }
    uint8_t *scales = row + kv->latent;
    for (int32_t t = 0; t < n_tiles(kv); t++) {
        const int32_t first = t * SV_LATENT_TILE;
        uint8_t own;
        put_f8(row + first, &own, kept + first, tile_numbers(kv, t), 0);
        const float scale = sv_e8m0_to_f32(own);
        memcpy(scales + 4 * t, &scale, sizeof scale);
    }
    cpu->vec->narrow(scales + 4 * n_tiles(kv), SV_BF16, kept + kv->latent,
                     kv->head_dim - kv->latent);
}

void sv_cpu_latent_widen(const struct sv_cpu *cpu, void *out, enum sv_dtype dtype,
                         const struct sv_kv *kv, const void *row)
{
    _Alignas(64) float wide[SV_MAX_LATENT];
    const uint8_t *codes = row, *scales = codes + kv->latent;
    float *to = dtype == SV_F32 ? out : wide;
    for (int32_t t = 0; t < n_tiles(kv); t++) {
        float scale;
        memcpy(&scale, scales + 4 * t, sizeof scale);
        cpu->vec->widen(to + t * SV_LATENT_TILE, codes + t * SV_LATENT_TILE, SV_F8,
                        tile_numbers(kv, t), scale);
    }
    cpu->vec->widen(to + kv->latent, scales + 4 * n_tiles(kv), SV_BF16, kv->head_dim - kv->latent,
                    1);
    if (dtype != SV_F32)
        cpu->vec->narrow(out, dtype, wide, kv->head_dim);
}
