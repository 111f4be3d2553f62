/*
 * gemm_portable_codes.cu - the products of gemm_portable.cuh with weights in codes (codes.cuh).
 *
 * gemm_portable.cu asks for the table. Must not: hold anything else.
 */
#include "backend/gpu/gemm_portable.cuh"

static const struct sv_gemm_width codes8[] = {
    WIDTH(8, 4, CODES8, true),   WIDTH(8, 4, CODES8, false),  WIDTH(16, 2, CODES8, false),
    WIDTH(32, 2, CODES8, false), WIDTH(64, 1, CODES8, false), WIDTH(128, 1, CODES8, false),
};
static const struct sv_gemm_width codes4[] = {
    WIDTH(8, 4, CODES4, true),   WIDTH(8, 4, CODES4, false),  WIDTH(16, 2, CODES4, false),
    WIDTH(32, 2, CODES4, false), WIDTH(64, 1, CODES4, false), WIDTH(128, 1, CODES4, false),
};

const struct sv_gemm_kind *sv_gemm_portable_codes(int32_t bits)
{
    static const struct sv_gemm_kind kinds[] = {
        {codes8, sizeof codes8 / sizeof *codes8, tile_bytes(CODES8), expanded_bytes(CODES8)},
        {codes4, sizeof codes4 / sizeof *codes4, tile_bytes(CODES4), expanded_bytes(CODES4)}};
    return &kinds[bits == 4];
}
