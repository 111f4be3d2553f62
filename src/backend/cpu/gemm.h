/*
 * gemm.h - shared by the files gemm*.c: one product in flight, and the table of kernels.
 *
 * gemm.c owns threads, packing order and scratch; gemm_plain.c, gemm_avx2.c, gemm_avx512.c,
 * gemm_bf16_avx512.c, gemm_int8_*.c and gemm_amx.c each offer kernels for one instruction-set
 * level. Included nowhere else.
 *
 * The rule every kernel obeys: output (row, n) is one chain of additions over k whose order is
 * fixed by k alone. Blocking may cut the chain and carry the partial sum in f32, it may never
 * reorder it. So a row's bits depend neither on the other rows, nor on threads, parts or blocking.
 */
#ifndef SV_CPU_GEMM_H
#define SV_CPU_GEMM_H

#include "backend/cpu/cpu.h"

#define SV_GEMM_UNIT 16  /* weight rows in a unit of work, and side of an output tile */
#define SV_GEMM_ROWS 512 /* input rows packed and multiplied at a time */
/* Elements of k between two spills of a large product's partial sums. */
#define SV_GEMM_KBLOCK 512
#define SV_GEMM_GROUP 16    /* units whose partial sums a thread keeps while k advances */
#define SV_GEMM_RAW_UNITS 8 /* most units of AVX512-BF16 side by side */
/* moe.c, mla.c: rows of one expert that a thread packs and multiplies at a time, and sums of gate
 * and up that it keeps until they are activated: at least a unit of each for all of them. */
#define SV_MOE_ROWS 128
#define SV_MOE_SUMS (64 << 10)

/* ASan would check every broadcast: one check per product. Tiles' accesses are tested with operands
 * that end at a fenced page. Functions inlined into such a function must be such too: their locals
 * would stay poisoned. */
#if defined(__SANITIZE_ADDRESS__)
#define UNCHECKED __attribute__((no_sanitize_address))
#else
#define UNCHECKED
#endif

/* Forms of a kernel's input. */
enum sv_gemm_form {
    SV_GEMM_X_RAW,    /* the caller's f32 rows, in place */
    SV_GEMM_X_ROUND,  /* f32 rows rounded to bf16 values, k padded with zeros to a multiple of 32 */
    SV_GEMM_X_INT8,   /* rows as signed bytes, a scale for each 128, see gemm_int8.h */
    SV_GEMM_X_BYTES,  /* rows scaled to signed bytes, see gemm_i8_avx512.c */
    SV_GEMM_X_HALVES, /* rows scaled to two signed bytes a number, see head_screen.h */
    SV_GEMM_X_TILES   /* [16-row block][k / 32][16 pairs of k][columns][2] bf16: AMX's B operand */
};

struct sv_gemm_call;
struct sv_gemm_thread {
    /* AMX: 2 units x SV_GEMM_KBLOCK of bf16 weights, as tiles, or an expanded unit; AVX512-BF16:
     * SV_GEMM_RAW_UNITS units not packed at load, or compressed */
    uint8_t *pack_w;
    void *unit_w;    /* a unit of codes expanded row by row, */
    float *unit_row; /* and one row of it in f32 */
    float *sums;     /* (SV_GEMM_GROUP, SV_GEMM_ROWS / 16, 16, 16) partial sums */
    uint8_t *own_x;  /* packed input of small calls, so that they need no barrier */
    uint8_t *panel;  /* packed input of its own rows if many; NULL: never so many */
    float *best_val; /* (SV_GEMM_ROWS) running maximum; NaN = nothing yet */
    int32_t *best_id;
    struct sv_gemm_call *call; /* the call for this thread's rows, or experts */
    uint8_t *expert_x;         /* packed input of SV_MOE_ROWS rows of an expert, or a head */
    float *expert_y;           /* (SV_MOE_SUMS) */
    /* (SV_GEMM_ROWS) where bytes are multiplied, for their kernel's running maximum */
    struct sv_gemm_lanes *lanes;
};

