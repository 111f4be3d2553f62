/*
 * fp8_emulated.cpp - the CUDA kernels of fp8_sm90.cu run on a CPU by tests/cuda/emulated: every byte, scale and byte of
 * padding as fp8.cuh defines them, and nothing behind them.
 *
 * Built and started by fp8_emulated.test.sh. tests/backend/test_cuda_layout.c checks fp8.cuh itself.
 */
#include "backend/gpu/fp8.cuh"
#include "backend/cuda/fp8.h"

#include <vector>

/* device.cu's, which the emulator cannot take whole. */
bool sv_cuda_check(struct sv_cuda *, cudaError_t, const char *)
{
    return true;
}

namespace
{
typedef std::vector<uint16_t> numbers; /* bf16 */

numbers some_numbers(sv_rng &rng, int32_t rows, int32_t cols)
{
    numbers x((size_t)rows * cols);
    for (size_t i = 0; i < x.size(); i++) {
        const int32_t r = (int32_t)(i / cols);
        x[i] = sv_f32_to_bf16(ldexpf(sv_rng_normal(&rng), r * 5 % 200 - 120));
        if (r % 5 == 3 && sv_rng_next(&rng) % 3 == 0)
            x[i] = 0x8000;
        if (r % 9 == 7)
            x[i] = 0;
    }
    return x;
}

/* The definition: one row, byte c at at(c). */
template <typename At> int row_differs(const uint16_t *x, int32_t k, const uint8_t *got, float scale, At at)
{
    uint32_t most = 0;
    for (int32_t c = 0; c < k; c++)
        most = x[c] & 0x7fffu ? (most > (x[c] & 0x7fffu) ? most : x[c] & 0x7fffu) : most;
    const float want = sv_fp8_scale(most);
    if (scale != want) {
        printf("scale %g, not %g\n", scale, want);
        return 1;
    }
    for (int32_t c = 0; c < k; c++)
        if (got[at(c)] != sv_fp8_of(sv_bf16_to_f32(x[c]) * sv_fp8_inverse(want))) {
            printf("column %d: %02x\n", c, got[at(c)]);
            return 1;
        }
    return 0;
}

int check_rows(sv_cuda *cu, sv_rng &rng, int32_t n, int32_t k)
{
    const int64_t ldx = k + 8, ld = sv_fp8_row_bytes(k);
    const numbers x = some_numbers(rng, n, (int32_t)ldx);
    std::vector<uint8_t> to((size_t)((n + 1) * ld), 0xee);
    std::vector<float> scales((size_t)n + 1, -1);
    sv_cuda_fp8_rows(cu, x.data(), ldx, k, n, to.data(), scales.data());
    int bad = scales[(size_t)n] != -1;
    for (int32_t r = 0; r < n; r++)
        bad |= row_differs(&x[(size_t)(r * ldx)], k, &to[(size_t)(r * ld)], scales[(size_t)r],
                           [](int32_t c) { return (size_t)c; });
    for (int64_t i = 0; i < (n + 1) * ld; i++)
        bad |= (i / ld == n || i % ld >= k) && to[(size_t)i] != 0xee;
    if (bad)
        printf("%d rows of %d: FAILED\n", n, k);
    return bad;
}

/* In two runs of rows, as they come from the host. */
int check_pack(sv_cuda *cu, sv_rng &rng, int32_t rows, int32_t cols)
{
    const numbers x = some_numbers(rng, rows, cols);
    const size_t n = sv_fp8_bytes(rows, cols);
    std::vector<uint8_t> to(n + 8, 0xee), seen(n, 0);
    const int32_t first = rows > 64 ? rows / 2 / 64 * 64 + 64 : 0;
    if (first && first < rows)
        sv_cuda_fp8_pack(cu, x.data(), 0, first, rows, cols, to.data());
    const int32_t from = first < rows ? first : 0;
    sv_cuda_fp8_pack(cu, &x[(size_t)from * cols], from, rows - from, rows, cols, to.data());
    int bad = to[n] != 0xee;
    const float *scale = (const float *)(to.data() + sv_fp8_scales_at(rows, cols));
    for (int32_t r = 0; r < rows; r++) {
        bad |= row_differs(&x[(size_t)r * cols], cols, to.data(), scale[r],
                           [r, cols](int32_t c) { return sv_fp8_at(r, c, cols); });
        for (int32_t c = 0; c < cols; c++)
            seen[sv_fp8_at(r, c, cols)] = 1;
    }
    for (size_t i = 0; i < sv_fp8_scales_at(rows, cols); i++)
        bad |= !seen[i] && to[i] != 0;
    for (int32_t r = rows; r < sv_tiles(rows) * SV_TILE; r++)
        bad |= scale[r] != 0;
    if (bad)
        printf("weights of %d x %d: FAILED\n", rows, cols);
    return bad;
}

/* Rows in groups, odd ones among them. */
int check_group_rows(sv_cuda *cu, sv_rng &rng, int32_t n, int32_t k)
{
    const int64_t ldx = k + 8, ld = sv_fp8_row_bytes(k);
    const int32_t n_k = sv_fp8_tiles(k), ld_scales = n + 3;
    numbers x = some_numbers(rng, n, (int32_t)ldx);
    x[(size_t)((n - 1) * ldx + k - 1)] = n % 2 ? 0x7f80 : 0xffc1;
    std::vector<uint8_t> to((size_t)((n + 1) * ld), 0xee);
    std::vector<float> scales((size_t)(n_k * ld_scales) + 1, -1);
    sv_cuda_fp8_group_rows(cu, x.data(), ldx, k, n, to.data(), scales.data(), ld_scales);
    int bad = 0;
    for (int32_t g = 0; g <= n_k; g++)
        for (int32_t r = n; r < ld_scales && g < n_k; r++)
            bad |= scales[(size_t)(g * ld_scales + r)] != -1;
    for (int32_t r = 0; r < n; r++)
        for (int32_t c0 = 0; c0 < k; c0 += 128) {
            const int32_t c1 = c0 + 128 < k ? c0 + 128 : k;
            uint32_t most = 0;
            for (int32_t c = c0; c < c1; c++)
                most = (x[(size_t)(r * ldx + c)] & 0x7fffu) > most ? x[(size_t)(r * ldx + c)] & 0x7fffu : most;
            const float want = sv_fp8_group_scale(most), inverse = sv_fp8_group_inverse(want);
            bad |= memcmp(&scales[(size_t)(c0 / 128 * ld_scales + r)], &want, 4) != 0;
            for (int32_t c = c0; c < c1; c++)
                bad |= to[(size_t)(r * ld + c)] !=
                       (inverse > 0 ? sv_fp8_of(sv_bf16_to_f32(x[(size_t)(r * ldx + c)]) * inverse) : 0);
        }
    for (int64_t i = 0; i < (n + 1) * ld; i++)
        bad |= (i / ld == n || i % ld >= k) && to[(size_t)i] != 0xee;
    if (bad)
        printf("%d rows of %d in groups: FAILED\n", n, k);
    return bad;
}

/* Codes of a file into tiles, in two runs of rows. */
int check_group_pack(sv_cuda *cu, sv_rng &rng, int32_t rows, int32_t cols)
{
    const int32_t n_words = sv_tiles(cols), first = rows > 64 ? 64 : rows;
    std::vector<uint8_t> codes((size_t)(rows * cols)), to(sv_fp8_group_bytes(rows, cols) + 8, 0xee);
    std::vector<float> words((size_t)(rows * n_words));
    for (uint8_t &c : codes)
        c = (uint8_t)sv_rng_next(&rng);
    for (size_t i = 0; i < words.size(); i++)
        words[i] = 1.0f + (float)(i / 2 * 2 % (size_t)n_words) + (float)(i / (size_t)n_words);
    sv_cuda_fp8_group_pack(cu, codes.data(), words.data(), 0, first, rows, cols, to.data());
    if (rows > first)
        sv_cuda_fp8_group_pack(cu, &codes[(size_t)(first * cols)], &words[(size_t)(first * n_words)], first,
                               rows - first, rows, cols, to.data());
    int bad = to[to.size() - 8] != 0xee;
    const float *scale = (const float *)(to.data() + sv_fp8_scales_at(rows, cols));
    for (int32_t r = 0; r < sv_tiles(rows) * SV_TILE; r++)
        for (int32_t c = 0; c < sv_fp8_tiles(cols) * 128; c++) {
            const bool there = r < rows && c < cols;
            const size_t at = sv_fp8_at(r, c, cols);
            bad |= to[at] != (there ? codes[(size_t)(r * cols + c)] : 0);
            /* The scale of a byte's row and tile. */
            const size_t line = at / 128;
            bad |= scale[line] != (r < rows ? words[(size_t)(r * n_words + c / 128 * 2)] : 0.0f);
        }
    if (bad)
        printf("codes of %d x %d: FAILED\n", rows, cols);
    return bad;
}
} // namespace

int main()
{
    sv_cuda cu = {};
    sv_rng rng = {11};
    int bad = 0, n_checks = 0;
    for (int32_t k : {8, 72, 136, 320, 1032, 4096, 12288, 12808, 20480})
        for (int32_t n : {1, 3, 16}) {
            bad |= check_rows(&cu, rng, n, k);
            n_checks++;
        }
    for (int32_t k : {8, 72, 136, 1032, 4096})
        for (int32_t n : {1, 4}) {
            bad |= check_group_rows(&cu, rng, n, k);
            n_checks++;
        }
    for (int32_t rows : {2, 64, 77, 300})
        for (int32_t cols : {8, 136, 320}) {
            bad |= check_group_pack(&cu, rng, rows, cols);
            n_checks++;
        }
    for (int32_t rows : {2, 64, 77, 300})
        for (int32_t cols : {8, 128, 136, 320, 1032}) {
            bad |= check_pack(&cu, rng, rows, cols);
            n_checks++;
        }
    printf("%d checks: %s\n", n_checks, bad ? "FAILED" : "ok");
    return bad;
}
