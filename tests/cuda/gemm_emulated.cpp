/*
 * gemm_emulated.cpp - the portable matrix products run on a CPU by tests/cuda/emulated, as waves of
 * 32 (mma.sync) or, with SV_EMULATED_WAVE64, of 64 (MFMA): within rounding of plain sums, a row's
 * bits the same alone and in company, and nothing written behind the result. Codes give the bits of
 * the packed matrix of their values, one row of them by the kernel for one row too.
 */
#include "backend/cuda/gemm_one.h"
#include "drawn_codes.h"

#include <random>
#include <vector>

bool sv_cuda_check(struct sv_cuda *, cudaError_t, const char *)
{
    return true;
}
int sv_cuda_try(cudaError_t, struct sv_err *, const char *)
{
    return 0;
}

namespace
{
enum { UNITS = 12, MOST = 128 };
std::mt19937 rng(1);
int n_one; /* products by the kernel for one row */
/* As gemm.cu does; waves of 64 have no such kernel. */
bool run_one(sv_cuda *cu, const uint16_t *x, int32_t k, const sv_gemm_args *a)
{
#ifndef SV_EMULATED_WAVE64
    if (a->n_rows == 1 && (a->codes == 4 ? sv_gemm_one4_portable(cu, x, k, a)
                                         : a->codes == 8 && sv_gemm_one_portable(cu, x, k, a)))
        return ++n_one;
#endif
    return false;
}
uint16_t some(void)
{
    return __float2bfloat16_rn(std::normal_distribution<float>()(rng)).x;
}
float value(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}

struct product {
    int32_t k, n_out[3], n_parts, mode;
    std::vector<uint16_t> w[3], packed[3], x;
    drawn_codes drawn[3];
    std::vector<uint8_t> tiles[3];
    std::vector<float> bias;
    sv_cuda cu = {};
    sv_cuda_gemm_state g = {};
    std::vector<float4> posted, pieces;
    std::vector<uint32_t> arrived;
    std::vector<uint64_t> best;
    int32_t columns, ldy;

    /* codes: of each part, or none */
    product(int32_t mode_, int32_t k_, std::vector<int32_t> outs, std::vector<int32_t> codes)
        : k(k_), n_parts((int32_t)outs.size()), mode(mode_)
    {
        sv_rng draws = {5};
        columns = 0;
        for (int p = 0; p < n_parts; p++) {
            n_out[p] = outs[p];
            w[p].resize((size_t)n_out[p] * k);
            packed[p].assign(sv_packed_bytes(n_out[p], k) / 2, 0);
            std::vector<float> values(w[p].size());
            if (!codes.empty()) {
                drawn[p].draw(draws, codes[p], k, values);
                tiles[p].assign(drawn[p].bytes(n_out[p], k), 0xff);
                drawn[p].tiles(&cu, 0, n_out[p], k, tiles[p].data());
            }
            for (int32_t r = 0; r < n_out[p]; r++)
                for (int32_t c = 0; c < k; c++)
                    packed[p][sv_packed_at(r, c, k)] = w[p][(size_t)r * k + c] =
                        codes.empty() ? some() : sv_f32_to_bf16(values[(size_t)r * k + c]);
            columns += n_out[p];
        }
        if (mode == SV_GEMM_GATED)
            columns = n_out[0];
        ldy = (columns + 8 + 7) / 8 * 8;
        x.resize((size_t)MOST * k);
        for (auto &v : x)
            v = some();
        bias.resize((size_t)n_out[0]);
        for (auto &v : bias)
            v = value(some());
        posted.assign(2 * UNITS * 16 * 16, {});
        memset(posted.data(), 0xff, posted.size() * sizeof(float4));
        pieces.assign(2 * UNITS * MOST * 16, {});
        arrived.assign(UNITS * 4, 0);
        best.assign((size_t)SV_GEMM_BEST_SLOTS * SV_GEMM_BEST_ROWS, 0);
        cu.gemm = &g;
        cu.n_sms = UNITS / GPU_BLOCKS;
        g.posted = posted.data();
        cu.smem_block = (EMU_SHARED_KIB - 1) * 1024;
        sv_gemm_portable_open(&cu, NULL);
#ifndef SV_EMULATED_WAVE64
        sv_gemm_one_portable_open(&cu, NULL);
        sv_gemm_one4_portable_open(&cu, NULL);
#endif
    }

