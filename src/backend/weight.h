/*
 * weight.h - element types and weights: what a matrix is in its model, how its elements are
 * encoded.
 *
 * Part of device.h, which includes it. Must not: say what a device makes of a weight.
 */
#ifndef SV_WEIGHT_H
#define SV_WEIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sv_dtype {
    SV_F32,
    SV_BF16,
    SV_F16,
    SV_I32,
    SV_I8,
    SV_F8, /* e4m3 */
    SV_U8, /* packed codes, and e8m0 scales */
    SV_I64,
    SV_DTYPES
};
size_t sv_dtype_bytes(enum sv_dtype t);
const char *sv_dtype_name(enum sv_dtype t);

/* Bytes of the key or value of one position and head, without its scale in k_own or v_own. A latent
 * in SV_F8 is its codes, an f32 scale for each SV_LATENT_TILE of them, and the rotated key in bf16:
 * 512 + 16 + 128. */
enum { SV_LATENT_TILE = 128 };
static inline size_t sv_kv_row_bytes(enum sv_dtype dtype, int32_t head_dim, int32_t latent)
{
    if (dtype != SV_F8 || latent == 0)
        return (size_t)head_dim * sv_dtype_bytes(dtype);
    return (size_t)latent + 4 * (size_t)((latent + SV_LATENT_TILE - 1) / SV_LATENT_TILE) +
           2 * (size_t)(head_dim - latent);
}

/* What a weight is in its model. A device may keep a weight by its role, and says in the format how
 * it did. */
enum sv_role {
    SV_ROLE_NONE,
    SV_ROLE_EMBED,      /* rows are looked up; no product uses it */
    SV_ROLE_HEAD,       /* logits and their argmax; when tied, rows are looked up as well */
    SV_ROLE_FINAL_NORM, /* norms up to SV_ROLE_TAP_NORM */
    SV_ROLE_IN_NORM,    /* before the mixer */
    SV_ROLE_POST_NORM,
    SV_ROLE_Q_NORM,
    SV_ROLE_K_NORM,
    SV_ROLE_Q_A_NORM, /* of latent attention */
    SV_ROLE_KV_A_NORM,
    SV_ROLE_TAP_NORM,
    SV_ROLE_Q,
    SV_ROLE_K,
    SV_ROLE_V,
    SV_ROLE_O,
    SV_ROLE_GATE,
    SV_ROLE_UP,
    SV_ROLE_DOWN,
    SV_ROLE_ROUTER,
    SV_ROLE_EXPERT_GATE,
    SV_ROLE_EXPERT_UP,
    SV_ROLE_EXPERT_DOWN,
    SV_ROLE_EXPERT_GATE_UP, /* of files: gate and up, their outputs in turn */
    SV_ROLE_SINKS,          /* a logit for each head, in the softmax and without a value */
    SV_ROLE_CHOICE_BIAS,    /* of a router: added to scores for the choice of experts alone */
    SV_ROLE_Q_A,            /* of latent attention, see ops_mla.h: to the queries' latent */
    SV_ROLE_KV_A,           /* to latent and rotated key */
    SV_ROLE_KV_B,           /* of files: K_UP and V_UP, head by head */
    SV_ROLE_K_UP,           /* of a head: keys from the latent, transposed */
    SV_ROLE_V_UP,           /* values from the latent */
    SV_ROLE_SHARED_GATE,    /* of the expert that all rows go through */
    SV_ROLE_SHARED_UP,
    SV_ROLE_SHARED_DOWN,
    SV_ROLE_SHARED_ROUTER, /* (1, hidden): its weight */
    SV_ROLE_GDN_QKV,       /* of a gated delta rule, see ops_gdn.h; Z may be part of QKV, A of B */
    SV_ROLE_GDN_Z,
    SV_ROLE_GDN_B,
    SV_ROLE_GDN_A,
    SV_ROLE_GDN_CONV,
    SV_ROLE_GDN_DECAY,
    SV_ROLE_GDN_DT_BIAS,
    SV_ROLE_GDN_NORM,
    SV_ROLE_TAP_PROJ,    /* a drafter's: the taps of a row to its hidden size */
    SV_ROLE_VISION,      /* of a vision tower; with SV_ROLE_BIAS its vectors */
    SV_ROLE_BIAS = 0x40, /* with the role of a matrix: its bias */
    /* With another role: a drafter's. Errors cost acceptance and never a token, so a device may
     * quantize it. */
    SV_ROLE_DRAFT = 0x80
};

static inline bool sv_role_is_norm(enum sv_role role)
{
    const int plain = role & ~SV_ROLE_DRAFT;
    return (plain >= SV_ROLE_FINAL_NORM && plain <= SV_ROLE_TAP_NORM) || plain == SV_ROLE_GDN_NORM;
}

/* How the elements are encoded. Each block of block_rows x block_cols has a scale; 0 x 0: none. */
struct sv_format {
    enum sv_dtype elem;
    int32_t block_rows, block_cols;
    enum sv_dtype scale;
};

struct sv_quant;

/* A matrix of weights. On the host side (files, tests of the CPU) row-major as published, priv
 * NULL; what upload_weight returns is in the backend's own layout, only its ops may look inside,
 * and free_weight frees it. */
struct sv_weight {
    enum sv_role role;
    struct sv_format fmt;
    int32_t rows, cols; /* n_out, n_in; a vector has cols = its length and rows = 1 */
    const void *data;   /* (rows, cols), 0-aligned to its element size; NULL: no such weight */
    size_t row_stride;  /* host side, of some columns, where devices take it: bytes; 0: no gaps */
    void *priv;         /* the backend's: layout, copies, what free_weight frees */
    /* On the host side, of a matrix in fewer bits: what data is part of (quant.h), fmt.elem SV_U8;
     * only for devices that take it (sv_dev_takes_codes). */
    const struct sv_quant *quant;
};

static inline float sv_bf16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)h << 16};
    return v.f;
}
/* Round to nearest even; NaN stays NaN. */
static inline uint16_t sv_f32_to_bf16(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {f};
    if ((v.u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((v.u >> 16) | 64);
    return (uint16_t)((v.u + 0x7fffu + ((v.u >> 16) & 1)) >> 16);
}
float sv_f16_to_f32(uint16_t h);

#endif
