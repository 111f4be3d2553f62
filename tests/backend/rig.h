/*
 * rig.h - what the backend tests share: devices at every level of this machine, guarded memory,
 * batches of segments, paged caches full of NaN.
 *
 * Used by tests/backend/test_*.c. Must not: compute anything a test is about.
 */
#ifndef SV_TESTS_RIG_H
#define SV_TESTS_RIG_H

#include "backend/ops_tokens.h"
#include "testing.h"

#define RIG_MAX_SEGS 40
#define RIG_MAX_ROWS 4096

/* Limits large enough for every test. */
/* What the tests' devices are opened for; products of at most max_k by max_n. */
struct sv_dev_limits rig_limits(int32_t max_k, int32_t max_n);
struct sv_dev *rig_open(enum sv_isa isa, int n_threads, enum sv_dtype compute);
/* Levels this machine has, ascending; *n of them. */
const enum sv_isa *rig_isas(int *n);
/* fn on a device of each level in f32, but for AMX, which differs in products only. No error may be
 * latched at its end. */
void rig_each(void (*fn)(struct sv_dev *dev));

/* Memory with guard bytes on both sides, filled with NaN; rig_free checks the guards. */
void *rig_new(size_t n_bytes);
void rig_free(void *p);
void rig_check(const void *p); /* aborts the test when a guard was written */

float *rig_floats(struct sv_rng *rng, size_t n, float scale); /* normal values in guarded memory */
/* A random weight of the dtype, values scale * normal + shift. Free data with rig_free. */
struct sv_weight rig_weight(struct sv_rng *rng, enum sv_dtype dtype, int32_t rows, int32_t cols,
                            float scale, float shift);
double rig_weight_at(const struct sv_weight *w, int64_t i);

/* A batch; segment s has len[s] rows of slot[s] at consecutive positions from base[s] on. */
struct rig_batch {
    struct sv_rows rows;
    int32_t row_seg[RIG_MAX_ROWS], seg_row0[RIG_MAX_SEGS + 1];
    int32_t seg_slot[RIG_MAX_SEGS], seg_base[RIG_MAX_SEGS], row_pos[RIG_MAX_ROWS];
};
void rig_batch_init(struct rig_batch *b);
void rig_batch_add(struct rig_batch *b, int32_t slot, int32_t base, int32_t len);
/* Moves rows apart: row j of a segment stands step * j positions further on. */
void rig_batch_spread(struct rig_batch *b, int32_t step);
int32_t rig_pos(const struct rig_batch *b, int32_t row);

/* A cache whose pages are handed out in a random order; all bytes start as NaN. */
struct rig_kv {
    struct sv_kv kv;
    int32_t n_slots;
};
void rig_kv_init(struct rig_kv *c, struct sv_rng *rng, enum sv_dtype dtype, int32_t n_slots,
                 int32_t max_pos, int32_t page_size, int32_t n_kv_heads, int32_t head_dim);
void rig_kv_fini(struct rig_kv *c);
/* Element offset of (slot, position, head). */
int64_t rig_kv_at(const struct rig_kv *c, int32_t slot, int32_t pos, int32_t head);
double rig_kv_get(const struct rig_kv *c, const void *data, int64_t at);
void rig_kv_put(const struct rig_kv *c, void *data, int64_t at, float x);

/* A slot's list as struct sv_logit_rules has it: r->n_bad_runs runs of one to three tokens below
 * `few`, r->n_allowed tokens of the vocabulary. */
void rig_lists(struct sv_rng *rng, const struct sv_logit_rules *r, int32_t *listed, int32_t few,
               int32_t vocab);

/* |a - b| <= tol * max(1, |b|), both NaN counts as equal. Fails the test with what and index. */
void rig_near(double a, double b, double tol, const char *what, int64_t i);
/* Syncs and expects success (code 0) or the given code. */
void rig_sync(struct sv_dev *dev, int code);

#endif
