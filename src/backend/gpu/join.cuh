/*
 * join.cuh - how the devices of several ranks exchange parts inside a kernel: a part is pushed into
 * the windows of all others, theirs are taken out of one's own as they come, and what they add up
 * to is summed in rank order.
 *
 * Included by join.cu and rows.cu. The data is the flag: a window is all ones where nothing has
 * come. A word of ones is two bf16 that are NaN, or one f32; such a word is sent as another NaN, so
 * that bad numbers are a fault and not a wait. A place that was taken is blanked, and ranks.h
 * explains why it may be written again then; nothing is counted, so a kernel that is replayed does
 * the same each time. A wait ends when the part is there, at the timeout, or when the host has set
 * the stop word; from then on the device is dead: no join waits any more, and numbers are zeros.
 * Must not: add in another order than that of ranks, or wait before the own part is sent.
 */
#ifndef SV_GPU_JOIN_CUH
#define SV_GPU_JOIN_CUH

#include "backend/cuda/cuda.h"
#include "backend/gpu/gpu_peers.h"

/* A join as its kernels see it: handed over by value. Places are counted in 16 bytes. */
struct sv_join_site {
    int32_t rank, n, kind;
    uint4 *to[SV_MAX_RANKS]; /* this rank's part in the windows of the others, or for other hosts */
    uint4 *from;             /* rank r's part in the own window: at from + r * apart */
    int32_t apart;
    int32_t share; /* two shots: a rank adds up so many places of each row for all; 0: one shot */
    bool ahead;    /* a kernel before has sent the part; in two shots the sums, to itself as well */
    bool sends;    /* another kernel takes: between them parts are exchanged with other hosts */
    const struct sv_slice *own; /* the rows that the part has, the others are -0.0; NULL: all */
    uint4 *dead;                /* x is not 0: the device has failed */
    const uint4 *stop;          /* x is not 0, set by the host: stop waiting */
    int64_t timeout_us;         /* < 0: none */
    struct sv_cuda_fault *fault;
};

enum {
    SV_JOIN_LOOK = 256, /* polls between looks at the clock */
    SV_JOIN_ASK = 65536 /* and at the stop word, which lies in host memory */
};

static __device__ __forceinline__ bool sv_join_there(uint4 v)
{
    return v.x != 0xffffffffu && v.y != 0xffffffffu && v.z != 0xffffffffu && v.w != 0xffffffffu;
}

static __device__ __forceinline__ uint32_t sv_join_word(uint32_t w)
{
    return w == 0xffffffffu ? 0x7fffffffu : w;
}
static __device__ __forceinline__ uint4 sv_join_words(uint4 v)
{
    return make_uint4(sv_join_word(v.x), sv_join_word(v.y), sv_join_word(v.z), sv_join_word(v.w));
}

/* To place `at` of this rank's part in the windows of ranks first to end, but for its own. */
static __device__ __forceinline__ void sv_join_send_to(const struct sv_join_site &s, int32_t first,
                                                       int32_t end, int64_t at, uint4 v)
{
#pragma unroll 1
    for (int32_t r = first; r < end; r++)
        if (r != s.rank) {
            sv_jitter();
            gpu_send16(s.to[r] + at, sv_join_words(v));
        }
}
static __device__ __forceinline__ void sv_join_send(const struct sv_join_site &s, int64_t at,
                                                    uint4 v)
{
    sv_join_send_to(s, 0, s.n, at, v);
}

/* After so many looks for rank r's part of row `row`, or for the sum that it adds up: whether to
 * give up; on a sum later, as the rank that adds it up may itself wait for another, and reports
 * that. */
static __device__ __forceinline__ bool sv_join_ends(const struct sv_join_site &s, uint32_t n_looks,
                                                    int32_t r, bool sum, int32_t row,
                                                    uint64_t *begin)
{
    if (gpu_take16(s.dead).x)
        return true;
    const uint64_t now = gpu_clock_us();
    if (n_looks == SV_JOIN_LOOK)
        *begin = now;
    const int64_t limit_us = s.timeout_us + (sum ? s.timeout_us / 4 : 0);
    const bool late = s.timeout_us >= 0 && (int64_t)(now - *begin) >= limit_us;
    const bool told = n_looks % SV_JOIN_ASK == 0 && gpu_take16(s.stop).x;
    if (late && !told)
        sv_fault_set(s.fault, SV_CUDA_FAULT_PEER, r, s.kind, row);
    if (late || told)
        gpu_send16(s.dead, make_uint4(1, 0, 0, 0));
    return late || told;
}

