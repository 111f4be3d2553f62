#!/bin/sh
# The portable attention kernels once more, as waves of 64: as gfx942 has them, and with gfx950's copies and products.
# timeout: 400
set -e
run() {
    tests/cuda/emulated/run.sh tests/cuda/attention_emulated.cpp src/backend/cuda/attention.cu \
        src/backend/gpu/attention_portable.cu src/backend/gpu/attention_latent.cu src/backend/gpu/attention_plain.cu src/backend/hip/no_tuned.cu
}
EMU_FLAGS='-DSV_EMULATED_WAVE64 -DEMU_SHARED_KIB=64' run
EMU_FLAGS='-DSV_EMULATED_WAVE64 -DSV_EMULATED_GFX950 -DEMU_SHARED_KIB=160' run
