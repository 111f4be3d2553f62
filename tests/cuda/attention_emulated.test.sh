#!/bin/sh
# The CUDA attention kernels, compiled for this CPU and run lane by lane (tests/cuda/emulated): results and bits.
set -e
[ "$(uname -m)" = x86_64 ] || { echo "skipped: coroutines of tests/cuda/emulated are for x86-64"; exit 0; }
command -v g++ >/dev/null || { echo "skipped: no C++ compiler"; exit 0; }
grep -qw fma /proc/cpuinfo && fma=-mfma
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
lib=$(dirname "${SALVO:-build/salvo}")/libsalvo.a
g++ -std=gnu++20 -O2 $fma -ffp-contract=off -fno-strict-aliasing -w -Itests/cuda/emulated -Itests/cuda -Isrc -I. \
    -o "$out/check" tests/cuda/attention_emulated.cpp tests/cuda/emulated/emulated.cpp \
    -x c++ src/backend/cuda/attention.cu src/backend/cuda/attention_portable.cu src/backend/cuda/attention_sm90.cu \
    src/backend/cuda/attention_few_sm90.cu src/backend/cuda/attention_plain.cu \
    -x none "$lib" -lm
"$out/check"
