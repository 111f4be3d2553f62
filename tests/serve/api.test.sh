#!/bin/bash
# api.test.sh - the server over a real socket with the demo pair: answers equal those of `salvo generate`, errors name
# their field, SIGTERM drains.
# timeout: 120
. tests/serve/lib.sh
need curl perl
serve -b 4 -w 8 --unknown-fields error --strict-model

get /health
equal "$status" 200
equal "$body" '{"status":"ok"}'
get /v1/models
equal "$(field id "$body")" '"target"'
get /v1/models/target
equal "$(field object "$body")" '"model"'
get /v1/models/other
equal "$status" 404
get /version
holds "$body" '"version":"0.'
get /nowhere
equal "$status" 404
get /v1/completions
equal "$status" 405
holds "$body" '"param":null'

# The same text as the command line gives, whole and streamed.
prompt='def add(a, b):'
printf '{"id":1,"prompt":"%s","max_tokens":48}\n' "$prompt" >"$tmp/in"
"$salvo" generate -m "$demo/target" --in "$tmp/in" --out "$tmp/out" -q || fail generate
want=$(field text "$(cat "$tmp/out")")
post /v1/completions "{\"model\":\"target\",\"prompt\":\"$prompt\",\"max_tokens\":48,\"temperature\":0}"
equal "$status" 200
equal "$(field text "$body")" "$want"
equal "$(field completion_tokens "$body")" 48
post /v1/completions "{\"prompt\":\"$prompt\",\"max_tokens\":48,\"temperature\":0,\"stream\":true}" -N
text=$(grep -o '"text":"\([^"\\]\|\\.\)*"' "$tmp/body" | sed 's/^"text":"//; s/"$//' | tr -d '\n')
equal "\"$text\"" "$want"
equal "$(tail -n 2 "$tmp/body" | head -n 1)" 'data: [DONE]'
post /generate "{\"text\":\"$prompt\",\"sampling_params\":{\"max_new_tokens\":48,\"temperature\":0}}"
equal "$(field text "$body")" "$want"
holds "$body" '"spec_verify_ct":'

# A prompt seen before comes from the cache, with the same answer and the same accept lengths; flushed, it does not.
story=$(printf 'one two three four five %s ' 1 2 3 4 5 6 7 8)
curl -s "$url/metrics" | grep -q '^salvo_width_choices_total{reason="plain"} ' || fail 'reasons of widths in /metrics'
ask="{\"prompt\":\"$story\",\"max_tokens\":32,\"temperature\":0,\"width\":8,\"ignore_eos\":true,\"spec_decode_metrics\":\"detailed\"}"
post /v1/completions "$ask"
equal "$(field cached_tokens "$body")" 0
first=$(field text "$body")
steps=$(grep -o '"per_step_accepted":\[[0-9,]*\]' "$tmp/body")
post /v1/completions "$ask"
[ "$(field cached_tokens "$body")" -ge 16 ] || fail "cached: $(field cached_tokens "$body")"
equal "$(field text "$body")" "$first"
holds "$body" "$steps"
holds "$body" '"per_step_drafted":['
get /flush_cache
equal "$status" 200
post /v1/completions "$ask"
equal "$(field cached_tokens "$body")" 0
equal "$(field text "$body")" "$first"

# Who gives a salt finds only what came with the same one.
post /v1/completions "$ask"
[ "$(field cached_tokens "$body")" -ge 16 ] || fail "cached again: $(field cached_tokens "$body")"
for salt in one other; do
    salted=${ask%\}},\"cache_salt\":\"$salt\"}
    post /v1/completions "$salted"
    equal "$(field cached_tokens "$body")" 0
    equal "$(field text "$body")" "$first"
    post /v1/completions "$salted"
    [ "$(field cached_tokens "$body")" -ge 16 ] || fail "cached with a salt: $(field cached_tokens "$body")"
done
get /server_info
holds "$body" '"avg_spec_accept_length":'

