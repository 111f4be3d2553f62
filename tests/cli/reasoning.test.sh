#!/bin/bash
# reasoning.test.sh - `salvo run` shows reasoning apart from the answer, and the next prompt has what the chat template wants of both.
. tests/cli/lib.sh

if ! script -qec true /dev/null </dev/null >/dev/null 2>&1; then
    echo 'no terminal can be opened here, or script(1) is not there'
    exit 77
fi
export HOME=$tmp TERM=xterm LC_ALL=C.UTF-8
unset NO_COLOR
# talk LINES ARG...: a conversation in which these lines are typed; $screen is what the terminal got.
talk() {
    local lines=$1 code=0
    shift
    screen=$(printf "$lines" | script -qec "$salvo run $*; exit \$?" /dev/null 2>&1) || code=$?
    screen=${screen//$'\r'/}
    [ "$code" = 0 ] || fail "salvo run $*: exit code $code: $(cat -v <<<"$screen")"
}
shows() {
    [[ $screen == *"$1"* ]] || fail "the terminal does not show '$1': $(cat -v <<<"$screen")"
}

# ---- harmony; as in gpt-oss's own template, reasoning that was not divided is an error

harmony='{%- for m in messages %}
    {%- if "<|channel|>" in m.content or "<|channel|>" in m.thinking or m.reasoning_content %}
        {{- raise_exception("not divided: " + m.content) }}
    {%- elif m.role == "assistant" and (m.content != "It is ä4." or m.thinking != "Look up.\nOr add.") %}
        {{- raise_exception("divided wrongly: " + m.content + "; " + m.thinking) }}
    {%- endif %}
    {{- "<|start|>" + m.role + "<|message|>" + m.content + "<|end|>" }}
{%- endfor %}
{{- "<|start|>assistant" }}{# <|channel|>analysis<|message|> #}'
scripted_model "$tmp/oss" "$harmony" '<|start|>assistant' '*<|channel|>' analysis '*<|message|>' 'Look ' up. '*<|end|>' \
    '<|start|>assistant<|channel|>analysis<|message|>Or add.<|end|>' '<|start|>' 'assistant<|channel|>final<|message|>' 'It is ' Ã¤4. \
    '*<|return|>'
marked=$'<think>\nLook up.\nOr add.\n</think>\n\nIt is ä4.'
run 0 run -m "$tmp/oss" -p 'What is it?' -q
equal "$out" "$marked"
equal "$(printf 'What is it?' | "$salvo" run -m "$tmp/oss" -q)" "$marked"
run 0 run -m "$tmp/oss" -p 'What is it?' -q -n 5
equal "$out" $'<think>\nLook up.\n</think>'
run 0 run -m "$tmp/oss" -p 'What is it?' -q --stop ' add'
equal "$out" $'<think>\nLook up.\nOr\n</think>'
run 0 run -m "$tmp/oss" -p 'What is it?' -q --colour always
equal "$out" $'\033[2mLook up.\033[0m\n\033[2mOr add.\033[0m\n\nIt is ä4.'
run 0 run -m "$tmp/oss" -p 'What is it?' -q --colour always --show-draft
equal "$(sed 's/\x1b\[[0-9;]*m//g' <<<"$out")" "$marked"
run 0 run -m "$tmp/oss" -p '<|start|>assistant' -q --raw
equal "$out" 'analysisLook up.<|start|>assistant<|channel|>analysis<|message|>Or add.<|end|><|start|>assistant<|channel|>final<|message|>It is ä4.'
talk 'What is it?\nAnd now?\n/quit\n' -m "$tmp/oss" -q
shows $'\033[2mLook up.\033[0m\n\033[2mOr add.\033[0m\n\nIt is ä4.\n'
equal "$(grep -c 'It is ä4.' <<<"$screen")" 2
[[ $screen != *divided* && $screen != *'<think>'* ]] || fail "the second prompt is wrong: $(cat -v <<<"$screen")"
# What the answer must be begins behind the header of a final message.
scripted_model "$tmp/final" "$harmony" '<|start|>assistant' '<|channel|>final<|message|>' 'It is ' Ã¤4. '*<|return|>'
run 0 run -m "$tmp/final" -p 'What is it?' -q --regex 'It is .*4\.'
equal "$out" 'It is ä4.'
echo '{"id": 1, "messages": [{"role": "user", "content": "What is it?"}], "regex": "It is .*4."}' >"$tmp/in.jsonl"
run 0 generate -m "$tmp/final" --in "$tmp/in.jsonl" --out - -q
out_says '"text": "It is ä4."'

# ---- <think>, written by the model or opened by the prompt

think='{%- for m in messages %}
    {%- if "think>" in m.content or m.role == "assistant" and (m.content != "Four." or m.reasoning_content != "I add.") %}
        {{- raise_exception("divided wrongly: " + m.content + "; " + m.reasoning_content) }}
    {%- endif %}
    {{- m.role + ": " + m.content.split("</think>")[0] + "\n" }}
{%- endfor %}
{{- "<|assistant|>" }}'
scripted_model "$tmp/think" "$think" '<|assistant|>' '<think>' $'\nI ' add. '</think>' $'\n\nFour.' '*<|eos|>'
scripted_model "$tmp/open" "$think<think>" '<think>' $'\nI ' add. '</think>' $'\n\nFour.' '*<|eos|>'
for model in think open; do
    run 0 run -m "$tmp/$model" -p Add. -q
    equal "$out" $'<think>\nI add.\n</think>\n\nFour.'
    talk 'Add.\nOnce more.\n/quit\n' -m "$tmp/$model" -q
    equal "$(grep -c 'Four\.' <<<"$screen")" 2
    shows $'\033[2mI add.\033[0m\n\nFour.\n'
    [[ $screen != *divided* && $screen != *think\>* ]] || fail "$model: $(cat -v <<<"$screen")"
    NO_COLOR=1 talk 'Add.\n/quit\n' -m "$tmp/$model" -q
    shows $'<think>\nI add.\n</think>\n\nFour.\n'
done
# No reasoning: nothing stands for it.
scripted_model "$tmp/none" "$think" '<|assistant|>' '<think>' $'\n\n</think>' $'\n\nFour.' '*<|eos|>'
run 0 run -m "$tmp/none" -p Add. -q
equal "$out" 'Four.'
finish
