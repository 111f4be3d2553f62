#!/bin/bash
# Faults put into the portable products on purpose: the emulated check, as waves of 64, must find each of them. That it
# passes without them is gemm_emulated.test.sh's business.
# timeout: 300
set -u
[ "$(uname -m)" = x86_64 ] && command -v g++ >/dev/null || { echo "skipped: the emulator needs x86-64 and g++"; exit 0; }
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
export SALVO=$(realpath "${SALVO:-build/salvo}") EMU_FLAGS='-DSV_EMULATED_WAVE64 -DEMU_SHARED_KIB=64'
mkdir "$tree/tests"
cp -r src include "$tree"
cp -r tests/cuda "$tree/tests"
failed=0

mutate() { # NAME FILE SED
    local file=$tree/src/backend/gpu/$2
    cp "src/backend/gpu/$2" "$file"
    sed -i -E "$3" "$file"
    if cmp -s "src/backend/gpu/$2" "$file"; then
        echo "$1: nothing to change in $2"
        failed=1
    elif (cd "$tree" && timeout 100 tests/cuda/emulated/run.sh tests/cuda/gemm_emulated.cpp src/backend/gpu/gemm_portable.cu) \
        >"$tree/log" 2>&1; then
        echo "$1: not found"
        failed=1
    elif grep -q 'error:' "$tree/log"; then
        echo "$1: does not compile"
        failed=1
    else
        echo "$1: found: $(tail -n 1 "$tree/log")"
    fi
    cp "src/backend/gpu/$2" "$file"
}

mutate 'a wait that leaves a round too many under way' gemm_portable.cu 's/whole = min\(behind, max\(\(t1 - t\) \/ R - 1, 0\)\)/whole = behind + 1/'
mutate 'the first rounds counted like later ones' gemm_portable.cu 's/n_rounds \* R \? FIRST_LINES/n_rounds * R ? W_LINES + X_LINES/'
mutate 'a patch read before the wave has written it' gemm_out.cuh '/lay_out<PAIR, STMATRIX>\(v, s, s.patch\);/{n;s/gpu_wave_sync\(\);//}'
mutate 'rows and columns of a product exchanged' gemm_out.cuh 's/gpu_run_row\(lane\), token = token0 \+ gpu_run_col\(lane\)/gpu_run_col(lane), token = token0 + gpu_run_row(lane)/'
mutate 'pieces of shared blocks one line short' gemm_out.cuh 's/j < piece_lines\(N\); j\+\+\) \{$/j < piece_lines(N) - 1; j++) {/'
exit $failed
