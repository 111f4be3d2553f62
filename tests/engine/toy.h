/*
 * toy.h - writes small random target and draft directories for tests: any vocabulary, spread-out
 * logits.
 */
#ifndef SV_TEST_TOY_H
#define SV_TEST_TOY_H

#include "engine/run.h"

#include <stdbool.h>
#include <stdint.h>

struct toy {
    int32_t vocab, hidden, n_layers, n_heads, n_kv, head_dim, mlp, max_position;
    int32_t block, draft_layers; /* the mask is vocab - 1 */
    int32_t n_taps;              /* 0: two; from layer 0 to n_layers - 2 */
    int32_t window;              /* of the draft's first layers, all but its last; 0: none */
    /* experts of the target's layers, but for layer 1, which is dense; 0: all are */
    int32_t n_experts, n_chosen, expert_mlp;
    bool yarn;      /* the draft's positions are scaled, as those of Kimi's are */
    bool bf16;      /* weights stored as bf16 instead of f32 */
    bool fp8;       /* experts in blocks of e4m3, with scales of two types */
    bool fp8_draft; /* the draft's projections in such blocks */
    float scale;    /* standard deviation of the weights */
    uint64_t seed;
};
/* 300 words, a block of 16, bf16 weights, so that the bf16 kernels are the ones at work; its draft
 * is random and mostly wrong. */
extern const struct toy toy_bf16;
/* The same with experts. */
extern const struct toy toy_moe;
/* With experts in FP8. */
extern const struct toy toy_moe_fp8;
/* Directories live below the test's temporary folder; the names are kept for the process's life. */
const char *toy_target(const struct toy *t);
/* With the golden pair's tokenizer, of 300 tokens. */
const char *toy_speaking_target(const struct toy *t);
const char *toy_draft(const struct toy *t);
/* A tiny checkpoint, tests/golden/tiny/NAME, and a random draft for it. */
struct run_pair toy_pair_of(const char *name);
/* A random target with that one's configuration, but for what the JSON object patch says
 * (quantization_config: projections in FP8 blocks of 128), and a random draft of 4 heads. */
struct run_pair toy_pair_like(const char *name, const char *patch);
/* Tiny checkpoints of the families that quantized weights come in, with what makes all rows of
 * their projections whole groups of 32. */
enum { TOY_FAMILIES = 7 };
extern const struct toy_family {
    const char *name, *sizes; /* what toy_pair_like takes */
    bool in_gguf;             /* salvo convert writes it so */
} toy_families[TOY_FAMILIES];
/* The same with a sliding draft of that many taps; of any target. */
struct run_pair toy_pair_as(const char *name, int32_t n_taps, int32_t window);
struct run_pair toy_pair_at(const char *target, int32_t n_taps, int32_t window);
/* The checkpoint in a directory below the repository root, whose layers are all as its first:
 * those of one layer have none that a draft may see. in_order: GPTQ's act-order undone, by other
 * values. */
const char *toy_deeper(const char *dir, int32_t n_layers, bool in_order);

#endif
