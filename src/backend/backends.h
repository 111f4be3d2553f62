/*
 * backends.h - the open functions that ops.c dispatches to by name.
 *
 * Included by ops.c, trace.c and by the backends that define them; nobody outside src/backend. Must not:
 * name a type of any backend.
 */
#ifndef SV_BACKENDS_H
#define SV_BACKENDS_H

#include "backend/backend.h"

/* What every backend's own struct begins with. */
struct sv_dev {
    SV_DEV_HEAD;
};

int sv_cpu_open(struct sv_dev **dev, const struct sv_dev_opts *opts, struct sv_err *err);

/* Linked in only where SV_CUDA is defined. */
int sv_cuda_open(struct sv_dev **dev, const struct sv_dev_opts *opts, struct sv_err *err);
bool sv_cuda_present(void); /* a driver and at least one device */

#endif
