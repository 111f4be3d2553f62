/*
 * attention_emulated.cpp - the CUDA attention kernels run on a CPU by tests/cuda/emulated: results against a
 * double-precision loop, bits across arrangements.
 *
 * Built and started by attention_emulated.test.sh. Slow (a few thousand tiles in all), so shapes are small; the same checks run on a
 * GPU with larger ones (bench/attention_cuda.cu).
 */
#include "tests/cuda/attention_check.h"

struct entry {
    const char *name;
    setup s;
    std::vector<int32_t> lens;
};

int main(int argc, char **argv)
{
    const entry entries[] = {
        {"d128 group 4", {4, 1, 128, SV_BF16, SV_MASK_CAUSAL, 0, 0, false}, {150, 700}},
        {"d256 group 4", {4, 1, 256, SV_BF16, SV_MASK_CAUSAL, 0, 0, false}, {40, 530}},
        {"d256 window 100 block", {3, 1, 256, SV_BF16, SV_MASK_BLOCK, 100, 30, false}, {150, 30}},
        {"d256 sinks plain", {2, 1, 256, SV_BF16, SV_MASK_CAUSAL, 0, 0, true}, {40, 20}},
        {"d64 group 5 sinks", {5, 1, 64, SV_BF16, SV_MASK_CAUSAL, 0, 0, true}, {90, 600, 20}},
        {"d64 group 2 long", {2, 1, 64, SV_BF16, SV_MASK_CAUSAL, 0, 0, false}, {1200}},
        {"d64 short", {2, 1, 64, SV_BF16, SV_MASK_CAUSAL, 0, 0, false}, {290}},
        {"d64 block softcap", {4, 2, 64, SV_BF16, SV_MASK_BLOCK, 0, 20, false}, {300, 40}},
        {"d64 window 5", {2, 1, 64, SV_BF16, SV_MASK_CAUSAL, 5, 0, false}, {300, 77}},
        {"d64 window 100 block", {2, 1, 64, SV_BF16, SV_MASK_BLOCK, 100, 0, true}, {333, 200}},
        {"d72 plain", {2, 1, 72, SV_BF16, SV_MASK_CAUSAL, 100, 10, true}, {130, 200}},
        {"d64 f32", {2, 2, 64, SV_F32, SV_MASK_CAUSAL, 0, 0, false}, {130, 70}},
        {"d128 f8", {4, 1, 128, SV_BF16, SV_MASK_CAUSAL, 0, 0, false, 0, true}, {150, 700}},
        {"d128 f8 fixed", {4, 1, 128, SV_BF16, SV_MASK_BLOCK, 100, 0, true, 0, true, 0.0123f}, {40, 530}},
        {"d256 f8", {4, 1, 256, SV_BF16, SV_MASK_CAUSAL, 0, 0, false, 0, true}, {40, 530}},
        {"d64 f8 block", {4, 2, 64, SV_BF16, SV_MASK_BLOCK, 0, 20, false, 0, true}, {300, 40}},
        {"d64 f8 window 100", {2, 1, 64, SV_BF16, SV_MASK_CAUSAL, 100, 0, true, 0, true}, {333, 200}},
        {"d72 f8 plain", {2, 1, 72, SV_BF16, SV_MASK_CAUSAL, 100, 10, true, 0, true}, {130, 200}},
        {"d64 f8 f32", {2, 2, 64, SV_F32, SV_MASK_CAUSAL, 0, 0, false, 0, true, 0.0371f}, {130, 70}},
        {"latents", {3, 1, 576, SV_BF16, SV_MASK_CAUSAL, 0, 0, false, 512}, {50, 540}},
        {"latents f8", {3, 1, 576, SV_BF16, SV_MASK_CAUSAL, 0, 0, false, 512, true}, {50, 540}},
        {"latents window 70", {2, 1, 576, SV_BF16, SV_MASK_CAUSAL, 70, 0, false, 512}, {300}},
        {"latents f8 window 70", {2, 1, 576, SV_BF16, SV_MASK_CAUSAL, 70, 0, false, 512, true}, {300}},
        {"latents f8 plain", {2, 1, 576, SV_F32, SV_MASK_CAUSAL, 0, 0, false, 512, true}, {40, 150}},
        {"latents f8 d136 plain", {3, 1, 160, SV_BF16, SV_MASK_CAUSAL, 0, 0, false, 136, true}, {150, 60}},
        {"latents plain", {2, 1, 576, SV_F32, SV_MASK_CAUSAL, 0, 0, false, 512}, {40, 150}},
        {"latents d40 plain", {3, 1, 56, SV_BF16, SV_MASK_CAUSAL, 0, 0, false, 40}, {150, 60}},
    };
    struct sv_cuda cu = {};
    checker c;
    const int n_sets = GPU_WAVE == 64 ? 1 : 2; /* AMD has no tuned one */
    cu.n_sms = 4;
    cu.smem_block = GPU_WAVE == 64 ? EMU_SHARED_KIB * 1024 : 232448;
    cu.cc = GPU_WAVE == 64 ? 94 : 90;
    check_init(c, &cu, 2048, 8, 4096, true);
    for (const entry &e : entries) {
        if (argc > 1 && !strstr(e.name, argv[1]))
            continue;
        const bool tiled = e.s.dtype == SV_BF16 && e.s.hd % 64 == 0;
        /* Both sets have one kernel for heads of 256 with sinks or over e4m3. */
        const bool one = !tiled || (e.s.hd == 256 && (e.s.sinks || e.s.f8));
        for (int set = 0; set < (one ? 1 : n_sets); set++) {
            const int64_t failed = c.n_failed;
            cu.set = set ? SV_CUDA_SM90 : SV_CUDA_PORTABLE;
            /* All arrangements of the tiled kernels as waves of 32. Waves of 64 lay a tile out in another way, and the
             * kernels without tiles have one unit: each kernel and unit, with fewer arrangements. */
            check_setup(c, e.s, e.lens, e.name, 11, tiled, (GPU_WAVE == 64 || !tiled) && argc == 1);
            printf("%-24s %-8s %s\n", e.name, !tiled ? "plain" : set ? "sm90" : "portable",
                   failed == c.n_failed ? "ok" : "FAILED");
            fflush(stdout);
        }
    }
    printf("%lld rows checked, %lld failed, worst relative error of bf16 %.2g\n", (long long)c.n_rows,
           (long long)c.n_failed, c.worst);
    sv_cuda_attn_close(&cu);
    return c.n_failed ? 1 : 0;
}
