#!/bin/bash
# gpu_processes.sh - ranks and replicas as processes that mpirun starts, each with a GPU of its own: their answers are
# those of threads, and of one engine; a replica whose process is killed leaves, and the other goes on.
#
# Called by tests/gpu.sh in the repository's root, with $SALVO built with CUDA=1 MPI=1; needs two GPUs, uses four where
# they are there. Skips, by name, where something is missing.
. tests/serve/lib.sh
need curl perl mpirun nvidia-smi
n_gpus=$(nvidia-smi -L | wc -l)
[ "$n_gpus" -ge 2 ] || { echo 'skipped: fewer than two GPUs'; exit 77; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpirun -n 1 "$salvo" run --tp 2 -m nothing -p hi 2>&1 </dev/null | grep -q 'this build has no MPI' &&
    { echo 'skipped: built without MPI=1'; exit 77; }
program=$salvo
pair=(-m "$tiny/qwen3_tied_bf16" --device cuda --cache 256 --device-timeout 20)
long='alpha beta gamma delta epsilon zeta eta theta'

# as N: what is served from now on is so many processes; 0: threads of one.
as() {
    salvo=$program
    [ "$1" = 0 ] && return
    printf '#!/bin/bash\nexec mpirun --oversubscribe --bind-to none --enable-recovery -n %s %q "$@"\n' "$1" "$program" >"$tmp/run"
    chmod +x "$tmp/run"
    salvo=$tmp/run
}
# process NUMBER: its pid.
process() {
    local pid
    for pid in $(pgrep -P "$server"); do
        tr '\0' '\n' <"/proc/$pid/environ" | grep -qx "OMPI_COMM_WORLD_RANK=$1" && echo "$pid"
    done
}
# end: of process 0, which is told by a signal.
end() {
    kill -TERM "$([ "$salvo" = "$program" ] && echo "$server" || process 0)"
    wait "$server"
}
# ask: greedy with log probabilities, and choices that are drawn and run on all replicas.
ask() {
    local what
    for what in '"temperature":0,"logprobs":2' '"n":6,"seed":7,"temperature":1' '"n":4,"seed":3,"temperature":1,"logprobs":3'; do
        post /v1/completions "{\"prompt\":\"$long\",\"max_tokens\":24,$what}"
        equal "$status" 200
        echo "${body%%,\"usage\"*}" | sed 's/"id":"[^"]*"//; s/"created":[0-9]*//'
    done
}
# answers PROCESSES WANTED ARG...: of a server with these options.
answers() {
    local n=$1 wanted=$2
    shift 2
    as "$n"
    serve "$@"
    equal "$(ask)" "$wanted"
}

serve -b 2
alone=$(ask)
end
serve -b 4 --tp 2
divided=$(ask)
end
answers 2 "$divided" -b 4 --tp 2
grep -q 'process 1: replica 0, rank 1, .*cuda 1' "$log" || fail 'rank 1 is not on GPU 1'
end
equal "$?" 0
answers 0 "$alone" -b 4 --dp 2
end
answers 2 "$alone" -b 4 --dp 2
grep -q 'process 1: replica 1, rank 0, .*cuda 1' "$log" || fail 'replica 1 is not on GPU 1'
[ "$(metric 'salvo_prefix_queries_total{replica="1"}')" -gt 0 ] || fail 'replica 1 had nothing to do'
kill -KILL "$(process 1)"
equal "$(ask)" "$alone"
degrades
holds "$body" '"replica":1,"status":"failed"'
end
if [ "$n_gpus" -ge 4 ]; then
    answers 4 "$divided" -b 4 --tp 2 --dp 2
    end
    equal "$?" 0
fi
finish
