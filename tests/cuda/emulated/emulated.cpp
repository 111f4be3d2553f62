/*
 * emulated.cpp - the coroutines and the warp-wide instructions behind the emulated cuda_runtime.h.
 *
 * Linked into programs that run kernels on the CPU (x86-64 only: a coroutine changes place in a few instructions). The
 * layouts of fragments are those of the PTX manual, written down a second time and independently of the kernels.
 */
#include <cuda_runtime.h>
#include <emulated_wgmma.h>

#include "backend/gpu/gpu.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

static std::map<uint32_t, emu_bar> bars;
static std::vector<bool> on_their_way; /* places of asynchronous copies that nobody has waited for, of four bytes each */
static emu_bar &bar_at(uint32_t at);
static void bar_step(emu_bar &b);

struct emu_block emu;
dim3 threadIdx, blockIdx, blockDim, gridDim;
unsigned emu_block_y, emu_draws;
static bool looks;
static uint64_t ahead; /* lanes of the warp whose turn is still to come in this round */
static int left;       /* threads that have not ended */

void emu_fail(const char *what)
{
    fprintf(stderr, "emulated: %s (block %u, thread %u)\n", what, blockIdx.x, threadIdx.x);
    abort();
}

/* ---------------------------------------------------------------- coroutines */

extern "C" void emu_switch(void **save, void *load);
asm(".text\n.globl emu_switch\nemu_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\npop %rcx\njmp *%rcx\n"); /* ret would be mispredicted */

static void thread_main(void)
{
    emu.body(emu.user);
    emu.threads[(size_t)emu.now].done = true;
    left--;
    emu_yield();
}

/* Where the next lane of this warp stands that is awake; where there is none, the scheduler. */
static void *next_lane(int warp)
{
    for (uint64_t lanes; (lanes = emu.awake[(size_t)warp] & ahead);) {
        const int lane = __builtin_ctzll(lanes);
        auto &t = emu.threads[(size_t)warp * 32 + (size_t)lane];
        ahead = ~1ull << lane;
        if (t.done) {
            emu.awake[(size_t)warp] &= ~(1u << lane);
            continue;
        }
        emu.now = warp * 32 + lane;
        threadIdx.x = (unsigned)emu.now % emu.n_threads;
        return t.sp;
    }
    return emu.scheduler;
}

void emu_yield(void)
{
    void **const save = &emu.threads[(size_t)emu.now].sp;
    emu_switch(save, next_lane(emu.now / 32));
}

/* Until *turn is another one: the scheduler passes the thread by meanwhile. */
static void wait_for(const uint64_t *turn)
{
    const uint64_t here = *turn;
    do {
        emu.awake[(size_t)emu.now / 32] &= ~(1u << emu.now % 32);
        emu_yield();
    } while (here == *turn);
}
static void wake(unsigned first, unsigned n)
{
    for (size_t w = first / 32; w < (first + n) / 32 && w < emu.awake.size(); w++)
        emu.awake[w] = ~0u;
}

