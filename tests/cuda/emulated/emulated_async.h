/*
 * emulated_async.h - attention's barriers and box loads of sm_90a for the emulator. A box arrives
 * when somebody waits for its barrier, not before; boxes are swizzled by address as the copy engine
 * does with 128-byte swizzle.
 *
 * Included by attention_async.cuh in emulated builds.
 */
#ifndef SV_EMULATED_ASYNC_H
#define SV_EMULATED_ASYNC_H

void bar_init(uint32_t bar, uint32_t count);
static inline void bar_made(void)
{
}
void bar_expect(uint32_t bar, uint32_t n_bytes);
void bar_arrive(uint32_t bar);
void bar_wait(uint32_t bar, uint32_t parity);
uint32_t bar_try(uint32_t bar, uint32_t parity);
static inline void attn_touch(const struct sv_attn_args &)
{
}
static inline void attn_map_fetch(const struct sv_attn_map *)
{
}
void emu_box(uint32_t to, const uint64_t *map, int32_t part, int32_t group, uint32_t bar);
static inline void attn_box(uint32_t to, const struct sv_attn_map *map, int32_t group, uint32_t bar)
{
    emu_box(to, map->opaque, 0, group, bar);
}
static inline void attn_box_part(uint32_t to, const struct sv_attn_map *map, int32_t part,
                                 int32_t group, uint32_t bar)
{
    emu_box(to, map->opaque, part, group, bar);
}
void emu_copy_piece(uint32_t to, const void *from, uint32_t n_bytes, uint32_t bar);
template <bool ONCE>
static inline void attn_copy(uint32_t to, const void *from, uint32_t n_bytes, uint32_t bar)
{
    emu_copy_piece(to, from, n_bytes, bar);
}
static inline int32_t attn_cluster_rank(void)
{
    return (int32_t)emu.rank;
}
void attn_cluster_sync(void);
static inline uint32_t attn_cluster_at(uint32_t at, int32_t rank)
{
    return (uint32_t)(at + ((int64_t)rank - (int64_t)emu.rank) * (int64_t)emu.smem);
}
void attn_cluster_put(uint32_t to, float x, float y, uint32_t bar);
void attn_cluster_put(uint32_t to, float x, uint32_t bar);
/* Who arrives also waits. */
static inline void attn_cluster_arrive(void)
{
}
static inline void attn_cluster_wait(void)
{
    attn_cluster_sync();
}
static inline void attn_prefetch(const void *)
{
}
void emu_group_sync(int32_t group, int32_t n);
template <int THREADS = 128> static inline void attn_group_sync(int32_t group)
{
    emu_group_sync(group, THREADS);
}
template <int N> static inline void attn_fewer_registers(void)
{
}
template <int N> static inline void attn_more_registers(void)
{
}
static inline void attn_store16_zero(uint32_t at)
{
    memset(emu_shared_ptr(at, 16), 0, 16);
}

/* The host's side: what the driver would pack into a tensor map, in plain words. A box has `rows`
 * keys and `parts` times 64 columns. */
static inline int sv_attn_emulated_map(struct sv_attn_map *map, const void *base,
                                       const struct sv_kv *kv, int32_t rows, int32_t parts)
{
    const uint64_t words[] = {(uint64_t)(uintptr_t)base,
                              (uint64_t)kv->head_dim,
                              (uint64_t)kv->page_size,
                              (uint64_t)kv->n_kv_heads,
                              (uint64_t)kv->n_pages,
                              (uint64_t)rows,
                              (uint64_t)parts};
    memcpy(map->opaque, words, sizeof words);
    return 0;
}

#endif
