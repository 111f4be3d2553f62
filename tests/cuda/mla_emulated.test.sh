#!/bin/sh
# The GPU kernels of latent attention beside attention, compiled for this CPU and run lane by lane (tests/cuda/emulated) as
# waves of 32 and of 64.
# timeout: 120
set -e
run() { tests/cuda/emulated/run.sh tests/cuda/mla_emulated.cpp src/backend/gpu/mla.cu; }
run
EMU_FLAGS='-DSV_EMULATED_WAVE64 -DEMU_SHARED_KIB=64' run
EMU_FLAGS='-DSV_EMULATED_WAVE64 -DSV_EMULATED_GFX950 -DEMU_SHARED_KIB=160' run
