#!/bin/bash
# usage.test.sh - help, versions, exit codes, and errors that name what is wrong.
. tests/cli/lib.sh

for command in run generate serve check info demo; do
    run 0 $command --help
    out_says "Usage: salvo $command"
    equal "$err" ""
    run 2 $command --no-such-option
    err_says "--no-such-option"
    err_says "salvo $command --help"
    equal "$out" ""
done
# Explanations fit a terminal of 80 columns.
for command in run generate serve check demo; do
    equal "$("$salvo" $command --help | sed -n '/^Options/,$p' | awk 'length > 80')" ''
done
equal "$("$salvo_bench" --help | sed -n '/^Options/,$p' | awk 'length > 80')" ''
for words in "" serve; do
    run_bench 0 $words --help
    out_says "Usage: salvo-bench $words"
    run_bench 2 $words --no-such-option
    err_says "--no-such-option"
    err_says "salvo-bench${words:+ $words} --help"
done
run 0 --help
for command in run generate serve check info demo; do
    out_says "  $command "
done
run 0 --version
out_says "salvo 0."
run 2
run 2 fly
err_says "unknown command 'fly'"

# Wrong usage is 2, and says which option.
run 2 run -p hi
err_says "--model"
run 2 run -m "$target" -p hi --dtype int4
err_says "--dtype"
run 2 run -m "$target" -p hi --temperature 101
err_says "--temperature"
run 2 run -m "$target" -p hi --temperature -1
err_says "--temperature"
run 2 run -m "$target" -p hi --top-p 2
err_says "--top-p"
run 2 run -m "$target" -p hi --max-tokens -4
err_says "--max-tokens"
run 2 run -m "$target" -p hi --width 65
err_says "--spec-width"
run 2 run -m "$target" -p hi -f x
err_says "exclude"
run 2 run -m "$target" -p hi --stop ''
err_says "--stop"
run 2 run -m "$target" -p hi --stop
err_says "--stop"
run 2 run -m "$target" -p hi --image ''
err_says "--image: the name is empty"
run 2 run -m "$target" -p hi --raw --image x.png
err_says "--raw and --image exclude each other"
run 1 run -m "$target" -p hi --image /no/such.png
err_says "/no/such.png"
run 1 run -m "$target" -p hi --image README.md
err_says "README.md: no known image; PNG, JPEG and WebP are read"
run 1 run -m "$target" -p hi --image=tests/golden/images/rgb.png --image tests/golden/images/444.jpg
err_says "pair_target: option --image: the model has no vision tower"
run 2 run -m "$target" -p hi --colour sometimes
err_says "--colour"
run 2 run -m "$target" -p hi more
err_says "'more'"
run 2 generate -m "$target" --in x
err_says "--out"
# What other servers have by another name is said so; what nobody has, and what an option is given, is not.
run 2 serve --model "$target" --max-model-len=512 --served-model-name x
err_says "unknown option --max-model-len; here it is --ctx"
run 2 run -m "$target" -p hi --temp 0
err_says "unknown option --temp; here it is --temperature"
run 2 run -m "$target" --served-model-name x
err_says "unknown option --served-model-name"
run 2 run -m "$target" --stop --temp --max-tokens -4
err_says "--max-tokens"
run 2 serve "$target"
err_says "-m"
run 2 generate -m "$target" --in x --out y --batch 0
err_says "--batch"
run_bench 2 -m "$target"
err_says "--prompts"
run_bench 2 -m "$target" --prompts x --format xml
err_says "--format"
run_bench 2 -m "$target" --prompts x --concurrency 1,,2
err_says "--concurrency"
for n in 0 513; do
    run_bench 2 -m "$target" --prompts x --repeat $n
    err_says "option --repeat: $n is not in [1, 512]"
done
run 2 info
run 2 info ''
err_says 'which directory?'
run 2 info a b
run 2 check -m "$target" --prompts x
err_says "--prompts"

