#!/bin/bash
# measure.test.sh - info, check and salvo-bench on the tiny pair: what they report and what they refuse.
# timeout: 120
. tests/cli/lib.sh

# ---- info

run 0 info "$target"
for fact in Qwen3ForCausalLM 'layers            5' 'vocabulary        300' 'all' 'tokenizer' 'end tokens'; do
    out_says "$fact"
done
run 0 info "$draft"
for fact in 'DFlash draft' 'block             8 tokens' 'mask token        299' 'taps' 'mask per layer'; do
    out_says "$fact"
done
run 0 info "$tiny/llama_rope3_bf16"
out_says LlamaForCausalLM
out_says llama3
out_says 'in 2 files'
run 0 info "$tiny/gptoss_mxfp4"
out_says GptOssForCausalLM
out_says 'experts           4 in 2 layers, 3 for each token, MLP 32; in MXFP4, kept so on the CPU and on GPUs in bf16 mode, else as bf16'
out_says 'router            softmax over the chosen experts'
out_says '1 layers sliding with window 128'
out_says '138096 by the configuration'
run 0 info "$tiny/qwen3_moe_bf16"
out_says Qwen3MoeForCausalLM
out_says 'experts           11 in 2 layers, 3 for each token, MLP 20'
run 0 info "$tiny/kimi_int4"
out_says 'heads             3 of 48, values of 24'
out_says 'latent, 96 numbers of a position, queries of a latent too'
out_says 'shared expert     MLP 32'
run 0 info "$tiny/deepseek_bf16"
out_says 'router            sigmoid, a bias for the choice, 2 of 4 groups first; weights add up to 1, times 2.5'
run 0 info "$tiny/qwen3_5_moe_bf16"
out_says 'shared expert     MLP 24, times the sigmoid of a gate'
run 0 info "$tiny/qwen3_vl_moe_bf16"
out_says 'vision tower      3 blocks of 32, 2 heads, MLP 56, patches of 4, 2 x 2 for a row'
out_says 'images            yes'
run 0 info "$tiny/qwen3_5_vl_moe_bf16"
out_says 'shared expert     MLP 28, times the sigmoid of a gate'
out_says 'images            yes'
run 0 info "$tiny/qwen3_5_bf16"
out_says 'images            none: the files have no tensors of the vision tower'
sed 's/"media_placeholder_token_id": [0-9]*/"media_placeholder_token_id": 298/' "$tiny/kimi_int4/config.json" >"$tmp/kimi.json"
cp -r "$tiny/kimi_int4" "$tmp/kimi" && chmod -R u+w "$tmp/kimi" && mv "$tmp/kimi.json" "$tmp/kimi/config.json"
run 0 info "$tmp/kimi"
out_says 'vision tower      not read; no prompt may have token 298'

# A tensor file cut short: the configuration is still shown, the fault named.
cp -r "$no_tokenizer" "$tmp/cut"
truncate -s -100 "$tmp/cut/model.safetensors"
run 1 info "$tmp/cut"
out_says Qwen3ForCausalLM
err_says model.safetensors

