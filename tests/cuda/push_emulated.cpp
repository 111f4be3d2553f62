/*
 * push_emulated.cpp - the ends of matrix products that send this rank's part of a join, run on a CPU by tests/cuda/emulated:
 * pairs of units that add up each sum (gemm_pair.cuh, gemm_out.cuh) and the warp that sends a single row (join.cuh). Each
 * 16 bytes of each row go to each other rank once, and are those of y; nothing else is sent, nothing written behind y.
 *
 * Weight rows of any number of strips of 16, sums cut in two and in four, 1 to 128 rows in each width that has room for
 * them. What is summed up are small integers, so that every sum is exact and says where it belongs.
 */
#include "backend/gpu/gpu_peers.h"

#include <vector>

/* What kernels send from here on is counted. */
static std::vector<uint4 *> sent;
static void counted_send16(uint4 *at, uint4 w)
{
    sent.push_back(at);
    gpu_send16(at, w);
}
#define gpu_send16 counted_send16
#include "backend/cuda/gemm_pair.cuh"

#include <algorithm>

namespace
{
enum { N_K = 16, WARPS = 8, RANKS = 3, RANK = 1, MOST = 128, RING = 96 * 1024, BEHIND = RING + 4096 };
const uint32_t NOTHING = 0xffffffffu;

/* Unit u's piece of weight row `row` and row `token` of x: below 32. */
float piece(int32_t u, int32_t row, int32_t token)
{
    return (float)(((uint32_t)(row * 131 + token * 17 + u * 7) * 2654435761u) >> 27);
}

struct launch {
    sv_gemm_args a;
    int32_t n_sharers;
    bool shift; /* the ring's last stage in use is another one */
};

/* A thread block as gemm_sm90.cu has it (PAIRED), from where its sums are there. */
template <int N> void end_of_pairs(const launch l)
{
    const sv_gemm_args &a = l.a;
    GPU_SHARED(smem);
    const uint32_t at = gpu_shared_at(smem), ready = at + RING, got = ready + 8;
    const int32_t me = (int32_t)(blockIdx.x & 1), half = (int32_t)(blockIdx.x / 2 & 1), unit = (int32_t)(blockIdx.x / 4 * 2) + me,
                  block = sv_split_start(&a.split, unit) / a.split.n_k, warp = (int32_t)threadIdx.x / 32,
                  lane = (int32_t)threadIdx.x % 32, band_in = half * 2 + warp / 4;
    const sv_gemm_item &it = a.part[sv_gemm_part_of(a, block)];
    const int32_t band = (block - it.block0) * 4 + band_in;
    const bool present = band < it.n_bands;
    if (threadIdx.x == 0) {
        bar_init(ready, 2 * WARPS);
        for (int i = 0; i < WARPS; i++)
            bar_init(got + 8 * i, 1);
    }
    attn_cluster_sync();
    float acc[N / 2];
    for (int i = 0; i < N / 2; i++) {
        const int32_t row = band * SV_TILE + warp % 4 * 16 + lane / 4 + i / 2 % 2 * 8,
                      token = i / 4 * 8 + lane % 4 * 2 + i % 2;
        acc[i] = token < a.n_rows && row < it.n_out ? piece(unit, row, token) : 0;
    }
    if (lane == 0)
        pair_expect<N>(a.n_rows, (uint32_t)me, got + 8 * warp, present);
    if (lane < 2)
        bar_arrive(far_addr(ready, (uint32_t)lane));
    const pair_side side = {(uint32_t)me, at, RING, l.shift ? 60u * 1024 : 0, ready, got + 8 * warp};
    const int32_t n_pairs = l.n_sharers / 2;
    if (present)
        pair_exchange<N, 4, false, true>(acc, a, side, unit / 2 % n_pairs, n_pairs, unit, block, band_in,
                                   spot_of(a, block, band, smem + BEHIND + warp * SV_PATCH_BYTES), WARPS);
    else
        bar_wait(ready, 0);
    attn_cluster_sync();
}

/* The last lines of gemm_one_sm90.cu, a warp for each strip, also of the last band's that are not there. */
void end_of_one(const launch l)
{
    const sv_gemm_args &a = l.a;
    const int32_t lane = (int32_t)threadIdx.x % 32, row = (int32_t)blockIdx.x * 16 + lane % 16;
    const __nv_bfloat16 v = __float2bfloat16_rn(piece(row / SV_SM90_BLOCK, row, 0));
    if (lane < 16 && row < a.part[0].n_out)
        ((__nv_bfloat16 *)a.y)[row] = v;
    sv_join_push(a.push, lane < 16 && row < a.part[0].n_out ? row / 8 : -1, v);
}

/* y, and what was sent of (n_rows, n_out) to ranks 0 and 2 of three. */
int check(const launch &l, const std::vector<uint16_t> &y, const std::vector<uint4> *window, const char *what)
{
    const int32_t n_out = l.a.part[0].n_out, n_rows = l.a.n_rows, places = n_out / 8;
    const auto wrong = [&](const char *why, int32_t row, int32_t col) {
        fprintf(stderr, "%s: %d weight rows in %d pieces, %d rows: %s at row %d, column %d\n", what, n_out, l.n_sharers,
                n_rows, why, row, col);
        return 1;
    };
    for (int32_t r = 0; r < (int32_t)y.size() / n_out; r++)
        for (int32_t c = 0; c < n_out; c++) {
            float sum = 0;
            for (int32_t i = 0; i < l.n_sharers; i++)
                sum += piece(c / SV_SM90_BLOCK * l.n_sharers + i, c, r);
            if (y[(size_t)(r * n_out + c)] != (r < n_rows ? __float2bfloat16_rn(sum).x : 0xeeee))
                return wrong("another number", r, c);
        }
    std::sort(sent.begin(), sent.end());
    for (int r = 0; r < RANKS; r++)
        for (int32_t i = 0; i < (int32_t)window[r].size(); i++) {
            const auto [from, to] = std::equal_range(sent.begin(), sent.end(), &window[r][(size_t)i]);
            const auto n = to - from;
            const bool there = r != RANK && i < n_rows * places;
            if (n != there)
                return wrong(n > there ? "sent too often" : "not sent", i / places, i % places * 8);
            if (there && memcmp(&window[r][(size_t)i], &y[(size_t)i * 8], 16))
                return wrong("other bits sent", i / places, i % places * 8);
        }
    return sent.size() == (size_t)(n_rows * places * (RANKS - 1)) ? 0 : wrong("sent elsewhere", -1, -1);
}

template <int N> int run(int32_t n_out, int32_t n_sharers, int32_t n_rows, void (*kernel)(const launch), bool one)
{
    launch l = {};
    sv_gemm_args &a = l.a;
    l.n_sharers = one ? 1 : n_sharers;
    l.shift = n_rows % 2;
    a.n_rows = n_rows;
    a.n_parts = 1;
    a.ldy = n_out;
    a.part[0].n_out = n_out;
    a.part[0].n_bands = sv_tiles(n_out);
    a.part[0].wide = 1;
    sv_gemm_lay_blocks(&a, SV_SM90_BLOCK);
    a.split.n_k = N_K;
    a.split.n_units = n_sharers * a.split.n_blocks;
    a.split.skew = n_sharers == 4 ? (int32_t)SV_SPLIT_SKEW : 0;
    if (sv_split_paired(&a.split) != n_sharers)
        return fprintf(stderr, "units that form no pairs\n");
    std::vector<float4> pieces((size_t)2 * a.split.n_units * 4 * piece_lines(N) * PIECE_LINE);
    memset(pieces.data(), 0xff, pieces.size() * sizeof pieces[0]);
    std::vector<uint16_t> y((size_t)(n_rows + 2) * n_out, 0xeeee);
    std::vector<uint4> window[RANKS];
    a.pieces = pieces.data();
    a.y = y.data();
    a.sends = 1;
    a.push.n = RANKS;
    a.push.rank = RANK;
    for (int r = 0; r < RANKS; r++) {
        window[r].assign(y.size() / 8, {NOTHING, NOTHING, NOTHING, NOTHING});
        a.push.to[r] = window[r].data();
    }
    sent.clear();
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attr = {};
    attr.id = cudaLaunchAttributeClusterDimension;
    attr.val.clusterDim.x = 2;
    config.gridDim = one ? dim3((unsigned)a.part[0].n_bands * 4) : dim3(2 * (unsigned)a.split.n_units);
    config.blockDim = dim3(one ? 32 : WARPS * 32);
    config.dynamicSmemBytes = BEHIND + WARPS * SV_PATCH_BYTES;
    config.attrs = &attr;
    config.numAttrs = !one;
    cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448);
    cudaLaunchKernelEx(&config, kernel, l);
    return check(l, y, window, one ? "one row" : "pairs");
}

