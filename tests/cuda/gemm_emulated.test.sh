#!/bin/bash
# The portable matrix products, compiled for this CPU and run lane by lane (tests/cuda/emulated): as waves of 32, and of 64
# as gfx942 and gfx950 have them. A row has the same bits alone and among 128, and from codes those of their values.
# timeout: 300
set -e
# Hundreds of instances that run for 4 s: optimizing them takes 15 s more than it saves.
export KERNEL_FLAGS=-Og
run() { tests/cuda/emulated/run.sh tests/cuda/gemm_emulated.cpp src/backend/gpu/{gemm_portable,gemm_portable_codes,gemm_portable_k,codes}.cu "$@"; }
run src/backend/cuda/gemm_one{,4}_nvidia.cu
EMU_FLAGS='-DSV_EMULATED_WAVE64 -DEMU_SHARED_KIB=64' run
EMU_FLAGS='-DSV_EMULATED_WAVE64 -DSV_EMULATED_GFX950 -DEMU_SHARED_KIB=160' run