run_bench 2 -m "$target" --prompts x --limit -1
err_says "--limit"
run_bench 2 -m "$target" --prompts x --limit 4294967297
err_says "--limit"
run_bench 2 -m "$target" --prompts x --seconds -1
err_says "--seconds"
run 2 demo --seconds 1e9
err_says "--seconds"
run 2 demo --per-kind -1
err_says "--per-kind"
run 2 demo --colour sometimes
err_says "--colour"
run 2 run -m "$target" -p hi -n 99999999999999999999
err_says "option --max-tokens: 99999999999999999999 is out of range"
run 1 run -m "$target" -p hi --device cpu --gpu 1
err_says "gpu 1 is asked for, and the device is the cpu"
for command in run generate; do
    run 0 $command --help
    out_says "end (default 512)"
done
run 0 demo --help
out_says "end (default 160)"
run_bench 0 --help
out_says "end (default 160)"

# The ranges that the engine has are said in the words of the command line.
while read -r option value; do
    run 2 run -m "$target" -p hi "$option" "$value"
    err_says "option $option"
done <<END
--isa z80
--kernels magic
--compress-weights maybe
--draft-quant 1
--activations bf16
--page-size 1025
--chunk 65537
--ctx 16777217
--top-p 0
--gpu-memory-utilization 1.5
--device-timeout -1
END
run 2 run -m "$target" -p hi -w 4
err_says "needs a draft"
run 2 run -m '' -p hi
err_says "--model"
run 2 run -m "$target" -d '' -p hi
err_says "--draft"
run 2 run -m "$target" --raw --system x -p hi
err_says "exclude"
run 2 generate -m "$target" --in x --out y --batch 4097
err_says "[1, 4096]"
run_bench 2 -m "$target" --random-weights "$target"
err_says "exclude"
run_bench 2 --prompts x --random-weights "$target"
err_says "exclude"
run_bench 2 -m "$target" -d "$draft" --mode dflash --widths 99
err_says "--widths"

# What is out of range is named as it was written.
while read -r option value; do
    run 2 serve -m "$target" --port 0 "$option" "$value"
    err_says "$option"
    err_says "$value"
