/*
 * cpuid.c - which instruction-set levels this machine and its kernel offer.
 *
 * Called at open by cpu.c and gemm.c and by tests. AMX needs a permission for its 8 KiB of tile
 * state, which the kernel grants to the whole process; it is requested only at the first query of
 * AMX. Must not: use any instruction whose level has not been established.
 */
#define _DEFAULT_SOURCE /* syscall */

#include "backend/cpu/cpu.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
enum { AVX512_VBMI = 1 << 1, AVX512_VBMI2 = 1 << 6, AVX512_VNNI = 1 << 11 }; /* leaf 7, ecx */
/* Leaf 7, edx; compilers disagree on the names. */
enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };

struct features {
    bool avx2, avx512, avx512_bf16, amx_bf16, avx512_vnni, avx512_vbmi2, amx_int8;
};

static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static struct features detect(void)
{
    struct features f = {0};
    uint32_t a, b, c, d, b7, c7, d7;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return f;
    uint64_t os = xcr0();
    bool fma_f16c = (c & bit_FMA) && (c & bit_F16C);
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7))
        return f;
    f.avx2 = (os & 6) == 6 && fma_f16c && (b7 & bit_AVX2);
    uint32_t need = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    f.avx512 = f.avx2 && (os & 0xe6) == 0xe6 && (b7 & need) == need;
    f.avx512_vnni = f.avx512 && (c7 & AVX512_VNNI);
    f.avx512_vbmi2 = f.avx512 && (c7 & AVX512_VBMI) && (c7 & AVX512_VBMI2);
    if (!f.avx512 || !__get_cpuid_count(7, 1, &a, &b, &c, &d))
        return f;
    f.avx512_bf16 = a & bit_AVX512BF16;
    bool amx = (os & 0x60000) == 0x60000 && (d7 & AMX_TILE) && (d7 & AMX_BF16);
    f.amx_bf16 = f.avx512_bf16 && amx &&
                 syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
    f.amx_int8 = f.amx_bf16 && (d7 & AMX_INT8);
    return f;
}

/* Detection is idempotent, so racing first callers may both do it: both store equal bits. */
static struct features features(void)
{
    static atomic_uint cached;
    unsigned v = atomic_load_explicit(&cached, memory_order_acquire);
    if (!v) {
        struct features f = detect();
        v = 16u | f.avx2 | f.avx512 << 1 | f.avx512_bf16 << 2 | f.amx_bf16 << 3 |
            f.avx512_vnni << 5 | f.avx512_vbmi2 << 6 | f.amx_int8 << 7;
        atomic_store_explicit(&cached, v, memory_order_release);
    }
    return (struct features){v & 1, v & 2, v & 4, v & 8, v & 32, v & 64, v & 128};
}

bool sv_cpu_has_isa(enum sv_isa isa)
{
    switch (isa) {
    case SV_ISA_AUTO:
    case SV_ISA_PLAIN:
        return true;
#ifndef SV_NO_AVX2 /* levels that the compiler could not build are missing */
    case SV_ISA_AVX2:
        return features().avx2;
#endif
#ifndef SV_NO_AVX512
    case SV_ISA_AVX512:
        return features().avx512;
#endif
#ifndef SV_NO_AMX
    case SV_ISA_AMX:
        return features().amx_bf16;
#endif
    default:
        return false;
    }
}

bool sv_cpu_has_avx512_bf16(void)
{
    return features().avx512_bf16;
}

bool sv_cpu_has_avx512_vnni(void)
{
    return features().avx512_vnni;
}

bool sv_cpu_has_avx512_vbmi2(void)
{
    return features().avx512_vbmi2;
}

bool sv_cpu_has_amx_int8(void)
{
    return features().amx_int8;
}
#else
bool sv_cpu_has_isa(enum sv_isa isa)
{
    return isa == SV_ISA_AUTO || isa == SV_ISA_PLAIN;
}

bool sv_cpu_has_avx512_bf16(void)
{
    return false;
}

bool sv_cpu_has_avx512_vnni(void)
{
    return false;
}

bool sv_cpu_has_avx512_vbmi2(void)
{
    return false;
}

bool sv_cpu_has_amx_int8(void)
{
    return false;
}
#endif

enum sv_isa sv_cpu_best_isa(void)
{
    enum sv_isa isa = SV_ISA_AMX;
    while (!sv_cpu_has_isa(isa))
        isa--;
    return isa;
}
