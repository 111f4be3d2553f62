#!/bin/bash
# check_gpu.test.sh - each rule of tools/check_gpu fires on a breach, and none on a clean tree.
set -u
check=$PWD/tools/check_gpu
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
n_failed=0

# put FILE LINE...
put() {
    local file=$tree/$1
    shift
    printf '%s\n' "$@" >"$file"
}

# Starts a clean tree.
fresh() {
    rm -rf "${tree:?}"/*
    mkdir -p "$tree"/src/{engine,serve/http,backend/{gpu,cuda,hip}} "$tree"/include "$tree"/tests/{hip,cuda/emulated}
    put src/backend/backends.h '#ifndef SV_BACKENDS_H' '#ifdef SV_MPI' '/* #ifdef SV_HIP */' 'int sv_hip_open(void);'
    put src/backend/gpu/gpu.h '#if defined(SV_CUDA_EMULATED)' '#elif defined(__HIP__)' '#endif'
    put src/backend/gpu/a.cuh '#ifndef SV_CUDA_A_CUH' '#ifdef __cplusplus' '#ifdef GPU_TURNED' '#if SV_GEMM_WCOMP' '#endif' \
        '/* #ifdef __HIP__ atomicAdd((float *)p, 1) */' 'v = __shfl_xor_sync(0xffffffffu, v, 1);' 'atomicAdd(&n, 1u);' \
        'asm("red.relaxed.gpu.global.max.u64 [%0], %1;");'
    put src/backend/cuda/a.cuh '#ifdef __CUDA_ARCH__' '#endif'
    put src/backend/hip/gpu_amd.cuh 'x = __shfl_xor(x, 16, 64);'
    put src/backend/cuda/tuned_sm90.cu 'void sv_tuned(int n)' && put src/backend/hip/none.cu 'void sv_tuned(int)'
    put src/backend/cuda/a.cu '    sv_tuned(1);'
    put Makefile 'C_FLAGS := -O2 -ffp-contract=off' 'CUDA_FLAGS = -O3 \' '	-Xcompiler -ffp-contract=off' 'HIP_FLAGS = -ffp-contract=off'
    put tests/hip/a.test.sh 'clang++-19 -x hip -O2 \' '    -ffp-contract=off -c a.cu'
    put tests/cuda/emulated/run.sh 'g++ -std=gnu++20 -ffp-contract=off a.cpp'
}

# expect RULE: the tree must be refused with it.
expect() {
    local out
    if out=$("$check" "$tree") || ! grep -q "\[$1\]" <<<"$out"; then
        echo "line ${BASH_LINENO[0]}: rule $1 did not fire: $out"
        n_failed=$((n_failed + 1))
    fi
    fresh
}

fresh
"$check" "$tree" || { echo 'a clean tree was refused'; exit 1; }

put src/backend/gpu/b.cu '#ifdef __HIP__' && expect vendor
put src/backend/gpu/b.cu '#ifdef __CUDA_ARCH__' && expect vendor
put src/backend/gpu/b.cu '#if GPU_WAVE == 32 || defined(__gfx950__)' && expect vendor
put src/backend/gpu/b.cuh '#ifndef SV_CUDA_EMULATED' && expect vendor
put src/backend/b.c '#ifdef SV_CUDA' && expect vendor
put src/engine/b.c '#if 1 && defined(SV_HIP)' && expect vendor
put src/serve/http/b.h '# elif defined __HIP__' && expect vendor
put include/salvo.h '#ifdef __CUDACC__' && expect vendor
put src/backend/cuda/b.cu 'atomicAdd((float *)p, x);' && expect float-atomic
put src/backend/hip/b.cu 'unsafeAtomicAdd(p, x);' && expect float-atomic
put src/backend/cuda/b.cuh 'asm("red.global.add.f32 [%0], %1;");' && expect float-atomic
put src/backend/cuda/b.cuh 'asm("atom.add.acq_rel.gpu.global.f32 %0, [%1], 1;");' && expect float-atomic
put src/backend/gpu/b.cu 'x += __shfl_xor(x, 1);' && expect unsynchronized
put src/backend/gpu/b.cu 'm = __activemask();' && expect unsynchronized
put src/backend/hip/b.cu 'if (__any(x))' && expect unsynchronized
put src/backend/gpu/b.cu 'x += __shfl_xor_sync(0xffff, x, 1);' && expect unsynchronized
put src/backend/gpu/b.cu 'x += __shfl_xor_sync(__activemask(), x, 1);' && expect unsynchronized
put src/backend/gpu/b.cu '#pragma clang fp contract(fast)' && expect contraction
put Makefile 'HIP_FLAGS = -O3' && expect contraction
put Makefile 'C_FLAGS := -ffp-contract=off' 'CUDA_FLAGS = -use_fast_math -ffp-contract=off' && expect contraction
put tests/hip/b.test.sh 'clang++-21 -x hip -O2 -c b.cu' && expect contraction
put tests/cuda/emulated/run.sh 'g++ -std=gnu++20 -ffp-contract=fast b.cpp' && expect contraction
put src/backend/cuda/b_nvidia.cu 'int sv_other(void)' && put src/backend/cuda/b.cu '    rc = sv_other();' && expect stand-in
[ $n_failed = 0 ]
