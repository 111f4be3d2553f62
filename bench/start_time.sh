#!/bin/bash
# start_time.sh - seconds from the start of the process to the first byte of its answer, for a model of Qwen3-8B's
# size with random weights, page cache warm; and what the program says about where the time went.
#
# bench/start_time.sh [SALVO] [FOLDER]: FOLDER (default /tmp/salvo-8b, about 19 GB) is filled by
# tools/bench/random_checkpoint.py unless it holds a checkpoint, and left there. REPEAT=3. DRAFT=0: without the draft.
set -u
here=$(dirname "$0")
salvo=${1:-$here/../build/salvo}
dir=${2:-/tmp/salvo-8b}
shape=${SHAPE:-qwen3-8b}
now() { date +%s.%N; }
since() { awk "BEGIN { printf \"%.2f\", $(now) - $1 }"; }

for part in "$shape" "$shape-dflash"; do
    [ -f "$dir/$part/config.json" ] && continue
    begin=$(now)
    python3 "$here/../tools/bench/random_checkpoint.py" "$here/shapes/$part" "$dir/$part" || exit 1
    echo "wrote $dir/$part: $(du -sh "$dir/$part" | cut -f1) in $(since "$begin") s"
done

# run LABEL ARGS...: the text is read byte by byte, so the clock stops at the first one.
run() {
    local label=$1 begin
    shift
    for _ in $(seq "${REPEAT:-3}"); do
        begin=$(now)
        timeout 120 "$salvo" run -m "$dir/$shape" --raw -n 4 -p 'Hello there, this is the first prompt' "$@" \
            2>"$dir/log" | { IFS= read -r -N 1 _; echo "$label: first byte after $(since "$begin") s"; cat >/dev/null; }
    done
    grep 'start:' "$dir/log" || tail -n 3 "$dir/log"
}
run plain
[ "${DRAFT:-1}" = 0 ] || run 'with draft' -d "$dir/$shape-dflash"