static __device__ __forceinline__ uint4 *sv_join_place(const struct sv_join_site &s, int32_t r,
                                                       int64_t at)
{
    return s.from + (int64_t)r * s.apart + at;
}
static __device__ __forceinline__ uint4 sv_join_blank(void)
{
    return make_uint4(0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu);
}

/* Waits for place `at` of rank r's part, and blanks it. */
static __device__ __forceinline__ uint4 sv_join_take(const struct sv_join_site &s, int32_t r,
                                                     int64_t at, int32_t row)
{
    uint4 *place = sv_join_place(s, r, at);
    sv_jitter();
    uint4 v = gpu_take16(place);
    uint64_t begin = 0;
    for (uint32_t n = 1; !sv_join_there(v); n++) {
        if (n % SV_JOIN_LOOK == 0 && sv_join_ends(s, n, r, false, row, &begin))
            return make_uint4(0, 0, 0, 0);
        gpu_idle();
        v = gpu_take16(place);
    }
    sv_jitter();
    gpu_send16(place, sv_join_blank());
    sv_jitter();
    return v;
}

/* ---------------------------------------------------------------- sums, 16 bytes at a time */

/* By a whole warp: eight neighbouring columns of each eight lanes to place `at` of this rank's
 * part, the same in all of them; < 0: to none. */
static __device__ __forceinline__ void sv_join_push(const struct sv_join_site &s, int64_t at,
                                                    __nv_bfloat16 x)
{
    uint32_t w = *(const uint16_t *)&x;
    w |= __shfl_xor_sync(0xffffffffu, w, 1) << 16; /* of even lanes */
    const uint32_t w2 = __shfl_xor_sync(0xffffffffu, w, 2), w4 = __shfl_xor_sync(0xffffffffu, w, 4),
                   w6 = __shfl_xor_sync(0xffffffffu, w, 6);
    if (threadIdx.x % 8 == 0 && at >= 0)
        sv_join_send(s, at, make_uint4(w, w2, w4, w6));
}

static __device__ __forceinline__ void sv_join_spread(float f[8], uint4 v, const __nv_bfloat16 *)
{
    sv_spread8(f, v);
}
static __device__ __forceinline__ uint4 sv_join_pack(const float f[8], const __nv_bfloat16 *)
{
    return sv_pack8(f);
}
static __device__ __forceinline__ void sv_join_spread(float f[4], uint4 v, const float *)
{
    f[0] = __uint_as_float(v.x), f[1] = __uint_as_float(v.y);
    f[2] = __uint_as_float(v.z), f[3] = __uint_as_float(v.w);
}
static __device__ __forceinline__ uint4 sv_join_pack(const float f[4], const float *)
{
    return make_uint4(__float_as_uint(f[0]), __float_as_uint(f[1]), __float_as_uint(f[2]),
                      __float_as_uint(f[3]));
}

/* What a rank adds to a row of another rank: v + -0.0 is v for every v, zeros included. */
static __device__ __forceinline__ uint4 sv_join_identity(const __nv_bfloat16 *)
{
    return make_uint4(0x80008000u, 0x80008000u, 0x80008000u, 0x80008000u);
}
static __device__ __forceinline__ uint4 sv_join_identity(const float *)
{
    return make_uint4(0x80000000u, 0x80000000u, 0x80000000u, 0x80000000u);
}

/* A row of a part, of d numbers; NULL: there is none. */
template <typename T>
static __device__ __forceinline__ const T *sv_join_row(const struct sv_join_site &s, const T *x,
                                                       int32_t row, int32_t d)
{
    if (s.own) {
        row -= s.own->first;
        if (row < 0 || row >= s.own->n)
            return NULL;
    }
    return x + (int64_t)row * d;
}

/* Place g of such a row. */
template <typename T> static __device__ __forceinline__ uint4 sv_join_part(const T *row, int32_t g)
{
    return row ? ((const uint4 *)row)[g] : sv_join_identity(row);
}

