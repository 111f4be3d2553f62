#!/bin/bash
# gguf.test.sh - a GGUF file in place of a directory: info, check, run, generate and serve read weights, configuration,
# tokenizer and chat template from it.
. tests/cli/lib.sh
gguf=$PWD/tests/golden/gguf/qwen3_q8.gguf

run 0 info "$gguf"
out_says 'Qwen3ForCausalLM'
out_says 'q8_0'
out_says 'byte-level BPE, 290 tokens'
out_says 'chat template     yes'
out_says 'kept              22 quantized matrices as codes on the CPU, 0 in act-order as values'
run 0 info "$PWD/tests/golden/gguf/llama_f32-00001-of-00002.gguf"
out_says 'in 2 files'
run 0 check -m "$gguf"
out_says 'target tensors: 35'
out_says 'chat template: parsed'
run 0 run -m "$gguf" -p 'Hello' -n 8
[ -n "$out" ] || fail 'no answer'
run 0 check -m "$gguf" --device cpu --activations int8
out_says ', int8 activations'
run 0 run -m "$gguf" -p 'Hello' -n 8 --device cpu --activations int8
run 2 run -m "$gguf" -p 'Hello' --activations int4
err_says "option --activations: 'int4' is not one of exact, int8, fp8"
run 1 run -m "$gguf" -p 'Hello' --device cpu --activations fp8
err_says 'fp8 is for GPUs'
echo '{"id":1,"prompt":"Hello","max_tokens":4}' >"$tmp/in"
run 0 generate -m "$gguf" --in "$tmp/in" --out "$tmp/answers"
grep -q '"id": 1' "$tmp/answers" || fail "no answer: $(cat "$tmp/answers")"
head -c 1000 "$gguf" >"$tmp/cut.gguf"
run 1 info "$tmp/cut.gguf"
err_says 'cut.gguf: byte'
run 1 serve -m "$tmp/cut.gguf" -p 0
err_says 'cut.gguf: byte'
run 1 serve -m "$PWD/tests/golden/gguf/llama_mix.gguf" -p 0
err_says 'no tokenizer.json, nor tokens in a GGUF file'
run 1 run -m "$PWD/tests/golden/gguf/llama_mix.gguf" -p hi
err_says 'llama_mix.gguf: no tokenizer.json, nor tokens in a GGUF file; `salvo generate`'
run 1 run -m "$PWD/tests/golden/gguf/llama_f32-00002-of-00002.gguf" -p hi
err_says "00002-of-00002.gguf: 'split.no' is 1: name the model's first file, of 2"
finish