# Errors: OpenAI's shape, the field's name.
refuse() { # STATUS PARAM PATH BODY
    post "$3" "$4"
    equal "$status" "$1"
    equal "$(field param "$body")" "$2"
    holds "$body" '{"error":{"message":"'
}
m='"messages":[{"role":"user","content":"hi"}]'
refuse 400 null /v1/chat/completions '{'
refuse 400 null /v1/chat/completions '[]'
refuse 400 null /v1/chat/completions ''
refuse 400 '"messages"' /v1/chat/completions '{}'
refuse 400 '"messages"' /v1/chat/completions '{"messages":[]}'
refuse 400 '"messages"' /v1/chat/completions '{"messages":[{"role":"user"}]}'
refuse 400 '"messages"' /v1/chat/completions '{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}'
refuse 400 '"temprature"' /v1/chat/completions "{$m,\"temprature\":1}"
refuse 400 '"temperature"' /v1/chat/completions "{$m,\"temperature\":\"1\"}"
refuse 400 '"temperature"' /v1/chat/completions "{$m,\"temperature\":-1}"
refuse 400 '"top_p"' /v1/chat/completions "{$m,\"top_p\":1.5}"
refuse 400 '"n"' /v1/chat/completions "{$m,\"n\":0}"
refuse 400 '"n"' /v1/chat/completions "{$m,\"n\":1000}"
refuse 400 '"n"' /v1/chat/completions "{$m,\"n\":1.5}"
refuse 400 '"stop"' /v1/chat/completions "{$m,\"stop\":[1]}"
refuse 400 '"stop"' /v1/chat/completions "{$m,\"stop\":\"\"}"
refuse 400 '"stream"' /v1/chat/completions "{$m,\"stream\":\"yes\"}"
refuse 400 '"logit_bias"' /v1/chat/completions "{$m,\"logit_bias\":{\"x\":1}}"
refuse 400 '"logit_bias"' /v1/chat/completions "{$m,\"logit_bias\":{\"99999999\":1}}"
refuse 400 '"top_logprobs"' /v1/chat/completions "{$m,\"top_logprobs\":2}"
refuse 400 '"tools"' /v1/chat/completions "{$m,\"tools\":[{\"type\":\"function\"}]}"
refuse 400 '"response_format"' /v1/chat/completions "{$m,\"response_format\":{\"type\":\"json_schema\"}}"
refuse 400 '"stream_options.usage"' /v1/chat/completions "{$m,\"stream_options\":{\"usage\":true}}"
refuse 404 '"model"' /v1/chat/completions "{$m,\"model\":\"gpt-9\"}"
refuse 400 '"prompt"' /v1/completions '{}'
refuse 400 '"prompt"' /v1/completions '{"prompt":[]}'
refuse 400 '"prompt"' /v1/completions '{"prompt":[1,"a"]}'
refuse 400 '"prompt"' /v1/completions '{"prompt":[99999999]}'
refuse 400 '"prompt"' /v1/completions '{"prompt":{"a":1}}'
refuse 400 '"max_new_tokens"' /generate '{"text":"a","sampling_params":{"max_new_tokens":"8"}}'
refuse 400 '"text"' /generate '{}'
refuse 400 '"tokens"' /detokenize '{"tokens":[-1]}'

# A seed repeats an answer; -1 asks for any.
for seed in 7 -1; do
    sample="{\"prompt\":\"a\",\"max_tokens\":24,\"temperature\":1.5,\"ignore_eos\":true,\"seed\":$seed}"
    post /v1/completions "$sample"
    first_sample=$(field text "$body")
    post /v1/completions "$sample"
    [ "$seed" = -1 ] || equal "$(field text "$body")" "$first_sample"
    [ "$seed" = 7 ] || [ "$(field text "$body")" != "$first_sample" ] || fail "twice the same with a seed of -1"
done
get /model_info
holds "$body" '"is_generation":true'

# What clients always send and nothing depends on.
post /v1/chat/completions "{$m,\"max_tokens\":1,\"user\":\"u\",\"store\":true,\"metadata\":{\"a\":\"b\"},\"seed\":null}"
equal "$status" 200

