/*
 * cross.h - the same op on two devices: the CPU in f32 as the reference, and a device under test
 * that may have memory, an act type and a weight layout of its own.
 *
 * Used by tests/backend/test_cross_*.c. Everything the device under test sees lives in its own
 * memory between guard bytes. Must not: compute anything a test is about.
 */
#ifndef SV_TESTS_CROSS_H
#define SV_TESTS_CROSS_H

#include "backend/quant.h"
#include "backend/rig.h"

struct cross {
    const char *name;
    struct sv_dev *ref, *dut;
    bool bf16;  /* acts and caches of dut are bf16 */
    bool quick; /* the CPU, which has tests of its own, or SALVO_TEST_QUICK: under a slow checker */
    /* quick, and a GPU was here before: ops that know no act type need not come again */
    bool again;
    double tol; /* of one op, relative to max(1, |x|) */
    struct sv_rng rng;
};

/* Calls fn for every device of this build and machine: the plain CPU always, then each CUDA compute
 * type and kernel set when there is a GPU. Returns how many GPUs' worth of devices took part. */
int cross_all(void (*fn)(struct cross *c));

enum cross_type { CROSS_ACT, CROSS_F32, CROSS_BF16, CROSS_I32 };
struct cross_buf {
    enum cross_type type;
    size_t n;
    void *ref, *dut; /* same numbers, each in its own type: CROSS_ACT is f32 at ref */
};
/* n elements; values NULL = normal numbers times scale (act, f32), NaN bytes with scale 0. */
struct cross_buf cross_new(struct cross *c, enum cross_type type, size_t n, const void *values,
                           float scale);
void cross_free(struct cross *c, struct cross_buf *b); /* checks the guards */
/* Of side 0 (ref) or 1 (dut). */
void *cross_at(const struct cross_buf *b, int side);
/* Element offset into an act buffer, as a pointer. */
void *cross_act(const struct cross *c, const struct cross_buf *b, int side, int64_t offset);
/* dut's numbers as floats; free() them. */
float *cross_floats(struct cross *c, const struct cross_buf *b);
int32_t *cross_ints(struct cross *c, const struct cross_buf *b);
/* dut's raw bytes; free() them. */
void *cross_bytes(struct cross *c, const struct cross_buf *b, size_t *n_bytes);
size_t cross_elem(const struct cross *c, enum cross_type type);
/* Elements [from, to) agree: floats within tol * max(1, |x|), NaN with NaN; integers exactly. */
void cross_same(struct cross *c, const struct cross_buf *b, size_t from, size_t to, double tol,
                const char *what);

struct cross_weight {
    struct sv_weight ref, dut;
};
struct cross_weight cross_weight(struct cross *c, enum sv_dtype dtype, int32_t rows, int32_t cols,
                                 float scale, float shift);
/* Of a norm, around 1. */
struct cross_weight cross_norm(struct cross *c, enum sv_dtype dtype, int32_t cols, float scale);
void cross_weight_free(struct cross *c, struct cross_weight *w);

/* Random codes of a matrix, and scales with which its weights are about 1 / 30. */
struct cross_form {
    const char *name;
    enum sv_quant_code code;
    enum sv_dtype scale;
    int32_t block_rows, block_cols; /* 0: all */
};
struct sv_quant cross_quant(struct cross *c, const struct cross_form *f, int32_t rows,
                            int32_t cols);
void cross_quant_free(struct sv_quant *q);

/* A batch on both sides, padded by pad_rows rows and pad_segs segments at the end. */
struct cross_rows {
    struct sv_rows rows[2];
    struct cross_buf buf[5];
};
struct cross_rows cross_rows(struct cross *c, const struct rig_batch *b, int32_t pad_rows,
                             int32_t pad_segs);
void cross_rows_free(struct cross *c, struct cross_rows *r);

/* A paged cache, full of NaN or of normal numbers. */
struct cross_kv {
    struct sv_kv kv[2];
    struct cross_buf k, v, table, own[2];
};
struct cross_kv cross_kv(struct cross *c, int32_t n_slots, int32_t max_pos, int32_t page_size,
                         int32_t n_kv_heads, int32_t head_dim, float scale);
/* The same in e4m3, full of NaN; fixed: the scale of all rows, or 0. Buffers are of CROSS_I32, for
 * the bytes. */
struct cross_kv cross_kv_f8(struct cross *c, int32_t n_slots, int32_t max_pos, int32_t page_size,
                            int32_t n_kv_heads, int32_t head_dim, float fixed);
void cross_kv_free(struct cross *c, struct cross_kv *kv);

struct sv_dev *cross_dev(const struct cross *c, int side);
void cross_sync(struct cross *c);

#endif
