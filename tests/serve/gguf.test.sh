#!/bin/bash
# gguf.test.sh - a server of a GGUF file: completions, and messages rendered by the file's chat template.
. tests/serve/lib.sh
need curl
"$salvo" serve -m tests/golden/gguf/qwen3_q8.gguf -p 0 2>"$tmp/log" >/dev/null &
server=$!
servers+=("$server")
for _ in $(seq 300); do
    grep -q ' ready ' "$tmp/log" && break
    sleep 0.1
done
url=$(grep -o 'https\?://[][0-9.:]*' "$tmp/log" | head -n 1)
post /v1/completions '{"prompt":"Hello","max_tokens":4,"temperature":0}'
equal "$status" 200
holds "$body" '"completion_tokens":4'
post /v1/chat/completions '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":4}'
equal "$status" 200
post /tokenize '{"prompt":"Hello","add_special_tokens":false}'
equal "$status" 200
holds "$body" '"count":'
stop
finish
