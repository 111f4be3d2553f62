#!/bin/bash
# peer_llama.sh - Salvo beside llama.cpp on the same random weights of Qwen3-0.6B shapes, in turns.
#
# Run by hand on an idle machine; the weights come from tools/bench/make_qwen3_06b.py, which writes bf16 for both, and
# from llama-quantize, which makes Q4_K_M and Q8_0 of its GGUF file.
#   bench/peer_llama.sh ROUNDS OUT.csv MODEL GGUF [MODEL GGUF]...
# MODEL is what Salvo measures, a directory or a GGUF file, GGUF what llama.cpp does; '-' in place of one leaves it out
# (bf16 beside quantized weights). LLAMA_BENCH: how to start llama-bench (default llama-bench). OPTIONS: of salvo-bench, SECS (3) an arm; with
# quantized weights llama.cpp rounds activations to 8 bits, as --activations int8 does. Each round measures, model by model,
# Salvo's three rows, then llama.cpp's; a row of the result has both medians, their ratio and the ranges.
# llama-bench computes the head only for the last row of a batch, which is in its favour.
set -euo pipefail
[ $# -ge 4 ] && [ $(($# % 2)) -eq 0 ] || { sed -n '2,11p' "$0" >&2; exit 2; }
rounds=$1 out=$2
shift 2
salvo_bench=${SALVO_BENCH:-build/salvo-bench} llama=${LLAMA_BENCH:-llama-bench} threads=${THREADS:-2}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for _ in $(seq "$rounds"); do
    for ((i = 1; i < $#; i += 2)); do
        j=$((i + 1))
        if [ "${!i}" != - ]; then
            # shellcheck disable=SC2086 # a list of options
            "$salvo_bench" --random-weights "${!i}" --seconds "${SECS:-3}" -r 3 -t "$threads" ${OPTIONS:-} -o csv >>"$work/salvo.$i"
        fi
        for m in '-p 0 -n 32' '-p 16 -n 0' '-p 512 -n 0'; do
            [ "${!j}" != - ] || continue
            # shellcheck disable=SC2086 # a list of options
            $llama -m "${!j}" -t "$threads" -r 3 $m -o jsonl 2>/dev/null >>"$work/llama.$i"
        done
    done
done
python3 - "$work" "$out" "$(git describe --always --dirty)" "$@" <<'PY'
import csv, json, os, statistics, sys
work, out, commit = sys.argv[1:4]
models = sys.argv[4:]
tests = {"decode 1 row": (0, 32), "verify 16 rows": (16, 0), "prompt of 512": (512, 0)}

def row(model, name, ours, theirs, record, limit):
    line = [record.get("date", ""), commit, record.get("machine", ""), record.get("device", ""), record.get("threads", ""),
            model, name, max(len(ours), len(theirs))]
    for x in ours, theirs:
        line += [f"{f(x):.2f}" for f in (statistics.median, min, max)] if x else ["", "", ""]
    line.append(f"{statistics.median(ours) / statistics.median(theirs):.2f}" if ours and theirs else "")
    return line + ([f"{statistics.median(limit):.2f}", record["share_of_limit"]] if limit else ["", ""])

with open(out, "w", newline="") as f:
    w = csv.writer(f, lineterminator="\n")
    w.writerow("date,commit,machine,device,threads,model,test,rounds,salvo_median,salvo_min,salvo_max,llama_median,llama_min,"
               "llama_max,ratio_of_medians,read_gb_s,salvo_share_of_read".split(","))
    for i in range(0, len(models), 2):
        a, b = f"{work}/salvo.{i + 1}", f"{work}/llama.{i + 1}"
        ours = list(csv.DictReader(open(a))) if os.path.exists(a) else []
        theirs = [json.loads(line) for line in open(b)] if os.path.exists(b) else []
        model = os.path.basename((models[i] if models[i] != "-" else models[i + 1]).rstrip("/"))
        for name, key in tests.items():
            mine = [r for r in ours if r["test"] == name]
            w.writerow(row(model, name, [float(r["tok_s_median"]) for r in mine],
                           [r["avg_ts"] for r in theirs if (r["n_prompt"], r["n_gen"]) == key],
                           mine[0] if mine else {}, [float(r["limit_gb_s"]) for r in mine]))
PY
cat "$out"
