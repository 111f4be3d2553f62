#!/bin/bash
# ranks.test.sh - a server whose model is divided among ranks: threads, and, where they were built (MPI=1), processes
# that mpirun starts; replicas of it beside each other. A draft changes no answer, threads and processes give the same
# ones, and a process that stops answering ends requests with an error and shows in /health.
# timeout: 180
. tests/serve/lib.sh
need curl perl

ask() {
    post /v1/completions '{"prompt":"What is 12 times 13?","max_tokens":40,"temperature":0}'
    equal "$status" 200
    field text "$body"
}

# the demo pair has 5 heads
serve -b 2 --tp 5 -t 5 -w 0
holds "$(cat "$log")" 'memory of rank 4: target weights'
drafting=$(ask)
stop
equal "$?" 0
serve -b 2 --tp 5 -t 5 -w off --record-plan "$tmp/plans"
equal "$(ask)" "$drafting"
stop
out=$("${SALVO_BENCH:-build/salvo-bench}" replay "$tmp/plans" 2>"$tmp/err") || fail "$(cat "$tmp/err")"
holds "$out" ', 0 of them with other tokens than recorded'

# each sequence's attention on one rank
serve -b 5 --tp 5 -t 5 -w off --dp-attention
apart=$(ask)
stop
equal "$?" 0
serve -b 10 --tp 5 -t 5 -w 0 --dp-attention
equal "$(ask)" "$apart"
equal "$(ask)" "$apart"
stop
equal "$?" 0

# replicas of several ranks each
serve -b 2 --dp 2 --tp 5 -t 10 -w 0
equal "$(ask)" "$drafting"
get /health
holds "$body" '"replicas":[{"replica":0,"status":"ok"'
stop
equal "$?" 0

"$salvo" serve -m "$demo/target" -d "$demo/draft" -p 0 --tp 2 >"$tmp/out" 2>&1 </dev/null
equal "$?" 1
holds "$(cat "$tmp/out")" 'cannot be divided among 2 ranks; the numbers of ranks that fit: 1, 5'
"$salvo" serve -m "$demo/target" -p 0 --tp 5 --ep >"$tmp/out" 2>&1 </dev/null
equal "$?" 1
holds "$(cat "$tmp/out")" 'ep: the model has no experts'
"$salvo" serve -m "$demo/target" -p 0 --dp-attention >"$tmp/out" 2>&1 </dev/null
equal "$?" 2
holds "$(cat "$tmp/out")" 'option --dp-attention: sequences are divided among the ranks of --tp'

# processes
command -v mpirun >/dev/null || { echo 'left out: no mpirun here'; finish; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
run="mpirun --oversubscribe --bind-to none -n"
$run 2 "$salvo" run -m "$demo/target" --tp 5 -p hi >"$tmp/out" 2>&1 </dev/null && fail "2 processes for 5 ranks"
grep -q 'this build has no MPI' "$tmp/out" && { echo 'left out: built without MPI=1'; finish; }
holds "$(cat "$tmp/out")" 'option --tp: 5, and mpirun started 2 processes'
$run 2 "$salvo" serve -m "$demo/target" --dp 2 >"$tmp/out" 2>&1 </dev/null && fail "replicas under mpirun"
holds "$(cat "$tmp/out")" 'option --dp: replicas are threads of one process, and mpirun started 2'
printf '#!/bin/bash\nexec %s 5 %q "$@"\n' "$run" "$salvo" >"$tmp/ranks"
chmod +x "$tmp/ranks"
salvo=$tmp/ranks

serve -b 10 --tp 5 -t 5 -w 0 --dp-attention
equal "$(ask)" "$apart"
stop
serve -b 2 --tp 5 -t 5 -w 0 --device-timeout 3
equal "$(ask)" "$drafting"
get /health
equal "$status" 200
for pid in $(pgrep -P "$server"); do
    tr '\0' '\n' <"/proc/$pid/environ" | grep -qx OMPI_COMM_WORLD_RANK=3 && third=$pid
done
kill -STOP "$third"
post /v1/completions '{"prompt":"def add(a, b):","max_tokens":100,"ignore_eos":true}'
[ "$status" = 200 ] && fail "an answer without rank 3: $body"
holds "$body" 'no answer from rank 3 for 3000 ms'
get /health
equal "$status" 503
holds "$body" 'no answer from rank 3'
kill -CONT "$third"
kill -TERM "$server"
wait "$server" 2>/dev/null
for _ in $(seq 100); do
    kill -0 "$third" 2>/dev/null || break
    sleep 0.1
done
kill -0 "$third" 2>/dev/null && fail "rank 3 is still there"
finish
