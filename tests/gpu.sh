#!/bin/bash
# gpu.sh - everything that needs a GPU, in one call: op cross-checks, engine tests on cuda, the demo pair, and a
# short summary last.
#
# tests/gpu.sh [BUILD_FOLDER]: BUILD holds a release build with CUDA=1 (make CUDA=1 FLAVOUR=release all tests). Logs go to
# $OUT or a temporary folder. QUICK=1 runs the op checks under compute-sanitizer instead: TOOLS="memcheck racecheck",
# OPS="sample rules" for some of them, TOGETHER=1 all tools at once. LIMIT: seconds for each program. Exit code 1 when anything
# failed. FULL=1: the engine's tests with all their prompts. JITTER=1: what waits for other warps and thread blocks, again and
# again (TIMES), for a BUILD whose warps are late on purpose (make CUDA=1 JITTER=1: BUILD is then build/jitter); a program that
# stands still fails as one with a wrong bit does. RANKS=1: only what takes several GPUs. CUDA_VISIBLE_DEVICES: the GPUs to
# use. TOGETHER_AT_MOST: programs at once (default: processors, as each holds a context on the GPU). Must not: build anything.
set -u
cd "$(dirname "$0")/.."
B=${1:-build}
O=${OUT:-$(mktemp -d)}
mkdir -p "$O"
summary=$O/summary.txt
: >"$summary"

# start NAME TIMEOUT COMMAND...: in the background, log in $O/NAME.log
start() {
    local name=${1//\//-} limit=$2
    shift 2
    while [ "$(jobs -rp | wc -l)" -ge "${TOGETHER_AT_MOST:-$(nproc)}" ]; do sleep 0.05; done
    (
        begin=$(date +%s.%N)
        timeout "$limit" "$@" >"$O/$name.log" 2>&1
        rc=$?
        skip=$(grep -m 1 'NOT checked\|no GPU\|^skipped: ' "$O/$name.log")
        [ $rc = 77 ] && rc=0
        printf '%-34s rc=%-3d %6.1f s%s\n' "$name" "$rc" "$(awk "BEGIN { print $(date +%s.%N) - $begin }")" \
            "${skip:+  NOT CHECKED: ${skip#skipped: }}" >>"$summary"
        if [ $rc != 0 ]; then grep -v '^\[ *RUN\|^\[=' "$O/$name.log" | tail -n 4 | cut -c1-220 | sed 's/^/    /' >>"$summary"; fi
    ) &
}

finish() {
    wait
    ! grep -Eq '^[^ ]+ +rc=[1-9]' "$summary" || failed=1
}

# check_ops PREFIX TIMEOUT PROGRAM...: every test of each program by itself, so that one that stands still has a name
check_ops() {
    local prefix=$1 limit=$2 program test
    shift 2
    for program in "$@"; do
        [ -x "$B/tests/backend/$program" ] || continue
        for test in $("$B/tests/backend/$program" --list); do
            start "$prefix$program-$test" "$limit" "$B/tests/backend/$program" "$test"
        done
    done
}

# check_join PREFIX TIMEOUT: alone, as ranks that share a GPU wait for each other on it, and no other program's kernels may
# stand between them
check_join() {
    local test
    for test in $("$B/tests/backend/test_cross_join" --list 2>/dev/null); do
        start "${1}test_cross_join-$test" "$2" "$B/tests/backend/test_cross_join" "$test"
        finish
    done
}

failed=0
n_gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
[ -n "${CUDA_VISIBLE_DEVICES:-}" ] && n_gpus=$(tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | wc -l)
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader 2>/dev/null

if [ "${QUICK:-0}" = 1 ]; then
    export SALVO_TEST_QUICK=1
    for tool in ${TOOLS:-memcheck racecheck}; do
        for program in test_cross_ops test_cross_tokens test_cross_logits test_cross_moe test_cross_gdn \
            test_cross_codes test_cross_w8a8 test_cross_mla test_cross_vision; do
            [ -x "$B/tests/backend/$program" ] || continue
            for op in ${OPS:-$("$B/tests/backend/$program" --list)}; do
                "$B/tests/backend/$program" --list | grep -qx "$op" || continue
                [ "$op" = definition ] && continue # which calls no GPU: the tools end with an error then
                start "$tool-${program#test_cross_}-$op" "${LIMIT:-95}" compute-sanitizer --tool "$tool" --error-exitcode 9 \
                    "$B/tests/backend/$program" "$op"
            done
        done
        # Attention as in a pass, with a plan and keys read early, which single ops do not show.
        case " ${OPS:-attention} " in *" attention "*)
            [ -x "$B/bench/attention_cuda" ] && start "$tool-attention-in-pass" "${LIMIT:-95}" compute-sanitizer --tool "$tool" \
                --error-exitcode 9 "$B/bench/attention_cuda" check quick ;;
        esac
        [ "${TOGETHER:-0}" = 1 ] || finish
    done
    finish
    sort "$summary"
    exit $failed
