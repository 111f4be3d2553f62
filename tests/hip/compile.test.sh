#!/bin/bash
# compile.test.sh - every GPU kernel file of the HIP build compiles for AMD's chips without a warning and assembles, on a
# machine without ROCm (tests/hip/stub in place of its headers); what the assembly says of registers, scratch, matrix
# instructions and waits; and the shared memory of each launch, static and dynamic.
# timeout: 300
#
# Proves that the code exists, not that it runs: no card, no linker, no run-time library. gfx942 needs clang 19, gfx950
# clang 20 or newer: skipped aloud where they are missing.
set -u
first_of() { # VERSIONS: the first one that is here
    local n
    for n in "$@"; do
        if command -v clang-$n >/dev/null && command -v clang++-$n >/dev/null; then
            echo $n
            return
        fi
    done
}
clang_gfx942=$(first_of 19)
clang_gfx950=$(first_of 21 22 20)
[ -n "$clang_gfx942$clang_gfx950" ] || { echo "skipped: no clang-19, which compiles the GPU kernels for AMD"; exit 0; }

# Products in each kernel file: what the shapes come to when everything is unrolled. gfx942 has those of 16 x 16 x 16,
# gfx950 also those of 16 x 16 x 32. Experts: bf16 a seventh; each form of codes, whose loop holds two tiles of k, twice as
# many. Dense products from codes: as often as there are kinds of codes, ten; of K-quants, three, those up to 16 rows
# and 128.
mfma_gfx942='gemm_portable 216 gemm_portable_codes 2160 gemm_portable_k 504 attention_portable 104 moe 896 gdn_scan 432'
mfma_gfx950='gemm_portable 108 gemm_portable_codes 1080 gemm_portable_k 252 attention_portable 80 moe 448 gdn_scan 432'
# Bytes of assembly in all. Compiling takes 3 s of processor time for a million: more would not be done in a minute by two
# cores, and unlike the time it is the same on a busy machine.
most_assembly=32000000
# Shared memory of a compute unit, and so of a thread block.
lds_gfx942=64
lds_gfx950=160

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed() { echo "$*"; touch "$out/failed"; }
look_at_clock() { # cpu_s: processor time so far, of all that has ended
    times >"$out/times"
    cpu_s=$(awk -F'[ms ]' 'NR == 2 { printf "%.0f", 60 * ($1 + $4) + $2 + $5 }' "$out/times")
}
number_of() { sed -n "s/.*\b$2 \([0-9]*\).*/\1/p" <<<"$1"; } # number_of LIST NAME