/* Where gemm_sm90.cu sends, a unit has tiles of one block alone, and that one has n_sharers units. */
int splits(void)
{
    for (int32_t n_out = 16; n_out <= 16384; n_out += n_out < 1024 ? 16 : 512)
        for (int32_t n_k = 1; n_k <= 240; n_k++)
            for (int32_t most : {57, 66}) {
                const sv_split s = sv_split_make((n_out + SV_SM90_BLOCK - 1) / SV_SM90_BLOCK, n_k, most, true);
                const int32_t n = sv_split_paired(&s);
                for (int32_t u = 0; n && s.n_units > s.n_blocks && u < s.n_units; u++)
                    if (s.n_units != n * s.n_blocks || sv_split_start(&s, u) / n_k != u / n ||
                        (sv_split_start(&s, u + 1) - 1) / n_k != u / n)
                        return fprintf(stderr, "%d weight rows, %d tiles: unit %d is not of one block\n", n_out, n_k, u);
            }
    return 0;
}
} // namespace

int main(void)
{
    static const int32_t rows[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 95, 96, 97, 112, 127, 128};
    int bad = splits(), n = 0;
    for (int32_t n_out : {16, 32, 48, 64, 80, 112, 128, 144, 192, 208, 256, 272, 336, 512, 528})
        for (int32_t n_sharers : {2, 4}) {
            for (int32_t n_rows : rows) {
                const bool all = n_out < 300 || n_rows % 16 == 1;
                if (bad || !all)
                    continue;
#define WIDTH(N)                                                                                                                   \
    if (n_rows <= N && n_rows > N / 2 - 16)                                                                                        \
    bad |= run<N>(n_out, n_sharers, n_rows, end_of_pairs<N>, false), n++
                WIDTH(8);
                WIDTH(16);
                WIDTH(32);
                WIDTH(64);
                WIDTH(96);
                WIDTH(112);
                WIDTH(128);
            }
            bad |= run<8>(n_out, n_sharers, 1, end_of_one, true);
        }
    if (!bad)
        printf("%d products: each part of a join sent once\n", n);
    return bad != 0;
}