/* The rank that adds up place g of a row for all; in one shot each does so for itself. TWO: it may
 * be in two shots, which takes longer to find out than one shot has to spare. */
template <bool TWO>
static __device__ __forceinline__ int32_t sv_join_adder(const struct sv_join_site &s, int32_t g)
{
    return TWO && s.share ? g / s.share : s.rank;
}

/* To the rank that adds it up: place g of a row that begins at place `at`. */
template <bool TWO = true>
static __device__ __forceinline__ void sv_join_send_part(const struct sv_join_site &s, int32_t at,
                                                         int32_t g, uint4 v)
{
    const int32_t adder = sv_join_adder<TWO>(s, g);
    const bool share = TWO && s.share;
    sv_join_send_to(s, share ? adder : 0, share ? adder + 1 : s.n, at + g, v);
}

/* Waits for place `at` of those of ranks first, first + 1, ... up to end that are not in `seen`
 * yet. A look takes longer than all that is done with it, so that they look together. */
template <int LOOKS>
static __device__ __forceinline__ void sv_join_look(uint4 seen[LOOKS], const struct sv_join_site &s,
                                                    int32_t first, int32_t end, bool sum,
                                                    int32_t at, int32_t row)
{
    uint64_t begin = 0;
    sv_jitter();
    for (uint32_t n = 1;; n++) {
        bool all = true;
#pragma unroll
        for (int j = 0; j < LOOKS; j++)
            if ((!j || first + j < end) && !sv_join_there(seen[j]))
                seen[j] = gpu_take16(sv_join_place(s, first + j, at));
#pragma unroll
        for (int j = 0; j < LOOKS; j++)
            all = all && ((j && first + j >= end) || sv_join_there(seen[j]));
        if (all)
            return;
        if (n % SV_JOIN_LOOK == 0) {
            int32_t missing = first;
#pragma unroll
            for (int j = 1; j < LOOKS; j++)
                if (first + j < end && !sv_join_there(seen[j]))
                    missing = first + j;
            if (sv_join_ends(s, n, missing, sum, row, &begin))
                break;
        }
        gpu_idle();
    }
#pragma unroll
    for (int j = 0; j < LOOKS; j++)
        seen[j] = make_uint4(0, 0, 0, 0);
}

/* The sum of all parts of place g of a row that begins at place `at`, rounded once: added up here,
 * and sent to the others where they wait for it, or taken from the rank that does, as a part that
 * nothing is added to. own: this rank's part. */
template <typename T, bool TWO = true>
static __device__ __forceinline__ uint4 sv_join_sum(const struct sv_join_site &s, int32_t at,
                                                    int32_t g, int32_t row, uint4 own)
{
    enum { N = sizeof(uint4) / sizeof(T), LOOKS = sizeof(T) == 2 ? GPU_LOOKS : 1 };
    const int32_t adder = sv_join_adder<TWO>(s, g);
    const bool adds = !TWO || (adder == s.rank && !(s.share && s.ahead));
    const int32_t begin = adds ? 0 : adder, end = adds ? s.n : adder + 1, here = adds ? s.rank : -1;
    float sum[N];
    at += g;
#pragma unroll 1
    for (int32_t first = begin; first < end; first += LOOKS) {
        uint4 seen[LOOKS];
#pragma unroll
        for (int j = 0; j < LOOKS; j++)
            seen[j] = first + j == here ? sv_join_words(own) : sv_join_blank();
        sv_join_look<LOOKS>(seen, s, first, end, !adds, at, row);
#pragma unroll
        for (int j = 0; j < LOOKS; j++) {
            const int32_t r = first + j;
            float f[N];
            if (j && r >= end)
                break;
            if (r != here) {
                sv_jitter();
                gpu_send16(sv_join_place(s, r, at), sv_join_blank());
            }
            sv_join_spread(f, seen[j], (const T *)NULL);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[k] = r == begin ? f[k] : sum[k] + f[k];
        }
    }
    const uint4 all = sv_join_pack(sum, (const T *)NULL);
    if (TWO && s.share && adds)
        sv_join_send(s, at, all);
    sv_jitter();
    return all;
}

#endif
