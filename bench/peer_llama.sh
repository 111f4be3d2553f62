#!/bin/bash
# peer_llama.sh - Salvo beside llama.cpp on the same random bf16 weights of Qwen3-0.6B shapes, in turns.
#
# Run by hand on an idle machine; the weights come from tools/bench/make_qwen3_06b.py, which writes both forms.
#   bench/peer_llama.sh HF_DIR GGUF ROUNDS OUT.csv
# LLAMA_BENCH: how to start llama-bench (default llama-bench). Each round measures Salvo's three rows, then
# llama.cpp's; a row of the result has both medians, their ratio and the ranges. llama-bench computes the head
# only for the last row of a batch, which is in its favour.
set -euo pipefail
[ $# -eq 4 ] || { sed -n '2,9p' "$0" >&2; exit 2; }
hf=$1 gguf=$2 rounds=$3 out=$4
salvo_bench=${SALVO_BENCH:-build/salvo-bench} llama=${LLAMA_BENCH:-llama-bench} threads=${THREADS:-2}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for _ in $(seq "$rounds"); do
    "$salvo_bench" --random-weights "$hf" --seconds 3 -r 3 -t "$threads" -o csv >>"$work/salvo.csv"
    for m in '-p 0 -n 32' '-p 16 -n 0' '-p 512 -n 0'; do
        # shellcheck disable=SC2086 # a list of options
        $llama -m "$gguf" -t "$threads" -r 3 $m -o jsonl 2>/dev/null >>"$work/llama.jsonl"
    done
done
python3 - "$work" "$out" "$(git describe --always --dirty)" <<'PY'
import csv, json, statistics, sys
work, out, commit = sys.argv[1:]
tests = {"decode 1 row": (0, 32), "verify 16 rows": (16, 0), "prompt of 512": (512, 0)}
ours, theirs, limit = {}, {}, []
for r in csv.DictReader(open(work + "/salvo.csv")):
    if r["test"] in tests:
        ours.setdefault(r["test"], []).append((float(r["tok_s_median"]), r))
        limit.append(float(r["limit_gb_s"]))
for line in open(work + "/llama.jsonl"):
    r = json.loads(line)
    theirs.setdefault((r["n_prompt"], r["n_gen"]), []).append(r["avg_ts"])
with open(out, "w", newline="") as f:
    w = csv.writer(f, lineterminator="\n")
    w.writerow("date,commit,machine,device,threads,test,rounds,salvo_median,salvo_min,salvo_max,llama_median,llama_min,"
               "llama_max,ratio_of_medians,read_gb_s,salvo_share_of_read".split(","))
    for name, key in tests.items():
        a, b = [x for x, _ in ours[name]], theirs[key]
        r = ours[name][0][1]
        gb, share = statistics.median(limit), r["share_of_limit"]
        w.writerow([r["date"], commit, r["machine"], r["device"], r["threads"], name, len(a), f"{statistics.median(a):.2f}",
                    f"{min(a):.2f}", f"{max(a):.2f}", f"{statistics.median(b):.2f}", f"{min(b):.2f}", f"{max(b):.2f}",
                    f"{statistics.median(a) / statistics.median(b):.2f}", f"{gb:.2f}", share])
PY
cat "$out"
