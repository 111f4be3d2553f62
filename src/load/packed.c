/*
 * packed.c - tensors that hold one projection of all experts of a layer, in the layouts of
 * published files: every matrix transposed, or MXFP4 blocks and scales, gate and up interleaved or
 * not.
 *
 * Called by model (loading) and by the check of a checkpoint. Expansion is exact: an MXFP4 value is
 * a 2-bit significand times a power of two, which bf16 holds. Must not: allocate, or accept a scale
 * whose values bf16 cannot hold.
 */
#include "load/load.h"

#include <stdio.h>
#include <string.h>

#define TILE 64 /* of a transposition: its lines stay in the cache */
#define MXFP4_VALUES 32
#define MXFP4_BYTES (MXFP4_VALUES / 2)
/* E8M0: the value 2^(byte - 127). Above this 6 * 2^(byte - 127), the largest of a block, is not in
 * bf16; 255 is NaN. */
#define MXFP4_MAX_SCALE 252

enum sv_dtype sv_packed_dtype(const struct sv_packed *p)
{
    return p->pack == SV_PACK_MXFP4 ? SV_BF16 : p->t->dtype;
}

static int check_scales(const struct sv_host_tensor *t, struct sv_err *err)
{
    const uint8_t *scale = t->data;
    for (int64_t i = 0; i < t->n_elements; i++)
        if (scale[i] > MXFP4_MAX_SCALE)
            return sv_fail(err, SV_EFORMAT, -1,
                           "%s: tensor '%s': scale %lld is %d, at most %d is possible", t->file,
                           t->name, (long long)i, scale[i], MXFP4_MAX_SCALE);
    return SV_OK;
}

int sv_packed_find(struct sv_packed *p, const struct sv_ckpt *c, const struct sv_tensor_spec *s,
                   struct sv_err *err)
{
    static const char blocks[] = "_blocks";
    const size_t n = strlen(s->name), stem = n - (sizeof blocks - 1);
    char name[160];
    *p = (struct sv_packed){.t = sv_ckpt_find(c, s->name),
                            .pack = s->pack,
                            .n = s->n_experts,
                            .rows = (int32_t)s->rows,
                            .cols = (int32_t)s->cols};
    SV_REQUIRE(p->t);
    if (s->pack != SV_PACK_MXFP4)
        return SV_OK;
    SV_REQUIRE(n > sizeof blocks - 1 && n < sizeof name && !strcmp(s->name + stem, blocks));
    snprintf(name, sizeof name, "%.*s_scales", (int)stem, s->name);
    p->scales = sv_ckpt_find(c, name);
    SV_REQUIRE(p->scales);
    return check_scales(p->scales, err);
}

/* out[r][c] = in[c][first + r * step] for the rows and columns of a tile. */
#define TRANSPOSE(type)                                                                            \
    static void transpose_##type(const type *in, int32_t ld, int32_t step, type *out,              \
                                 int32_t n_rows, int32_t n_cols)                                   \
    {                                                                                              \
        for (int32_t c0 = 0; c0 < n_cols; c0 += TILE)                                              \
            for (int32_t r0 = 0; r0 < n_rows; r0 += TILE)                                          \
                for (int32_t c = c0; c < n_cols && c < c0 + TILE; c++)                             \
                    for (int32_t r = r0; r < n_rows && r < r0 + TILE; r++)                         \
                        out[(int64_t)r * n_cols + c] = in[(int64_t)c * ld + (int64_t)r * step];    \
    }
TRANSPOSE(uint16_t)
TRANSPOSE(uint32_t)

static void expand_inputs_first(const struct sv_packed *p, int64_t e,
                                const struct sv_packed_part *part, void *out)
{
    const bool halves = p->pack == SV_PACK_HALVES;
    const int32_t step = halves ? 1 : part->step,
                  first = halves ? part->first * (p->rows / part->step) : part->first;
    const int64_t at =
        (e * p->cols + part->cols.first) * p->rows + first + (int64_t)part->rows.first * step;
    if (p->t->dtype == SV_F32)
        transpose_uint32_t((const uint32_t *)p->t->data + at, p->rows, step, out, part->rows.n,
                           part->cols.n);
    else
        transpose_uint16_t((const uint16_t *)p->t->data + at, p->rows, step, out, part->rows.n,
                           part->cols.n);
}

/* The 16 values of a scale. Exact: bf16 holds them all. */
static void mxfp4_values(uint8_t scale, uint16_t value[16])
{
    for (int i = 0; i < 16; i++)
        value[i] = sv_f32_to_bf16(sv_e2m1[i] * sv_e8m0_to_f32(scale));
}

static void expand_mxfp4(const struct sv_packed *p, int64_t e, const struct sv_packed_part *part,
                         uint16_t *out)
{
    const int64_t per_row = p->cols / MXFP4_VALUES;
    for (int32_t r = part->rows.first; r < part->rows.first + part->rows.n; r++) {
        const int64_t at = (e * p->rows + part->first + (int64_t)r * part->step) * per_row +
                           part->cols.first / MXFP4_VALUES;
        const uint8_t *scale = (const uint8_t *)p->scales->data + at;
        const uint8_t *code = (const uint8_t *)p->t->data + at * MXFP4_BYTES;
        for (int64_t b = 0; b < part->cols.n / MXFP4_VALUES; b++) {
            uint16_t value[16];
            mxfp4_values(scale[b], value);
            for (int i = 0; i < MXFP4_BYTES; i++) {
                *out++ = value[*code & 15];
                *out++ = value[*code++ >> 4];
            }
        }
    }
}

static bool part_ok(const struct sv_packed *p, int32_t expert, const struct sv_packed_part *part)
{
    const int32_t unit = p->pack == SV_PACK_MXFP4 ? MXFP4_VALUES : 1;
    return expert >= 0 && expert < p->n && part->first >= 0 && part->first < part->step &&
           p->rows % part->step == 0 && part->rows.first >= 0 &&
           part->rows.first + part->rows.n <= p->rows / part->step && part->cols.first >= 0 &&
           part->cols.first + part->cols.n <= p->cols && part->cols.first % unit == 0 &&
           part->cols.n % unit == 0;
}

struct sv_quant sv_packed_codes(const struct sv_packed *p, int32_t expert,
                                const struct sv_packed_part *part)
{
    const int64_t row =
        (int64_t)expert * p->rows + part->first + (int64_t)part->rows.first * part->step;
    const int64_t at = row * (p->cols / MXFP4_VALUES);
    SV_REQUIRE(p->pack == SV_PACK_MXFP4 && part_ok(p, expert, part));
    return (struct sv_quant){.code = SV_CODE_MXFP4,
                             .rows = part->rows.n,
                             .cols = p->cols,
                             .data = (const uint8_t *)p->t->data + at * MXFP4_BYTES,
                             .scales = (const uint8_t *)p->scales->data + at,
                             .scale = SV_U8,
                             .block_rows = 1,
                             .block_cols = MXFP4_VALUES,
                             .step = part->step};
}

void sv_packed_expand(const struct sv_packed *p, int32_t expert, const struct sv_packed_part *part,
                      void *out)
{
    SV_REQUIRE(part_ok(p, expert, part));
    if (p->pack == SV_PACK_MXFP4)
        expand_mxfp4(p, expert, part, out);
    else
        expand_inputs_first(p, expert, part, out);
}
