"""Accept length by kind of prompt from what `salvo generate` wrote, looping texts left out and counted.

Owns: the definition behind the figures in docs/training.md. Needs no PyTorch. Run by hand:
    build/salvo generate -m models/demo/target -d models/demo/draft --in held_prompts.jsonl --out OUT --dtype bf16 -w 16 -n 160
    python3 train/accept.py held_prompts.jsonl OUT [--show N]
"""
import argparse
import json
import statistics


def repeated_share(ids):
    """Share of all 8-token pieces that occurred before in the text."""
    pieces = [tuple(ids[i:i + 8]) for i in range(len(ids) - 7)]
    return 1 - len(set(pieces)) / len(pieces) if pieces else 0.0


def is_looping(ids):
    """As generate.is_looping: a periodic end (period at most 48, three periods, 32 tokens), or half of the pieces repeated."""
    n = len(ids)
    for q in range(1, 49):
        m = max(3 * q, 32)
        if m + q <= n and ids[n - m:] == ids[n - m - q:n - q]:
            return True
    return n >= 48 and repeated_share(ids) > 0.5


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("prompts")
    p.add_argument("answers")
    p.add_argument("--show", type=int, default=0, help="print this many texts of each kind")
    a = p.parse_args()
    with open(a.prompts, encoding="utf-8") as f:
        prompts = [json.loads(x) for x in f]
    with open(a.answers, encoding="utf-8") as f:
        answers = [json.loads(x) for x in f]
    groups = {}
    for q, r in zip(prompts, answers, strict=True):
        assert q["id"] == r["id"]
        for name in (q["kind"], q["id"].replace("/", "-").split("-")[0] if q["kind"] == "code" else None):
            if name:
                groups.setdefault(name, []).append((q, r, is_looping(r["token_ids"])))
    for name, rows in groups.items():
        good = [r for _, r, loop in rows if not loop]
        cycles = sum(len(r["accept_lengths"]) for r in good)
        tokens = sum(sum(r["accept_lengths"]) for r in good)
        each = sorted(sum(r["accept_lengths"]) / len(r["accept_lengths"]) for r in good if r["accept_lengths"])
        print(f"{name:10s} {len(rows):4d} texts, {len(rows) - len(good):3d} loop; accept length {tokens / max(1, cycles):.3f} over {cycles} "
              f"cycles (median text {statistics.median(each):.2f}); {statistics.mean(len(r['token_ids']) for r in good):.0f} tokens a "
              f"text; repeated pieces {statistics.mean(repeated_share(r['token_ids']) for r in good):.3f}")
    for name in ("maths", "code"):
        rows = groups.get(name, [])
        for q, r, loop in rows[::max(1, len(rows) // max(1, a.show))][:a.show]:
            print(f"===== {q['id']}{' loops' if loop else ''}\n{q['prompt']}>>>{r['text']}")


if __name__ == "__main__":
    main()
