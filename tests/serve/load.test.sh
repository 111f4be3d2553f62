#!/bin/bash
# load.test.sh - 64 clients at once on a cache too small for them; SALVO_LOAD=5000 for the long run (default 600),
# SALVO_LOAD_SEED=N for other requests. A few of each family: as many as SALVO_LOAD_FAMILY says (default 40), of blocks of 16.
# timeout: 550
. tests/serve/lib.sh
need node curl

# loaded REQUESTS CLIENTS IDS [IMAGE]: on the server that runs.
loaded() {
    local out
    out=$(timeout "${SALVO_LOAD_LIMIT:-520}" node tests/serve/load.mjs "$url" "$server" "$1" "$2" "${SALVO_LOAD_SEED:-12345}" "${@:3}" 2>&1) ||
        fail "${pair[1]}: $out; $(tail -n 5 "$log")"
    echo "$out" | tail -n 5
    stop
    equal "$?" 0
}

serve -b 24 -c 512 --cache 2 --queue 256 -q
loaded "${SALVO_LOAD:-600}" 64 1000

# Random drafts, whole blocks: most rows are refused.
for name in llama_rope3_bf16 qwen3_moe_bf16 gptoss_bf16 qwen3_next_bf16 qwen3_5_bf16 qwen3_5_moe_bf16 deepseek_bf16 kimi_int4 \
    qwen3_vl_bf16 qwen3_vl_moe_bf16 qwen3_5_vl_bf16 qwen3_5_vl_moe_bf16; do
    node tests/serve/tiny_pair.mjs "$name" "$tmp/$name" || fail "$name"
    pair=(-m "$tmp/$name/target" -d "$tmp/$name/draft")
    image=
    [[ $name == *_vl_* ]] && image=tests/golden/images/rgb.png
    serve -b 12 -c 512 -w 0 --cache 2 --queue 256 -q
    loaded "${SALVO_LOAD_FAMILY:-40}" 32 300 $image
done
finish
