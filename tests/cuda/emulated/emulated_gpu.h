/*
 * emulated_gpu.h - the functions of gpu.h for the emulator, in two forms: waves of 32 as NVIDIA has
 * them and, with SV_EMULATED_WAVE64, waves of 64 as AMD has them: the fragments of MFMA, and copies
 * that lay lanes side by side and are counted one by one, as vmcnt does. SV_EMULATED_GFX950 makes
 * the latter that chip's; otherwise they are gfx942's.
 *
 * Included by gpu.h. The layouts are written down a second time, independently of the bodies for
 * GPUs. Must not: be taken for evidence about rounding inside matrix instructions.
 */
#ifndef SV_EMULATED_GPU_H
#define SV_EMULATED_GPU_H

#include "backend/gpu/fp8.cuh"

#ifdef SV_EMULATED_WAVE64
enum {
    GPU_WAVE = 64,
    GPU_K = 32,
    GPU_RUN = 4,
    GPU_LINES = 1,
    GPU_COLS = 16,
    GPU_KEYS = 32,
    GPU_BLOCKS = 1,
    GPU_SMALL_SHARED = 1,
    GPU_WCOMP = 0
};
typedef uint64_t gpu_lanes;
#else
enum {
    GPU_WAVE = 32,
    GPU_K = 16,
    GPU_RUN = 2,
    GPU_LINES = 2,
    GPU_COLS = 8,
    GPU_KEYS = 64,
    GPU_BLOCKS = 2,
    GPU_SMALL_SHARED = 0,
    GPU_WCOMP = 0
};
typedef uint32_t gpu_lanes;
#endif
enum { GPU_AFRESH = 0 };
static inline int gpu_afresh(int x)
{
    return x;
}
template <typename A> static inline const A &gpu_args(const A &a)
{
    if (*emu_args != typeid(A))
        abort(); /* not the running kernel's first parameter */
    return a;
}
enum { EMU_PAIRS = 128 / GPU_WAVE }; /* registers of 16 x 16 numbers of 16 bits */

static inline int gpu_lane(void)
{
    return (int)(threadIdx.x % GPU_WAVE);
}
static inline int gpu_wave(void)
{
    return (int)(threadIdx.x / GPU_WAVE);
}

/* ---------------------------------------------------------------- shared memory */

#define GPU_SHARED(name) uint8_t *const name = emu.shared.data() + emu.rank * emu.smem

static inline uint32_t gpu_shared_at(const void *p)
{
    return (uint32_t)((const uint8_t *)p - emu.shared.data()) + EMU_SHARED_BASE;
}
static inline void gpu_store4(uint32_t at, uint32_t x)
{
    memcpy(emu_shared_ptr(at, 4), &x, 4);
}
static inline void gpu_store16(uint32_t at, uint4 v)
{
    memcpy(emu_shared_ptr(at, 16), &v, 16);
}
static inline uint32_t gpu_load4(uint32_t at)
{
    uint32_t v;
    memcpy(&v, emu_shared_ptr(at, 4), 4);
    return v;
}
static inline uint4 gpu_load16(uint32_t at)
{
    uint4 v;
    memcpy(&v, emu_shared_ptr(at, 16), 16);
    return v;
}

/* ---------------------------------------------------------------- copies to shared memory */

/* n bytes of one lane; they arrive when they are waited for. */
void emu_copy_lane(uint32_t to, const void *from, uint32_t n, bool there);
/* All lanes of a wave name the same place. Waves of 32 need not: cp.async takes any. */
void emu_copy_place(uint32_t to);
void gpu_copy_commit(void);
/* Until so many groups, or calls of one lane, are on their way. */
void emu_copies_left(int groups, int lines);

static inline uint64_t gpu_stream_policy(void)
{
    return 0;
}
static inline void gpu_copy_stream(uint32_t to, const void *from, uint64_t)
{
    emu_copy_place(to);
    emu_copy_lane(to + (uint32_t)gpu_lane() * 16, from, 16, true);
}

template <int BYTES>
static inline void gpu_copy_once(uint32_t to, const void *from, bool there, uint64_t)
{
    emu_copy_lane(to, from, BYTES, there);
}

/* How much a lane brings at a time. */
#if defined(SV_EMULATED_WAVE64) && !defined(SV_EMULATED_GFX950)
enum { EMU_COPY_BYTES = 4 };
#else
enum { EMU_COPY_BYTES = 16 };
#endif

