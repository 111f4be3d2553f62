#!/bin/bash
# serve_share.sh - what share of a real model's time the server's thread takes: the demo pair, 64 streams.
#
# Called by hand: bench/serve_share.sh [ROUNDS [SERVE_OPTION...]]; CSV on stdout. B=FOLDER is the build. The thread's
# time comes from /proc, the time in steps from /metrics, both over one run of `salvo-bench serve`.
set -eu
cd "$(dirname "$0")/.."
b=${B:-build} rounds=${1:-2}
shift $(($# > 0))
work=$(mktemp -d)
trap 'kill "$pid" 2>/dev/null || true; rm -rf "$work"' EXIT
"$b/salvo" serve -m models/demo/target -d models/demo/draft -b 64 --port 0 --quiet --no-prefix-cache "$@" \
    2>"$work/log" &
pid=$!
for _ in $(seq 100); do
    url=$(grep -so 'http://[0-9.:]*' "$work/log" || true)
    [ -n "$url" ] && curl -fs "$url/health" >/dev/null && break
    sleep 0.1
done

# Nanoseconds the loop's thread, and the whole process, have run; microseconds in steps.
figures() {
    local all=0 n
    for n in $(cat /proc/"$pid"/task/*/schedstat | cut -d' ' -f1); do all=$((all + n)); done
    echo "$(cut -d' ' -f1 /proc/"$pid"/task/"$pid"/schedstat) $all" \
        "$(curl -fs "$url/metrics" | awk '/^salvo_step_seconds_total /{printf "%d", $2 * 1e6}')"
}
ask() {
    "$b/salvo-bench" serve --url "$url" --input-len 64 -n "$1" -c 64 --max-tokens 192 \
        --ignore-eos --json
}
ask 64 >/dev/null
echo "options,round,requests,output_tok_s,median_itl_ms,p99_itl_ms,mean_ttft_ms,loop_cpu_ms,process_cpu_ms,in_steps_ms,loop_us_per_token,loop_of_steps,loop_of_process"
for round in $(seq "$rounds"); do
    read -r loop0 all0 busy0 <<<"$(figures)"
    ask 512 >"$work/answer"
    read -r loop1 all1 busy1 <<<"$(figures)"
    python3 - "$work/answer" "$*" "$round" $((loop1 - loop0)) $((all1 - all0)) $((busy1 - busy0)) <<'P'
import json, sys
a = json.load(open(sys.argv[1]))
loop, proc, busy = int(sys.argv[4]) / 1e6, int(sys.argv[5]) / 1e6, int(sys.argv[6]) / 1e3
n = a["total_output_tokens"]
print(f"{sys.argv[2] or 'default'},{sys.argv[3]},512,{a['output_throughput']:.0f},{a['median_itl_ms']:.1f},"
      f"{a['p99_itl_ms']:.1f},{a['mean_ttft_ms']:.1f},{loop:.0f},{proc:.0f},{busy:.0f},{loop * 1e3 / n:.2f},"
      f"{loop / busy:.4f},{loop / proc:.4f}")
P
done
