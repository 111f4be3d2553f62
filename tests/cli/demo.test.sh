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
run 0 generate -m "$demo/target" -d "$demo/draft" --in "$demo/prompts.jsonl" --out "$tmp/whole" -n 64 -q --compress-weights off
run 0 generate -m "$demo/target" -d "$demo/draft" --in "$demo/prompts.jsonl" --out "$tmp/compressed" -n 64 -q --compress-weights on
run 0 generate -m "$demo/target" -d "$demo/draft" --in "$demo/prompts.jsonl" --out "$tmp/exact" -n 64 -q --draft-quant off
run 0 generate -m "$demo/target" --in "$demo/prompts.jsonl" --out "$tmp/screen" -n 64 -q --batch 1 --screen-head on
run 0 generate -m "$demo/target" -d "$demo/draft" --in "$demo/prompts.jsonl" --out "$tmp/screens" -n 64 -q --batch 1 --screen-head on
for arm in dflash one whole compressed exact screen screens; do
    cmp -s <(sed 's/, "accept_lengths".*//' "$tmp/plain") <(sed 's/, "accept_lengths".*//' "$tmp/$arm") ||
        fail "$arm differs from plain decoding"
done
run 2 run -m "$demo/target" -d "$demo/draft" --draft-quant never -p x
err_says "option --draft-quant: 'never' is not one of auto, on, off"
run 2 run -m "$demo/target" --screen-head never -p x
err_says "option --screen-head: 'never' is not one of auto, on, off"
run 1 run -m "$demo/target" -d "$demo/draft" --device cpu --isa plain --draft-quant on -p x
err_says "no products of a draft's weights in 8 bits"
run 0 run -m "$demo/target" -d "$demo/draft" --chat -p 'What is 3 times 4?' -n 40
err_says 'accept length'
chat=$out

# ---- an end token ends an answer in chat form unless it is to be ignored; a width without its draft is no error

run 0 run -m "$demo/target" -p 'What is 3 times 4?' -n 400
err_says '(stop)'
run 0 run -m "$demo/target" -d "$demo/draft" --no-draft -w 8 -p 'What is 3 times 4?' -n 400 --ignore-eos
err_says '[400 tokens'
err_says '(length)'

# ---- the chat template: by default where there is one, the same as writing it out, not with --raw

run 0 run -m "$demo/target" -p 'What is 3 times 4?' -n 40 -q
equal "$out" "$chat"
run 0 run -m "$demo/target" --raw -p $'<|im_start|>user\nWhat is 3 times 4?<|im_end|>\n<|im_start|>assistant\n' -n 40 -q
equal "$out" "$chat"
run 0 run -m "$demo/target" --raw -p 'What is 3 times 4?' -n 40 -q
[ "$out" != "$chat" ] || fail "--raw uses the template"
run 1 run -m "$demo/target" -p $'bad \xff byte' -n 4
err_says 'not valid UTF-8'
run 2 run -m "$demo/target" --raw --chat -p x
printf '%s\n' \
    '{"id":1,"messages":[{"role":"user","content":"What is 3 times 4?"}],"max_tokens":40}' \
    '{"id":2,"prompt":"<|im_start|>user\nWhat is 3 times 4?<|im_end|>\n<|im_start|>assistant\n","max_tokens":40}' \
    '{"id":3,"messages":[{"role":"user"}]}' >"$tmp/chat.jsonl"
run 1 generate -m "$demo/target" --in "$tmp/chat.jsonl" --out "$tmp/chat.out" -q
same=$(sed -n '1,2s/.*"text": \(.*\), "accept_lengths".*/\1/p' "$tmp/chat.out" | uniq | wc -l)
equal "$same" 1
sed -n 3p "$tmp/chat.out" | grep -q "field 'messages': chat template: .*has no attribute 'content'" ||
    fail "a message without content: $(sed -n 3p "$tmp/chat.out")"

# ---- rules and log probabilities, the same with a draft

