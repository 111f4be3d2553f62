/*
 * gemm_portable_codes.cu - the products of gemm_portable.cuh with weights in codes (codes.cuh).
 *
 * Defines the table for gemm_portable.cu. Must not: hold anything else.
 */
#include "backend/gpu/gemm_portable.cuh"

static const struct sv_gemm_width widths[][6] = {CODED_WIDTHS(CODES4, 32, 64),
                                                 CODED_WIDTHS(CODES8, 32, 64)};

const struct sv_gemm_kind *sv_gemm_portable_codes(int32_t bits)
{
    static const struct sv_gemm_kind kinds[] = {CODED_KIND(widths[0], CODES4),
                                                CODED_KIND(widths[1], CODES8)};
    return bits % 4 ? sv_gemm_portable_k(bits) : &kinds[bits == 8];
}