void emu_run_cluster(unsigned first, unsigned n_blocks, unsigned n_threads, size_t smem, void (*body)(void *), void *user)
{
    enum { STACK = 64 * 1024 };
    const size_t all = (size_t)n_blocks * n_threads;
    if (n_threads % 32 || n_blocks > sizeof emu.block / sizeof *emu.block)
        emu_fail("a block of such a size");
    emu.n_threads = n_threads;
    emu.smem = n_blocks == 1 ? smem : 1 << 18; /* what a descriptor of wgmma can name */
    if (smem + EMU_SHARED_BASE > 1 << 18)
        emu_fail("more shared memory than there is");
    if (emu.threads.size() < all)
        emu.threads.resize(all); /* with their stacks: they stay */
    emu.awake.assign(all / 32, ~0u);
    emu.warps.assign(all / 32, emu_warp());
    emu.waves.assign((all + 63) / 64, emu_wave());
    emu.shared.assign(n_blocks * emu.smem, 0xff); /* NaN, so that what nobody wrote is noticed */
    bars.clear();
    on_their_way.assign(emu.shared.size() / 4, false);
    memset(emu.block, 0, sizeof emu.block);
    emu.cluster_arrived = 0;
    emu.cluster_left = (int)all;
    emu.body = body;
    emu.user = user;
    for (size_t i = 0; i < all; i++) {
        auto &t = emu.threads[i];
        t.stack.resize(STACK);
        t.done = false;
        t.groups.assign(1, {});
        t.begun = false;
        /* Tops apart by some lines of a page, or they would share the same few places in the CPU's caches. */
        uint64_t *top = (uint64_t *)(((uintptr_t)t.stack.data() + STACK - i * 5 % 64 * 64) & ~(uintptr_t)63);
        *--top = 0;                      /* keeps the stack aligned as after a call */
        *--top = (uint64_t)(uintptr_t)thread_main;
        for (int i = 0; i < 6; i++)
            *--top = 0;
        t.sp = top;
    }
    /* One warp, another in each launch, runs only while all others stand still: nobody may count on its being there in
     * time, and it must cope with all that has happened meanwhile. */
    static unsigned launches;
    const int late = (int)((launches++ + emu_draws) % (all / 32));
    uint64_t idle = 0;
    std::vector<int> order(all / 32);
    std::iota(order.begin(), order.end(), 0);
    while (emu.cluster_left) {
        const uint64_t before = emu.turn;
        left = emu.cluster_left;
        looks = false;
        if (emu_draws)
            std::shuffle(order.begin(), order.end(), std::minstd_rand(emu_draws++));
        for (const int warp : order) {
            if (warp == late && !idle)
                continue;
            emu.rank = (unsigned)warp * 32 / n_threads;
            blockIdx = dim3(first + emu.rank, emu_block_y, 0);
            ahead = ~0ull;
            void *const first_lane = next_lane(warp);
            if (first_lane != emu.scheduler)
                emu_switch(&emu.scheduler, first_lane);
        }
        if (left != emu.cluster_left)
            emu.turn++; /* who has ended stands at no barrier of the cluster any more */
        emu.cluster_left = left;
        idle = before != emu.turn ? 0 : looks ? 1 : idle + 1;
        if (idle > 1000)
            emu_fail("threads wait for one another for ever");
    }
}

bool emu_looks;

struct emu_room &emu_room_of(const void *kernel)
{
    static std::map<const void *, emu_room> rooms;
    return rooms.insert({kernel, {48 * 1024, 0}}).first->second;
}

bool emu_asks(const void *kernel, size_t n_bytes)
{
    emu_room &room = emu_room_of(kernel);
    room.asked = std::max(room.asked, n_bytes);
    if (n_bytes > room.most)
        emu_fail("a launch with more shared memory than its kernel was given");
    return !emu_looks;
}

void emu_meet(int op, void *args, void (*work)(void **args))
{
    auto &w = emu_warp_now();
    if (w.arrived && w.op != op)
        emu_fail("lanes of a warp meet at different instructions");
    w.op = op;
    w.args[threadIdx.x % 32] = args;
    if (++w.arrived == 32) {
        work(w.args);
        w.arrived = 0;
        w.turn++;
        emu.turn++;
        wake((unsigned)emu.now / 32 * 32, 32);
        return;
    }
    wait_for(&w.turn);
}

static void meet(int *arrived, uint64_t *turn, int n)
{
    if (++*arrived == n) {
        *arrived = 0;
        ++*turn;
        emu.turn++;
        wake(emu.rank * emu.n_threads, emu.n_threads);
        return;
    }
    wait_for(turn);
}

void __syncthreads(void)
{
    auto &b = emu.block[emu.rank];
    meet(&b.arrived, &b.turn, (int)emu.n_threads);
}

void emu_group_sync(int32_t group, int32_t n)
{
    auto &b = emu.block[emu.rank];
    meet(&b.group[group], &b.group_turn[group], n);
}

void attn_cluster_sync(void)
{
    const uint64_t here = emu.cluster_turn;
    emu.cluster_arrived++;
    emu.turn++;
    while (here == emu.cluster_turn) {
        if (emu.cluster_arrived >= emu.cluster_left) {
            emu.cluster_arrived = 0;
            emu.cluster_turn++;
            emu.turn++;
            return;
        }
        emu_yield();
    }
}

