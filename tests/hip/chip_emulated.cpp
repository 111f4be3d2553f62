/*
 * chip_emulated.cpp - which chips of AMD's open, with what, and how others and wishes that none fulfils are refused: the
 * host code of backend/hip, compiled with the emulator's headers for want of a card.
 */
#include <cuda_runtime.h>

#include <string>

struct cudaDeviceProp {
    char name[256], gcnArchName[256];
};
#define SV_GPU_BACKEND "hip"
#define SV_GPU_LIBRARY "HIP"
#define SV_GPU_CALL "hip"
#define SV_GPU_MAKER "AMD"
#include "backend/hip/chip_amd.cu"

static int n_failed;
static void expect(bool ok, const char *what)
{
    if (!ok)
        printf("%s\n", what);
    n_failed += !ok;
}

static int open_chip(struct sv_cuda *cu, const char *arch, struct sv_err *err)
{
    cudaDeviceProp prop = {};
    snprintf(prop.name, sizeof prop.name, "AMD Instinct");
    snprintf(prop.gcnArchName, sizeof prop.gcnArchName, "%s", arch);
    *cu = sv_cuda();
    cu->cc = 94;
    cu->pdl = true;
    cu->set = SV_CUDA_SM90;
    cu->wcomp_mode = SV_TOGGLE_AUTO;
    memset(err, 0, sizeof *err);
    return sv_cuda_chip(cu, &prop, SV_KERNELS_AUTO, err);
}

int main()
{
    static sv_cuda cu;
    sv_err err;
    for (const char *arch : {"gfx942", "gfx942:sramecc+:xnack-", "gfx950:sramecc+:xnack-"}) {
        expect(open_chip(&cu, arch, &err) == SV_OK, arch);
        expect(cu.smem_block == (strstr(arch, "950") ? 160u : 64u) * 1024, "shared memory of a block");
        expect(cu.set == SV_CUDA_PORTABLE && !cu.pdl, "kernels of Hopper's, or early starts");
        expect(cu.wcomp_mode == SV_TOGGLE_OFF, "copies that nobody reads");
        expect(strstr(cu.text, "hip AMD Instinct (gfx9") && strstr(cu.text, "never tested"), cu.text);
    }
    for (const char *arch : {"gfx90a:sramecc+:xnack-", "gfx94", "gfx9420", "gfx1100", ""}) {
        expect(open_chip(&cu, arch, &err) == SV_EUNSUPPORTED, arch);
        const std::string name = std::string("AMD Instinct is ") + std::string(arch).substr(0, strcspn(arch, ":")) + ";";
        expect(strstr(err.msg, name.c_str()) && strstr(err.msg, "gfx942 and gfx950"), err.msg);
    }
    sv_dev_opts o = {};
    expect(sv_cuda_chip_options(&o, &err) == SV_OK, "no wish");
    o.tuning.compress_weights = SV_TOGGLE_OFF;
    expect(sv_cuda_chip_options(&o, &err) == SV_OK, "compressed weights off");
    o.tuning.compress_weights = SV_TOGGLE_ON;
    expect(sv_cuda_chip_options(&o, &err) == SV_EUNSUPPORTED && strstr(err.msg, "compress_weights"), "compressed weights on");
    printf("%s\n", n_failed ? "FAILED" : "chips: all as it should be");
    return n_failed != 0;
}
