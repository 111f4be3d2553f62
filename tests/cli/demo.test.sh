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

# ---- Ctrl-C inside an answer of a conversation ends the answer, not the conversation

if command -v tmux >/dev/null; then
    tmux="tmux -L salvo-demo-$$ -f /dev/null"
    wait_for() {
        for _ in $(seq 400); do
            $tmux capture-pane -p -S -2000 | grep -qF -- "$1" && return
            sleep 0.05
        done
        fail "the conversation does not show '$1': $($tmux capture-pane -p)"
    }
    $tmux new-session -d -x 100 -y 50 "HOME=$tmp $salvo run -m $demo/target -n 0 --raw --ignore-eos -t 1; echo ended \$?; sleep 20"
    wait_for '>'
    $tmux send-keys 'def first(n):' Enter
    for _ in $(seq 100); do # until the answer has begun, whatever it says
        [ "$($tmux capture-pane -p | grep -c .)" -gt 3 ] && break
        sleep 0.05
    done
    $tmux send-keys C-c
    wait_for '(canceled)'
    $tmux send-keys '/stats' Enter
    wait_for 'accept length 1.00'
    $tmux send-keys '/quit' Enter
    wait_for 'ended 0'
    $tmux kill-server
fi
finish
