/*
 * gemm_portable_codes.cu - the products of gemm_portable.cuh with weights in codes (codes.cuh).
 *
 * gemm_portable.cu asks for the table. Must not: hold anything else.
 */
#include "backend/gpu/gemm_portable.cuh"

#define WIDTHS(FORM)                                                                               \
    {                                                                                              \
        WIDTH(8, 4, FORM, true), WIDTH(8, 4, FORM, false), WIDTH(16, 2, FORM, false),              \
            WIDTH(32, 2, FORM, false), WIDTH(64, 1, FORM, false), WIDTH(128, 1, FORM, false)       \
    }
static const struct sv_gemm_width widths[][6] = {WIDTHS(CODES4), WIDTHS(CODES5), WIDTHS(CODES6),
                                                 WIDTHS(CODES7), WIDTHS(CODES8)};
#define KIND(FORM)                                                                                 \
    {                                                                                              \
        widths[FORM - CODES4], 6, tile_bytes(FORM), expanded_bytes(FORM)                           \
    }

const struct sv_gemm_kind *sv_gemm_portable_codes(int32_t bits)
{
    static const struct sv_gemm_kind kinds[] = {KIND(CODES4), KIND(CODES5), KIND(CODES6),
                                                KIND(CODES7), KIND(CODES8)};
    return &kinds[bits - 4];
}
