#!/bin/bash
# start_time.sh - seconds from the start of the process to the first byte of its answer, for a model of Qwen3-8B's
# size with random weights, page cache warm; and what the program says about where the time went.
#
# bench/start_time.sh [--tp N] [SALVO] [FOLDER]: FOLDER (default /tmp/salvo-8b, about 19 GB) is filled by
# tools/bench/random_checkpoint.py unless it holds a checkpoint, and left there. REPEAT=3. DRAFT=0: without the draft.
# SHAPE: another of bench/shapes. ARGS: more options, such as "--device cpu". --tp N: N processes that mpirun starts (SALVO
# is built with MPI=1; MPIRUN="mpirun --oversubscribe": how), and of each rank, at the first byte, its processor time and
# its memory: pages of the mapped files, of its own, and shared ones.
set -u
tp=1
if [ "${1:-}" = --tp ]; then
    tp=$2
    shift 2
fi
here=$(dirname "$0")
salvo=${1:-$here/../build/salvo}
dir=${2:-/tmp/salvo-8b}
shape=${SHAPE:-qwen3-8b}
now() { date +%s.%N; }
since() { awk "BEGIN { printf \"%.2f\", $(now) - $1 }"; }

for part in "$shape" "$shape-dflash"; do
    [ "$part:${DRAFT:-1}" = "$shape-dflash:0" ] && continue
    [ -f "$dir/$part/config.json" ] && continue
    begin=$(now)
    python3 "$here/../tools/bench/random_checkpoint.py" "$here/shapes/$part" "$dir/$part" || exit 1
    echo "wrote $dir/$part: $(du -sh "$dir/$part" | cut -f1) in $(since "$begin") s"
done

start=("$salvo")
n_tokens=4
if [ "$tp" -gt 1 ]; then
    read -ra start <<<"${MPIRUN:-mpirun} -n $tp"
    start+=("$salvo")
    n_tokens=64 # ranks are looked at meanwhile
fi
export SALVO_START_TIME=$$

# ranks: a line for each.
ranks() {
    local exe rank
    for exe in /proc/[0-9]*/exe; do
        [ "$exe" -ef "$salvo" ] || continue
        grep -qz "^SALVO_START_TIME=$$\$" "${exe%exe}environ" || continue
        rank=$(tr '\0' '\n' <"${exe%exe}environ" | sed -nE 's/^(OMPI_COMM_WORLD|PMI)_RANK=//p' | head -n 1)
        awk -v rank="$rank" -v hz="$(getconf CLK_TCK)" '
            FILENAME ~ /stat$/ { sub(/.*\) /, ""); cpu = ($12 + $13) / hz }
            /^RssFile/ { file = $2 } /^RssAnon/ { own = $2 } /^RssShmem/ { shared = $2 }
            END { printf "  rank %d: %.2f s of CPU, files %d MiB, own %d MiB, shared %d MiB\n", rank, cpu,
                file / 1024, own / 1024, shared / 1024 }' "${exe%exe}stat" "${exe%exe}status"
    done 2>/dev/null | sort
}

# run LABEL ARGS...: the text is read byte by byte, so the clock stops at the first one.
run() {
    local label=$1 begin
    shift
    for _ in $(seq "${REPEAT:-3}"); do
        begin=$(now)
        timeout 120 "${start[@]}" run -m "$dir/$shape" --raw -n $n_tokens -p 'Hello there, this is the first prompt' \
            --tp "$tp" ${ARGS:-} "$@" 2>"$dir/log" </dev/null | {
            IFS= read -r -N 1 _
            echo "$label: first byte after $(since "$begin") s"
            [ "$tp" = 1 ] || ranks
            cat >/dev/null
        }
    done
    grep -E 'start:|memory of rank [0-9]*: target weights' "$dir/log" || tail -n 3 "$dir/log"
}
run plain
[ "${DRAFT:-1}" = 0 ] || run 'with draft' -d "$dir/$shape-dflash"
