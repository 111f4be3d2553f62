#!/bin/bash
# Owns: the order and settings of the GPU steps that made models/demo. Run from the repository root on one GPU machine:
#   train/demo_gpu.sh DATA_DIR WORK_DIR STAGE...      stages: target text compare
# DATA_DIR holds tokens.npz.xz and held_prompts.jsonl (prepare_data.py); WORK_DIR takes everything made.
set -u
DATA=$1 W=$2
shift 2
export PYTHONUNBUFFERED=1
HERE=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$W"
TARGET_SECONDS=${TARGET_SECONDS:-185} COMPARE_SECONDS=${COMPARE_SECONDS:-170}
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
stage_compare() {
    draft dA "$COMPARE_SECONDS" --reports 4 --layers 1 --mlp 896 --loss dpace &
    draft dB "$COMPARE_SECONDS" --reports 4 --layers 2 --mlp 640 --loss decay &
    draft dC "$COMPARE_SECONDS" --reports 4 --layers 2 --mlp 640 --loss dpace &
    draft dE "$COMPARE_SECONDS" --reports 4 --layers 3 --mlp 576 --loss dpace &
    wait
    tail -n 8 "$W"/d[ABCE].log
}
for s in "$@"; do "stage_$s"; done
