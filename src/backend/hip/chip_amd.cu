/*
 * chip_amd.cu - which of AMD's chips the kernels run on, and what they do not have. Never run on a
 * card.
 *
 * Called by backend/cuda/device.cu at open, in the place of chip_nvidia.cu. Must not: hold kernels;
 * take the library's word for shared memory, which some versions give as 0.
 */
#include "backend/cuda/vendor.h"

#include <string.h>

/* Kernels are compiled for these; a thread block may have so much of a compute unit's memory. */
static const struct {
    const char *name;
    size_t smem_block;
} chips[] = {{"gfx942", 64 * 1024}, {"gfx950", 160 * 1024}};

int sv_cuda_chip_options(const struct sv_dev_opts *opts, struct sv_err *err)
{
    if (opts->tuning.compress_weights == SV_TOGGLE_ON)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "compress_weights: hip has no products of compressed weights");
    if (opts->ranks.n > 1)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "tensor parallel: hip has no windows that several devices see alike yet");
    return SV_OK;
}

int sv_cuda_chip(struct sv_cuda *cu, const struct cudaDeviceProp *prop, enum sv_kernels,
                 struct sv_err *err)
{
    /* "gfx942:sramecc+:xnack-" */
    const size_t n = strcspn(prop->gcnArchName, ":");
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++) {
        if (n != strlen(chips[i].name) || strncmp(prop->gcnArchName, chips[i].name, n) != 0)
            continue;
        cu->smem_block = chips[i].smem_block;
        cu->pdl = false;
        cu->set = SV_CUDA_PORTABLE;
        cu->wcomp_mode = SV_TOGGLE_OFF; /* no product reads the copies */
        snprintf(cu->text, sizeof cu->text, "hip %.80s (%s), portable kernels, never tested",
                 prop->name, chips[i].name);
        return SV_OK;
    }
    return sv_fail(err, SV_EUNSUPPORTED, -1,
                   "%s is %.*s; the kernels are compiled for gfx942 and gfx950", prop->name, (int)n,
                   prop->gcnArchName);
}
