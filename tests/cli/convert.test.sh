#!/bin/bash
# convert.test.sh - a model in fewer bits: written, reported, compared with the original on prompts, loaded; and what goes
# wrong leaves nothing.
# timeout: 180
. tests/cli/lib.sh

printf '{"id": "a", "prompt_token_ids": [3, 1, 4, 1, 5], "max_tokens": 24}\n{"id": "b", "prompt_token_ids": [9, 2, 6]}\n' \
    >"$tmp/in.jsonl"
run 0 convert -m "$target" --to fp8 --out "$tmp/fp8" --prompts "$tmp/in.jsonl" -d "$draft" -n 32 -t 1
out_says 'layers.0.mlp.down_proj.weight'
out_says '35 tensors'
out_says 'the largest relative error is 0.0'
out_says 'of 2 answers are the same'
out_says 'accept length: '
run 0 info "$tmp/fp8"
out_says 'fp8'
run 0 check -m "$tmp/fp8" -d "$draft" -t 1
for to in mxfp4 q8 q4; do
    run 0 convert -m "$tiny/qwen3_odd_bf16" --to $to --out "$tmp/$to"
    out_says 'instead of'
    run 0 check -m "$tmp/$to" -t 1
done

run 0 convert -m "$tiny/qwen3_moe_f32" --to fp8 --out "$tmp/moe"
out_says 'layers.0.mlp.experts.*.gate_proj.weight'
out_says '8 x 24 x 32'
run 0 check -m "$tmp/moe" -t 1
run 0 convert -m "$tiny/qwen3_5_vl_bf16" --to q4 --out "$tmp/vl.gguf"
out_says 'the vision tower is not in the file'
run 0 check -m "$tmp/vl.gguf" -t 1

# A draft: the text is the target's, and nearly as many of its tokens are accepted.
run 0 convert -m "$draft" --to fp8 --out "$tmp/draft" --prompts "$tmp/in.jsonl" --target "$target" -n 32 -t 1
out_says 'greedy: 2 of 2 answers are the same'
out_says 'accept length: '
run 0 check -m "$target" -d "$tmp/draft" -t 1
# Images are read as before: their processor is part of the model.
run 0 convert -m "$tiny/qwen3_vl_bf16" --to fp8 --out "$tmp/vl"
run 0 info "$tmp/vl"
out_says 'images            yes'
run 0 check -m "$tmp/vl" -t 1
out_says 'ok    images: read'
rm "$tmp/vl/preprocessor_config.json"
run 0 info "$tmp/vl"
out_says "images            none: $tmp/vl has no preprocessor_config.json"
run 0 check -m "$tmp/vl" -t 1
err_says "warning: images are refused: $tmp/vl has no preprocessor_config.json"
run 0 convert -m "$tiny/deepseek_bf16" --to fp8 --out "$tmp/deepseek"
run 0 check -m "$tmp/deepseek" -t 1
run 0 convert -m "$tiny/qwen3_tied_bf16" --to q4 --out "$tmp/tied.gguf" --prompts "$tmp/in.jsonl" -n 16 -t 1
out_says '4.50'
out_says 'of 2 answers are the same'
run 0 check -m "$tmp/tied.gguf" -t 1
run 0 info "$tmp/tied.gguf"
out_says 'q4_0'

run 1 convert -m "$target" --to fp8 --out "$tmp/fp8"
err_says 'is there already'
run 1 convert -m "$tiny/gptoss_mxfp4" --to q4 --out "$tmp/no"
err_says 'in fewer bits already (mxfp4)'
run 1 convert -m "$target" --to fp8 --out "$tmp/no.gguf"
err_says 'GGUF has no type for fp8'
run 1 convert -m "$tmp/fp8" --to q8 --out "$tmp/no"
err_says 'is in fewer bits already (fp8)'
run 1 convert -m "$target" --to fp8 --out "$tmp/nowhere/no"
err_says 'cannot create'
run 2 convert -m "$target" --out "$tmp/no"
err_says 'option --to is missing'
run 2 convert -m "$target" --to q5 --out "$tmp/no"
err_says "'q5' is not one of fp8, mxfp4, q8, q4"
run 2 convert -m "$target" --to q8
err_says 'option --out is missing'
run 2 convert -m "$target" --to fp8 --out "$tmp/no" -d "$draft"
err_says 'needs --prompts'
run 2 convert -m "$draft" --to fp8 --out "$tmp/no" --prompts "$tmp/in.jsonl"
err_says 'option --target is missing'
run 2 convert -m "$target" --to fp8 --out "$tmp/no" --target "$target"
err_says 'needs a draft and --prompts'

# No file takes a byte.
code=0
said=$(trap '' XFSZ; ulimit -f 0; "$salvo" convert -m "$target" --to fp8 --out "$tmp/full" 2>&1 </dev/null) || code=$?
equal "$code" 1
[[ $said == *'no room for'* || $said == *'cannot write'* ]] || fail "says nothing of the disk: $said"
equal "$(cd "$tmp" && ls -d full* no* 2>/dev/null)" ''
finish
