#!/bin/sh
# run.sh - compiles CUDA kernels for this CPU, with the emulator beside them, and runs the check.
#
# tests/cuda/emulated/run.sh CHECK.cpp KERNELS.cu...: called by tests/cuda/*_emulated.test.sh in the repository's root;
# SALVO names the program whose libsalvo.a is linked, and beside which the emulator is kept; EMU_FLAGS go to the compiler,
# KERNEL_FLAGS for kernels alone, RUN_ARG to the check. Skips where it cannot run. Must not: need a GPU or nvcc.
set -e
[ "$(uname -m)" = x86_64 ] || { echo "skipped: coroutines of tests/cuda/emulated are for x86-64"; exit 0; }
command -v g++ >/dev/null || { echo "skipped: no C++ compiler"; exit 0; }
fma=
if grep -qw fma /proc/cpuinfo; then fma=-mfma; fi
check=$1
shift
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
lib=$(dirname "${SALVO:-build/salvo}")/libsalvo.a
compile="g++ -std=gnu++20 -O2 $fma -ffp-contract=off -fno-strict-aliasing -w $EMU_FLAGS"
includes='-Itests/cuda/emulated -Itests/cuda -Isrc -Iinclude -I.'
# The emulator is the same for all checks with the same flags. What it is made of names it.
source=tests/cuda/emulated/emulated.cpp
emulator=$(dirname "$lib")/emulator-$( (echo "$compile"; $compile $includes -E $source) | sha256sum | cut -c1-16).o
[ -f "$emulator" ] || { $compile $includes -c -o "$emulator.$$" $source; mv "$emulator.$$" "$emulator"; }
# The check is compiled and linked by two commands: ccache, where .ci/run puts it, keeps what the first makes.
object() { # FILE FLAGS...
    file=$1
    shift
    objects="$objects $out/$(basename "$file").o"
    $compile "$@" $includes -c -o "$out/$(basename "$file").o" -x c++ "$file"
}
objects=
for kernels in "$@"; do
    object "$kernels" $KERNEL_FLAGS
done
object "$check"
g++ $EMU_FLAGS -o "$out/check" $objects "$emulator" "$lib" -lm -lpthread
"$out/check" ${RUN_ARG:+"$RUN_ARG"}
