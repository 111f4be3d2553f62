#!/bin/bash
# ranks.test.sh - a server whose model is divided among ranks: threads, and, where they were built (MPI=1), processes
# that mpirun starts, on one host or on two that are played; replicas of it beside each other. A draft changes no answer,
# threads and processes give the same ones, and a process that stops answering ends requests with an error and shows in
# /health.
# timeout: 180
. tests/serve/lib.sh
need curl perl

ask() {
    post /v1/completions '{"prompt":"What is 12 times 13?","max_tokens":40,"temperature":0}'
    equal "$status" 200
    field text "$body"
}

# placed WHO LINK: the table at start has this rank, with the processors and the NUMA node that the system names.
cpus=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
node=unknown
[ -d /sys/devices/system/node/node0 ] && node='[0-9]'
placed() {
    grep -q "$1, host $(uname -n), cpu $cpus, NUMA node $node[0-9,]*$2\$" "$log" || fail "not in the table: $1$2"
}

# the demo pair has 5 heads
serve -b 2 --tp 5 -t 5 -w 0
holds "$(cat "$log")" 'memory of rank 4: target weights'
placed "process 0: replica 0, rank 4" ', shared memory'
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
placed 'process 0: replica 1, rank 4' ', shared memory'
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
out=$(SLURM_STEP_NUM_TASKS=2 "$salvo" run -m "$demo/target" -p hi 2>&1 </dev/null) && fail "one of two tasks, alone"
holds "$out" 'SLURM_STEP_NUM_TASKS is 2'

