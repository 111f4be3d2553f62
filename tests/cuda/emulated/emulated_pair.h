/*
 * emulated_pair.h - barriers and stores between two thread blocks of a cluster for the emulator, as
 * gemm_pair.cuh calls them.
 *
 * Included by gemm_pair.cuh in emulated builds.
 */
#ifndef SV_EMULATED_PAIR_H
#define SV_EMULATED_PAIR_H

void bar_init(uint32_t bar, uint32_t count);
void bar_expect(uint32_t bar, uint32_t n_bytes);
void bar_arrive(uint32_t bar);
void bar_wait(uint32_t bar, uint32_t parity);
void attn_cluster_sync(void);
void attn_cluster_put(uint32_t to, float x, float y, uint32_t bar);

static inline uint32_t far_addr(uint32_t at, uint32_t rank)
{
    return (uint32_t)(at + ((int64_t)rank - (int64_t)emu.rank) * (int64_t)emu.smem);
}
static inline void far_store(uint32_t far, uint32_t far_bar, float a, float b, float c, float d)
{
    attn_cluster_put(far, a, b, far_bar);
    attn_cluster_put(far + 8, c, d, far_bar);
}
static inline void near_store(uint32_t at, float a, float b, float c, float d)
{
    const float four[4] = {a, b, c, d};
    memcpy(emu_shared_ptr(at, 16), four, 16);
}
static inline float4 near_load(uint32_t at)
{
    float4 v;
    memcpy(&v, emu_shared_ptr(at, 16), 16);
    return v;
}

#endif