done <<END
--sequences 5000
--sequences 0
--dp 0
--dp 17
--dp two
--tool-parser parrot
--reasoning-parser parrot
--reasoning-field parrot
--spec-metrics parrot
END
mkdir "$tmp/hot"
ln -s "$target"/* "$tmp/hot/"
rm -f "$tmp/hot/generation_config.json"
echo '{"top_p": 0}' >"$tmp/hot/generation_config.json"
run 1 serve -m "$tmp/hot" --port 0
err_says "$tmp/hot/generation_config.json: field 'top_p'"
run 1 serve -m "$target" --chat-template /no/such.jinja
equal "$err" 'salvo: /no/such.jinja: cannot open: No such file or directory'
run 2 serve -m "$target" --unix ''
err_says "option --unix: the path is empty"
run 2 serve -m "$target" --dp 2 --record-plan "$tmp/plans"
err_says "options --dp and --record-plan exclude each other"
run 2 run -m "$target" -p hi --dp 2
err_says "option --dp: a server has replicas (salvo serve)"
run 2 serve -m "$target" --data-parallel-size 2
err_says "unknown option --data-parallel-size; here it is --dp"
run 2 serve -m "$target" --unix "$tmp/sock" --host ::1
err_says "--unix and --host exclude each other"
for name in num-prompts=5000000000 num-prompts=-1 max-concurrency=0 max-tokens=0 input-len=0 input-len=99999999 temperature=-1 \
    request-rate=-3 request-rate=1e-300 seed=-1; do
    run_bench 2 serve --url http://127.0.0.1:1 "--$name"
    err_says "option --${name%=*}: "
    err_says " is not in ["
done
for list in 1,2, ,1 1,,2 x ''; do
    run_bench 2 -m "$target" --prompts x --concurrency "$list"
    err_says "option --concurrency: '$list'"
    run_bench 2 -m "$target" -d "$draft" --mode plain --concurrency "$list"
    err_says "option --concurrency: '$list'"
done
for words in '--mode plain,' '--mode ,plain' '--mode dflash --widths 4,' '--mode plain --accept-profile never,'; do
    # shellcheck disable=SC2086
    run_bench 2 -m "$target" -d "$draft" $words
    err_says "option --"
    err_says "''"
done
run_bench 2 -m "$target" --mode ''
err_says "--mode"

# Options that have no say beside others are not passed over.
run_bench 2 --random-weights "$target" -d "$draft"
err_says "--random-weights and --draft exclude each other"
run_bench 2 -m "$target" --draft-config "$draft"
err_says "--draft-config needs --random-weights"
run_bench 2 -m "$target" -d "$draft" --mode plain --one-engine
err_says "--one-engine"
run 2 run -m "$target" -p hi --min-tokens 100 -n 50
err_says "option --min-tokens: 100 is above --max-tokens, 50"
run 2 run -m "$target" --grammar -
err_says "standard input"
run 2 run -m "$target" -f - --json-schema -
err_says "standard input"
run 2 generate -m "$target" --in - --out "$tmp/none" --json-schema -
err_says "'-'"
run 2 generate -m "$target" --in x --out ''
err_says "option --out: the file's name is empty"
run_bench 2 -m "$target" --prompts x --out ''
err_says "option --out: the file's name is empty"

# Where in a text a word is out of place, from 0.
run 1 run -m "$target" -p hi --choice '["a" "b"]'
err_says "option --choice: JSON, byte 5 (line 1)"

# Without a draft, check opens the model all the same; one token has no rate.
run 0 check -m "$target"
out_says "opened: cpu"
run 1 check -m "$target" --ctx 999999
err_says "context 999999"
run 0 run -m "$target" -d "$draft" -p hi -n 1
[[ $err =~ ^\[1\ token\ in\ [0-9.]+\ s\ \(length\)\;\ prompt\ of\ [0-9]+\ in\ [0-9]+\ ms\]$ ]] || fail "$err"

# While a model loads a signal ends the program: nothing looks at flags then. Another process has a lease on
# config.json, so that opening it waits; the marker is there once a command does.
mkdir "$tmp/slow"
ln -s "$target"/* "$tmp/slow/"
rm "$tmp/slow/config.json"
cp "$target/config.json" "$tmp/slow/config.json"
echo '{"id":1,"prompt":"hi"}' >"$tmp/one"
for words in "$salvo run -p hi" "$salvo generate --in $tmp/one --out -" "$salvo check -d $draft" "$salvo_bench --prompts $tmp/one" \
    "$salvo demo" "$salvo_bench --mode plain"; do
    rm -f "$tmp/marker" "$tmp/marker.held"
    perl tests/lease.pl "$tmp/slow/config.json" "$tmp/marker" &
    holder=$!
    while kill -0 $holder 2>/dev/null && [ ! -e "$tmp/marker.held" ]; do sleep 0.01; done
    [ -e "$tmp/marker.held" ] || { echo 'not tested: files of this file system have no leases'; break; }
    # shellcheck disable=SC2086
    $words -m "$tmp/slow" >/dev/null 2>&1 &
    pid=$!
    while kill -0 $pid 2>/dev/null && [ ! -e "$tmp/marker" ]; do sleep 0.01; done
    kill -TERM $pid
    code=0
    wait $pid || code=$?
    equal "$words: $code" "$words: 143"
    kill $holder
    wait $holder 2>/dev/null
done

# `help COMMAND` is that command's help.
run 0 help generate
out_says "Usage: salvo generate"

# What was written into a full disk is not an answer.
for words in "--help" "info $target" "check -m $target" "run -m $target -p hi -n 2 -q"; do
    code=0
    # shellcheck disable=SC2086
    "$salvo" $words >/dev/full 2>"$tmp/err" || code=$?
    err=$(cat "$tmp/err")
    equal "$code" 1
    err_says "standard output"
done

# What is not there is 1, and says which file.
run 1 run -m /nonexistent -p hi
err_says "/nonexistent"
run 1 run -m "$target" -d /nonexistent -p hi
err_says "/nonexistent"
run 1 run -m "$target" -f /nonexistent/prompt
err_says "/nonexistent/prompt"
# Before the model is loaded.
run 1 run -m "$tmp" -f /nonexistent/prompt
err_says "/nonexistent/prompt"
run 1 run -m "$tmp" -p ''
err_says "option --prompt: the prompt is empty"
# A directory of the hub cache stands for its snapshot, of which refs/main has the name.
hub=$tmp/models--Demo--Pair
run 1 info "$hub"
err_says "$hub/refs/main: cannot open"
mkdir -p "$hub/refs" "$hub/snapshots"
printf '0123abc' >"$hub/refs/main"
ln -s "$(realpath "$target")" "$hub/snapshots/0123abc"
run 0 info "$target"
want=$out
run 0 info "$hub"
equal "$out" "$want"
run 0 run -m "$target" -p hi -n 4 -q
want=$out
run 0 run -m "$hub" -p hi -n 4 -q
equal "$out" "$want"
run_bench 0 --random-weights "$hub" --prefill 16 --verify 2 --repeat 1 --seconds 0.01 --format csv
out_says Demo/Pair
run 1 info /nonexistent
err_says "/nonexistent"
run 1 check -m /nonexistent
err_says "/nonexistent"
run 1 generate -m "$target" --in "$tmp" --out "$tmp/answers"
err_says "$tmp: line 1: Is a directory"
run_bench 1 -m "$target" --prompts "$tmp/p.jsonl" --out /nonexistent/r.csv
err_says "/nonexistent/r.csv"
run_bench 1 -m "$target" --mode plain --profile-ops /nonexistent/ops
err_says "/nonexistent/ops"
run 1 run -m "$draft" -p hi

# Where results cannot go is found out before anything is loaded.
for words in "$salvo 1 generate --in $tmp --out" "$salvo_bench 1 --prompts x --out" "$salvo_bench 1 --mode plain --profile-ops"; do
    # shellcheck disable=SC2086
    run_program $words /nonexistent/r -m /no/model
    equal "$err" "salvo: /nonexistent/r: No such file or directory"
    # shellcheck disable=SC2086
    run_program $words "$tmp" -m /no/model
    equal "$err" "salvo: $tmp: Is a directory"
done

# A prompt of nothing, or of other bytes than text.
run 1 run -m "$target" -p ''
err_says "option --prompt: the prompt is empty"
run 1 run -m "$target"
err_says "standard input: the prompt is empty"
printf 'a\xc3\xa4\xffb' >"$tmp/latin1"
run 1 run -m "$target" -f "$tmp/latin1"
err_says "$tmp/latin1: byte 3: not valid UTF-8"

# A tokenizer may know tokens that the model has no embedding for.
mkdir "$tmp/more"
ln -s "$target"/* "$tmp/more/"
rm "$tmp/more/tokenizer.json"
perl -0pe 's/"added_tokens": *\[/$&\{"id":5000,"content":"<far>","single_word":false,"lstrip":false,"rstrip":false,
    "normalized":false,"special":true},/' "$target/tokenizer.json" >"$tmp/more/tokenizer.json"
run 0 run -m "$tmp/more" --raw -p 'near' -n 2
run 1 run -m "$tmp/more" --raw -p 'x<far>' -n 2
err_says "prompt token 5000 at index 1 is outside [0, 300)"

# Each of the tokenizer's two files is named in its own errors.
for file in tokenizer.json tokenizer_config.json; do
    rm -rf "$tmp/torn"
    mkdir "$tmp/torn"
    ln -s "$target"/* "$tmp/torn/"
    rm "$tmp/torn/$file"
    head -c 20 "$target/$file" >"$tmp/torn/$file"
    run 1 run -m "$tmp/torn" --raw -p hi
    [[ $err == "salvo: $tmp/torn/$file: "*byte* ]] || fail "$file: $err"
done

# An interrupted download leaves links that lead nowhere.
mkdir "$tmp/broken"
ln -s "$target"/* "$tmp/broken/"
for file in generation_config.json tokenizer.json tokenizer_config.json; do
    ln -sf nowhere "$tmp/broken/$file"
    run 1 run -m "$tmp/broken" -p hi
    err_says "$tmp/broken/$file: cannot open"
    rm "$tmp/broken/$file"
    [ ! -e "$target/$file" ] || ln -s "$target/$file" "$tmp/broken/$file"
done
run 1 run -m "$no_tokenizer" -p hi
err_says "tokenizer.json"
mkdir "$tmp/no_template"
ln -s "$target"/* "$tmp/no_template/"
rm "$tmp/no_template/tokenizer_config.json"
run 1 run -m "$tmp/no_template" -p hi --chat
err_says "<|im_start|>"
run 1 run -m "$tmp/no_template" -p hi --system x
err_says "chat template"
run_bench 1 -m "$target" --prompts /nonexistent/p.jsonl
err_says "/nonexistent/p.jsonl"
run_bench 1 --random-weights /nonexistent
err_says "/nonexistent"
finish
