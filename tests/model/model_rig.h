/*
 * model_rig.h - a target model with one sequence's cache and buffers around it, driven op by op:
 * for tests that look at hidden states and logits. f32 compute, on the device that engine/run.h's
 * run_device names.
 */
#ifndef SV_TEST_MODEL_RIG_H
#define SV_TEST_MODEL_RIG_H

#include "model/vision.h"

enum { RIG_ROWS = 320 }; /* longest sequence */

struct model_rig {
    struct sv_dev *dev;
    struct sv_model m;
    struct sv_cache cache;
    struct sv_acts acts;
    int32_t *row_ids, *row_seg, *row_pos, *seg_row0, *seg_slot, *seg_kind, *seg_base, *slot_len,
        *anchor;
    float *dev_taps, *dev_out, *dev_logits;
    float *taps, *out, *logits; /* on the host, after a run */
    int32_t tap_id[SV_MAX_LAYERS];
    /* Of a prompt with images: by position, what its rows' three positions differ by from it, and
     * images, whose row0 is their first position. NULL: rows have one position */
    const int32_t *shift;
    const struct sv_image_rows *image;
    int32_t n_images;
    int32_t *row_shift, *row_rope;
};

void model_rig_open(struct model_rig *r, const char *dir, enum sv_isa isa, int32_t page_size);
void model_rig_close(struct model_rig *r);
/* Runs n ids that start at position `at`. taps[(at + j) * n_layers + l] is the stream of row j
 * after layer l, out[at + j] its final norm, logits[at + j] its logits. */
void model_rig_run(struct model_rig *r, const int32_t *ids, int32_t at, int32_t n);

#endif
