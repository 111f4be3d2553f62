"""Decode held-out prompts with and without the draft and compare: the plain DFlash loop, one sequence, greedy.

Owns: the reference decode loop of the demo pair and the figures in docs/training.md. Reads the exported bf16 files only.
Run by hand: evaluate.py --target DIR --draft DIR --prompts FILE.jsonl [--limit N] [--show N]
"""
import argparse
import json
import time

import torch

import model
from generate import is_looping


def plain(target, ids, new_tokens, eos):
    """Greedy decoding, one token per pass."""
    cache, out, rows = [()] * len(target.model.layers), [], ids
    while len(out) < new_tokens:
        logits, _ = target.extend(torch.tensor([rows]), cache)
        out.append(int(logits[0, -1].argmax()))
        rows = out[-1:]
        if out[-1] in eos:
            break
    return out


def dflash(target, draft, ids, new_tokens, eos):
    """Greedy decoding with the draft: (ids, emitted tokens per cycle). A cycle drafts one block from the context
    features of every committed position, verifies it in one pass, keeps the right prefix and one token more."""
    table = model.rope_table(draft.cfg, draft.cfg["max_position_embeddings"], "cpu")
    embed, head, b = target.embed_weight(), target.head_weight(), draft.block
    cache = [()] * len(target.model.layers)
    logits, taps = target.extend(torch.tensor([ids]), cache, draft.taps)
    z = draft.context(taps)
    out, accepted = [int(logits[0, -1].argmax())], []
    while len(out) < new_tokens and out[-1] not in eos:
        c = len(ids) + len(out) - 1
        assert cache[0][0].shape[2] == c and z.shape[1] == c
        block = [out[-1]] + draft.propose(embed, head, out[-1], z, table).tolist()
        logits, taps = target.extend(torch.tensor([block]), cache, draft.taps)
        truth = logits[0].argmax(-1).tolist()
        n = 0
        while n < b - 1 and block[n + 1] == truth[n]:
            n += 1
        keep = c + n + 1
        cache = [(k[:, :, :keep], v[:, :, :keep]) for k, v in cache]
        z = torch.cat([z, draft.context(taps[:, :n + 1])], 1)
        new = block[1:n + 1] + [truth[n]]
        stops = [i for i, x in enumerate(new) if x in eos]
        new = new[:stops[0] + 1] if stops else new
        new = new[:new_tokens - len(out)]
        out += new
        accepted.append(len(new))
    return out, accepted


@torch.no_grad()
def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--target", required=True)
    p.add_argument("--draft", required=True)
    p.add_argument("--prompts", required=True)
    p.add_argument("--limit", type=int, default=10**9, help="prompts of each kind")
    p.add_argument("--new-tokens", type=int, default=160)
    p.add_argument("--show", type=int, default=0)
    p.add_argument("--check", type=int, default=1, help="also decode plainly and compare")
    a = p.parse_args()
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(f"{a.target}/tokenizer.json")
    target, draft = model.load_target(a.target), model.load_draft(a.draft)
    with open(f"{a.target}/generation_config.json", encoding="utf-8") as f:
        eos = set(json.load(f)["eos_token_id"])
    with open(a.prompts, encoding="utf-8") as f:
        rows = [json.loads(x) for x in f]
    seen, stats = {}, {}
    for r in rows:
        kind = r["kind"]
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] > a.limit:
            continue
        s = stats.setdefault(kind, {"texts": 0, "loops": 0, "differ": 0, "tokens": 0, "cycles": 0, "t_plain": 0.0, "t_dflash": 0.0})
        ids = tok.encode(r["prompt"], add_special_tokens=False).ids
        t0 = time.time()
        out, accepted = dflash(target, draft, ids, a.new_tokens, eos)
        t1 = time.time()
        if a.check:
            s["differ"] += plain(target, ids, a.new_tokens, eos) != out
        t2 = time.time()
        loop = is_looping(out)
        s["texts"] += 1
        s["loops"] += loop
        if not loop:
            s["tokens"] += len(out) - 1
            s["cycles"] += len(accepted)
            s["t_dflash"] += t1 - t0
            s["t_plain"] += t2 - t1
        if seen[kind] <= a.show:
            print(f"===== {r['id']} accept {sum(accepted) / max(1, len(accepted)):.2f}{' loops' if loop else ''}\n"
                  + r["prompt"] + ">>>" + tok.decode(out, skip_special_tokens=False))
    for kind, s in stats.items():
        print(f"{kind}: {s['texts']} texts, {s['loops']} loop and are left out; mean accept length "
              f"{s['tokens'] / max(1, s['cycles']):.3f} (bonus counted) over {s['cycles']} cycles; "
              f"{s['differ']} texts differ from plain decoding; seconds in this script plain {s['t_plain']:.1f}, "
              f"DFlash {s['t_dflash']:.1f}")


if __name__ == "__main__":
    main()