    /* Rows row0 to row0 + n - 1 into y, MOST rows of ldy floats or bf16; from codes, or packed. */
    std::vector<uint8_t> run(int32_t row0, int32_t n, bool coded)
    {
        sv_gemm_args a = {};
        const size_t size = mode == SV_GEMM_F32 ? 4 : 2;
        std::vector<uint8_t> y(size * ldy * (n + 1), 0xee);
        a.mode = mode;
        a.n_rows = n;
        a.ldy = ldy;
        a.y = y.data();
        int32_t col = 0;
        for (int p = 0; p < n_parts; p++) {
            sv_gemm_item &it = a.part[a.n_parts++];
            it.w = (const uint8_t *)packed[p].data();
            if (coded) { /* as gemm.cu does */
                it.w = it.wcomp = tiles[p].data();
                it.code = drawn[p].code;
                a.codes = sv_codes_bits((sv_codes_code)it.code);
            }
            it.bias = p == 0 ? bias.data() : NULL;
            it.bias_dtype = SV_F32;
            it.n_out = n_out[p];
            it.n_bands = sv_tiles(n_out[p]);
            it.col0 = mode == SV_GEMM_GATED ? 0 : col;
            it.wide = it.col0 % 8 == 0;
            col += n_out[p];
        }
        sv_gemm_lay_blocks(&a, SV_PORTABLE_BLOCK);
        a.split = sv_split_make(a.split.n_blocks, sv_tiles(k), UNITS, false);
        a.pieces = pieces.data();
        a.arrived = arrived.data();
        a.best = best.data();
        const uint16_t *from = x.data() + (size_t)row0 * k;
        if (!run_one(&cu, from, k, &a))
            sv_gemm_portable(&cu, from, k, k, &a);
        if (mode == SV_GEMM_ARGMAX) { /* as head.cu does */
            const int lines = sv_split_grid(&a.split, UNITS) * 4;
            for (int32_t r = 0; r < n; r++) {
                uint64_t key = 0;
                for (int i = 0; i < lines; i++)
                    key = sv_best_of(key, best[(size_t)i * SV_GEMM_BEST_ROWS + r]);
                const int32_t id = (int32_t) ~(uint32_t)key;
                memcpy(&y[(size_t)r * ldy * 2], &id, 4);
            }
        }
        for (auto v : arrived)
            if (v)
                printf("a count is left\n"), exit(1);
        return y;
    }

    double plain(int32_t r, int p, int32_t o, double *size) const
    {
        double sum = p == 0 ? bias[o] : 0;
        *size = fabs(sum);
        for (int32_t c = 0; c < k; c++) {
            const double t = (double)value(w[p][(size_t)o * k + c]) * value(x[(size_t)r * k + c]);
            sum += t;
            *size += fabs(t);
        }
        return sum;
    }

