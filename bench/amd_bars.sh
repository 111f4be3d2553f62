#!/bin/bash
# amd_bars.sh - the speeds an AMD card could reach, and those published for one, each beside what this machine's card does:
# Qwen3-8B's shapes and random weights, prompts of 1,024 tokens, plain decoding and DFlash by the width policy.
#
# bench/amd_bars.sh [SALVO_BENCH]: built with HIP=1. CSV files go to $OUT or a temporary folder. STEPS=32, REPEAT=5.
# Floors come from bandwidth, peak and sizes alone (docs/hip.md); it has never been run on a card. Without a
# card it prints the floors and fails. Must not: print a figure that was not measured as if it were.
set -u
here=$(dirname "$0")
salvo_bench=${1:-$here/../build/salvo-bench}
shape=$here/shapes/qwen3-8b
repeat=${REPEAT:-5} steps=${STEPS:-32}

# Floors in ms: bytes of weights over bandwidth, and 60 % of the peak in bf16. floors NAME TB/s TFLOP/s
floors() {
    awk -v name="$1" -v bw="$2" -v peak="$3" '
        function most(a, b) { return a > b ? a : b }
        # n sequences, width w, contexts of 1,536 tokens. A block of 16 is drafted when w > 1.
        function cycle(n, w,   target, draft) {
            target = most(15.14 / bw, n * w * 15.14 / (0.6 * peak)) + n * 1536 * 147456 / bw / 1e9
            draft = w > 1 ? most(3.34 / bw, n * w * 3.17 / (0.6 * peak)) : 0
            return target + draft
        }
        BEGIN {
            printf "%-8s one row %5.2f ms, %4.0f tok/s; rows whose arithmetic takes as long as reading: %.0f\n", name,
                15.14 / bw, bw / 15.14 * 1000, 0.6 * peak / bw
            for (n = 4; n <= 256; n *= n == 4 ? 16 : 4) {
                printf "%-8s %3d sequences: plain %6.2f ms, %6.0f tok/s; cycle of width", name, n, cycle(n, 1), n * 1000 / cycle(n, 1)
                for (w = 2; w <= 16; w *= w == 4 ? 4 : 2)
                    printf "%s %d: %.2f ms", w == 2 ? "" : ",", w, cycle(n, w)
                print ""
            }
        }'
}

echo 'Floors at 60 % of the matrix rate, contexts of 1,536 tokens, K/V read on top (not measured):'
floors MI300X 5.3 1307
floors MI355X 8.0 2500
echo 'Published by SGLang (PR 23388, MI355X, Qwen3-8B, 1K in, 1K out), tok/s:'
printf '%16s %8s %8s\n' sequences plain DFlash
published=$'4 749 1327\n64 6034 4268\n256 10771 4216'
while read -r n plain dflash; do printf '%16d %8d %8d\n' "$n" "$plain" "$dflash"; done <<<"$published"

[ -x "$salvo_bench" ] || { echo "amd_bars: $salvo_bench is not built (make HIP=1)" >&2; exit 1; }
out=${OUT:-$(mktemp -d)}
mkdir -p "$out"
timeout "${LIMIT:-1200}" "$salvo_bench" --random-weights "$shape" --draft-config "$shape-dflash" --device hip --context 1024 \
    --mode plain,dflash,auto --accept-profile 3.38 --concurrency 4,64,256 --repeat "$repeat" --steps "$steps" -q -o csv \
    --out "$out/amd-bars.csv" 2>"$out/amd-bars.err" || {
    echo "amd_bars: nothing measured: $(grep -v '^salvo: start' "$out/amd-bars.err" | tail -n 1)" >&2
    exit 1
}
echo "Measured here ($out/amd-bars.csv), tok/s beside what is published:"
while read -r n plain dflash; do
    for mode in plain 'width 16' auto; do
        awk -F, -v n="$n" -v mode="$mode" -v bar="$([ "$mode" = plain ] && echo "$plain" || echo "$dflash")" '
            { gsub(/"[^"]*"/, "quoted") } # commas in a name
            NR == 1 { for (i = 1; i <= NF; i++) col[$i] = i; next }
            $col["mode"] == mode && $col["sequences"] == n {
                printf "%16d %-9s published %6d measured %8.0f %s\n", n, mode, bar, $col["tok_s_median"],
                    ($col["tok_s_median"] + 0 >= bar + 0 ? "met" : "MISSED"); seen = 1 }
            END { if (!seen) printf "%16d %-9s published %6d not measured\n", n, mode, bar }' "$out/amd-bars.csv"
    done
done <<<"$published"
