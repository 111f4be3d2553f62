/*
 * gemm_portable_k.cu - as gemm_portable_codes.cu, with K-quants.
 *
 * Defines the table for gemm_portable_codes.cu. Must not: hold anything else.
 */
#include "backend/gpu/gemm_portable.cuh"

/* Waves of 64, for which compiling takes long, have fewer widths. */
enum { N32 = GPU_WAVE > 32 ? 128 : 32, N64 = GPU_WAVE > 32 ? 128 : 64 };
static const struct sv_gemm_width widths[][6] = {
    CODED_WIDTHS(CODES5, N32, N64), CODED_WIDTHS(CODES6, N32, N64), CODED_WIDTHS(CODES7, N32, N64)};

const struct sv_gemm_kind *sv_gemm_portable_k(int32_t bits)
{
    static const struct sv_gemm_kind kinds[] = {CODED_KIND(widths[0], CODES5),
                                                CODED_KIND(widths[1], CODES6),
                                                CODED_KIND(widths[2], CODES7)};
    return &kinds[bits - 5];
}