# The stop string and the stop id come from what the pair itself writes: its tenth token, and its second long word.
printf '{"id":0,"prompt":"def f(","max_tokens":30,"ignore_eos":true}\n' >"$tmp/free.jsonl"
run 0 generate -m "$demo/target" --in "$tmp/free.jsonl" --out "$tmp/free" -q
stop_id=$(sed 's/.*"token_ids": \[\([^]]*\)\].*/\1/' "$tmp/free" | cut -d, -f10 | tr -d ' ')
stop_word=$(sed 's/.*"text": "\(.*\)", "token_ids".*/\1/; s/\\[nrt"\\]/ /g' "$tmp/free" | grep -oE '[A-Za-z]{4,}' | sed -n 2p)
[ -n "$stop_id" ] && [ -n "$stop_word" ] || fail "no stop id or word in $(cat "$tmp/free")"
{
    printf '{"id":1,"prompt":"def f(","max_tokens":30,"logprobs":true,"top_logprobs":3,"prompt_logprobs":true}\n'
    printf '{"id":2,"prompt":"def f(","max_tokens":30,"frequency_penalty":1,"presence_penalty":0.5}\n'
    printf '{"id":3,"prompt":"def f(","max_tokens":30,"repetition_penalty":1.3,"logprobs":true}\n'
    printf '{"id":4,"prompt":"def f(","max_tokens":30,"temperature":1,"seed":5,"logit_bias":{"17":4,"11":-100}}\n'
    printf '{"id":5,"prompt":"def f(","max_tokens":30,"stop":["zqzq","%s"],"include_stop":true}\n' "$stop_word"
    printf '{"id":6,"prompt":"def f(","max_tokens":30,"stop_token_ids":[6139,%s],"min_tokens":5}\n' "$stop_id"
    printf '{"id":7,"prompt":"def f(","max_tokens":30,"min_tokens":31}\n'
} >"$tmp/rules.jsonl"
run 1 generate -m "$demo/target" --in "$tmp/rules.jsonl" --out "$tmp/rules.plain" -q
run 1 generate -m "$demo/target" -d "$demo/draft" --in "$tmp/rules.jsonl" --out "$tmp/rules.dflash" -q
cmp -s <(sed 's/, "accept_lengths".*//' "$tmp/rules.plain") <(sed 's/, "accept_lengths".*//' "$tmp/rules.dflash") ||
    fail "rules: dflash differs from plain decoding"
rule() {
    sed -n "$1p" "$tmp/rules.plain" | grep -qE -- "$2" || fail "rules line $1 has no $2: $(sed -n "$1p" "$tmp/rules.plain")"
}
rule 1 '"logprobs": \[\{"token_id": [0-9]+, "logprob": -[0-9.]+, "rank": 1, "top": \[\[[0-9]+, -'
rule 1 '"prompt_logprobs": \[null, \{"logprob": -'
rule 5 '"text": ".*'"$stop_word"'", .*"finish_reason": "stop", "stop_reason": "'"$stop_word"'"'
rule 6 '"finish_reason": "stop", "stop_reason": '"$stop_id"','
rule 7 'min_tokens 31 is above max_tokens 30'

# ---- Ctrl-C inside an answer of a conversation ends the answer, not the conversation; the next one does, unless
# something is typed in between

if command -v tmux >/dev/null; then
    tmux="tmux -L salvo-demo-$$ -f /dev/null"
    screen() {
        $tmux capture-pane -p -S -2000
    }
    # until_so CONDITION...: whether the condition came true within a minute.
    until_so() {
        for _ in $(seq 1200); do
            "$@" && return
            sleep 0.05
        done
        return 1
    }
    shows() {
        screen | grep -qF -- "$1"
    }
    wait_for() {
        until_so shows "$1" || fail "the conversation does not show '$1': $(screen)"
    }
    prompts() {
        [ "$(screen | grep -c '^>')" -ge "$1" ]
    }
    has_ended() {
        [ -s "$tmp/code" ]
    }
    wait_end() {
        until_so has_ended || fail "the conversation does not end: $(screen)"
        [ "$(<"$tmp/code")" = "$1" ] || fail "the conversation ended with $(<"$tmp/code"), not $1: $(screen)"
        $tmux kill-server
    }
    # cancel_one KEY...: a conversation with an answer that the keys have canceled.
    cancel_one() {
        rm -f "$tmp/code"
        # Ctrl-C reaches the shell around the program too, which must outlive it.
        $tmux new-session -d -x 100 -y 50 "trap : INT
            HOME=$tmp $salvo run -m $demo/target -n 0 --raw --ignore-eos -t 1; echo \$? >$tmp/code; sleep 1000"
        wait_for '>'
        $tmux send-keys 'def first(n):' Enter
        for _ in $(seq 1200); do # until the answer has begun, whatever it says
            [ "$(screen | grep -c .)" -gt 3 ] && break
            sleep 0.05
        done
        for key in "$@"; do
            $tmux send-keys "$key"
            sleep 0.3
        done
        wait_for '(canceled)'
        until_so prompts 2 || fail "no prompt after a canceled answer: $(screen)"
    }
    cancel_one C-c
    $tmux send-keys '/stats' Enter
    wait_for 'accept length 1.00'
    until_so prompts 3 || fail "no prompt after /stats: $(screen)"
    $tmux send-keys C-c
    until_so prompts 4 || fail "no prompt after Ctrl-C: $(screen)"
    $tmux send-keys '/quit' Enter
    wait_end 0
    tmux="tmux -L salvo-demo2-$$ -f /dev/null"
    cancel_one C-c
    $tmux send-keys C-c
    wait_end 1
    # Ctrl-S stops the terminal: a write that waits for it and that Ctrl-C interrupts is no failed one.
    tmux="tmux -L salvo-demo3-$$ -f /dev/null"
    cancel_one C-s C-c
    $tmux send-keys '/quit' Enter
    wait_end 0
fi
finish