# Tensors that do not fit: the directory is named.
cp -r "$tiny/gptoss_mxfp4" "$tmp/oss" && chmod -R u+w "$tmp/oss"
perl -pi -e 's/"quantization_config"/"unknown"/' "$tmp/oss/config.json"
run 1 info "$tmp/oss"
err_says "$tmp/oss: tensor 'layers.0.mlp.experts.gate_up_proj'"
err_says "_blocks' is not expected: config.json has no quantization_config that asks for it"
cp "$tiny/gptoss_mxfp4/config.json" "$tmp/oss/config.json"
perl -e '
    open my $f, "+<:raw", $ARGV[0] or die;
    read $f, my $n, 8;
    read $f, my $header, unpack("Q<", $n);
    $header =~ /layers\.1\.mlp\.experts\.down_proj_scales[^}]*"data_offsets":\[(\d+)/ or die;
    seek $f, 8 + unpack("Q<", $n) + $1, 0;
    print $f "\xff";
' "$tmp/oss/model.safetensors"
run 1 info "$tmp/oss"
err_says "layers.1.mlp.experts.down_proj_scales': scale 0 is 255, at most 252 is possible"

# ---- check

run 0 check -m "$target" -d "$draft" -n 48
out_says 'pair: sizes'
out_says 'same tokens with and without the draft'
out_says '|        7 |'
out_says 'mean accept length'
run 0 check -m "$target"
out_says 'chat template: parsed'
run 1 check -m "$target" -d "$tiny/llama_draft_random_b4"
err_says 'does not fit'
run 0 check -m "$tiny/gptoss_bf16" -d "$tiny/gptoss_draft_random_b10"
out_says 'draft fit the target'
run 1 check -m "$target" -d "$tiny/gptoss_draft_random_b10"
err_says 'does not fit'
run 1 check -m "$draft"
err_says 'is a draft'
run 1 check -m "$tmp/cut"
err_says model.safetensors

# Prompts may be messages, here as for generate.
echo '{"id": 1, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}' >"$tmp/messages.jsonl"
run 0 check -m "$target" -d "$draft" --prompts "$tmp/messages.jsonl"
out_says 'same tokens with and without the draft: 1 prompts, 8 tokens'
run_bench 0 -m "$target" --prompts "$tmp/messages.jsonl" --repeat 1 --keep-loops
run_bench 1 -m "$no_tokenizer" --prompts "$tmp/messages.jsonl" --repeat 1
err_says "$tmp/messages.jsonl, line 1: field 'messages': there is no chat template"

# A chat template that nobody could be answered with.
cp -r "$target" "$tmp/template"
chmod -R u+w "$tmp/template"
echo '{% if %}' >"$tmp/template/chat_template.jinja"
for command in 'info' 'check -m'; do
    # shellcheck disable=SC2086
    run 1 $command "$tmp/template"
    err_says 'chat_template.jinja: template, line 1, column 7'
done

# A draft that fits but knows nothing: its layers see shuffled weights.
cp -r "$draft" "$tmp/dull"
chmod -R u+w "$tmp/dull"
perl -e '
    local $/; open my $f, "<:raw", $ARGV[0] or die; my $s = <$f>; my $n = unpack "Q<", $s;
    my $data = substr $s, 8 + $n; my @w = unpack "v*", $data; srand 1;
    for my $i (reverse 1 .. $#w) { my $j = int rand $i + 1; @w[$i, $j] = @w[$j, $i]; }
    open $f, ">:raw", $ARGV[0] or die; print $f substr($s, 0, 8 + $n), pack "v*", @w;' "$tmp/dull/model.safetensors"
run 0 check -m "$target" -d "$tmp/dull" -n 48
out_says 'same tokens with and without the draft'
err_says 'fits but does not help'

# ---- bench of a pair

for i in 1 2 3; do
    printf '{"id":%d,"kind":"odd","prompt":"Hello %d"}\n{"id":"e%d","kind":"even","prompt":"%d and"}\n' "$i" "$i" "$i" "$i"
done >"$tmp/p.jsonl"
bench() {
    local code=$1
    shift
    run_bench "$code" -m "$target" -d "$draft" --prompts "$tmp/p.jsonl" -n 40 --repeat 2 --spec-width 0 "$@"
}
bench 0 --concurrency 1,3
for fact in '| odd' '| even' '| all' speedup 'accept length' ': equal' 'GB/s'; do
    out_says "$fact"
done
bench 0 -o csv
equal "$(wc -l <"$tmp/out")" 7
out_says 'commit,machine,'
out_says ',all,dflash,1,2,'
# One hash of all token ids, three columns from the end.
equal "$(grep ',all,' "$tmp/out" | sed -E 's/.*,([0-9a-f]{16})(,[^,]*){3}$/\1/' | sort -u | wc -l)" 1
equal "$(grep -cE ',all,.*,[0-9a-f]{16},[0-9.]*,[0-9.]*,[0-9.]*$' "$tmp/out")" 2
bench 0 -o json
perl -MJSON::PP -0777 -ne 'my $r = decode_json($_); exit(@$r == 6 && $r->[5]{accept_length} > 1 ? 0 : 1)' "$tmp/out" ||
    fail "the JSON is not what it should be: $out"
bench 0 --limit 1 --out "$tmp/result.md"
grep -q '| all' "$tmp/result.md" || fail "--out was not written"
run_bench 0 -m "$target" --prompts "$tmp/p.jsonl" -n 8 --repeat 1
out_says 'plain tok/s'
bench 0 --concurrency 3 --one-engine -o csv
equal "$(grep -c ',all,' "$tmp/out")" 2
printf '{"id":1,"prompt":3}\n' >"$tmp/p.jsonl"
bench 1
err_says "line 1: field 'prompt'"

# ---- bench of modes: every arm a row, simulated rows say so, the policy says why

sim() {
    run_bench "$1" -m "$target" -d "$draft" --concurrency 1,2 --context 20 --steps 4 --repeat 2 --seconds 0.05 -q "${@:2}"
}
sim 0 --mode plain,dflash,auto --widths 2,8 --accept-profile never,2.5,always,real --prefill 30
for fact in '| plain ' '| width 2 ' '| width 8 ' '| auto ' '(simulated)' '| real ' 'Width policy: cost of steps' \
    'Prompt of 30' 'of limit' ' trials'; do
    out_says "$fact"
done
sim 0 --mode plain,dflash,auto --widths 2,8 --accept-profile never,always -o csv
equal "$(wc -l <"$tmp/out")" 17
equal "$(grep -c ',width 8,.*,always,yes,' "$tmp/out")" 2
# What is always accepted is as long as the width; what never is brings one token a step.
equal "$(grep ',width 8,.*,always,' "$tmp/out" | cut -d, -f24 | sort -u)" 8.000
equal "$(grep ',width 8,.*,never,' "$tmp/out" | cut -d, -f24 | sort -u)" 1.000
printf '0 0 1\n' >"$tmp/three"
sim 0 --mode dflash,verify --widths 2,8 --accept-profile "$tmp/three" -o csv --profile-ops "$tmp/ops"
equal "$(grep ',verify 8,' "$tmp/out" | cut -d, -f24 | sort -u)" 3.000
# Where the time goes: every arm and level, with the drafter's ops where it drafts.
equal "$(grep -c '^## ' "$tmp/ops")" 8
equal "$(sed -n '/^## verify 8, 1 /,/^| all/p' "$tmp/ops" | grep -c draft_context_kv)" 0
equal "$(sed -n '/^## width 8, 1 /,/^| all/p' "$tmp/ops" | grep -c draft_context_kv)" 1
equal "$(grep ',width 8,' "$tmp/out" | cut -d, -f24 | sort -u)" 3.000
equal "$(grep ',width 2,' "$tmp/out" | cut -d, -f24 | sort -u)" 2.000
# From rest: before every sample that counts there is a pause, which counts for nothing; every row says so.
# A busy machine makes steps late, and one try of ten has to do.
for try in $(seq 10); do
    began=$(date +%s%N)
    sim 0 --mode plain,dflash --widths 8 --accept-profile never --rest 0.3 -o csv
    [ $(($(date +%s%N) - began)) -ge 2400000000 ] || fail "eight samples from 0.3 s of rest took less than 2.4 s"
    late=$(sed 1d "$tmp/out" | awk -F, '$20 >= 75' | wc -l) # ms a step: with its pause one of four would take 75
    [ "$late" = 0 ] && break
done
equal "$late" 0
equal "$(sed 1q "$tmp/out" | sed 's/,ranks,follower_us$//; s/.*,//')" rest_s
equal "$(sed 1d "$tmp/out" | sed 's/,1,$//; s/.*,//' | sort | uniq -c | tr -s ' ')" ' 4 0.3'
sim 0 --mode plain --rest 0.01
out_says '| plain, from rest '
out_says 'nothing ran for 0.01 s'
sim 0 --mode plain
out_says '| plain |'
equal "$(grep -c 'rest' "$tmp/out")" 0
run_bench 2 --random-weights "$tiny/qwen3_tied_bf16" --rest 1
err_says 'only with --mode'
sim 2 --mode plain --rest 61
err_says "option --rest: 61"
printf '1 x\n' >"$tmp/bad"
sim 2 --mode dflash --accept-profile "$tmp/bad"
err_says 'byte 2'
# Recorded steps: lengths come from them, and the shares of drafts with them; the policy with and without cuts.
printf 'steps\n3 0.9 0.8 0.1\n3 0.7 0.6 0.2\n' >"$tmp/steps"
sim 0 --mode dflash,auto,unpruned --widths 8 --accept-profile "$tmp/steps" -o csv
equal "$(grep ',width 8,' "$tmp/out" | cut -d, -f24 | sort -u)" 3.000
equal "$(grep -c ',unpruned,' "$tmp/out")" "$(grep -c ',auto,' "$tmp/out")"
printf 'steps\n3 0.5 2\n' >"$tmp/bad"
sim 2 --mode dflash --accept-profile "$tmp/bad"
err_says 'byte 12'
printf 'steps\n' >"$tmp/bad"
sim 2 --mode dflash --accept-profile "$tmp/bad"
err_says 'no steps'
sim 2 --mode fast
err_says "'fast'"
sim 2 --mode dflash --widths 1
err_says "--width"
sim 1 --mode dflash --widths 9
err_says 'block of 8'
run_bench 0 --random-weights "$tiny/qwen3_tied_bf16" --mode plain --context 20 --steps 4 --repeat 1 --seconds 0.05 -o json
perl -MJSON::PP -0777 -ne 'my $r = decode_json($_); exit(@$r == 1 && $r->[0]{tok_s_median} > 0 ? 0 : 1)' "$tmp/out" ||
    fail "the JSON is not what it should be: $out"

# As many turns as a ratio of few percent takes, none of them dropped.
sim 0 --mode plain,auto --concurrency 1 --accept-profile never --steps 1 --seconds 60 --repeat 300 -o json
perl -MJSON::PP -0777 -ne '
    my @n = map { $_->{repeats} } @{decode_json($_)};
    exit(@n == 2 && $n[0] == 300 && $n[1] == 300 ? 0 : 1)' "$tmp/out" || fail "repeats: $(grep -o '"repeats": [^,]*' "$tmp/out")"

# ---- bench of random weights: nothing is left behind

mkdir "$tmp/rand"
run_bench 0 --random-weights "$tiny/qwen3_tied_bf16" --prefill 40 --verify 8 --seconds 0.05 --repeat 2 --tmp "$tmp/rand"
for fact in 'decode 1 row' 'verify 8 rows' 'prompt of 40' 'of bandwidth' 'read bandwidth'; do
    out_says "$fact"
done
run_bench 0 --random-weights "$PWD/tests/golden/gguf/qwen3_q8.gguf" --prefill 20 --seconds 0.05 --repeat 1 -o csv
out_says 'qwen3_q8.gguf,150144,0,decode 1 row,file'
run_bench 0 --random-weights "$tiny/llama_bias_f16" --prefill 40 --seconds 0.05 --repeat 1 --tmp "$tmp/rand" -o csv
equal "$(wc -l <"$tmp/out")" 4
equal "$(ls "$tmp/rand")" ""
run_bench 0 --random-weights "$tiny/gptoss_mxfp4" --prefill 40 --seconds 0.05 --repeat 1 --tmp "$tmp/rand" -o csv
run_bench 1 --random-weights "$tiny/qwen3_tied_bf16" --tmp /nonexistent
err_says /nonexistent

# Ctrl-C, or being told to end, while gigabytes of random weights are being written leaves none of them.
mkdir "$tmp/huge"
sed -E 's/"(vocab_size|intermediate_size)": *[0-9]+/"\1": 131072/; s/"num_hidden_layers": *[0-9]+/"num_hidden_layers": 256/' \
    "$tiny/qwen3_tied_bf16/config.json" | sed '/"layer_types"/,/\]/d' >"$tmp/huge/config.json"
for signal in INT TERM; do
    "$salvo_bench" --random-weights "$tmp/huge" --device cpu --tmp "$tmp/rand" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    while kill -0 $pid 2>/dev/null && [ -z "$(ls "$tmp/rand")" ]; do sleep 0.01; done
    kill -$signal $pid
    code=0
    wait $pid || code=$?
    err=$(cat "$tmp/err")
    equal $code 1
    err_says canceled
    equal "$(ls "$tmp/rand")" ""
done
finish