# The assembler alone sees what is in inline assembly.
compile() { # ARCH VERSION FILE
    local arch=$1 name=${3#src/backend/} base s lds=lds_$1
    base=$(basename "$3" .cu)
    s=$out/$arch/$base
    "clang++-$2" -x hip --offload-arch="$arch" --offload-device-only -nogpuinc -nogpulib -O2 -std=c++17 -ffp-contract=off \
        -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Werror -Itests/hip/stub -Isrc/backend/hip \
        -include cuda_runtime.h -Isrc -Iinclude -I. -S "$3" -o "$s.s" &&
        "clang-$2" --target=amdgcn-amd-amdhsa -mcpu="$arch" -c "$s.s" -o "$s.o" ||
        { failed "$arch $name: does not compile"; return; }
    awk -v name="$arch $name" -v lds=$((1024 * ${!lds})) -v to="$s" '
        function bad(what) { print name ": " what; failed = 1 }
        $1 ~ /^(global|flat|buffer)_atomic_.*_(f16|bf16|f32|f64)/ || $1 ~ /^ds_(pk_)?(add|min|max)_.*f(16|32|64)/ {
            bad("a float atomic: " $1) }
        $1 == ".private_segment_fixed_size:" && $2 { bad($2 " bytes of scratch") }
        $1 == ".vgpr_spill_count:" && $2 { bad($2 " spilled registers") }
        $1 == ".sgpr_spill_count:" && $2 { bad($2 " scalar registers in lanes") }
        $1 == ".vgpr_count:" && $2 > 512 { bad($2 " registers") }
        $1 == ".group_segment_fixed_size:" { shared = $2 }
        $1 == ".symbol:" { sub(/\.kd$/, "", $2); print $2 "\t" shared > (to ".shared") }
        $1 == ".wavefront_size:" && $2 != 64 { bad("waves of " $2) }
        $1 == ".wavefront_size:" { n++ }
        END { print n + 0 > (to ".kernels"); exit failed }' "$s.s" || touch "$out/failed"
}

# Matrix instructions as counted; and no wait in front of one that lets no copy go on, but for one in ten.
count_products() { # ARCH NAME EXPECTED
    awk -v name="$1 $2" -v expected="$3" '
        /vmcnt\(0\)/ && !/lgkmcnt/ { drained = NR }
        /^\t(v_mfma|s_barrier|ds_read|s_cbranch)/ { if ($1 ~ /mfma/) { n++; bad += NR - drained < 4 } }
        END { if (n != expected) print name ": " n + 0 " matrix instructions, not " expected
              if (bad * 10 > n) print name ": " bad " of " n " wait for all copies"
              exit n != expected || bad * 10 > n }' "$out/$1/$2.s" || touch "$out/failed"
}

# Static shared memory of each kernel, and the most that the host code asks for at its launches (shared_emulated.cpp).
launched=$'src/backend/cuda/attention.cu\nsrc/backend/gpu/attention_latent.cu\nsrc/backend/gpu/attention_portable.cu\nsrc/backend/gpu/gdn.cu\nsrc/backend/gpu/gdn_few.cu\nsrc/backend/gpu/gdn_long.cu\nsrc/backend/gpu/gdn_scan.cu\nsrc/backend/gpu/gdn_single.cu\nsrc/backend/gpu/gemm_portable.cu\nsrc/backend/gpu/mla.cu\nsrc/backend/gpu/moe.cu'
# No kernel runs there, so none is optimized.
ask_shared() { # ARCH EMU_FLAGS
    EMU_FLAGS="$2 -O0" tests/cuda/emulated/run.sh tests/hip/shared_emulated.cpp $launched src/backend/gpu/{attention_plain,gemm_portable_codes,gemm_portable_k}.cu \
        src/backend/hip/no_tuned.cu >"$out/$1/asked" 2>"$out/$1/notes" ||
        failed "$1: $(cat "$out/$1/notes" "$out/$1/asked")"
}
count_shared() { # ARCH
    local arch=$1 lds=lds_$1
    if grep -q ^skipped "$out/$arch/asked"; then
        cat "$out/$arch/asked"
        return
    fi
    cat "$out/$arch"/*.shared | c++filt | sed 's/(.*\t/\t/' >"$out/$arch/static"
    awk -F'\t' -v arch="$arch" -v most=$((1024 * ${!lds})) '
        NR == FNR { asked[$1] = $2; n_asked++; next }
        { dynamic = $1 in asked ? asked[$1] : 0; all = $2 + dynamic; n++; worst = all > worst ? all : worst; seen += dynamic > 0
          if (all > most) { print arch ": " $1 ": " $2 " bytes of shared memory and " dynamic " at a launch"; bad = 1 } }
        END { if (seen != n_asked) { print arch ": kernels that launches name: " n_asked ", found: " seen + 0; bad = 1 }
              print arch ": " n " kernels take at most " worst " bytes of shared memory, " seen + 0 " of them by their launches"
              exit bad }' "$out/$arch/asked" "$out/$arch/static" || touch "$out/failed"
}
# Kernels of a header are those of the file that it is named after; moe_codes.cuh's are moe.cu's; gemm_portable_codes.cu and gemm_portable_k.cu have
# those of gemm_portable.cuh.
[ "$(grep -lE 'GPU_SHARED\(|extern __shared__' src/backend/{gpu,cuda,hip}/*.cu{,h} | grep -vE '_(sm90|nvidia)|/gpu_(ptx|amd)' |
    sed -E 's/(_codes)?\.cuh$/.cu/' | sort -u)" = "$launched" ] ||
    failed "shared memory is asked for at launches of other files than those looked at here"

check() { # ARCH VERSION EMU_FLAGS
    local list=mfma_$1 begun=$SECONDS cpu_begun file n
    look_at_clock
    cpu_begun=$cpu_s
    mkdir "$out/$1"
    ask_shared "$1" "$3" &
    # What takes longest first, so that no core waits for one at the end.
    for file in $(printf '%s\n' src/backend/gpu/{moe,gemm_portable_codes,gemm_portable_k,gemm_portable,rows,gdn_scan,moe_route}.cu src/backend/{gpu,cuda,hip}/*.cu |
        awk '!seen[$0]++'); do
        case $file in *_sm90.cu | *_nvidia.cu) continue ;; esac
        while [ "$(jobs -r | wc -l)" -ge 2 ]; do wait -n; done
        compile "$1" "$2" "$file" &
    done
    wait
    for file in gemm_portable gemm_portable_codes gemm_portable_k attention_portable moe gdn_scan; do
        count_products "$1" "$file" "$(number_of "${!list}" $file)"
    done
    count_shared "$1" "$3"
    n=$(cat "$out/$1"/*.s | wc -c)
    [ "$n" -le $most_assembly ] || failed "$1: $n bytes of assembly, at most $most_assembly"
    look_at_clock
    cat "$out/$1"/*.kernels | awk -v what="for $1 by clang $2 in $((SECONDS - begun)) s, $((cpu_s - cpu_begun)) s of processor time" \
        '{ n += $1 } END { print NR " files, " n " kernels " what }'
}
if [ -n "$clang_gfx942" ]; then
    check gfx942 "$clang_gfx942" '-DSV_EMULATED_WAVE64 -DEMU_SHARED_KIB=64'
else
    echo "not compiled: gfx942 (needs clang-19)"
fi
if [ -n "$clang_gfx950" ]; then
    check gfx950 "$clang_gfx950" '-DSV_EMULATED_WAVE64 -DSV_EMULATED_GFX950 -DEMU_SHARED_KIB=160'
else
    echo "not compiled: gfx950 (needs clang 20 or newer)"
fi
[ ! -e "$out/failed" ]
