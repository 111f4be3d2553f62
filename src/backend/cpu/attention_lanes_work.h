/*
 * attention_lanes_work.h - scratch of the kernels of attention_lanes.h, for them and for the
 * products of attention_amx.c and attention_bf16_avx512.c.
 */
#include "backend/cpu/vec.h"

#include "backend/cpu/simd_avx512.h"

#define CHUNK SV_ATTN_CHUNK
#define LANES 16
#define LOG2E 1.44269504088896341f

/* Scratch at c->work. */
struct work {
    float s[2][CHUNK * LANES];         /* scores of two groups, position by query */
    uint32_t pairs[CHUNK / 2 * LANES]; /* weights of two positions, bf16, by query */
    uint32_t p[2][LANES * 16];         /* the same by query: two halves of 32 positions */
    float
        out[LANES * SV_ATTN_LANES_V_DIM]; /* sums of one group, only where values are not finite */
};

_Static_assert(sizeof(struct work) <= SV_ATTN_WORK_BYTES, "attention.c reserves too little");
