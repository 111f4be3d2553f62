#!/bin/bash
# usage.test.sh - help, versions, exit codes, and errors that name what is wrong.
. tests/cli/lib.sh

for command in run generate serve bench check info demo; do
    run 0 $command --help
    out_says "Usage: salvo $command"
    equal "$err" ""
    run 2 $command --no-such-option
    err_says "--no-such-option"
    err_says "salvo $command --help"
    equal "$out" ""
done
run 0 --help
for command in run generate serve bench check info demo; do
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
run 2 run -m "$target" -p hi --colour sometimes
err_says "--colour"
run 2 run -m "$target" -p hi more
err_says "'more'"
run 2 generate -m "$target" --in x
err_says "--out"
run 2 generate -m "$target" --in x --out y --batch 0
err_says "--batch"
run 2 bench -m "$target"
err_says "--prompts"
run 2 bench -m "$target" --prompts x --format xml
err_says "--format"
run 2 bench -m "$target" --prompts x --concurrency 1,,2
err_says "--concurrency"
run 2 bench -m "$target" --prompts x --repeat 0
err_says "--repeat"
run 2 info
run 2 info a b

# What is not there is 1, and says which file.
run 1 run -m /nonexistent -p hi
err_says "/nonexistent"
run 1 run -m "$target" -d /nonexistent -p hi
err_says "/nonexistent"
run 1 run -m "$target" -f /nonexistent/prompt
err_says "/nonexistent/prompt"
run 1 info /nonexistent
err_says "/nonexistent"
run 1 check -m /nonexistent
err_says "/nonexistent"
run 1 run -m "$draft" -p hi
run 1 run -m "$no_tokenizer" -p hi
err_says "tokenizer.json"
mkdir "$tmp/no_template"
ln -s "$target"/* "$tmp/no_template/"
rm "$tmp/no_template/tokenizer_config.json"
run 1 run -m "$tmp/no_template" -p hi --chat
err_says "<|im_start|>"
run 1 run -m "$tmp/no_template" -p hi --system x
err_says "chat template"
run 1 bench -m "$target" --prompts /nonexistent/p.jsonl
err_says "/nonexistent/p.jsonl"
run 1 bench --random-weights /nonexistent
err_says "/nonexistent"
run 1 run -m "$target" -p hi --isa z80
err_says "z80"
finish
