/*
 * moe_sm90.cu - the matrix products of a mixture of experts on wgmma, the kernels of moe.cuh.
 *
 * Their table goes to moe.cu. Must not: hold more than that.
 */
#define SV_MOE_SM90 1
#include "backend/gpu/moe.cuh"

const struct sv_moe_width *sv_moe_sm90(void)
{
    static const struct sv_moe_width widths[SV_MOE_WIDTHS] = {width_of<8, 1>(), width_of<16, 1>(),
                                                              width_of<32, 1>(), width_of<64, 2>(),
                                                              width_of<128, 2>()};
    return widths;
}
