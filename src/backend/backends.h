/*
 * backends.h - the open functions that ops.c dispatches to by name, and what backends share.
 *
 * Included by ops.c, trace.c, ledger.c and by the backends that define them; nobody outside
 * src/backend. Must not: name a type of any backend.
 */
#ifndef SV_BACKENDS_H
#define SV_BACKENDS_H

#include "backend/backend.h"

/* What every backend's own struct begins with. */
struct sv_dev {
    SV_DEV_HEAD;
};

int sv_cpu_open(struct sv_dev **dev, const struct sv_dev_opts *opts, struct sv_err *err);

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

/* Linked in only where SV_CUDA is defined. */
int sv_cuda_open(struct sv_dev **dev, const struct sv_dev_opts *opts, struct sv_err *err);
bool sv_cuda_present(void); /* a driver and at least one device */

#endif