struct sv_codes;
struct sv_gemm_kern;
struct sv_screen;

/* The best logit of each of 32 parts of the vocabulary, for one row: lanes of even units, then of
 * odd ones. All bits set: none yet. */
#define SV_GEMM_STRETCHES 32
struct sv_gemm_lanes {
    _Alignas(SV_ALIGN) float val[SV_GEMM_STRETCHES];
    int32_t id[SV_GEMM_STRETCHES];
};

/* One part of a call. A cache line each: threads fetch the call from the caller's cache line by
 * line, which is most of the cost of a small product. */
struct sv_gemm_item {
    _Alignas(SV_ALIGN) const struct sv_gemm_kern *kern;
    const void *w;                     /* (n, k), or packed: [unit][pair of k][16][2] */
    const void *bias;                  /* (n) or NULL */
    enum sv_dtype w_dtype, bias_dtype; /* of codes, the type after expansion */
    bool packed, wcomp;                /* compressed: see wcomp.h */
    const struct sv_codes *codes;      /* of w, see codes.h; NULL: elements of w_dtype */
    int32_t n, unit0;                  /* weight rows; its first unit */
    int32_t col0; /* first column of y; below 0 where only later units are multiplied */
};

struct sv_gemm_call {
    struct sv_cpu *cpu;
    const float *x;
    int64_t ldx;
    float *y; /* NULL: running argmax instead */
    int64_t ldy;
    const int32_t *rows; /* input row of each output row, or NULL */
    int32_t k, n_parts;
    /* output rows of this pass; of one thread, or of all that divide weights, at most SV_GEMM_ROWS
     */
    int32_t m0, m1;
    int32_t n_units;
    bool pack_alone; /* each thread packs its own copy */
    bool by_rows;    /* threads divide rows, not weights */
    /* computes bounds (head_screen.h): best_val has (rows, 16) lower ones */
    const struct sv_screen *screen;
    const int32_t *units;              /* n_units of them are to be multiplied; NULL: all */
    const struct sv_gemm_kern *packer; /* the kernel for whose form x is packed, or NULL */
    struct sv_gemm_item item[SV_GEMM_MAX_PARTS];
};

/* Part of a call's work for one thread: units of one part. */
struct sv_gemm_span {
    const struct sv_gemm_call *call;
    struct sv_gemm_thread *thread;
    const struct sv_gemm_item *item;
    const void *xp; /* packed input, NULL for SV_GEMM_X_RAW */
    int32_t n0, n1; /* weight rows; n0 is a multiple of SV_GEMM_UNIT */
};

struct sv_gemm_kern {
    enum sv_gemm_form form;
    /* Packs rows [m0, m1) of the call: slice i of n, NULL for SV_GEMM_X_RAW. */
    void (*pack)(const struct sv_gemm_call *c, void *xp, int i, int n);
    void (*run)(const struct sv_gemm_span *s);
    /* Before and after a thread's spans of one call; NULL: no set-up. */
    void (*enter)(const struct sv_gemm_call *c);
    void (*leave)(void);
};

/* gemm.c, for moe.c and mla.c: part i of a call filled by the caller, its first unit is unit0;
 * units [u0, u1) of such a call, whose input is packed; and a thread's own. */
void sv_gemm_set_item(struct sv_gemm_call *c, int32_t i, const struct sv_gemm_part *part,
                      int32_t unit0, int32_t col0);
void sv_gemm_run_units(const struct sv_gemm_call *c, struct sv_gemm_thread *t, const void *packed,
                       int32_t u0, int32_t u1);
struct sv_gemm_thread *sv_gemm_thread(struct sv_cpu *cpu, int thread);

static inline const float *sv_gemm_row(const struct sv_gemm_call *c, int32_t m)
{
    return c->x + (int64_t)(c->rows ? c->rows[m] : m) * c->ldx;
}
static inline int32_t sv_gemm_kpad(int32_t k)
{
    return (k + 31) & ~31;
}
/* Rows of whole pairs of blocks of 16. */
static inline int32_t sv_gemm_pairs_of_blocks(int32_t n)
{
    return (n + 31) & ~31;
}
/* Columns of an AMX input tile for n rows: powers of two, so that a tile row never splits a cache
 * line. */
