/*
 * backends.h - the open functions that ops.c dispatches to by name, and what backends share.
 *
 * Included by ops*.c, table.c, trace.c, ledger.c and by the backends that define them. Must not: be
 * included outside src/backend, or name a type of any backend.
 */
#ifndef SV_BACKENDS_H
#define SV_BACKENDS_H

#include "backend/ops_tokens.h"

/* What every backend's own struct begins with. */
struct sv_dev {
    SV_DEV_HEAD;
};

/* Checks of the wrappers: ops.c, ops_moe.c. */
static inline bool sv_rows_ok(const struct sv_rows *r)
{
    return r->n_rows >= 0 && r->n_segs >= 0 && r->row_seg && r->seg_row0 && r->seg_slot &&
           r->row_pos;
}
/* A vector of n elements in a float type, or absent. */
static inline bool sv_vector_ok(const struct sv_weight *w, int64_t n)
{
    return !w->data || (w->fmt.elem <= SV_F16 && w->rows == 1 && w->cols == n);
}

/* A cache of latents, ops.c. */
bool sv_latent_ok(const struct sv_kv *kv);

/* Of each backend that can be built; present: the machine has what it needs. */
int sv_cpu_open(struct sv_dev **dev, const struct sv_dev_opts *opts, struct sv_err *err);
bool sv_cpu_present(void);
int sv_cuda_open(struct sv_dev **dev, const struct sv_dev_opts *opts, struct sv_err *err);
bool sv_cuda_present(void); /* a driver and at least one device */
int sv_hip_open(struct sv_dev **dev, const struct sv_dev_opts *opts, struct sv_err *err);
bool sv_hip_present(void);

/* ops.c: notes a join, also one that is part of another op. */
void sv_dev_begin_join(struct sv_dev *dev, enum sv_join kind);

/* ledger.c: what a backend has allocated. Zeros are an empty one. */
struct sv_ledger_piece {
    const void *p;
    enum sv_mem kind;
    int64_t n_bytes;
};
struct sv_ledger {
    int64_t bytes[SV_MEM_KINDS]; /* sums of the pieces */
    struct sv_ledger_piece *piece;
    int32_t n, room;
};
/* Before an allocation, which must not succeed and then find no room here. */
int sv_ledger_room(struct sv_ledger *l, struct sv_err *err);
void sv_ledger_enter(struct sv_ledger *l, enum sv_mem kind, const void *p, size_t n_bytes);
void sv_ledger_strike(struct sv_ledger *l, const void *p); /* of a piece that was entered */
void sv_ledger_fini(struct sv_ledger *l);

/* table.c: whether a backend's table has all that callers count on; the error names what is
 * missing. */
int sv_table_check(const struct sv_backend *be, struct sv_err *err);

#endif