    int wrong(const std::vector<uint8_t> &y, int32_t row0, int32_t n) const
    {
        for (int32_t r = 0; r < n; r++) {
            int32_t col = 0;
            if (mode == SV_GEMM_ARGMAX) {
                int32_t id, want = 0;
                double most = -1e30, size, mine;
                memcpy(&id, &y[(size_t)r * ldy * 2], 4);
                for (int32_t o = 0; o < n_out[0]; o++) {
                    const double v = plain(row0 + r, 0, o, &size);
                    if (v > most)
                        most = v, want = o;
                }
                if (id < 0 || id >= n_out[0] || (mine = plain(row0 + r, 0, id, &size), mine < most - 1e-4))
                    return printf("row %d: id %d, not %d\n", r, id, want), 1;
                continue;
            }
            for (int p = 0; p < n_parts; p++)
                for (int32_t o = 0; o < n_out[p]; o++, col++) {
                    double size, want = plain(row0 + r, p, o, &size), tolerance = 1e-6 * size;
                    if (mode == SV_GEMM_GATED) {
                        if (p)
                            continue;
                        double up = plain(row0 + r, 1, o, &size);
                        want = want / (1 + exp(-want)) * up;
                        tolerance = 0.03 + fabs(want) / 50;
                    }
                    double got;
                    if (mode == SV_GEMM_F32) {
                        float f;
                        memcpy(&f, &y[((size_t)r * ldy + col) * 4], 4);
                        got = f;
                    } else {
                        uint16_t h;
                        memcpy(&h, &y[((size_t)r * ldy + col) * 2], 2);
                        got = value(h);
                        tolerance += fabs(want) / 200;
                    }
                    if (!(fabs(got - want) <= tolerance))
                        return printf("row %d part %d column %d: %g, not %g\n", r, p, o, got, want), 1;
                }
        }
        if (mode != SV_GEMM_ARGMAX) { /* padding */
            const size_t size = mode == SV_GEMM_F32 ? 4 : 2;
            for (size_t i = 0; i < y.size(); i++)
                if ((i / size / ldy >= (size_t)n || i / size % ldy >= (size_t)columns) && y[i] != 0xee)
                    return printf("written behind the result\n"), 1;
        }
        return 0;
    }
};

int check(int32_t mode, int32_t k, std::vector<int32_t> outs, std::vector<int32_t> codes = {})
{
    product p(mode, k, outs, codes);
    const bool coded = !codes.empty();
    const int32_t counts[] = {128, 65, 64, 33, 17, 16, 9, 8, 3, 1};
    const size_t size = mode == SV_GEMM_F32 ? 4 : 2, row = size * p.ldy;
    const std::vector<uint8_t> all = p.run(0, MOST, false);
    if (p.wrong(all, 0, MOST))
        return 1;
    int n_checked = 0;
    for (int32_t n : counts)
        for (int32_t row0 = 0; row0 + n <= MOST; row0 += n > 8 || coded ? MOST : 41) {
            const std::vector<uint8_t> y = p.run(row0, n, coded);
            for (int32_t r = 0; r < n; r++)
                if (memcmp(&y[r * row], &all[(row0 + r) * row], row))
                    return printf("mode %d, k %d, codes %d, %d of %d rows: row %d has other bits\n", mode, k,
                                  coded ? codes[0] : -1, n, MOST, r), 1;
            if (!coded && p.wrong(y, row0, n))
                return 1;
            n_checked++;
        }
    printf("mode %d, k %d, %d parts, codes %d: %d launches, bits equal\n", mode, k, (int)outs.size(), coded ? codes[0] : -1,
           n_checked + 1);
    return 0;
}

/* The last tile may have eight columns, parts other codes of the same bits. */
int check_codes(void)
{
    return check(SV_GEMM_ACT, 512, {192, 64, 64}, {SV_CODES_F8, SV_CODES_I8, SV_CODES_F8_WIDE}) ||
           check(SV_GEMM_GATED, 352, {72, 72}, {SV_CODES_I8_TWO, SV_CODES_I8}) ||
           check(SV_GEMM_GATED, 352, {72, 72}, {SV_CODES_I4_HALF_TWO, SV_CODES_I4}) ||
           check(SV_GEMM_F32, 456, {136}, {SV_CODES_F8}) || check(SV_GEMM_GATED, 512, {96, 96}, {SV_CODES_F8, SV_CODES_F8}) ||
           check(SV_GEMM_ACT, 512, {128, 64, 64}, {SV_CODES_I4, SV_CODES_I4_HALF, SV_CODES_I4_TWO}) ||
           check(SV_GEMM_F32, 456, {136}, {SV_CODES_I4}) || check(SV_GEMM_GATED, 320, {72, 72}, {SV_CODES_MX4, SV_CODES_NV4}) ||
           check(SV_GEMM_F32, 1280, {72}, {SV_CODES_NV4}) || check(SV_GEMM_F32, 1280, {72}, {SV_CODES_I8}) ||
           check(SV_GEMM_ACT, 512, {128, 72}, {SV_CODES_K4, SV_CODES_K4}) || check(SV_GEMM_F32, 1280, {72}, {SV_CODES_K4}) ||
           check(SV_GEMM_F32, 768, {136}, {SV_CODES_K5}) || check(SV_GEMM_GATED, 512, {72, 72}, {SV_CODES_K5, SV_CODES_K5}) ||
           check(SV_GEMM_GATED, 512, {160, 160}, {SV_CODES_K6, SV_CODES_K6}) || check(SV_GEMM_F32, 1280, {72}, {SV_CODES_K6});
}
}

int main(int, char **)
{
    const bool bad = check_codes() || check(SV_GEMM_ACT, 512, {192, 64, 64}) || check(SV_GEMM_ACT, 1280, {200}) ||
                     check(SV_GEMM_F32, 456, {136}) /* the last tile has eight columns */ ||
                     check(SV_GEMM_GATED, 512, {160, 160}) || check(SV_GEMM_ARGMAX, 320, {500});
    printf("waves of %d, %d products of one row by itself: %s\n", (int)GPU_WAVE, n_one, bad ? "FAILED" : "passed");
    return bad;
}
