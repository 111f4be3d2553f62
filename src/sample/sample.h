/*
 * sample.h - sampling parameters of a request: validation and packing for the device.
 *
 * Called by engine when a request is admitted. The distribution itself is computed by the backend's
 * sample op (struct sv_sampling documents it). Must not draw numbers or look at logits.
 */
#ifndef SV_SAMPLE_H
#define SV_SAMPLE_H

#include "backend/backend.h"
#include "base/base.h"

struct sv_sample_params {
    double temperature; /* 0 = greedy */
    double top_p;       /* (0, 1], 1 = all */
    double min_p;       /* [0, 1], 0 = off */
    int64_t top_k;      /* 0 or -1 = all */
    uint64_t seed;
};

/* Refuses values out of range, naming the parameter. */
int sv_sample_check(const struct sv_sample_params *p, struct sv_err *err);
struct sv_sampling sv_sample_pack(const struct sv_sample_params *p, int32_t vocab_size);
bool sv_sample_is_greedy(const struct sv_sampling *s);

#endif
