#!/bin/bash
# Faults put into the portable products, attention and joins on purpose: the emulated checks, as waves of 64, must find
# each of them. Every kernel is compiled once, with all faults in it, of which none or one is there in each run.
# timeout: 400
set -u
[ "$(uname -m)" = x86_64 ] && command -v g++ >/dev/null || { echo "skipped: the emulator needs x86-64 and g++"; exit 0; }
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
export SALVO=$(realpath "${SALVO:-build/salvo}")
mkdir "$tree/tests"
cp -r src include "$tree"
cp -r tests/cuda "$tree/tests"
failed=0
names=()

fault() { # NAME FILE SED: FAULT in what sed puts in is true in the run of this one
    local file=$tree/src/backend/gpu/$2
    cp "$file" "$tree/before"
    sed -i -E "${3//FAULT/(emu_fault == $((${#names[@]} + 1)))}" "$file"
    if cmp -s "$tree/before" "$file"; then
        echo "$1: nothing to change in $2"
        failed=1
    fi
    grep -q '^extern int emu_fault' "$file" || sed -i '1i extern int emu_fault;' "$file"
    names+=("$1")
}

run() { # CASE CHECK KERNELS...: with the faults so far
    local check=$2 line n seen=0
    export EMU_FLAGS="-DSV_EMULATED_WAVE64 -DEMU_SHARED_KIB=64 -DCHECK=\"$2\" -DN_FAULTS=${#names[@]}" RUN_ARG=$1
    shift 2
    (cd "$tree" && tests/cuda/emulated/run.sh tests/cuda/mutations_emulated.cpp "$@") >"$tree/log" 2>"$tree/errors" || failed=1
    while read -r n line; do
        seen=$((seen + 1))
        [ "$n" = 0 ] && echo "$check without a fault: $line" || echo "${names[n - 1]}: $line"
    done <"$tree/log"
    [ $seen = $((${#names[@]} + 1)) ] || { echo "$check: does not compile, or ended early"; tail -n 20 "$tree/errors"; failed=1; }
    names=()
}

fault 'a wait that leaves a round too many under way' gemm_portable.cuh \
    's/whole = (min\(behind, max\(\(t1 - t\) \/ R - 1, 0\)\))/whole = FAULT ? behind + 1 : \1/'
fault 'the first rounds counted like later ones' gemm_portable.cuh 's/n_rounds \* R \? FIRST_LINES/n_rounds * R \&\& !FAULT ? FIRST_LINES/'
fault 'a patch read before the wave has written it' gemm_out.cuh '/lay_out<PAIR, STMATRIX>\(v, s, s.patch\);/{n;s/gpu_wave_sync\(\);/if (!FAULT) &/}'
fault 'rows and columns of a product exchanged' gemm_out.cuh \
    's/gpu_run_row\(lane\), token = token0 \+ gpu_run_col\(lane\)/(FAULT ? gpu_run_col(lane) : gpu_run_row(lane)), token = token0 + (FAULT ? gpu_run_row(lane) : gpu_run_col(lane))/'
fault 'pieces of shared blocks one line short' gemm_out.cuh 's/j < piece_lines\(N\); j\+\+\) \{$/j < piece_lines(N) - FAULT; j++) {/'
fault 'the end of a strip of codes not copied' gemm_portable.cuh 's/copy_part<LEFT>\(to \+ j \* RING::STAGE/if (!FAULT) &/'
fault 'codes of the next part taken for those of the last' gemm_portable.cuh 's/u.values.code = it.code;/if (!FAULT || s.part == 0) &/'
fault 'the second half of the columns with the scales of the first' codes_lane.cuh 's/first \+ step, s, factor/first + step - (FAULT ? first : 0), s, factor/'
fault 'operands read before the wave has laid them out' codes_lane.cuh '/gpu_store4\(own/,/gpu_wave_sync/s/gpu_wave_sync\(\);/if (!FAULT) &/'
KERNEL_FLAGS=-Og run '' tests/cuda/gemm_emulated.cpp src/backend/gpu/{gemm_portable,gemm_portable_codes,gemm_portable_k,codes}.cu

fault 'keys read before their copy is waited for' attention_portable.cu 's/tile_lines<HD, WARPS, F8>\(\) \*/& (FAULT ? 2 : 1) */'
fault 'addresses of the tile after the next' attention_portable.cu 's/\(ahead - 1\) % N_OFFSETS/(ahead - 1 + FAULT) % N_OFFSETS/'
fault 'keys behind the query not masked' attention_portable.cu 's/pos < lo_all \|\| (pos \+ SV_ATTN_TILE > hi_all)/pos < lo_all || (!FAULT \&\& \1)/'
fault 'earlier sums not rescaled' attention_portable.cu 's/if \(!fresh\)$/if (!fresh \&\& !FAULT)/'
fault 'a copy into the stage that is being read' attention_portable.cu 's/ring \+ free_stage/ring + (FAULT ? stage : free_stage)/'
run 'd64 short' tests/cuda/attention_emulated.cpp src/backend/cuda/attention.cu src/backend/gpu/attention_{portable,latent,plain}.cu \
    src/backend/hip/no_tuned.cu

fault 'parts of a share added up from the own rank on' join.cuh \
    's/for \(int32_t first = begin; first < end; first \+= LOOKS\) \{/for (int32_t step = begin, first; step < end \&\& (first = FAULT \&\& adds \&\& s.share \&\& LOOKS == 1 ? (step + s.rank) % s.n : step, true); step += LOOKS) {/
    s/sum\[k\] = r == begin \?/sum[k] = (FAULT \&\& adds \&\& s.share \&\& LOOKS == 1 ? step == begin : r == begin) ?/'
fault 'the sum of a share rounded after each part' join.cuh \
    's/sv_join_spread\(f, seen\[j\].*/& if (FAULT \&\& s.share \&\& N == 8 \&\& r > begin) for (int k = 0; k < N; k++) sum[k] = __bfloat162float(__float2bfloat16_rn(sum[k]));/'
fault 'the place of a sum not blanked' join.cuh 's/gpu_send16\(sv_join_place\(s, r, at\), sv_join_blank\(\)\);/if (adds || !FAULT) &/'
fault 'shares of rows that are next to each other, not of those asked for' join.cu 's/row_of\(s, x, row_index, \(int32_t\)row, d\)/row_of(s, x, FAULT ? NULL : row_index, (int32_t)row, d)/'
# Told by a rank that is late: it looks for parts when the others' next ones, of the same kind, have come.
fault 'a kind of join twice running' join.cuh \
    's/gpu_send16\(s.to\[r\] \+ at,/gpu_send16(s.to[r] + at - (FAULT \&\& s.kind == SV_JOIN_FFN ? s.n * s.apart : 0),/
    s/return s.from \+ \(int64_t\)r \* s.apart \+ at;/return s.from + (int64_t)(r - (FAULT \&\& s.kind == SV_JOIN_FFN ? s.n : 0)) * s.apart + at;/
    s/bool all = true;/& for (int k = 0; FAULT \&\& s.rank == 0 \&\& n == 1 \&\& k < 30; k++) gpu_idle();/
    s/limit_us = s.timeout_us/limit_us = (FAULT ? 2000000 : s.timeout_us)/'
run 3 tests/cuda/join_emulated.cpp src/backend/gpu/{rows,join}.cu src/backend/cuda/nccl.cu
exit $failed
