#!/bin/sh
# The CUDA kernels for norms, rotation, cache writes, gates and a vision tower, compiled for this CPU and run lane by lane
# (tests/cuda/emulated), against the CPU backend's.
# timeout: 120
exec tests/cuda/emulated/run.sh tests/cuda/rows_emulated.cpp src/backend/gpu/rows.cu src/backend/gpu/join.cu \
    src/backend/gpu/gates.cu src/backend/gpu/vision.cu
