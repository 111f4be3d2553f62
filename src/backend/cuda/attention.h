/*
 * attention.h - paged attention of the CUDA backend: what its files share on the host side.
 *
 * attention.cu decides which kernel runs and how large its grid is; attention_portable.cu (matrix
 * instructions of sm_80), attention_sm90.cu (those of sm_90a) and attention_plain.cu (f32, odd head
 * sizes) and attention_latent.cu hold the kernels; attention_core.cuh is what they have in common.
 * Included by those files, by device.cu for the table, and by the check program. Must not: let a
 * row's bits depend on anything but its own sequence, head and kernel set.
 */
#ifndef SV_CUDA_ATTENTION_H
#define SV_CUDA_ATTENTION_H

#include "backend/cuda/cuda.h"
#include "backend/gpu/gpu.h"

/* The order of a row's sum, the same for every batch: keys are taken in tiles at absolute
 * multiples, tiles with one running maximum within a chunk, chunks merged in ascending order within
 * a span, spans merged in ascending order. Chunks or spans may be worked on by different blocks;
 * the merges stay in this order. */
enum { SV_ATTN_TILE = GPU_KEYS, SV_ATTN_CHUNK = 128, SV_ATTN_SPAN = 512 };

/* Sizes of latents that the kernels with matrix instructions support: numbers of a value, of a key;
 * and the columns by which partial results are merged. */
enum { SV_ATTN_LATENT = 512, SV_ATTN_LATENT_WIDTH = 576, SV_ATTN_LATENT_PART = 128 };

/* Thread blocks that share a sequence and kv head (attention_few_sm90.cu). */
enum { SV_ATTN_CLUSTER = 8 };

/* The part of a query tile's keys that one block takes. */
enum sv_attn_unit { SV_ATTN_AUTO, SV_ATTN_BY_CHUNK, SV_ATTN_BY_SPAN, SV_ATTN_WHOLE };

/* For checks only: overrides of choices that depend on sizes and lengths. No bit may change. */
struct sv_attn_force {
    enum sv_attn_unit unit;
    int32_t n_warps; /* 0, 4 or 8: queries of a tile / 16 */
    int32_t n_blocks;
    bool plain;
    int32_t few; /* 1: the kernel for few rows whenever it supports the shape, -1: never */
};

/* A tensor map of the cache's keys or values (CUtensorMap, whose header kernels need not see). */
struct alignas(64) sv_attn_map {
    uint64_t opaque[16];
};

/* The items of work of a pass, the same for all its layers: made once by a small kernel
 * (attention.cu). Each stands for as many as there are kv heads; fields as in struct attn_item
 * (attention_core.cuh). */
struct alignas(16) sv_attn_entry {
    int32_t slot, row0, n, base, q0, part, seen_lo, seen_hi;
};
struct alignas(16) sv_attn_plan {
    int32_t unit, n_items, long_walk, pad;
    struct sv_attn_entry entry[];
};

/* The argument of every kernel, by value. */
struct sv_attn_args {
    struct sv_p_attention p;
    int32_t group;                      /* q heads per kv head */
    uint32_t by_group, by_kv, by_heads; /* attn_magic of it, of kv heads and of q heads */
    /* scale * log2(e); 1 with a softcap, whose result is in powers of two already */
    float scale_log2;
    int32_t page_shift;             /* log2(page_size), or -1 */
    int32_t n_stages, n_stages_run; /* the second beside a block's sum of spans */
    int32_t ring_bytes;             /* shared memory of the stages, and of that sum */
    int32_t n_blocks, tile_rows;    /* of the main kernel */
    int32_t unit;                   /* enum sv_attn_unit */
    int32_t box_rows;               /* keys of one load through the maps */
    /* segments, tables and earlier keys may be read before waiting for the launch before
     * (cu->settled) */
    bool early;
    int32_t part_cap;                /* partial results that fit */
    const struct sv_attn_plan *plan; /* NULL: every block computes it */
    int32_t *plan_unit;              /* then the first block's choice, for the combine kernel */
    float4 *run;                     /* a block's sum of spans so far */
    float *part_o;                   /* (part_cap, head_dim) unnormalised */
    float2 *part_ml;                 /* (part_cap) maximum and sum */
    struct sv_cuda_fault *fault;
    struct sv_attn_map k_map, v_map;
};

int sv_cuda_attn_reserve(struct sv_cuda *cu, const struct sv_dev_limits *lim, struct sv_err *err);
void sv_cuda_attn_close(struct sv_cuda *cu);
void sv_cuda_attention(struct sv_dev *dev, const struct sv_p_attention *p);
void sv_cuda_attention_forced(struct sv_cuda *cu, const struct sv_p_attention *p,
                              const struct sv_attn_force *force);

/* The kernels. Entry points return whether they support these arguments, and the launch
 * parameters. */
struct sv_attn_launch {
    void (*kernel)(struct sv_attn_args);
    int32_t tile_rows, n_threads, blocks_per_sm;
    int32_t stage_bytes,
        fixed_bytes; /* shared memory: each stage, and beside stages and segment table */
    int32_t max_stages;
    /* what a sum of spans takes of the stages' shared memory; 0: it is always in global memory */
    int32_t run_bytes;
    int32_t parts; /* waves that have the same queries and divide the columns of their values */
    bool maps;
};
/* f8: of a cache in e4m3. */
bool sv_cuda_attn_portable(int32_t head_dim, int32_t n_warps, bool f8, struct sv_attn_launch *out);
void sv_cuda_attn_latent(bool f8, struct sv_attn_launch *out);
void sv_cuda_attn_latent_sm90(bool f8, struct sv_attn_launch *out);
bool sv_cuda_attn_sm90(int32_t head_dim, int32_t n_warps, bool f8, struct sv_attn_launch *out);
/* Clusters of 8, with partial results in shared memory. n_queries: of a segment and kv head, at
 * most, and at most 64; beside: with room for another launch's thread blocks (gemm.h). */
bool sv_cuda_attn_few(int32_t head_dim, int32_t n_queries, bool beside, struct sv_attn_args *a,
                      struct sv_attn_launch *out);
/* attention_sm90.cu: the driver's entry point, found once; then maps of one layer's cache. */
int sv_cuda_attn_maps_open(void **encode, struct sv_err *err);
bool sv_cuda_attn_maps(struct sv_cuda *cu, void *encode, struct sv_attn_args *a);
void sv_cuda_attn_plain(struct sv_cuda *cu, const struct sv_attn_args *a);

#endif
