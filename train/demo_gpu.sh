#!/bin/bash
# Owns: the order and settings of the GPU steps that made models/demo. Run from the repository root on one GPU machine:
#   train/demo_gpu.sh DATA_DIR WORK_DIR STAGE...      stages, in this order: target first sharpen text final
# DATA_DIR holds tokens.npz.xz and held_prompts.jsonl (prepare_data.py); WORK_DIR takes everything made, WORK_DIR/sharp/target and
# WORK_DIR/final are the pair.
set -u
DATA=$1 W=$2
shift 2
export PYTHONUNBUFFERED=1
HERE=$(cd "$(dirname "$0")" && pwd)
TOKENIZER=${TOKENIZER:-$HERE/../models/demo/target}
mkdir -p "$W"
TARGET_SECONDS=${TARGET_SECONDS:-165} FIRST_SECONDS=${FIRST_SECONDS:-60} FINAL_SECONDS=${FINAL_SECONDS:-130}
SHARPEN=${SHARPEN:---rounds 3 --seconds 36}
SHAPE="--layers 3 --mlp 576 --loss dpace --taps 1,3,5 --mask-id 6143"
py() { python3 "$HERE/$1.py" "${@:2}"; }
answers() { # TARGET_DIR OUT SHOWN: greedy text on the held-out prompts
    py generate --target "$1" --prompts "$DATA/held_prompts.jsonl" --out "$2" --new-tokens 160 --show "$3"
}
draft() { # TARGET_DIR TEXT HELD OUT SECONDS ARGS...
    py train_draft --target "$1" --loader own --data "$2" --held "$3" --out "$4" --seconds "$5" $SHAPE "${@:6}"
}
stage_target() {
    py train_target --data "$DATA/tokens.npz.xz" --tokenizer "$TOKENIZER" --out "$W/base" \
        --seconds "$TARGET_SECONDS" --maths-share 0.04 --weight-decay 0.08
}
stage_first() {
    answers "$W/base" "$W/held0.npz" 8
    py generate --target "$W/base" --data "$DATA/tokens.npz.xz" --out "$W/text0.npz" --questions 32768 --code 98304
    draft "$W/base" "$W/text0.npz" "$W/held0.npz" "$W/first" "$FIRST_SECONDS" --reports 3
}
stage_sharpen() {
    py sharpen --target "$W/base" --draft "$W/first" --data "$DATA/tokens.npz.xz" --out "$W/sharp" $SHARPEN
}
stage_text() {
    answers "$W/sharp/target" "$W/held.npz" 16
    py generate --target "$W/sharp/target" --data "$DATA/tokens.npz.xz" --out "$W/text.npz" --questions 57344 --code 196608
}
stage_final() {
    draft "$W/sharp/target" "$W/text.npz" "$W/held.npz" "$W/final" "$FINAL_SECONDS" --reports 8 --init "$W/sharp/draft"
}
for s in "$@"; do
    echo "== stage $s: $(date +%T)"
    "stage_$s"
done
echo "== end: $(date +%T)"
