#!/bin/bash
# Owns: the order and settings of the GPU steps that made models/demo. Run from the repository root on one GPU machine:
#   train/demo_gpu.sh DATA_DIR WORK_DIR STAGE...      stages: target text compare final
# DATA_DIR holds tokens.npz.xz and held_prompts.jsonl (prepare_data.py); WORK_DIR takes everything made.
set -u
DATA=$1 W=$2
shift 2
export PYTHONUNBUFFERED=1
HERE=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$W"
TARGET_SECONDS=${TARGET_SECONDS:-170} COMPARE_SECONDS=${COMPARE_SECONDS:-150} FINAL_SECONDS=${FINAL_SECONDS:-515}
py() { python3 "$HERE/$1.py" "${@:2}"; }
stage_target() {
    py train_target --data "$DATA/tokens.npz.xz" --tokenizer "$HERE/../models/demo/target" --out "$W/base" \
        --seconds "$TARGET_SECONDS" --maths-share 0.04 --weight-decay 0.08
    timeout 100 python3 "$HERE/unloop.py" --target "$W/base" --data "$DATA/tokens.npz.xz" --out "$W/target" ||
        { echo "unloop failed, the base target is used"; rm -rf "$W/target"; cp -r "$W/base" "$W/target"; }
}
stage_text() {
    py generate --target "$W/target" --prompts "$DATA/held_prompts.jsonl" --out "$W/held.npz" --new-tokens 160 --show 12
    timeout 150 python3 "$HERE/generate.py" --target "$W/target" --data "$DATA/tokens.npz.xz" --out "$W/text.npz" \
        --questions 98304 --code 131072
}
draft() { # NAME SECONDS ARGS...
    py train_draft --target "$W/target" --loader own --data "$W/text.npz" --held "$W/held.npz" --mask-id 6143 \
        --taps 1,3,5 --out "$W/$1" --seconds "$2" "${@:3}" >"$W/$1.log" 2>&1
}
shape() { # NAME -> its training arguments
    case $1 in
    dA) echo "--layers 1 --mlp 896 --loss dpace" ;;
    dB) echo "--layers 2 --mlp 640 --loss decay" ;;
    dC) echo "--layers 2 --mlp 640 --loss dpace" ;;
    dE) echo "--layers 3 --mlp 576 --loss dpace" ;;
    esac
}
stage_compare() {
    for n in dA dB dC dE; do draft $n "$COMPARE_SECONDS" --reports 4 $(shape $n) & done
    wait
    tail -n 8 "$W"/d[ABCE].log
}
# The shape with the best estimated speed, and the one with the best accept length when that is another, trained on.
stage_final() {
    names=$(python3 - "$W" <<'PY'
import re, sys
rows = []
for n in ("dA", "dB", "dC", "dE"):
    for line in open(f"{sys.argv[1]}/{n}.log"):
        m = re.search(r"exported.*maths ([\d.]+) \(est. x([\d.]+)\)  code ([\d.]+) \(est. x([\d.]+)\)", line)
        if m:
            a, b, c, d = map(float, m.groups())
            rows.append((n, b + 0.7 * d, a + 0.7 * c))
fast, long = max(rows, key=lambda r: r[1])[0], max(rows, key=lambda r: r[2])[0]
print(fast if fast == long else fast + " " + long)
PY
)
    echo "trained on: $names"
    for n in $names; do draft "f${n#d}" "$FINAL_SECONDS" --reports 8 $(shape $n) --init "$W/$n" & done
    wait
    tail -n 14 "$W"/f?.log
}
for s in "$@"; do "stage_$s"; done
