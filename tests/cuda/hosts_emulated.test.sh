#!/bin/sh
# The CUDA kernels in which ranks meet, for ranks on two hosts: run as by join_emulated.test.sh, with a double of NCCL that
# is found as NCCL is.
# timeout: 300
[ "$(uname -m)" = x86_64 ] && command -v g++ >/dev/null || { echo 'skipped: no C++ compiler for x86-64'; exit 0; }
NCCL_DOUBLE=$(mktemp -d)
export NCCL_DOUBLE
trap 'rm -rf "$NCCL_DOUBLE"' EXIT
g++ -std=c++17 -O1 -fPIC -shared -o "$NCCL_DOUBLE/libnccl.so.2" tests/cuda/nccl_double.cpp || exit 1
LD_LIBRARY_PATH=$NCCL_DOUBLE RUN_ARG=hosts tests/cuda/emulated/run.sh tests/cuda/join_emulated.cpp src/backend/gpu/rows.cu \
    src/backend/gpu/join.cu src/backend/cuda/nccl.cu