# There and back.
post /tokenize '{"prompt":"Hello, wörld <|im_end|>"}'
ids=$(grep -o '\[.*\]' "$tmp/body")
post /detokenize "{\"tokens\":$ids}"
equal "$(field prompt "$body")" '"Hello, wörld <|im_end|>"'

# What was refused is in the log, by name and without what stood in it.
post /v1/completions '{"prompt":"secret","top_k":"secret"}' -H 'X-Request-Id: refused-1'
get /no%1bwhere
grep -q 'refused id=refused-1 method=POST path=/v1/completions status=400 code=invalid_type param=top_k$' "$log" ||
    fail 'no line for what was refused'
grep -q 'path=/no?where status=404 code=not_found ' "$log" || fail 'a path as it must not stand in a log'
grep -q secret "$log" && fail 'a request in the log'

stop
equal "$?" 0
grep -q ' stopped' "$log" || fail "no last line: $(tail -n 3 "$log")"

# A model of the hub cache, by the directory that has its snapshots.
hub=$tmp/models--Demo--Pair
mkdir -p "$hub/refs" "$hub/snapshots"
printf '0123abc\n' >"$hub/refs/main"
ln -s "$demo/target" "$hub/snapshots/0123abc"
serve -m "$hub"
get /v1/models
equal "$(field id "$body")" '"Demo/Pair"'
for name in Demo/Pair Demo%2FPair; do
    get "/v1/models/$name"
    equal "$(field id "$body")" '"Demo/Pair"'
done
get /model_info
equal "$(field model_path "$body")" "\"$hub/snapshots/0123abc\""
post /v1/completions "{\"model\":\"Demo/Pair\",\"prompt\":\"$prompt\",\"max_tokens\":48,\"temperature\":0}"
equal "$(field text "$body")" "$want"
stop
equal "$?" 0

# Options that take something away: no kept prefixes, shorter answers, a chunk for every step. The text stays.
serve -b 2 -w 8 --no-prefix-cache --max-tokens 32 --max-choices 2 --stream-gap 0
for _ in 1 2; do
    post /v1/completions "$ask"
    equal "$(field cached_tokens "$body")" 0
    equal "$(field text "$body")" "$first"
done
# Unknown fields are ignored, and each is named once; no more of them than the log can bear.
for _ in 1 2 3; do
    post /v1/completions '{"prompt":"a","max_tokens":1,"smoothing":1,"mode\u001b\n":"m"}' -H 'X-Request-Id: first'
    equal "$status" 200
    post /tokenize '{"prompt":"a","smoothing":1,"verbose":1}'
    equal "$status" 200
done
equal "$(grep -c ' unknown field ignored ' "$log")" 3
grep -q ' unknown field ignored field=smoothing id=first$' "$log" || fail 'an unknown field has no name'
grep -q ' field=mode?? id=first$' "$log" || fail 'a name as it must not stand in a log'
for i in $(seq 30); do
    names=$(seq -f "\"u$i-%.0f\":1" -s , 12)
    post /v1/completions "{\"prompt\":\"a\",\"max_tokens\":1,$names}"
    equal "$status" 200
done
equal "$(grep -c ' unknown field ignored ' "$log")" 256
equal "$(grep -c ' no more unknown fields are named' "$log")" 1
refuse 400 '"max_tokens"' /v1/completions '{"prompt":"a","max_tokens":33}'
refuse 400 '"n"' /v1/completions '{"prompt":"a","n":3}'
refuse 400 '"prompt"' /v1/completions '{"prompt":["a","b","c"]}'
post /v1/completions "${ask%\}},\"stream\":true,\"return_token_ids\":true}" -N
accepted=$(grep -o '"num_accepted_draft_tokens":[0-9]*' "$tmp/body")
equal "$(grep -c '"token_ids":' "$tmp/body")" "$((32 - ${accepted#*:}))" # every pass brings one of its own, the prompt's too
stop
equal "$?" 0
finish
