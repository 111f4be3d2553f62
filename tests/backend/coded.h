/*
 * coded.h - random quantized matrices of every format, whose memory ends at fenced pages.
 *
 * For test_codes and test_int8. Must not: hold codes that are NaN.
 */
#ifndef TESTS_BACKEND_CODED_H
#define TESTS_BACKEND_CODED_H

#include "testing.h"

#include "backend/fenced.h"
#include "backend/quant.h"

#include <string.h>

struct form {
    const char *name;
    enum sv_quant_code code;
    enum sv_dtype scale;
    int32_t block_rows, block_cols; /* 0: all */
    bool zeros, permuted;
    int32_t zero_add;
    bool odd; /* needs no whole steps of k */
};

static const struct form forms[] = {
    {"q4_0", SV_CODE_Q4_0, 0, 0, 0, false, false, 0, false},
    {"q8_0", SV_CODE_Q8_0, 0, 0, 0, false, false, 0, false},
    {"q4_k", SV_CODE_Q4_K, 0, 0, 0, false, false, 0, false},
    {"q5_k", SV_CODE_Q5_K, 0, 0, 0, false, false, 0, false},
    {"q6_k", SV_CODE_Q6_K, 0, 0, 0, false, false, 0, false},
    {"iq4_nl", SV_CODE_IQ4_NL, 0, 0, 0, false, false, 0, false},
    {"gg_mxfp4", SV_CODE_GG_MXFP4, 0, 0, 0, false, false, 0, false},
    {"f8 blocks", SV_CODE_F8, SV_F32, 128, 128, false, false, 0, true},
    {"f8 rows", SV_CODE_F8, SV_BF16, 1, 0, false, false, 0, true},
    {"f8 tensor", SV_CODE_F8, SV_F32, 0, 0, false, false, 0, true},
    {"i8 rows", SV_CODE_I8, SV_F32, 1, 0, false, false, 0, true},
    {"mxfp4", SV_CODE_MXFP4, SV_U8, 1, 32, false, false, 0, false},
    {"nvfp4", SV_CODE_NVFP4, SV_U8, 1, 16, false, false, 0, false},
    {"int4", SV_CODE_INT4, SV_BF16, 1, 32, false, false, 0, false},
    {"int4 f32", SV_CODE_INT4, SV_F32, 1, 64, false, false, 0, false},
    {"int4 zeros", SV_CODE_INT4, SV_F16, 1, 128, true, false, 0, false},
    {"int8", SV_CODE_INT8, SV_F16, 1, 64, false, false, 0, false},
    {"int8 zeros", SV_CODE_INT8, SV_BF16, 1, 32, true, false, 0, false},
    {"int8 f32 zeros", SV_CODE_INT8, SV_F32, 1, 32, true, false, 0, false},
    {"awq", SV_CODE_AWQ, SV_F16, 1, 128, true, false, 0, false},
    {"awq symmetric", SV_CODE_AWQ, SV_F16, 1, 64, false, false, 0, false},
    {"gptq4", SV_CODE_GPTQ4, SV_F16, 1, 32, true, false, 1, false},
    {"gptq4 act", SV_CODE_GPTQ4, SV_F16, 1, 32, true, true, 0, false},
    {"gptq8", SV_CODE_GPTQ8, SV_F16, 1, 16, true, false, 1, false},
    {"gptq8 whole", SV_CODE_GPTQ8, SV_F16, 1, 0, false, false, 0, false},
};
enum { N_FORMS = sizeof forms / sizeof forms[0] };

/* ---------------------------------------------------------------- random matrices */

struct matrix {
    struct sv_quant q;
    struct fenced data, scales, zeros;
    int32_t *g_idx;
};

static inline uint16_t random_f16(struct sv_rng *rng, bool any_sign)
{
    /* 2^-12 to 2^-2, now and then a denormal number or zero */
    const uint32_t r = (uint32_t)sv_rng_next(rng), e = r % 37 == 0 ? 0 : 3 + r % 11;
    const uint32_t sign = any_sign ? r >> 31 << 15 : 0;
    return (uint16_t)(sign | e << 10 | (r % 41 == 0 ? 0 : r >> 8 & 1023));
}

