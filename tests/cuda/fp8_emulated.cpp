/*
 * fp8_emulated.cpp - the CUDA kernels of fp8_sm90.cu run on a CPU by tests/cuda/emulated: every byte, scale and byte of
 * padding as fp8.cuh defines them, and nothing behind them.
 *
 * Built and started by fp8_emulated.test.sh. tests/backend/test_cuda_layout.c checks fp8.cuh itself.
 */
#include "backend/gpu/fp8.cuh"
#include "backend/cuda/cuda.h"

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
    for (int32_t rows : {2, 64, 77, 300})
        for (int32_t cols : {8, 128, 136, 320, 1032}) {
            bad |= check_pack(&cu, rng, rows, cols);
            n_checks++;
        }
    printf("%d checks: %s\n", n_checks, bad ? "FAILED" : "ok");
    return bad;
}