#ifdef SV_EMULATED_WAVE64
/* A lane that has nothing of the part takes part in the instruction. */
template <int BYTES> static inline void gpu_copy_part(uint32_t to, const void *from)
{
    const uint8_t *const first = (const uint8_t *)from - 16 * gpu_lane();
    emu_copy_place(to);
    for (uint32_t part = 0; part < 16 / EMU_COPY_BYTES; part++) {
        const uint32_t byte = (part * GPU_WAVE + (uint32_t)gpu_lane()) * EMU_COPY_BYTES;
        emu_copy_lane(to + (byte < BYTES ? byte : 0), first + byte,
                      byte < BYTES ? EMU_COPY_BYTES : 0, true);
    }
}
#define GPU_COPY_PART gpu_copy_part
#endif

/* Of a line's 16 bytes for each lane, those that lie side by side in shared memory. */
template <int BYTES, class F>
static inline void emu_each_place(uint32_t tile, uint32_t row, const F &f)
{
    emu_copy_place(tile + row * BYTES);
    for (uint32_t part = 0; part < 16 / EMU_COPY_BYTES; part++) {
        const uint32_t byte = (part * GPU_WAVE + (uint32_t)gpu_lane()) * EMU_COPY_BYTES,
                       r = row + byte / BYTES, place = byte % BYTES >> 4;
        f(tile + row * BYTES + byte, r, place ^ (r & 7), byte & 15);
    }
}
template <int BYTES, bool LINES, class FROM>
static inline void gpu_copy_rows(uint32_t tile, uint32_t row, const FROM &from)
{
    emu_each_place<BYTES>(tile, row, [&](uint32_t to, uint32_t r, uint32_t chunk, uint32_t byte) {
        const gpu_source s = from(r, chunk);
        emu_copy_lane(to, (const uint8_t *)s.at + byte, EMU_COPY_BYTES, s.there);
    });
}
template <int BYTES, class FROM>
static inline void gpu_copy_rows_two(uint32_t tile, uint32_t apart, uint32_t row, const FROM &from,
                                     const uint4 *a, const uint4 *b)
{
    for (int i = 0; i < 2; i++)
        emu_each_place<BYTES>(
            tile + i * apart, row, [&](uint32_t to, uint32_t r, uint32_t chunk, uint32_t byte) {
                const gpu_index s = from(r, chunk);
                if (!s.skip)
                    emu_copy_lane(to, (const uint8_t *)((i ? b : a) + s.at) + byte, EMU_COPY_BYTES,
                                  s.there);
            });
}

template <int MOST> static inline void gpu_copy_wait(int groups, int lines)
{
    emu_copies_left(groups < MOST ? groups : MOST, MOST == 0 ? 0 : lines);
}
static inline void gpu_copy_settled(void)
{
}

/* ---------------------------------------------------------------- products */

void gpu_load_t_at(uint32_t (&r)[EMU_PAIRS], uint32_t at);
void gpu_mma(float *d, const uint32_t (&a)[4], const uint32_t (&b)[4]);
void gpu_mma8(float *d, const uint32_t (&a)[4], const uint32_t (&b)[4], int step);
void gpu_mma_t(float *d, const uint32_t (&p)[EMU_PAIRS], const uint32_t (&t)[EMU_PAIRS]);
void gpu_mma_ones(float *d, const uint32_t (&p)[EMU_PAIRS]);

#ifdef SV_EMULATED_WAVE64

static inline int gpu_run_row(int lane)
{
    return lane & 15;
}
static inline int gpu_run_col(int lane)
{
    return (lane >> 4) << 2;
}
static inline int gpu_b_row(void)
{
    return gpu_lane() & 15;
}
static inline int gpu_b_chunk(void)
{
    return gpu_lane() >> 4;
}
static inline int gpu_b8_chunk(void)
{
    return gpu_lane() >> 4;
}
static inline void gpu_load_a(uint32_t (&r)[4], uint32_t at)
{
    memcpy(r, emu_shared_ptr(at, 16), 16);
}
template <int BYTES>
static inline void gpu_load_t(uint32_t (&r)[2], uint32_t tile, uint32_t row, uint32_t col)
{
    uint16_t *const h = (uint16_t *)r;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t y = row + ((uint32_t)gpu_lane() >> 4) * 4 + i,
                       x = col + ((uint32_t)gpu_lane() & 15);
        memcpy(h + i,
               emu_shared_ptr(tile + y * BYTES + (((x >> 3) ^ (y & 7)) << 4) + (x & 7) * 2, 2), 2);
    }
}

template <int BYTES>
static inline void gpu_load_n(uint32_t (&r)[2], uint32_t tile, uint32_t row, uint32_t col)
{
    const uint32_t y = row + ((uint32_t)gpu_lane() & 15),
                   x = col + ((uint32_t)gpu_lane() >> 4 << 2);
    memcpy(r, emu_shared_ptr(tile + y * BYTES + (((x >> 3) ^ (y & 7)) << 4) + (x & 7) * 2, 8), 8);
}
template <int BYTES>
static inline void gpu_load_p(uint32_t (&r)[2], uint32_t tile, uint32_t row, uint32_t col)
{
    gpu_load_n<BYTES>(r, tile, row, col);
}

