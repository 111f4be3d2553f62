#!/bin/sh
# The CUDA kernels in which ranks meet, compiled for this CPU and run lane by lane (tests/cuda/emulated), a process for
# each rank.
# timeout: 300
exec tests/cuda/emulated/run.sh tests/cuda/join_emulated.cpp src/backend/gpu/rows.cu src/backend/gpu/join.cu \
    src/backend/cuda/nccl.cu
