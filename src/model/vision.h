/*
 * vision.h - a vision tower: the patches of an image become rows of the language model.
 *
 * Called by target.c (open, close) and by the engine, between steps (docs/images.md). Must not: run
 * within a step, because a pass allocates.
 */
#ifndef SV_VISION_H
#define SV_VISION_H

#include "model/model.h"

struct sv_vision_merger {
    struct sv_weight norm[2]; /* weight, bias */
    struct sv_gemm_part fc[2];
};

struct sv_vision_block {
    struct sv_weight norm_1[2], norm_2[2];
    struct sv_gemm_part qkv, proj, fc[2];
};

struct sv_tower {
    struct sv_vision_config cfg;
    int32_t hidden; /* of the language model */
    int32_t head;   /* size of a head on the device, padded with zeros */
    struct sv_dev *dev;
    struct sv_weights weights;
    struct sv_gemm_part patch;
    struct sv_weight positions;
    struct sv_vision_block *block;
    struct sv_vision_merger merger, deep[SV_MAX_DEEP];
    struct sv_rope_table rope;
    int32_t max_side; /* patches */
};
int sv_tower_open(struct sv_tower **tower, struct sv_dev *dev, const struct sv_ckpt *ckpt,
                  const struct sv_config *cfg, struct sv_err *err);
void sv_tower_close(struct sv_tower *t); /* NULL is fine */
void sv_tower_needs(const struct sv_tower *t, struct sv_needs *n);
/* Bytes of the output for so many patches: rows, and those of each deeper block. */
size_t sv_tower_plane_bytes(const struct sv_tower *t, int32_t n_patches);
size_t sv_tower_rows_bytes(const struct sv_tower *t, int32_t n_patches);
/* Device memory of a pass while it runs. */
size_t sv_tower_pass_bytes(const struct sv_tower *t, int32_t max_rows, int32_t n_patches);
/* rows: device memory of sv_tower_rows_bytes. values: host, (grid_h * grid_w, patch length), block
 * by block. max_rows: as reserved. The only failure is a lack of memory; device errors are latched,
 * as in a step. */
int sv_tower_run(const struct sv_tower *t, int32_t max_rows, int32_t grid_h, int32_t grid_w,
                 const float *values, void *rows, struct sv_err *err);

/* Rows of an image in a pass: their values instead of embeddings, and rows to add after the first
 * layers. */
struct sv_image_rows {
    int32_t row0, n_rows;
    const void *rows;   /* (n_rows, hidden) device, act */
    int32_t n_deep;     /* layers after which as many rows each are added, */
    size_t deep_stride; /* from rows on, in bytes: those of layer i at (i + 1) deep_stride */
};

#endif
