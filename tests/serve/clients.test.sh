#!/bin/bash
# clients.test.sh - unmodified clients against the demo pair: openai, the AI SDK and Anthropic's SDK from npm, Chromium, promtool, hey.
#
# The npm packages come from `npm ci` in tests/serve/clients, which .ci/run does; what is not there is skipped
# aloud, and with SALVO_CI=1 it fails.
# timeout: 300
. tests/serve/lib.sh
need curl perl
clients=tests/serve/clients
serve -w 8 --api-key secret
keyed=$url
# Drafts always, whatever the width policy measures on a busy machine; other names are 404, as the sessions check.
serve -b 8 -w 8 --strict-model
n_run=0

# client COMMAND FILE ARG...: runs a session when its parts are there.
missing() {
    [ "${SALVO_CI:-0}" = 1 ] && fail "missing: $1"
    echo "skipped: $1"
}
if command -v node >/dev/null && [ -d $clients/node_modules/@anthropic-ai/sdk ]; then
    for session in openai aisdk responses tools anthropic; do
        out=$(timeout 100 node $clients/$session.mjs "$url" 2>&1) || fail "$session: $out"
        n_run=$((n_run + 1))
    done
else
    missing 'openai, @anthropic-ai/sdk and the AI SDK (npm ci)'
fi
if command -v node >/dev/null && [ -d $clients/node_modules/playwright-core ] && [ -x /usr/bin/chromium ]; then
    out=$(timeout 140 node $clients/page.mjs "$url" 2>&1) || fail "page: $out"
    out=$(timeout 140 node $clients/images.mjs "$url" 2>&1) || fail "images: $out"
    out=$(timeout 140 node $clients/turns.mjs "$url" "$keyed" secret 2>&1) || fail "turns: $out"
    n_run=$((n_run + 1))
else
    missing 'the page in Chromium'
fi
if command -v promtool >/dev/null; then
    get /metrics
    # The colons of other servers' names are the only thing it may find.
    out=$(promtool check metrics <"$tmp/body" 2>&1 | grep -Ev "^(vllm|sglang|llamacpp):[a-z0-9_]* metric names should not contain ':'$")
    equal "$out" ''
    grep -Ev '(vllm|sglang|llamacpp):' "$tmp/body" | promtool check metrics >/dev/null 2>&1 || fail 'promtool finds fault with our own metrics'
    n_run=$((n_run + 1))
else
    missing promtool
fi
if command -v hey >/dev/null; then
    printf '{"prompt":"def add(a, b):","max_tokens":8,"temperature":0}' >"$tmp/request"
    out=$(hey -n 208 -c 16 -m POST -T application/json -D "$tmp/request" "$url/v1/completions" 2>&1)
    holds "$out" '[200]	208 responses'
    [[ $out == *'Error distribution'* ]] && fail "$out"
    n_run=$((n_run + 1))
else
    missing hey
fi

# Nothing is left behind by any of them.
becomes salvo_running_sequences 0
becomes salvo_cache_pages_used 0
stop
equal "$?" 0
[ "$n_run" -gt 0 ] || exit 77
finish
