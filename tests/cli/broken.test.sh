#!/bin/bash
# broken.test.sh - a device error in the middle (here: a model whose norm is not a number, so that all logits are NaN) ends
# every command with exit code 1 and the device's words; `generate` writes them for every request under way.
. tests/cli/lib.sh

broken_model "$target" "$tmp/broken"
words='are all NaN'

run 1 run -m "$tmp/broken" -p hello -n 5
err_says "$words"
run 1 run -m "$tmp/broken" -d "$draft" -w 8 -p hello -n 5
err_says "$words"
# The width policy measures steps when the engine opens.
run 1 run -m "$tmp/broken" -d "$draft" -p hello -n 5
err_says "$words"

for i in 1 2 3; do echo "{\"id\":$i,\"prompt\":\"hello $i\"}"; done >"$tmp/in"
run 1 generate -m "$tmp/broken" --in "$tmp/in" --out "$tmp/answers" -b 3 -n 5
err_says "$words"
equal "$(grep -c "$words" "$tmp/answers")" 3
equal "$(wc -l <"$tmp/answers")" 3

run_bench 1 -m "$tmp/broken" -d "$draft" --prompts "$tmp/in" --repeat 1
err_says "$words"
run 1 check -m "$tmp/broken" -d "$draft" --prompts "$tmp/in"
err_says "$words"
finish