static inline int sv_gemm_tile_cols(int32_t n)
{
    return n > 8 ? 16 : n > 4 ? 8 : n > 2 ? 4 : n;
}

/* bf16 elements of a unit of packed weights. */
static inline size_t sv_gemm_unit_elements(int32_t k)
{
    return (size_t)((k + 1) / 2) * 2 * SV_GEMM_UNIT;
}

/* gemm_codes_avx2.c: sv_quant_expand for AVX2 and what has it. */
sv_quant_expand_fn sv_quant_expand_avx2;
/* SV_GEMM_X_ROUND for every level. */
void sv_gemm_pack_round(const struct sv_gemm_call *c, void *xp, int i, int n);
/* SV_GEMM_X_TILES for both levels that have bf16 products. */
void sv_gemm_pack_tiles(const struct sv_gemm_call *c, void *xp, int i, int n);
/* Packs units [u0, u1) of row-major bf16 weights (n, k) to `to`. */
void sv_gemm_pack_units_avx512(uint16_t *to, const uint16_t *w, int32_t n, int32_t k, int32_t u0,
                               int32_t u1);
/* The same for products of bytes, and the bytes of one unit. */
void sv_gemm_pack_units8(uint8_t *to, const uint16_t *w, int32_t n, int32_t k, int32_t u0,
                         int32_t u1);
size_t sv_gemm_unit_bytes8(int32_t k);
/* Bytes of one pass's packed input of at most n_rows rows. */
size_t sv_gemm_packed_bytes(int32_t n_rows, int32_t k);
void sv_gemm_bias(const struct sv_gemm_item *p, int32_t n0, int32_t nn, float out[SV_GEMM_UNIT]);

/* A finished tile: nn weight rows from n0 (of the span's part) by nm input rows from m (an output
 * row), element (i, j) at tile[i * ld + j]. Adds the bias and stores transposed, or updates the
 * argmax. */
void sv_gemm_emit_plain(const struct sv_gemm_span *s, int32_t n0, int nn, int32_t m, int nm,
                        const float *tile, int ld);
void sv_gemm_emit_avx512(const struct sv_gemm_span *s, int32_t n0, int nn, int32_t m, int nm,
                         const float *tile, int ld);

/* Kernels of a level for a weight type; NULL: not offered. rounded: x counts as bf16. */
const struct sv_gemm_kern *sv_gemm_kern_plain(enum sv_dtype w, bool rounded);
const struct sv_gemm_kern *sv_gemm_kern_avx2(enum sv_dtype w, bool rounded);
const struct sv_gemm_kern *sv_gemm_kern_avx512(enum sv_dtype w, bool rounded);
const struct sv_gemm_kern *sv_gemm_kern_bf16_avx512(void);
const struct sv_gemm_kern *sv_gemm_kern_i8_avx512(void); /* for packed quantized weights */
/* It keeps the argmax by parts; here they become a row's, with its logit: -1 when all are NaN.
 * confidence: as in struct sv_p_head_argmax, or NULL. */
int32_t sv_gemm_winner_i8_avx512(const struct sv_gemm_call *c, const struct sv_gemm_thread *threads,
                                 int32_t r, float *logit, float *confidence);
const struct sv_gemm_kern *sv_gemm_kern_amx(void);
/* For codes in the order SV_WCOMP_QUADS, input in int8. */
const struct sv_gemm_kern *sv_gemm_kern_int8_plain(void);
const struct sv_gemm_kern *sv_gemm_kern_int8_avx2(void);
const struct sv_gemm_kern *sv_gemm_kern_int8_avx512(void); /* with VNNI */
const struct sv_gemm_kern *sv_gemm_kern_int8_amx(void);    /* beside that */

#endif