/* Stores to another block arrive at once; the barrier hears of them all the same. */
static void put_far(uint32_t to, const float *x, int64_t n_bytes, uint32_t bar)
{
    memcpy(emu_shared_ptr(to, (size_t)n_bytes), x, (size_t)n_bytes);
    bar_at(bar).bytes -= n_bytes;
    bar_step(bar_at(bar));
}
void attn_cluster_put(uint32_t to, float x, float y, uint32_t bar)
{
    const float two[2] = {x, y};
    put_far(to, two, 8, bar);
}
void attn_cluster_put(uint32_t to, float x, uint32_t bar)
{
    put_far(to, &x, 4, bar);
}

/* ---------------------------------------------------------------- barriers in shared memory, boxes */

static emu_bar &bar_at(uint32_t at)
{
    const auto b = bars.find(at);
    if (b == bars.end())
        emu_fail("a barrier that was not made");
    return b->second;
}
static void bar_step(emu_bar &b)
{
    if (b.left == 0 && b.bytes == 0) {
        b.left = b.count;
        b.phase ^= 1;
        emu.turn++;
    }
}

void bar_init(uint32_t bar, uint32_t count)
{
    emu_shared_ptr(bar, 8);
    bars[bar] = {count, count, 0, 0, {}};
}
void bar_arrive(uint32_t bar)
{
    auto &b = bar_at(bar);
    if (b.left-- == 0)
        emu_fail("more arrivals than a barrier counts");
    bar_step(b);
}
void bar_expect(uint32_t bar, uint32_t n_bytes)
{
    bar_at(bar).bytes += n_bytes;
    bar_arrive(bar);
}

void emu_box(uint32_t to, const uint64_t *map, int32_t part, int32_t group, uint32_t bar)
{
    const uint64_t hd = map[1], rows = map[5], all = map[4] * map[3] * map[2], parts = map[6];
    if (to % 1024 || group < 0 || (uint64_t)group * 8 + rows > all || part < 0 || part + parts > hd / 64)
        emu_fail("a box outside its tensor, or not on 1024 bytes");
    bar_at(bar).boxes.push_back(
        {to, map[0] + (uint64_t)group * 8 * hd * 2 + (uint64_t)part * 128, rows, parts * 128, hd * 2});
}

void emu_copy_piece(uint32_t to, const void *from, uint32_t n_bytes, uint32_t bar)
{
    if (to % 16 || (uintptr_t)from % 16 || n_bytes % 16)
        emu_fail("a copy that is not of whole 16 bytes");
    bar_at(bar).boxes.push_back({to, (uint64_t)(uintptr_t)from, n_bytes});
}

uint32_t bar_try(uint32_t bar, uint32_t parity)
{
    return bar_at(bar).phase != parity;
}

void bar_wait(uint32_t bar, uint32_t parity)
{
    auto &b = bar_at(bar);
    for (;;) {
        for (const auto &x : b.boxes) {
            if (x.size() == 3) { /* in one piece */
                for (uint32_t at = 0; at < x[2]; at += 16)
                    memcpy(emu_shared_ptr((uint32_t)x[0] + at, 16), (const uint8_t *)(uintptr_t)x[1] + at, 16);
                b.bytes -= (int64_t)x[2];
                continue;
            }
            for (uint64_t r = 0; r < x[2]; r++)
                for (uint32_t c = 0; c < x[3] / 16; c++) { /* of eight keys 64 columns, then the next 64 */
                    const uint32_t at = (uint32_t)(x[0] + r / 8 * 8 * x[3] + c / 8 * 1024 + r % 8 * 128 + c % 8 * 16);
                    memcpy(emu_shared_ptr(at ^ (at >> 3 & 0x70), 16),
                           (const uint8_t *)(uintptr_t)(x[1] + r * x[4]) + c * 16, 16);
                }
            b.bytes -= (int64_t)(x[2] * x[3]);
        }
        const bool some = !b.boxes.empty();
        b.boxes.clear();
        if (some)
            bar_step(b);
        if (b.phase != parity) /* the phase of that parity is over */
            return;
        emu_yield();
    }
}


/* ---------------------------------------------------------------- waves, and what gpu.h has */

