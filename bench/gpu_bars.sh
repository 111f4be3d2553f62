#!/bin/bash
# gpu_bars.sh - the speeds a GPU is held to, measured in one go with Qwen3-8B's shapes and random weights, each beside
# its bar and the read bandwidth of the same run.
#
# bench/gpu_bars.sh [SALVO_BENCH]: CSV files go to $OUT or a temporary folder. REPEAT=5, SECS=1 an arm and level at most.
# REST=0.5: seconds of nothing before every sample of the lines "from rest"; 0 leaves these out.
# OPS=1: also where the time of a step goes (ops-*.txt in $OUT). PORTABLE=0: without the portable kernels.
set -u
here=$(dirname "$0")
salvo_bench=${1:-$here/../build/salvo-bench}
out=${OUT:-$(mktemp -d)}
repeat=${REPEAT:-5} seconds=${SECS:-1}
shape=$here/shapes/qwen3-8b
mkdir -p "$out"

# measure NAME ARGS...
measure() {
    local name=$1 begin
    shift
    begin=$(date +%s.%N)
    timeout "${LIMIT:-200}" "$salvo_bench" --random-weights "$shape" --device cuda --context 512 --repeat "$repeat" \
        --seconds "$seconds" -q -o csv --out "$out/bars-$name.csv" "$@" 2>"$out/bars-$name.err" ||
        echo "$name: failed: $(tail -n 1 "$out/bars-$name.err")"
    echo "$name: $(awk "BEGIN { printf \"%.1f\", $(date +%s.%N) - $begin }") s;" \
        "$(sed -n 's/^salvo: start: /start /p' "$out/bars-$name.err" | head -n 1)"
}

draft=(--draft-config "$shape-dflash")
measure main "${draft[@]}" --mode plain,verify,dflash --accept-profile 6.4 --concurrency 1,8,32 --prefill 8192 --steps 32
measure policy "${draft[@]}" --mode plain,dflash,auto --accept-profile qwen3-8b --concurrency 1,8,32 --steps 32
# Ten steps from rest meet a cooler card at a higher clock; all other lines are what it keeps up.
rested=(--steps 10 --rest "${REST:-0.5}")
if [ "${REST:-0.5}" != 0 ]; then
    measure rest "${draft[@]}" --mode dflash --accept-profile 6.4 --concurrency 8,32 "${rested[@]}"
    measure rest-policy "${draft[@]}" --mode auto --accept-profile qwen3-8b --concurrency 32 "${rested[@]}"
fi
[ "${PORTABLE:-1}" = 0 ] || measure portable --mode plain --accept-profile never --kernels portable --concurrency 1 --steps 32
python3 - "$out" <<'PY'
import csv
import os
import sys

out = sys.argv[1]


def rows(name):
    path = os.path.join(out, f"bars-{name}.csv")
    return list(csv.DictReader(open(path))) if os.path.exists(path) else []


def find(name, mode, n, profile=None):
    for r in rows(name):
        if r["mode"] == mode and r["sequences"] == str(n) and (profile is None or r["profile"] == profile):
            return r
    return None


def at_6_4(r):
    """The drawn lengths' mean is 6.4 only in the long run: tokens a second as if it had been met."""
    if not r:
        return r
    by = 6.4 / float(r["accept_length"])
    return {**r, **{k: str(by * float(r[k])) for k in ("tok_s_median", "tok_s_min", "tok_s_max")}}


def line(what, r, key, bar, reach, unit, less=False):
    if not r or not r[key]:
        print(f"{what:44} not measured")
        return
    v = float(r[key])
    met = v <= bar if less else v >= bar
    share = (f"reads {100 * float(r['share_of_limit']):5.1f} %, counted in bf16 {100 * float(r['share_if_whole']):5.1f} %, "
             f"of {float(r['limit_gb_s']):.0f} GB/s" if r["share_of_limit"] else "")
    spread = "" if key != "tok_s_median" else f" [{float(r['tok_s_min']):.0f}..{float(r['tok_s_max']):.0f}]"
    print(f"{what:44} bar {bar:8g} reach {reach:8g} {unit:8} measured {v:9.2f}{spread:18} {'met   ' if met else 'MISSED'} {share}")


line("plain, 1 sequence", find("main", "plain", 1), "tok_s_median", 255, 275, "tok/s")
line("verify 16 rows, target only", find("main", "verify 16", 1), "ms_step", 3.95, 3.65, "ms", True)
line("whole cycle, 1 sequence, block 16", find("main", "width 16", 1), "ms_step", 4.8, 4.4, "ms", True)
line("  the same in tokens", at_6_4(find("main", "width 16", 1)), "tok_s_median", 1330, 1450, "tok/s")
line("plain, 32 sequences", find("main", "plain", 32), "tok_s_median", 6600, 7300, "tok/s")
line("DFlash 16, 8 sequences, accept 6.4", at_6_4(find("main", "width 16", 8)), "tok_s_median", 9500, 10800, "tok/s")
line("DFlash 16, 32 sequences, accept 6.4", at_6_4(find("main", "width 16", 32)), "tok_s_median", 13500, 15500, "tok/s")
line("policy, 32 sequences, Qwen3-8B's histogram", find("policy", "auto", 32), "tok_s_median", 19000, 19000, "tok/s")
for name, what, mode, n, bar, reach in (("rest", "DFlash 16", "width 16", 8, 9500, 10800),
                                        ("rest", "DFlash 16", "width 16", 32, 13500, 15500),
                                        ("rest-policy", "policy", "auto", 32, 19000, 19000)):
    r = find(name, mode, n)
    if r:
        label = f"{what}, {n} sequences, FROM REST ({float(r['rest_s']):g} s)"
        line(label, r if mode == "auto" else at_6_4(r), "tok_s_median", bar, reach, "tok/s")
line("prompt of 8192", next((r for r in rows("main") if r["mode"] == "prompt"), None), "tflops", 450, 600, "TFLOP/s")
p = find("portable", "plain", 1)
if p:
    share = float(p["share_if_whole"])  # the bar is stated in bf16 bytes
    print(f"{'portable, plain, 1 sequence':44} bar     80 % of the read bandwidth      measured {100 * share:8.1f} % "
          f"({float(p['tok_s_median']):.1f} tok/s)    {'met' if share >= 0.8 else 'MISSED'}")
for n in (1, 8, 32):
    for name, mode, profile in (("main", "verify 16", None), ("policy", "width 16", None), ("policy", "auto", None)):
        r = find(name, mode, n, profile)
        if r:
            print(f"  {mode:10} {n:3} sequences, {r['profile']:10} {float(r['tok_s_median']):10.1f} tok/s {float(r['ms_step']):8.3f} ms"
                  f"  auto/best {r['auto_to_best'] or '-'}  widths {r['widths_percent']}")
PY

if [ "${OPS:-0}" = 1 ]; then
    for n in 1 32; do
        steps=$((n == 1 ? 16 : 8))
        measure "ops-$n" "${draft[@]}" --mode plain,verify,dflash --accept-profile 6.4 --concurrency $n --steps $steps \
            --profile-ops "$out/ops-$n.txt"
    done
fi
