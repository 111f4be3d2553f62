#!/bin/sh
# The GPU kernels of a mixture of experts, compiled for this CPU and run lane by lane (tests/cuda/emulated) as waves of 32
# and of 64.
# timeout: 300
set -e
run() { tests/cuda/emulated/run.sh tests/cuda/moe_emulated.cpp src/backend/gpu/moe_route.cu src/backend/gpu/moe.cu \
    src/backend/gpu/mxfp4.cu src/backend/gpu/codes.cu "$@"; }
run src/backend/cuda/moe_few_sm90.cu src/backend/cuda/route_sm90.cu
EMU_FLAGS="-DSV_EMULATED_WAVE64 -DEMU_SHARED_KIB=64" run
# The router has no copies and no products of its own: it is the same on both chips.
EMU_FLAGS="-DSV_EMULATED_WAVE64 -DSV_EMULATED_GFX950 -DEMU_SHARED_KIB=160" RUN_ARG=experts run