fi

if [ "${JITTER:-0}" = 1 ]; then
    for time in $(seq "${TIMES:-3}"); do
        for program in gemm wcomp fp8 attention; do
            [ -x "$B/bench/${program}_cuda" ] && start "jitter-$program-$time" "${LIMIT:-60}" "$B/bench/${program}_cuda" check
        done
        finish
    done
    check_ops jitter- "${LIMIT:-60}" test_cross_ops test_cross_tokens test_cross_logits test_cross_moe \
        test_cross_gdn test_cross_codes test_cross_mla test_cross_vision
    export SALVO_TEST_QUICK=1 SALVO_TEST_DEVICE=cuda
    for test in greedy_auto_bf16 sampled_auto_bf16 moe_auto_bf16; do
        [ -x "$B/tests/engine/test_lossless" ] && start "jitter-lossless-$test" "${LIMIT:-60}" "$B/tests/engine/test_lossless" "$test"
    done
    finish
    check_join jitter- "${LIMIT:-60}"
    sort "$summary"
    exit $failed
fi

on_one_gpu() {
    check_ops '' "${LIMIT:-150}" test_cross_ops test_cross_tokens test_cross_logits test_cross_moe test_cross_gdn \
        test_cross_codes test_cross_w8a8 test_cross_mla test_cross_vision test_cross_among test_cross_device

    # Fewer prompts than on the CPU, unless FULL=1: a dozen programs share the GPU.
    [ "${FULL:-0}" = 1 ] || export SALVO_TEST_QUICK=1
    for device in cuda cuda-portable cuda-eager; do
        export SALVO_TEST_DEVICE=$device
        for test in greedy_auto_f32 greedy_auto_bf16 sampled_auto_f32 sampled_auto_bf16 moe_auto_f32 moe_auto_bf16 \
            gptoss_auto_f32 gptoss_auto_bf16 hybrid_auto_f32 hybrid_auto_bf16 hybrid_experts_auto hybrid_fp8_auto_bf16 \
            latent_auto_f32 latent_auto_bf16 quantized_auto_bf16 k_quants_auto_bf16 formats_auto_bf16 formats_auto_f32 \
            families_in_every_format moe_fp8_auto_bf16 fp8_target fp8_auto_bf16 fp8_latents activations_fp8_on_hopper \
            images_auto_f32 images_auto_bf16 images_and_states images_in_fp8 other_families; do
            [ $device != cuda ] && [[ $test != *_auto_bf16 || $test = sampled* ]] && continue
            start "lossless-$device-$test" "${LIMIT:-150}" "$B/tests/engine/test_lossless" "$test"
        done
        for program in model/test_golden model/test_vision spec/test_dflash_golden engine/test_images engine/test_preempt \
            engine/test_prefix engine/test_mates engine/test_widths engine/test_rules engine/test_grammar engine/test_expensive engine/test_token_logprobs; do
            [ -x "$B/tests/$program" ] && [ $device = cuda ] && start "$program-$device" "${LIMIT:-150}" "$B/tests/$program"
        done
        unset SALVO_TEST_DEVICE
    done
}
# Ranks: one program after the other, as those of different ones would wait for each other's kernels. Cases of more ranks
# than there are GPUs take two.
ranked() { # PREFIX PROGRAM CASE...
    local prefix=$1 program=$2 test
    shift 2
    [ -x "$B/tests/$program" ] || return
    for test in "$@"; do
        SALVO_TEST_DEVICE=$device start "$prefix-$test" "${LIMIT:-100}" "$B/tests/$program" "$test"
        finish
    done
}
if [ "${RANKS:-0}" = 1 ]; then export SALVO_TEST_QUICK=1; else on_one_gpu; fi
device=cuda
finish
ranked ranks engine/test_ranks f32_2 bf16_2 experts_2 whole_experts_2 grammars together_2 policy
if [ "$n_gpus" -ge 2 ]; then
    ranked ranks engine/test_ranks silent tells diverges
    (unset SALVO_TEST_QUICK; ranked ranks engine/test_ranks soak)
    ranked rank-families engine/test_rank_families packed_experts delta_rules latents experts_by_number snapshots answers_go_on
    ranked dp-attention engine/test_dp_attention latents_2 latents_4 few_heads_4 windows_4 together policy capacity
    ranked replicas serve/test_replicas the_same_text prefixes
    SALVO=$B/salvo start processes 120 tests/serve/gpu_processes.sh
    finish