#else

static inline int gpu_run_row(int lane)
{
    return lane >> 2;
}
static inline int gpu_run_col(int lane)
{
    return (lane & 3) << 1;
}
static inline int gpu_b_row(void)
{
    return (gpu_lane() & 7) | (gpu_lane() & 16) >> 1;
}
static inline int gpu_b_chunk(void)
{
    return gpu_lane() >> 3 & 1;
}
static inline int gpu_b8_chunk(void)
{
    return gpu_lane() >> 3;
}
void gpu_load_a(uint32_t (&r)[4], uint32_t at);
static inline void gpu_mma_16x8(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const uint32_t b[4] = {b0, b1, 0, 0};
    float both[8] = {d[0], d[1], d[2], d[3], 0, 0, 0, 0};
    gpu_mma(both, a, b);
    memcpy(d, both, 4 * sizeof *d);
}
template <int BYTES>
static inline void gpu_load_t(uint32_t (&r)[4], uint32_t tile, uint32_t row, uint32_t col)
{
    const uint32_t y = row + ((uint32_t)gpu_lane() & 15), x = col / 8 + ((uint32_t)gpu_lane() >> 4);
    gpu_load_t_at(r, tile + y * BYTES + ((x ^ (y & 7)) << 4));
}
/* Parts of 8 x 8: of the second operand both of the first eight rows, then those of the others; */
template <int BYTES>
static inline void gpu_load_n(uint32_t (&r)[4], uint32_t tile, uint32_t row, uint32_t col)
{
    const uint32_t part = (uint32_t)gpu_lane() >> 3,
                   y = row + ((uint32_t)gpu_lane() & 7) + (part >> 1) * 8, x = col / 8 + (part & 1);
    gpu_load_a(r, tile + y * BYTES + ((x ^ (y & 7)) << 4));
}
/* of the first operand both of the first eight columns. */
template <int BYTES>
static inline void gpu_load_p(uint32_t (&r)[4], uint32_t tile, uint32_t row, uint32_t col)
{
    const uint32_t part = (uint32_t)gpu_lane() >> 3,
                   y = row + ((uint32_t)gpu_lane() & 7) + (part & 1) * 8, x = col / 8 + (part >> 1);
    gpu_load_a(r, tile + y * BYTES + ((x ^ (y & 7)) << 4));
}

#endif

static inline void gpu_load_b(uint32_t (&r)[4], uint32_t at)
{
    gpu_load_a(r, at);
}
static inline void gpu_load_b8(uint32_t (&r)[4], uint32_t at)
{
    gpu_load_a(r, at);
}

template <bool PAIR> static inline uint32_t gpu_turn_at(const uint8_t *, int)
{
    return 0;
}
/* Numbers of one row side by side in r; they go to rows of 16 below one another, in the same places
 * by stmatrix (NEW). */
template <bool PAIR, bool NEW>
static inline void gpu_turn(uint8_t *patch, int lane, uint32_t, uint32_t r0, uint32_t r1,
                            uint32_t r2, uint32_t r3)
{
    const uint32_t r[4] = {r0, r1, r2, r3};
    const int n = PAIR || GPU_WAVE == 64 ? 2 * EMU_PAIRS : 4;
    for (int i = 0; i < n; i++) {
        const int row = gpu_run_row(lane) + i % 4 / GPU_RUN * 8,
                  col = i / 4 * GPU_COLS + gpu_run_col(lane) + i % GPU_RUN;
        ((uint16_t *)patch)[col * 16 + row] = (uint16_t)(r[i / 2] >> 16 * (i % 2));
    }
}

/* ---------------------------------------------------------------- lanes */

/* What lane `from` of the wave has. */
uint32_t emu_wave_from(uint32_t x, int from);
/* What each lane has. */
void emu_wave_all(uint32_t x, uint32_t (&all)[GPU_WAVE]);
void gpu_wave_sync(void);