static inline void put_f16(uint8_t *p, uint16_t h)
{
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

static inline void random_blocks(struct sv_quant *q, uint8_t *p, struct sv_rng *rng)
{
    const int32_t size = sv_quant_block_bytes(q->code);
    for (int64_t n = sv_quant_bytes(q); n > 0; n -= size, p += size) {
        for (int32_t i = 0; i < size; i++)
            p[i] = (uint8_t)(sv_rng_next(rng) >> 17);
        if (q->code == SV_CODE_GG_MXFP4) {
            p[0] = (uint8_t)(p[0] < 8 ? 0 : 100 + p[0] % 40);
        } else {
            const bool k = q->code == SV_CODE_Q4_K || q->code == SV_CODE_Q5_K;
            put_f16(p + (q->code == SV_CODE_Q6_K ? 208 : 0), random_f16(rng, !k));
            if (k)
                put_f16(p + 2, random_f16(rng, false));
        }
    }
}

static inline void random_scales(const struct sv_quant *q, void *to, int64_t n, struct sv_rng *rng)
{
    for (int64_t i = 0; i < n; i++) {
        const uint16_t h = random_f16(rng, false);
        const float f = sv_f16_to_f32(h) * (q->scale == SV_F32 ? 1.1f : 1);
        if (q->code == SV_CODE_MXFP4)
            ((uint8_t *)to)[i] = (uint8_t)(h % 11 == 0 ? h % 3 : 100 + h % 40);
        else if (q->code == SV_CODE_NVFP4)
            ((uint8_t *)to)[i] = (uint8_t)(h % 0x7f);
        else if (q->scale == SV_F32)
            ((float *)to)[i] = f;
        else
            ((uint16_t *)to)[i] = q->scale == SV_F16 ? h : sv_f32_to_bf16(f);
    }
}

static inline int64_t ceil_of(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline void matrix_open(struct matrix *m, const struct form *f, int32_t n, int32_t k,
                               uint64_t seed)
{
    struct sv_rng rng = {seed};
    memset(m, 0, sizeof *m);
    struct sv_quant *q = &m->q;
    *q = (struct sv_quant){.code = f->code,
                           .rows = n,
                           .cols = k,
                           .scale = f->scale,
                           .block_rows = f->block_rows ? f->block_rows : n,
                           .block_cols = f->block_cols ? f->block_cols : k,
                           .zero_add = f->zero_add,
                           .global = f->code == SV_CODE_NVFP4 ? 0.0137f : 0};
    if (sv_quant_block(f->code)) {
        q->data = fenced_open(&m->data, (size_t)sv_quant_bytes(q));
        random_blocks(q, m->data.p, &rng);
        return;
    }
    const int64_t groups = ceil_of(k, q->block_cols);
    const bool eight = f->code == SV_CODE_F8 || f->code == SV_CODE_I8 || f->code == SV_CODE_INT8 ||
                       f->code == SV_CODE_GPTQ8;
    const int64_t n_bytes = (int64_t)n * k / (eight ? 1 : 2);
    q->data = fenced_open(&m->data, (size_t)n_bytes);
    for (int64_t i = 0; i < n_bytes; i++) {
        m->data.p[i] = (uint8_t)(sv_rng_next(&rng) >> 9);
        if (f->code == SV_CODE_F8 && (m->data.p[i] & 0x7f) == 0x7f)
            m->data.p[i] = 0x81;
    }
    const int64_t n_scales = ceil_of(n, q->block_rows) * groups;
    const size_t each = f->scale == SV_U8 ? 1 : sv_dtype_bytes(f->scale);
    q->scales = fenced_open(&m->scales, (size_t)n_scales * each);
    random_scales(q, m->scales.p, n_scales, &rng);
    if (f->zeros) {
        const int64_t n_zeros = ceil_of(n, 8) * 8 * groups / (eight ? 1 : 2);
        q->zeros = fenced_open(&m->zeros, (size_t)n_zeros);
        for (int64_t i = 0; i < n_zeros; i++)
            m->zeros.p[i] = (uint8_t)(sv_rng_next(&rng) >> 9);
    }
    if (f->permuted) {
        m->g_idx = sv_calloc((size_t)k, sizeof *m->g_idx);
        for (int32_t i = 0; i < k; i++)
            m->g_idx[i] = (i * 7 + 3) % k / q->block_cols;
        q->g_idx = m->g_idx;
    }
}

static inline void matrix_close(struct matrix *m)
{
    fenced_close(&m->data);
    if (m->scales.mapped)
        fenced_close(&m->scales);
    if (m->zeros.mapped)
        fenced_close(&m->zeros);
    sv_free(m->g_idx);
}

#endif