/* All lanes of a wave meet. */
static void wave_meet(int op, void *args, void (*work)(void **args))
{
    if (GPU_WAVE == 32) {
        emu_meet(op, args, work);
        return;
    }
    auto &w = emu.waves[(size_t)emu.now / 64];
    if (w.arrived && w.op != op)
        emu_fail("lanes of a wave meet at different instructions");
    w.op = op;
    w.args[threadIdx.x % 64] = args;
    if (++w.arrived == 64) {
        work(w.args);
        w.arrived = 0;
        w.turn++;
        emu.turn++;
        wake((unsigned)emu.now / 64 * 64, 64);
        return;
    }
    wait_for(&w.turn);
}

void gpu_wave_sync(void)
{
    wave_meet(20, NULL, emu_nothing);
}

struct moved { uint32_t in, out; int from; };

uint32_t emu_wave_from(uint32_t x, int from)
{
    moved m = {x, 0, from};
    wave_meet(21, &m, [](void **args) {
        for (int i = 0; i < GPU_WAVE; i++)
            ((moved *)args[i])->out = ((moved *)args[((moved *)args[i])->from])->in;
    });
    return m.out;
}

struct shown { uint32_t in, *all; };

void emu_wave_all(uint32_t x, uint32_t (&all)[GPU_WAVE])
{
    shown s = {x, all};
    wave_meet(26, &s, [](void **args) {
        uint32_t *const first = ((shown *)args[0])->all;
        for (int i = 0; i < GPU_WAVE; i++)
            first[i] = ((shown *)args[i])->in;
        for (int i = 1; i < GPU_WAVE; i++)
            memcpy(((shown *)args[i])->all, first, GPU_WAVE * sizeof *first);
    });
}

static uint64_t looked; /* since something was posted */

void gpu_post16(const float4 *at, uint4 w)
{
    looked = 0;
    memcpy((void *)(uintptr_t)at, &w, 16);
}

uint4 gpu_look16(const float4 *at)
{
    uint4 w;
    if (++looked > 10000000)
        emu_fail("a wait for a piece that no block before this one has posted");
    memcpy(&w, at, 16);
    return w;
}

/* Copies have no order among themselves, not even those of one thread; but waves of 64 wait for them in the order in which
 * they were called for. */
void emu_copy_place(uint32_t to)
{
    emu.threads[(size_t)emu.now].begun = true;
    if (GPU_WAVE == 64 && emu_wave_from(to, 0) != to)
        emu_fail("lanes name different places for a copy");
}

void emu_copy_lane(uint32_t to, const void *from, uint32_t n, bool there)
{
    auto &t = emu.threads[(size_t)emu.now];
    if (n)
        emu_shared_ptr(to, n);
    for (uint32_t i = 0; i < n; i += 4) {
        auto way = on_their_way[(to + i - EMU_SHARED_BASE) / 4];
        if (way)
            emu_fail("two copies on their way to one place");
        way = true;
    }
    t.groups.back().push_back({to, n, from, there, t.begun});
    t.begun = false;
}

void gpu_copy_commit(void)
{
    if (GPU_WAVE == 32)
        emu.threads[(size_t)emu.now].groups.emplace_back();
}

static void arrive(const emu_copy &c)
{
    for (uint32_t i = 0; i < c.n_bytes; i += 4)
        on_their_way[(c.to + i - EMU_SHARED_BASE) / 4] = false;
    if (c.n_bytes == 0)
        return;
    if (c.there)
        memcpy(emu_shared_ptr(c.to, c.n_bytes), c.from, c.n_bytes);
    else
        memset(emu_shared_ptr(c.to, c.n_bytes), 0, c.n_bytes);
}

void emu_copies_left(int left, int lines)
{
    auto &groups = emu.threads[(size_t)emu.now].groups;
    while (GPU_WAVE == 32 && (int)groups.size() - 1 > left) {
        for (const auto &c : groups.front())
            arrive(c);
        groups.erase(groups.begin());
    }
    if (GPU_WAVE == 32)
        return;
    auto &q = groups.front();
    int calls = 0;
    for (const auto &c : q)
        calls += c.first;
    size_t n = 0;
    for (; n < q.size() && (calls > lines || !q[n].first); n++) {
        calls -= q[n].first;
        arrive(q[n]);
    }
    q.erase(q.begin(), q.begin() + (long)n);
}

/* ---------------------------------------------------------------- matrices */