static inline float gpu_row_max(float x)
{
    uint32_t all[GPU_WAVE];
    float most = x;
    emu_wave_all(__float_as_uint(x), all);
    for (int lane = 0; lane < GPU_WAVE; lane++)
        if (gpu_run_row(lane) == gpu_run_row(gpu_lane()))
            most = fmaxf(most, __uint_as_float(all[lane]));
    return most;
}
static inline float gpu_row_from(float x, int col)
{
    uint32_t all[GPU_WAVE];
    float found = 0;
    emu_wave_all(__float_as_uint(x), all);
    for (int lane = 0; lane < GPU_WAVE; lane++)
        if (gpu_run_row(lane) == gpu_run_row(gpu_lane()) &&
            gpu_run_col(lane) == col / GPU_RUN * GPU_RUN)
            found = __uint_as_float(all[lane]);
    return found;
}
static inline gpu_lanes gpu_col_lanes(int lane)
{
    gpu_lanes set = 0;
    for (int i = 0; i < GPU_WAVE; i++)
        set |= (gpu_lanes)(gpu_run_col(i) == gpu_run_col(lane)) << i;
    return set;
}
static inline bool gpu_col_lane(int lane)
{
    return gpu_run_row(lane) == 0;
}
static inline float gpu_col_max(float x)
{
    uint32_t all[GPU_WAVE];
    float most = x;
    emu_wave_all(__float_as_uint(x), all);
    for (int lane = 0; lane < GPU_WAVE; lane++)
        if (gpu_run_col(lane) == gpu_run_col(gpu_lane()))
            most = fmaxf(most, __uint_as_float(all[lane]));
    return most;
}
static inline int32_t gpu_col_first(gpu_lanes column, float low, float high, float most)
{
    uint32_t all[GPU_WAVE]; /* bit 0: low, bit 1: high */
    int32_t first = 16;
    emu_wave_all((low == most) | (uint32_t)(high == most) << 1, all);
    for (int lane = GPU_WAVE - 1; lane >= 0; lane--) {
        const bool second = all[lane] >> 1 && GPU_LINES == 2;
        if ((column >> lane & 1) && second && first > gpu_run_row(lane) + 8)
            first = gpu_run_row(lane) + 8;
    }
    for (int lane = GPU_WAVE - 1; lane >= 0; lane--)
        if ((all[lane] & 1) && (column >> lane & 1))
            first = gpu_run_row(lane);
    return first;
}
static inline bool gpu_any(bool x)
{
    uint32_t all[GPU_WAVE], any = 0;
    emu_wave_all(x, all);
    for (int lane = 0; lane < GPU_WAVE; lane++)
        any |= all[lane];
    return any != 0;
}

void emu_group_sync(int32_t group, int32_t n);
static inline void gpu_group_sync(int group)
{
    if (GPU_WAVE == 64)
        __syncthreads();
    else
        emu_group_sync(group, 128);
}
static inline void gpu_pair_sync(int pair)
{
    if (GPU_WAVE == 64)
        __syncthreads();
    else
        emu_group_sync(4 + pair, 64);
}

/* ---------------------------------------------------------------- between thread blocks */

void gpu_post16(const float4 *at, uint4 w);
uint4 gpu_look16(const float4 *at);
static inline void gpu_publish(void)
{
}
static inline void gpu_obtain(void)
{
}
static inline uint32_t gpu_arrive(uint32_t *count)
{
    return (*count)++;
}
static inline void gpu_send_max(uint64_t *at, uint64_t v)
{
    *at = *at > v ? *at : v;
}

/* ---------------------------------------------------------------- numbers */

static inline float gpu_exp2(float x)
{
    return exp2f(x);
}
static inline float gpu_rcp(float x)
{
    return 1.0f / x;
}
/* What does not overflow is exact. */
static inline uint32_t gpu_scale2(uint32_t pair, uint32_t by)
{
    uint32_t all = 0;
    for (int i = 0; i < 32; i += 16)
        all |= __float_as_uint(__uint_as_float(pair >> i << 16) * __uint_as_float(by >> i << 16)) >>
               16 << i;
    return all;
}
static inline uint32_t gpu_fp8x2(float hi, float lo)
{
    return (uint32_t)sv_fp8_of(hi) << 8 | sv_fp8_of(lo);
}

static inline float2 gpu_f8x2(uint32_t two)
{
    return {sv_fp8_number(two), sv_fp8_number(two >> 8)};
}
/* f of the numbers of pairs, rounded once: what is rounded fits f32. */
template <class F> static inline uint32_t emu_pairs(const F &f, uint32_t a, uint32_t b, uint32_t c)
{
    const auto of = [](uint32_t pair, int i) { return __uint_as_float(pair >> i << 16); };
    uint32_t all = 0;
    for (int i = 0; i < 32; i += 16)
        all |= (uint32_t)__float2bfloat16_rn(f(of(a, i), of(b, i), of(c, i))).x << i;
    return all;
}
static inline uint32_t gpu_mul2(uint32_t a, uint32_t b)
{
    return emu_pairs([](float x, float y, float) { return x * y; }, a, b, 0);
}
static inline uint32_t gpu_sub2(uint32_t a, uint32_t b)
{
    return emu_pairs([](float x, float y, float) { return x - y; }, a, b, 0);
}
static inline uint32_t gpu_fma2(uint32_t a, uint32_t b, uint32_t c)
{
    return emu_pairs([](float x, float y, float z) { return fmaf(x, y, z); }, a, b, c);
}

#endif
