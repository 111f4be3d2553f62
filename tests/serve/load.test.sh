#!/bin/bash
# load.test.sh - 64 clients at once on a cache too small for them; SALVO_LOAD=5000 for the long run (default 1000),
# SALVO_LOAD_SEED=N for other requests.
# timeout: 550
. tests/serve/lib.sh
need node curl
serve -b 24 -c 512 --cache 2 --queue 256 -q
out=$(timeout "${SALVO_LOAD_LIMIT:-520}" node tests/serve/load.mjs "$url" "$server" "${SALVO_LOAD:-1000}" 64 "${SALVO_LOAD_SEED:-12345}" 2>&1) || fail "$out; $(tail -n 5 "$log")"
echo "$out" | tail -n 5
stop
equal "$?" 0
finish