static float half_of(uint32_t pair, int i)
{
    return __uint_as_float(i ? pair & 0xffff0000u : pair << 16);
}

#ifndef SV_EMULATED_WAVE64

struct ldmatrix { uint32_t at; uint32_t *out; };

static uint16_t matrix_at(void **args, int matrix, int row, int col)
{
    const auto *a = (const ldmatrix *)args[matrix * 8 + row];
    return ((const uint16_t *)emu_shared_ptr(a->at, 16))[col];
}

void gpu_load_a(uint32_t (&r)[4], uint32_t at)
{
    ldmatrix a = {at, r};
    emu_meet(10, &a, [](void **args) {
        for (int lane = 0; lane < 32; lane++)
            for (int m = 0; m < 4; m++)
                ((ldmatrix *)args[lane])->out[m] =
                    matrix_at(args, m, lane / 4, lane % 4 * 2) |
                    (uint32_t)matrix_at(args, m, lane / 4, lane % 4 * 2 + 1) << 16;
    });
}

void gpu_load_t_at(uint32_t (&r)[EMU_PAIRS], uint32_t at)
{
    ldmatrix a = {at, r};
    emu_meet(11, &a, [](void **args) {
        for (int lane = 0; lane < 32; lane++)
            for (int m = 0; m < 4; m++)
                ((ldmatrix *)args[lane])->out[m] =
                    matrix_at(args, m, lane % 4 * 2, lane / 4) |
                    (uint32_t)matrix_at(args, m, lane % 4 * 2 + 1, lane / 4) << 16;
    });
}

struct mma { float *c; const uint32_t *a; uint32_t b[2]; };

static void mma_16x8(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    mma m = {c, a, {b0, b1}};
    emu_meet(12, &m, [](void **args) {
        float A[16][16], B[16][8], C[16][8];
        for (int lane = 0; lane < 32; lane++) {
            const auto *x = (const mma *)args[lane];
            const int g = lane / 4, t = lane % 4;
            for (int i = 0; i < 8; i++) /* a0, a1 of each register: rows g, g + 8; columns, then columns + 8 */
                A[g + (i / 2 % 2) * 8][t * 2 + i % 2 + (i / 4) * 8] = half_of(x->a[i / 2], i % 2);
            for (int i = 0; i < 4; i++)
                B[t * 2 + i % 2 + (i / 2) * 8][g] = half_of(x->b[i / 2], i % 2);
            for (int i = 0; i < 4; i++)
                C[g + (i / 2) * 8][t * 2 + i % 2] = x->c[i];
        }
        for (int i = 0; i < 16; i++)
            for (int k = 0; k < 16; k++)
                for (int j = 0; j < 8; j++)
                    C[i][j] = fmaf(A[i][k], B[k][j], C[i][j]);
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++)
                ((mma *)args[lane])->c[i] = C[lane / 4 + (i / 2) * 8][lane % 4 * 2 + i % 2];
    });
}

void gpu_mma(float *d, const uint32_t (&a)[4], const uint32_t (&b)[4])
{
    mma_16x8(d, a, b[0], b[1]);
    mma_16x8(d + 4, a, b[2], b[3]);
}

void gpu_mma8(float *d, const uint32_t (&a)[4], const uint32_t (&b)[4], int step)
{
    mma_16x8(d, a, b[2 * step], b[2 * step + 1]);
}

void gpu_mma_t(float *d, const uint32_t (&p)[4], const uint32_t (&t)[4])
{
    gpu_mma(d, p, t);
}

void gpu_mma_ones(float *d, const uint32_t (&p)[4])
{
    mma_16x8(d, p, 0x3f803f80u, 0x3f803f80u);
}

#else

struct product { float *d; const uint32_t *a, *b; };

/* d += a b^T over columns first to last of what a lane holds of its row: lane l has row l % 16 of both, and of the sum row
 * l % 16, columns 4 (l / 16) to + 3. */
