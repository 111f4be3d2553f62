/*
 * batch.h - host arrays of a step and their device mirror.
 *
 * Filled by the step between plan and launch. Must not: decide anything.
 */
#ifndef SV_ENGINE_BATCH_H
#define SV_ENGINE_BATCH_H

#include "backend/device.h"
#include "engine/plan.h"

struct sv_i32_pair {
    int32_t *host, *dev;
};
/* Allocates n elements on host and device; the caller frees them with sv_dev_host_free and
 * sv_dev_free, also after an error. */
int sv_i32_pair_open(struct sv_i32_pair *p, struct sv_dev *dev, size_t n, struct sv_err *err);
/* Host arrays and their device mirror; one upload a step carries all pairs. There are two sets of
 * host arrays: while a step is in flight the next one is filled. */
struct sv_batch {
    int32_t max_rows, max_segs, max_draft_rows, out_stride;
    struct sv_i32_pair row_ids, row_seg, seg_row0, seg_slot, seg_kind, seg_logit0, logit_row;
    struct sv_i32_pair row_shift; /* (max_rows, 3), see sv_p_block_ids; of a target with images */
    /* DP attention: each part's rows as a batch of its own, at own_place; and a struct sv_slice for
     * each part, which rows of the whole batch they are */
    struct sv_i32_pair own_row_seg, own_seg_row0, own_seg_slot, own_at;
    struct sv_i32_pair d_row_seg, d_seg_row0, d_seg_slot, d_seg_kind, d_out_row, d_out_index;
    int32_t *host_block, *dev_block; /* the memory of the pairs */
    size_t block_words;
    /* device only */
    int32_t *seg_base, *d_seg_base, *row_pos, *d_row_pos, *d_row_ids, *chosen, *sample_slot,
        *sample_pos;
    int32_t *row_rope;                   /* (max_rows, 3), or NULL: rows have one position */
    int32_t *own_seg_base, *own_row_pos; /* of this rank's part */
    /* results: n_commit, n_emit (max_segs), out_tokens (max_segs, out_stride), confidence
     * (max_draft_rows) floats, experts chosen since the engine opened */
    struct sv_i32_pair n_commit, n_emit, out_tokens, confidence, n_chosen;
    int32_t *host_result, *dev_result;
    size_t result_words;
    struct sv_i32_pair *up[20], *down[5]; /* the pairs above */
    int32_t n_up, n_down;
    int32_t use; /* the set of host arrays that the pointers refer to */
};
int sv_batch_open(struct sv_batch *b, struct sv_dev *dev, int32_t max_rows, int32_t max_segs,
                  int32_t max_draft_rows, bool images, int32_t n_parts, struct sv_err *err);
void sv_batch_close(struct sv_batch *b, struct sv_dev *dev);
/* Points the host arrays at set 0 or 1. */
void sv_batch_use(struct sv_batch *b, int32_t set);
/* Fills the padding between the plan's counts and the launch counts. */
void sv_batch_pad(struct sv_batch *b, const struct sv_plan *p);
/* The next larger number of rows that has a graph, at most `most`. */
int32_t sv_batch_bucket(int32_t n, int32_t most);

#endif
