#!/bin/bash
# compile.test.sh - every GPU kernel file that names no vendor compiles for gfx942 without a warning and assembles, on a
# machine without ROCm (tests/hip/stub in place of its headers); what the assembly says of registers, scratch and LDS.
# timeout: 180
#
# Proves that the code exists, not that it runs: no card, no linker, no run-time library. Skipped where clang-19 is missing.
set -u
clang=clang-19
command -v $clang >/dev/null && command -v clang++-19 >/dev/null ||
    { echo "skipped: no $clang, which compiles the GPU kernels for AMD"; exit 0; }

lds_bytes=65536 # of a thread block on gfx942
# Products of 16 x 16 x 16 in each kernel of these files: what the shapes come to when everything is unrolled.
mfma='gemm_portable 296 attention_portable 52 moe 128 gdn_scan 252'
# Scalar registers that these files keep in lanes of vector registers, at most; all others keep none.
scalars='gemm_portable 176 attention_portable 62 moe 21 gdn_scan 43'

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed() { echo "$*"; touch "$out/failed"; }

# The assembler alone sees what is in inline assembly.
compile() { # FILE
    local name=${1#src/backend/} base s lanes
    base=$(basename "$1" .cu)
    s=$out/$base
    lanes=$(sed -n "s/.*\b$base \([0-9]*\).*/\1/p" <<<"$scalars")
    clang++-19 -x hip --offload-arch=gfx942 --offload-device-only -nogpuinc -nogpulib -O2 -std=c++17 -ffp-contract=off \
        -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Werror -Itests/hip/stub -Isrc/backend/hip \
        -include cuda_runtime.h -Isrc -Iinclude -I. -S "$1" -o "$s.s" &&
        $clang --target=amdgcn-amd-amdhsa -mcpu=gfx942 -c "$s.s" -o "$s.o" || { failed "$name: does not compile"; return; }
    awk -v name="$name" -v lds=$lds_bytes -v lanes="${lanes:-0}" '
        function bad(what) { print name ": " kernel ": " what; failed = 1 }
        $1 ~ /^(global|flat|buffer)_atomic_.*_(f16|bf16|f32|f64)/ || $1 ~ /^ds_(pk_)?(add|min|max)_.*f(16|32|64)/ {
            bad("a float atomic: " $1) }
        $1 == ".name:" { kernel = $2 }
        $1 == ".private_segment_fixed_size:" && $2 > 0 { bad($2 " bytes of scratch") }
        $1 == ".vgpr_spill_count:" && $2 > 0 { bad($2 " spilled registers") }
        $1 == ".sgpr_spill_count:" && $2 > lanes + 0 { bad($2 " scalar registers in lanes, not " lanes) }
        $1 == ".vgpr_count:" && $2 > 512 { bad($2 " registers") }
        $1 == ".group_segment_fixed_size:" && $2 > lds { bad($2 " bytes of LDS") }
        $1 == ".wavefront_size:" && $2 != 64 { bad("waves of " $2) }
        $1 == ".wavefront_size:" { n++ }
        END { print n + 0 > (FILENAME ".kernels"); exit failed }' "$s.s" || touch "$out/failed"
}

begun=$SECONDS
for file in src/backend/gpu/*.cu src/backend/cuda/*.cu src/backend/hip/*.cu; do
    case $file in *_sm90.cu) continue ;; esac
    while [ "$(jobs -r | wc -l)" -ge 2 ]; do wait -n; done
    compile "$file" &
done
wait

# Matrix instructions as counted; and no wait in front of one that lets no copy go on, but for one in ten.
set -- $mfma
while [ $# -gt 0 ]; do
    awk -v name="$1" -v expected="$2" '
        /vmcnt\(0\)/ && !/lgkmcnt/ { drained = NR }
        /^\t(v_mfma|s_barrier|ds_read|s_cbranch)/ { if ($1 ~ /mfma/) { n++; bad += NR - drained < 4 } }
        END { if (n != expected) print name ": " n + 0 " matrix instructions, not " expected
              if (bad * 10 > n) print name ": " bad " of " n " wait for all copies"
              exit n != expected || bad * 10 > n }' "$out/$1.s" || touch "$out/failed"
    shift 2
done

# What no kernel may do: lanes that meet without saying so, float sums in an order of chance.
unsynced=$(grep -nE '__(shfl(_xor|_up|_down)?|any|all|ballot)\(' src/backend/gpu/* src/backend/cuda/* src/backend/hip/*.cu) &&
    failed "lanes that meet without saying so: $unsynced"
floats=$(grep -nE 'atomicAdd\(\((float|double)|(red|atom)\.[a-z.]*\.(f|bf)(16|32|64)' src/backend/gpu/* src/backend/cuda/*) &&
    failed "float atomics: $floats"

[ ! -e "$out/failed" ] || exit 1
cat "$out"/*.kernels | awk -v s=$((SECONDS - begun)) \
    '{ n += $1 } END { print NR " files, " n " kernels for gfx942 in " s " s" }'
echo "not compiled: gfx950 (needs clang 20)"
