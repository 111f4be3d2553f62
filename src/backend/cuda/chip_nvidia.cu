/*
 * chip_nvidia.cu - which of NVIDIA's chips the kernels run on, and with which set.
 *
 * Called by device.cu at open; a build for AMD has backend/hip/chip_amd.cu in its place. Must not:
 * hold kernels.
 */
#include "backend/cuda/vendor.h"

#define MIN_CC 80

int sv_cuda_chip_options(const struct sv_dev_opts *, struct sv_err *)
{
    return SV_OK;
}

int sv_cuda_chip(struct sv_cuda *cu, const struct cudaDeviceProp *prop, enum sv_kernels kernels,
                 struct sv_err *err)
{
    if (cu->cc < MIN_CC)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "%s has compute capability %d.%d; the kernels need 8.0 or newer", prop->name,
                       prop->major, prop->minor);
    cu->smem_block = prop->sharedMemPerBlockOptin;
    cu->pdl = cu->cc >= 90;
    cu->set = cu->cc == 90 && kernels == SV_KERNELS_AUTO ? SV_CUDA_SM90 : SV_CUDA_PORTABLE;
    snprintf(cu->text, sizeof cu->text, "cuda %.100s, %s kernels", prop->name,
             cu->set == SV_CUDA_SM90 ? "sm_90a" : "portable");
    return SV_OK;
}