# processes
command -v mpirun >/dev/null || { echo 'left out: no mpirun here'; finish; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
run="mpirun --oversubscribe --bind-to none -n" recovers=--enable-recovery
mpirun --version 2>/dev/null | grep -q 'Open MPI' || run="mpirun -n" recovers= # MPICH, which ends all
$run 2 "$salvo" run -m "$demo/target" --tp 5 -p hi >"$tmp/out" 2>&1 </dev/null && fail "2 processes for 5 ranks"
grep -q 'this build has no MPI' "$tmp/out" && { echo 'left out: built without MPI=1'; finish; }
holds "$(cat "$tmp/out")" 'option --tp: 5, and mpirun started 2 processes'
$run 2 "$salvo" serve -m "$demo/target" --dp 3 >"$tmp/out" 2>&1 </dev/null && fail "2 processes for 3 replicas"
holds "$(cat "$tmp/out")" 'options --tp and --dp: 3 replicas of 1 ranks are 3 processes, and mpirun started 2'
cp -r "$tiny/qwen3_tied_bf16" "$tmp/other"
touch -d '2 days ago' "$tmp/other/"*.safetensors
part=(run --tp 2 -t 2 -p hi -m)
$run 1 "$salvo" "${part[@]}" "$tiny/qwen3_tied_bf16" : -n 1 "$salvo" "${part[@]}" "$tmp/other" >"$tmp/out" 2>&1 \
    </dev/null && fail "two checkpoints"
holds "$(cat "$tmp/out")" 'ranks 0 and 1 have different files of the target'
# Ranks of one replica on two hosts, which are played: processes with other names of a host share no memory. apart NEAR FAR
# ARG...: so many processes on either; what is generated is that of threads.
played=SALVO_HOST_NAME=far
apart() {
    $run "$1" "$salvo" "${@:3}" : -n "$2" env $played "$salvo" "${@:3}" </dev/null 2>"$tmp/err"
}
same_apart() {
    local want got
    want=$("$salvo" generate -o - "${@:3}" 2>/dev/null </dev/null | sed 's/, "timings":.*//')
    got=$(apart "$1" "$2" generate -o - "${@:3}" | sed 's/, "timings":.*//')
    holds "$want" '"token_ids": ['
    equal "$got" "$want"
}
cat >"$tmp/prompts" <<'END'
{"id":1,"prompt":"What is 12 times 13?","max_tokens":24,"temperature":0,"logprobs":true,"top_logprobs":2}
{"id":2,"prompt":"def add(a, b):","max_tokens":24,"temperature":1,"seed":7}
{"id":3,"prompt":"x","max_tokens":24,"temperature":1,"seed":8,"repetition_penalty":1.2,"regex":"[a-f]{6,20}"}
END
cat >"$tmp/ids" <<'END'
{"id":1,"prompt_token_ids":[5,9,2,77],"max_tokens":24,"temperature":0,"logprobs":true}
{"id":2,"prompt_token_ids":[8,8,1],"max_tokens":24,"temperature":1,"seed":7}
END
same_apart 3 2 "${pair[@]}" --tp 5 -t 5 -w 0 -i "$tmp/prompts"
grep -q 'process 4: replica 0, rank 4, host far, .*, TCP$' "$tmp/err" || fail "not in the table: $(cat "$tmp/err")"
same_apart 1 4 -m "$demo/target" --tp 5 -t 5 -b 5 --dp-attention -i "$tmp/prompts"
same_apart 1 1 -m "$tiny/qwen3_moe_f32" --tp 2 -t 2 --ep -i "$tmp/ids"
# files that were copied at another time are the same, those that end in other bytes are not
far=(: -n 1 env $played "$salvo" "${part[@]}" "$tmp/other")
$run 1 "$salvo" "${part[@]}" "$tiny/qwen3_tied_bf16" "${far[@]}" >"$tmp/out" 2>&1 </dev/null || fail "$(cat "$tmp/out")"
printf x | dd of="$tmp/other/model.safetensors" conv=notrunc bs=1 seek=$(($(stat -c %s "$tmp/other/model.safetensors") - 1)) 2>/dev/null
$run 1 "$salvo" "${part[@]}" "$tiny/qwen3_tied_bf16" "${far[@]}" >"$tmp/out" 2>&1 </dev/null && fail "two checkpoints"
holds "$(cat "$tmp/out")" 'different files of the target: names, sizes or last bytes differ'

program=$salvo
printf '#!/bin/bash\nexec %s 5 %q "$@"\n' "$run" "$salvo" >"$tmp/ranks"
chmod +x "$tmp/ranks"
salvo=$tmp/ranks
# processes: the pids of those that mpirun started, of MPICH by a process between; process NUMBER: of the one that got it.
processes() {
    local pid
    for pid in $(pgrep -P "$server") $(pgrep -P "$(pgrep -d, -P "$server")"); do
        [ "/proc/$pid/exe" -ef "$program" ] && echo "$pid"
    done
}
process() {
    local pid
    for pid in $(processes); do
        tr '\0' '\n' <"/proc/$pid/environ" | grep -qxE "(OMPI_COMM_WORLD|PMI)_RANK=$1" && echo "$pid"
    done
}

serve -b 2 --tp 5 -t 5 -w 0 --device-timeout 10
placed 'process 3: replica 0, rank 3' ', shared memory'
equal "$(ask)" "$drafting"
get /health
equal "$status" 200
third=$(process 3)
# stopped for less than that, it keeps an answer waiting and changes nothing in it
kill -STOP "$third"
ask >"$tmp/late" &
asked=$!
sleep 1
[ -s "$tmp/late" ] && fail 'an answer without rank 3'
kill -CONT "$third"
wait "$asked"
equal "$(cat "$tmp/late")" "$drafting"
get /health
equal "$status" 200
# and for longer
kill -STOP "$third"
post /v1/completions '{"prompt":"def add(a, b):","max_tokens":100,"ignore_eos":true}'
[ "$status" = 200 ] && fail "an answer without rank 3: $body"
holds "$body" 'no answer from rank 3 for 10000 ms'
get /health
equal "$status" 503
holds "$body" 'no answer from rank 3'
kill -CONT "$third"
kill -TERM "$server"
wait "$server" 2>/dev/null
for _ in $(seq 600); do
    kill -0 "$third" 2>/dev/null || break
    sleep 0.1
done
kill -0 "$third" 2>/dev/null && fail "rank 3 is still there"
# loses_rank_3 TEXT: of the server that runs, while it answers: the request that runs and later ones get errors with TEXT at
# once, /health says why, and the server ends when it is told to, with all processes.
loses_rank_3() {
    local asked begin rest pid
    (post /v1/completions '{"prompt":"x","n":64,"max_tokens":480,"temperature":1,"ignore_eos":true}'
        echo "$status $body") >"$tmp/status" &
    asked=$!
    becomes salvo_running_sequences 2
    begin=$SECONDS
    kill -KILL "$(process 3)"
    wait "$asked"
    holds "$(cat "$tmp/status")" '500 '
    holds "$(cat "$tmp/status")" "$1"
    get /health
    equal "$status" 503
    holds "$body" "$1"
    post /v1/completions '{"prompt":"x","max_tokens":4}'
    equal "$status" 503
    rest=$(processes)
    kill -TERM "$(process 0)"
    wait "$server"
    [ $((SECONDS - begin)) -lt 30 ] || fail "the end took $((SECONDS - begin)) s"
    for pid in $rest; do
        kill -0 "$pid" 2>/dev/null && fail "process $pid is still there"
    done
}
# One that is killed, where mpirun leaves the others alone.
if [ "$recovers" ]; then
    printf '#!/bin/bash\nexec %s 5 %s %q "$@"\n' "$run" "$recovers" "$program" >"$tmp/ranks"
    serve -b 2 --tp 5 -t 5 -w 0 --device-timeout 30
    third=$(process 3)
    loses_rank_3 "there is no process $third any more"
fi

# Ranks on two hosts: one on the other host is stopped, then, in another run, the first one there is killed.
printf '#!/bin/bash\nexec %s 3 %s %q "$@" : -n 2 env %s %q "$@"\n' "$run" "$recovers" "$program" $played "$program" >"$tmp/ranks"
serve -b 2 --tp 5 -t 5 -w 0 --device-timeout 10
equal "$(ask)" "$drafting"
fourth=$(process 4)
kill -STOP "$fourth"
post /v1/completions '{"prompt":"def add(a, b):","max_tokens":100,"ignore_eos":true}'
[ "$status" = 200 ] && fail "an answer without rank 4: $body"
holds "$body" 'no answer from rank 4 for 10000 ms'
get /health
equal "$status" 503
kill -CONT "$fourth"
kill -TERM "$(process 0)"
wait "$server"
if [ "$recovers" ]; then
    serve -b 2 --tp 5 -t 5 -w 0 --device-timeout 30
    loses_rank_3 'rank 3'
fi

# Replicas of several processes: their answers are those of one engine, and of replicas that are threads.
printf '#!/bin/bash\nexec %s 4 %s %q "$@"\n' "$run" "$recovers" "$program" >"$tmp/replicas"
chmod +x "$tmp/replicas"
long='alpha beta gamma delta epsilon zeta eta theta'
pair=(-m "$tiny/qwen3_tied_bf16")
# three: greedy with log probabilities, sampled choices that run on both replicas, and some under a grammar.
three() {
    local what
    for what in '"temperature":0,"logprobs":2' '"n":6,"seed":7,"temperature":1' \
        '"n":4,"seed":3,"temperature":1,"regex":"[a-f]{6,20}","stop_regex":"[ab]{3}"'; do
        post /v1/completions "{\"prompt\":\"$long\",\"max_tokens\":24,$what}"
        equal "$status" 200
        echo "${body%%,\"usage\"*}" | sed 's/"id":"[^"]*"//; s/"created":[0-9]*//'
    done
}
salvo=$program
serve -t 2 -b 2 --tp 2
one=$(three)
stop
serve -t 4 -b 4 --tp 2 --dp 2
equal "$(three)" "$one"
stop
salvo=$tmp/replicas
serve -t 4 -b 4 --tp 2 --dp 2 --device-timeout 10
placed 'process 3: replica 1, rank 1' ', shared memory'
equal "$(three)" "$one"
[ "$(metric 'salvo_prefix_queries_total{replica="1"}')" -gt 0 ] || fail 'replica 1 had nothing to do'
# Each prompt goes where it was computed before: two of these to replica 1, which a busy machine may keep from
# answering in time.
for round in a b c d e; do
    word=("one$round" "two$round" "six$round" "ten$round")
    found=0
    post /v1/completions "{\"prompt\":[$(printf "\"%s $long\"," "${word[@]}" | sed 's/,$//')],\"max_tokens\":2}"
    for w in "${word[@]}"; do
        post /v1/completions "{\"prompt\":\"$w $long\",\"max_tokens\":2}"
        [ "$(field cached_tokens "$body")" -gt 15 ] && found=$((found + 1))
    done
    [ "$found" = 4 ] && break
