#!/bin/bash
# bench.test.sh - `salvo-bench serve` against a server of ours: counts, the block, JSON, failures.
# timeout: 120
. tests/serve/lib.sh
need curl perl
serve -b 8 -w 8 -q
run() {
    local want=$1 code=0
    shift
    "${SALVO_BENCH:-build/salvo-bench}" serve "$@" >"$tmp/out" 2>"$tmp/err" || code=$?
    out=$(cat "$tmp/out")
    err=$(cat "$tmp/err")
    equal "$code" "$want"
}

run 0 --url "$url" --prompts models/demo/prompts.jsonl -n 8 -c 4 --max-tokens 24 --ignore-eos
equal "$(head -n 1 "$tmp/out")" '============ Serving Benchmark Result ============'
equal "$(tail -n 1 "$tmp/out")" '=================================================='
holds "$out" 'Successful requests:                     8 '
holds "$out" 'Total generated tokens:                  192 '
for line in 'Mean TTFT (ms): ' 'P99 TPOT (ms): ' 'Median ITL (ms): ' 'P99 E2EL (ms): ' 'Acceptance length: ' '  Position 6: '; do
    holds "$out" "$line"
done
holds "$out" '---------------Speculative Decoding---------------'
# Its accept length is that of the counters, since nobody else was there.
drafts=$(metric salvo_verify_steps_total)
accepted=$(metric salvo_accepted_tokens_total)
holds "$out" "Accepted tokens:                         $accepted "
holds "$out" "Drafts:                                  $drafts "

# A file of fewer prompts than asked for is gone through again.
for i in 1 2 3; do echo "{\"prompt\": \"hello $i\"}"; done >"$tmp/three"
run 0 --url "$url" --prompts "$tmp/three" -n 8 --max-tokens 4 --ignore-eos --json
equal "$(field completed "$out")" 8
equal "$(field total_output_tokens "$out")" 32
run 0 --url "$url" --prompts "$tmp/three" --max-tokens 4 --ignore-eos --json
equal "$(field completed "$out")" 3
# What nobody can read is no result.
if [ -w /dev/full ]; then
    code=0
    "${SALVO_BENCH:-build/salvo-bench}" serve --url "$url" --prompts "$tmp/three" --max-tokens 4 >/dev/full 2>"$tmp/err" || code=$?
    equal "$code" 1
    holds "$(cat "$tmp/err")" 'standard output'
fi
# One that cannot be read to its end is not measured.
{ cat "$tmp/three"; head -c 17000000 /dev/zero | tr '\0' x; } >"$tmp/long"
run 1 --url "$url" --prompts "$tmp/long"
holds "$err" "$tmp/long, line 4: longer than 16777216 bytes"
run 1 --url "$url" --prompts "$tmp"
holds "$err" "$tmp: line 1: Is a directory"
run 1 --url "$url/nowhere" -n 1
holds "$err" '/nowhere/v1/models: status 404'

run 0 --url "$url/v1" -n 6 --input-len 40 --max-tokens 8 --ignore-eos --json --request-rate 50
equal "$(field completed "$out")" 6
equal "$(field total_input_tokens "$out")" 240
equal "$(field total_output_tokens "$out")" 48

run 1 --url "$url" -n 2 --input-len 100000
holds "$err" '2 of 2 requests failed'
holds "$err" 'context'
run 1 --url http://127.0.0.1:1
holds "$err" 'no answer'
run 1 --url nonsense
holds "$err" 'nonsense'
run 2
holds "$err" '--url'
run 2 --url "$url" -c 0
holds "$err" '--max-concurrency'
stop

# Ctrl-C ends it also while the server says nothing; a key of any length is sent whole.
perl -MIO::Socket::INET -e '
    my $s = IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1:0") or die;
    $| = 1;
    print $s->sockport, "\n";
    while (my $c = $s->accept) {
        my $head = "";
        while (my $line = <$c>) { last if $line eq "\r\n"; $head .= $line; }
        printf STDERR "%d\n", $head =~ /^Authorization: Bearer (\S+)\r$/m ? length $1 : 0;
        if ($head =~ /^GET/) { print $c "HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"; }
        else { push @all, $c; }
    }' >"$tmp/port" 2>"$tmp/keys" &
silent=$!
for _ in $(seq 1200); do [ -s "$tmp/port" ] && break; sleep 0.05; done
"${SALVO_BENCH:-build/salvo-bench}" serve --url "http://127.0.0.1:$(cat "$tmp/port")" --model m --prompts "$tmp/three" -c 1 \
    --api-key "$(printf '%02000d' 0)" >"$tmp/out" 2>"$tmp/err" &
pid=$!
for _ in $(seq 1200); do [ "$(wc -l <"$tmp/keys")" -ge 2 ] && break; sleep 0.05; done
equal "$(head -n 2 "$tmp/keys" | tr '\n' ' ')" '2000 2000 '
kill -INT $pid
for _ in $(seq 1200); do kill -0 $pid 2>/dev/null || break; sleep 0.05; done
kill -9 $pid 2>/dev/null
code=0
wait $pid || code=$?
equal "$code" 1
holds "$(cat "$tmp/err")" '3 of 3 requests failed; the last one: canceled'
kill $silent
wait $silent

# An IPv6 address stands in brackets, in the server's line and in the URL.
if grep -q '^00000000000000000000000000000001 ' /proc/net/if_inet6 2>/dev/null; then
    serve -b 2 -q --host ::1
    holds "$url" '[::1]:'
    run 0 --url "$url" --prompts "$tmp/three" --max-tokens 4 --ignore-eos --json
    equal "$(field completed "$out")" 3
    stop
fi
finish
