#!/bin/bash
# demo.test.sh - the pair that ships with the project: `salvo demo`, and DFlash equal to plain decoding on it.
# timeout: 300
. tests/cli/lib.sh

demo=$PWD/models/demo
if [ ! -e "$demo/prompts.jsonl" ] || [ ! -e "$demo/draft/config.json" ]; then
    echo "models/demo is not there"
    exit 77
fi
run 0 demo --per-kind 1 --measured 1 --seconds 1 -n 48
out_says 'same tokens'
out_says 'all tokens are the same'
out_says 'accept length'
[[ $out != *$'\033'* ]] || fail "escape sequences without a terminal"

run 0 generate -m "$demo/target" --in "$demo/prompts.jsonl" --out "$tmp/plain" -n 64 -q
run 0 generate -m "$demo/target" -d "$demo/draft" --in "$demo/prompts.jsonl" --out "$tmp/dflash" -n 64 -q
run 0 generate -m "$demo/target" -d "$demo/draft" --in "$demo/prompts.jsonl" --out "$tmp/one" -n 64 -q --batch 1
for arm in dflash one; do
    cmp -s <(sed 's/, "accept_lengths".*//' "$tmp/plain") <(sed 's/, "accept_lengths".*//' "$tmp/$arm") ||
        fail "$arm differs from plain decoding"
done
run 0 run -m "$demo/target" -d "$demo/draft" --chat -p 'What is 3 times 4?' -n 40
err_says 'accept length'
finish