done
equal "$found" 4
[ "$recovers" ] || { kill -TERM "$(process 0)"; wait "$server"; equal "$?" 0; echo 'left out: a process that dies'; finish; }
# a process that is killed while both replicas work: answers that are not streamed run on the other one
(post /v1/completions '{"prompt":"x","n":64,"max_tokens":480,"temperature":1,"ignore_eos":true}' && echo "$status") >"$tmp/status" &
asked=$!
becomes 'salvo_running_sequences{replica="1"}' 2
victim=$(process 3)
kill -KILL "$victim"
wait "$asked"
equal "$(cat "$tmp/status")" 200
await 'error message=.*replica=1'
get /health
equal "$status" 200
holds "$body" '"status":"degraded"'
holds "$body" "there is no process $victim any more"
equal "$(three)" "$one"
first=$(process 0)
rest=$(processes)
kill -TERM "$first"
wait "$server"
for pid in $rest; do
    kill -0 "$pid" 2>/dev/null && fail "process $pid is still there"
done
# one that is stopped, and an end with all processes there
serve -t 4 -b 4 --tp 2 --dp 2 --device-timeout 10
kill -STOP "$(process 2)"
degrades
holds "$body" '"replica":1,"status":"failed"'
equal "$(three)" "$one"
kill -TERM "$(process 0)"
wait "$server"
serve -t 4 -b 4 --tp 2 --dp 2
kill -TERM "$(process 0)"
wait "$server"
equal "$?" 0
finish