template <int FIRST, int LAST> static void mfma(void **args)
{
    float A[4][LAST - FIRST + 1][16], B[4][LAST - FIRST + 1][16], D[16][16];
    for (int lane = 0; lane < 64; lane++) {
        const auto *x = (const product *)args[lane];
        const int g = lane / 16, row = lane % 16;
        for (int k = FIRST; k <= LAST; k++) {
            A[g][k - FIRST][row] = half_of(x->a[k / 2], k % 2);
            B[g][k - FIRST][row] = half_of(x->b[k / 2], k % 2);
        }
        memcpy(D[row] + g * 4, x->d, sizeof(float[4]));
    }
    for (int row = 0; row < 16; row++)
        for (int g = 0; g < 4; g++)
            for (int k = 0; k <= LAST - FIRST; k++)
                for (int col = 0; col < 16; col++)
                    D[row][col] = fmaf(A[g][k][row], B[g][k][col], D[row][col]);
    for (int lane = 0; lane < 64; lane++)
        memcpy(((product *)args[lane])->d, D[lane % 16] + lane / 16 * 4, sizeof(float[4]));
}

void gpu_mma(float *d, const uint32_t (&a)[4], const uint32_t (&b)[4])
{
    product p = {d, a, b};
#ifdef SV_EMULATED_GFX950
    wave_meet(22, &p, mfma<0, 7>);
#else
    wave_meet(22, &p, mfma<0, 3>);
    wave_meet(23, &p, mfma<4, 7>);
#endif
}

void gpu_mma8(float *d, const uint32_t (&a)[4], const uint32_t (&b)[4], int)
{
    gpu_mma(d, a, b);
}

void gpu_mma_t(float *d, const uint32_t (&p)[2], const uint32_t (&t)[2])
{
    product x = {d, p, t};
    wave_meet(24, &x, mfma<0, 3>);
}

void gpu_mma_ones(float *d, const uint32_t (&p)[2])
{
    const uint32_t ones[2] = {0x3f803f80u, 0x3f803f80u};
    product x = {d, p, ones};
    wave_meet(25, &x, mfma<0, 3>);
}

#endif

/* ---------------------------------------------------------------- matrices of sm_90a */

static uint16_t swizzled(uint32_t at)
{
    uint16_t x;
    at ^= at >> 3 & 0x70;
    memcpy(&x, emu_shared_ptr(at, 2), 2);
    return x;
}

/* Each warp sees the whole of B and its own sixteen rows of A, so a warp can work alone. */
struct wgmma { float *d; const uint32_t *a; uint64_t b; int n; bool keys; int keep; };

static void wgmma_run(void **args)
{
    const auto *w = (const wgmma *)args[0];
    const uint32_t start = ((uint32_t)(w->b & 0x3fff) << 4) + emu.rank * (uint32_t)emu.smem, leading = (uint32_t)(w->b >> 16 & 0x3fff) << 4,
                   stride = (uint32_t)(w->b >> 32 & 0x3fff) << 4;
    static float A[16][16], B[16][256], D[16][256];
    if (w->b >> 62 != 1)
        emu_fail("wgmma: another swizzle than 128 bytes");
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < w->n; n++) {
            const uint32_t at = w->keys ? start + n / 8 * stride + n % 8 * 128 + k * 2
                                        : start + n / 64 * leading + n % 64 * 2 + k / 8 * stride + k % 8 * 128;
            B[k][n] = half_of(swizzled(at), 0);
        }
    for (int lane = 0; lane < 32; lane++) {
        const auto *x = (const wgmma *)args[lane];
        for (int i = 0; i < 8; i++)
            A[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2] = half_of(x->a[i / 2], i % 2);
        for (int i = 0; i < w->n / 2; i++)
            D[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2] = x->keep ? x->d[i] : 0;
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int col = 0; col < w->n; col++)
                D[row][col] = fmaf(A[row][k], B[k][col], D[row][col]);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < w->n / 2; i++)
            ((const wgmma *)args[lane])->d[i] = D[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
}

void emu_wgmma(float *d, const uint32_t *a, uint64_t b, int n, bool keys, int keep)
{
    wgmma w = {d, a, b, n, keys, keep};
    emu_meet(13, &w, wgmma_run);
}
void emu_wgmma_commit(void) {}
void emu_wgmma_wait(int) {}

/* ---------------------------------------------------------------- ranks */

void gpu_idle(void)
{
    looks = true; /* it is another process that it waits for */
    if (threadIdx.x % 32 == 0)
        usleep(20);
    emu_yield();
}
uint64_t gpu_clock_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}
