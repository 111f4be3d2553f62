/*
 * emulated_peers.h - the functions of gpu_peers.h on a CPU. Ranks are processes that share memory;
 * others run while a thread idles.
 */
#ifndef SV_EMULATED_PEERS_H
#define SV_EMULATED_PEERS_H

enum { GPU_LOOKS = 2 };

static inline void gpu_send16(uint4 *at, uint4 w)
{
    const uint32_t v[4] = {w.x, w.y, w.z, w.w};
    for (int i = 0; i < 4; i++) /* no more than each word is whole */
        __atomic_store_n((uint32_t *)at + (i * 3 & 3), v[i * 3 & 3], __ATOMIC_RELAXED);
}
static inline uint4 gpu_take16(const uint4 *at)
{
    const uint32_t *from = (const uint32_t *)at;
    return {__atomic_load_n(from, __ATOMIC_RELAXED), __atomic_load_n(from + 1, __ATOMIC_RELAXED),
            __atomic_load_n(from + 2, __ATOMIC_RELAXED),
            __atomic_load_n(from + 3, __ATOMIC_RELAXED)};
}
void gpu_idle(void);
uint64_t gpu_clock_us(void);

#endif