fi
if [ "$n_gpus" -ge 4 ]; then
    for device in cuda cuda-two-shots; do
        ranked "ranks-$device" engine/test_ranks f32_4 bf16_4 experts_4 together_4
    done
    device=cuda
    ranked rank-families engine/test_rank_families close_to_one
fi
finish
unset SALVO_TEST_QUICK

if [ "${RANKS:-0}" = 1 ]; then
    check_join '' 60
    sort "$summary"
    exit $failed
fi

# The demo pair: greedy tokens of plain decoding and of DFlash at several batch sizes, bit for bit.
demo() { # NAME ARGS...
    local name=$1
    shift
    start "demo-$name" 100 "$B/salvo" generate -m models/demo/target --dtype bf16 --in models/demo/prompts.jsonl \
        --out "$O/$name.jsonl" -n 96 "$@"
}
draft=(-d models/demo/draft)
demo cpu --device cpu -b 4
demo plain --device cuda -b 1
demo plain32 --device cuda -b 32
demo dflash --device cuda -b 1 "${draft[@]}"
demo dflash8 --device cuda -b 8 "${draft[@]}"
demo dflash64 --device cuda -b 64 "${draft[@]}"
demo eager --device cuda -b 8 --no-graphs "${draft[@]}"
demo portable --device cuda -b 8 --kernels portable
demo portable-dflash --device cuda -b 5 --kernels portable "${draft[@]}"
finish
check_join '' 60
# Alone: it looks at all of the device's memory.
SALVO_TEST_DEVICE=cuda start engine/test_memory-cuda 60 "$B/tests/engine/test_memory"
finish
# Beside nothing else: they are about time, and their kernels stand still. The long queue must not share the GPU at all.
if [ -x "$B/tests/cuda/test_watch" ]; then
    for test in $("$B/tests/cuda/test_watch" --list); do
        [ "$test" = a_long_queue_is_waited_for ] && continue
        start "watch-$test" 60 "$B/tests/cuda/test_watch" "$test"
    done
    finish
    start watch-a_long_queue_is_waited_for 60 "$B/tests/cuda/test_watch" a_long_queue_is_waited_for
    finish
fi

tokens() { sed 's/.*"token_ids"/"token_ids"/; s/"finish_reason".*//' "$O/$1.jsonl" 2>/dev/null; }
same() { # A B: equal token ids
    local a b n
    a=$(tokens "$1") b=$(tokens "$2")
    n=$(wc -l <<<"$a")
    if [ -n "$a" ] && [ "$a" = "$b" ]; then
        echo "demo: $1 = $2 ($n prompts)" >>"$summary"
    else
        echo "demo: $1 DIFFERS from $2: $(diff <(echo "$a") <(echo "$b") | grep -c '^<') of $n prompts" >>"$summary"
        return 1
    fi
}
for other in plain32 dflash dflash8 dflash64 eager; do same plain $other || failed=1; done
same portable portable-dflash || failed=1
same plain cpu || echo "  (bf16 on the GPU and on the CPU round differently: no failure)" >>"$summary"
sort "$summary"
[ $failed = 0 ] && echo 'gpu.sh: all passed' || echo 'gpu.sh: FAILED'
exit $failed
