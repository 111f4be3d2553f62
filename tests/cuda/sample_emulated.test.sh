#!/bin/sh
# The CUDA kernels for draws, compiled for this CPU and run lane by lane
# (tests/cuda/emulated), against the CPU backend's.
set -e
[ "$(uname -m)" = x86_64 ] || { echo "skipped: coroutines of tests/cuda/emulated are for x86-64"; exit 0; }
command -v g++ >/dev/null || { echo "skipped: no C++ compiler"; exit 0; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
lib=$(dirname "${SALVO:-build/salvo}")/libsalvo.a
g++ -std=gnu++20 -O2 -ffp-contract=off -fno-strict-aliasing -w -Itests/cuda/emulated -Isrc -I. \
    -o "$out/check" tests/cuda/sample_emulated.cpp tests/cuda/emulated/emulated.cpp \
    -x c++ src/backend/cuda/sample.cu -x none "$lib" -lm -lpthread
"$out/check"
