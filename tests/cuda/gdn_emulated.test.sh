#!/bin/sh
# The GPU kernels of the gated delta rule, compiled for this CPU and run lane by lane (tests/cuda/emulated) as waves of 32,
# and of 64 as gfx942 and gfx950 have them.
# timeout: 600
set -e
run() { tests/cuda/emulated/run.sh tests/cuda/gdn_emulated.cpp src/backend/gpu/gdn.cu src/backend/gpu/gdn_scan.cu src/backend/gpu/gdn_long.cu \
    src/backend/gpu/gdn_single.cu src/backend/gpu/gdn_few.cu; }
run
EMU_FLAGS="-DSV_EMULATED_WAVE64 -DEMU_SHARED_KIB=64" run
EMU_FLAGS="-DSV_EMULATED_WAVE64 -DSV_EMULATED_GFX950 -DEMU_SHARED_KIB=160" run
