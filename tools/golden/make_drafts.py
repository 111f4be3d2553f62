"""Golden files of DFlash: what the published reference code computes and decodes with a target and a draft, in float32.

Owns tests/golden/tiny/*draft*.golden.safetensors, the llama_draft directory, and tests/golden/demo.*. Run by hand
(docs/oracles.md); DIR holds the published code (dflash/model.py):
    make_drafts.py --reference DIR tiny
    make_drafts.py --reference DIR gptoss
    make_drafts.py --reference DIR demo TARGET_DIR DRAFT_DIR
The published code does not know the causal rule of sliding layers; for those drafts the golden comes from dflash_ref.py, and
the file's metadata says so. Elsewhere both are run and must agree.
"""
import argparse
import collections
import importlib.util
import json
import os
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file

import common
import demo_prompts
import train_pair
from dflash_ref import Draft, first_block, generate

# prompts where any deciding pair of logits is closer than this are left out: rounding could turn them. The tiny models are
# rough and have room; the shipped pair meets many more rows.
MIN_GAP, MIN_GAP_DEMO = 2e-3, 5e-4
DETAIL_LENGTHS = [1, 11, 12, 13, 40]


class Reference:
    """the published code, loaded from DIR/dflash/model.py"""

    def __init__(self, path, draft_dir):
        spec = importlib.util.spec_from_file_location("published_dflash", os.path.join(path, "dflash", "model.py"))
        self.module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        torch.cuda.synchronize = lambda: None  # its statistics ask for a GPU; the arithmetic does not
        cls = self.module.DFlashDraftModel
        self.model = cls.from_pretrained(draft_dir, dtype=torch.float32, attn_implementation="eager").eval()
        self.commit = open(os.path.join(path, "COMMIT")).read().strip() if os.path.exists(os.path.join(path, "COMMIT")) else "unknown"

    @torch.inference_mode()
    def first_block(self, target, prompt):
        m, n, b = self.module, len(prompt), self.model.block_size
        out = target(prompt[None], output_hidden_states=True, use_cache=False)
        taps = m.extract_context_feature(out.hidden_states, self.model.target_layer_ids)
        ids = torch.full((1, b), self.model.mask_token_id)
        ids[0, 0] = out.logits[0, -1].argmax()
        cache, z = m.DynamicCache(), {}
        hook = self.model.hidden_norm.register_forward_hook(lambda mod, i, o: z.update(z=o[0]))
        u = self.model(target_hidden=taps, noise_embedding=target.model.embed_tokens(ids), position_ids=torch.arange(n + b)[None],
                       past_key_values=cache, use_cache=True, is_causal=False)[0]
        hook.remove()
        ctx = [(c.keys[0, :, :n].transpose(0, 1), c.values[0, :, :n].transpose(0, 1)) for c in cache.layers]
        return {"taps": taps[0], "z": z["z"], "ctx": ctx, "anchor": ids[0, 0], "u": u, "draft_ids": target.lm_head(u[1:]).argmax(-1)}

    def generate(self, target, prompt, n_new):
        """-> ids, accept lengths, least distance of the two best logits of any deciding row (as dflash_ref.generate). The
        published loop may run one step too many: that one is dropped."""
        seen, sample = [], self.module.sample

        def watched(logits, *args):
            top = logits[0].topk(2).values
            seen.append(top[:, 0] - top[:, 1])
            return sample(logits, *args)

        self.module.sample = watched
        out = self.module.dflash_generate(self.model, target, prompt[None], n_new, None, 0.0, return_stats=True)
        self.module.sample = sample
        accept, total, gap = [], 1, float(seen[0])
        for a, draft, verify in zip(out.acceptance_lengths, seen[1::2], seen[2::2]):
            if total >= n_new:
                break
            accept.append(a)
            total += a
            gap = min(gap, float(draft[:a].min()), float(verify[:a].min()))
        return out.output_ids[0, len(prompt):], accept, gap


def load_draft(path, config="config.json"):
    with open(os.path.join(path, config)) as f:
        cfg = json.load(f)
    weights = {k: v.float() for k, v in load_file(os.path.join(path, "model.safetensors")).items()}
    return Draft(cfg, weights)


def uses_rule(draft):
    """True when attention in the block is anything but 'everybody sees everybody'"""
    return any(draft.causal) or any(draft.window)


def decode_all(draft, target, reference, prompts, n_new, want, n_both=1000, min_gap=MIN_GAP):
    """-> list of (prompt, ids, accept) for the first `want` prompts without close calls; the published code does them, and
    dflash_ref.py the first n_both too (all, where there is no published code)"""
    rows, left_out = [], 0
    for prompt in prompts:
        if len(rows) == want:
            break
        ids, accept, gap = reference.generate(target, prompt, n_new) if reference else generate(draft, target, prompt, n_new)
        if gap < min_gap:
            left_out += 1
            continue
        if reference and len(rows) < n_both:
            ours = generate(draft, target, prompt, n_new)
            assert ours[0].tolist() == ids.tolist() and ours[1] == accept, "published code and dflash_ref.py disagree"
        assert sum(accept) + 1 >= n_new
        rows.append((prompt, ids, cut(accept, n_new)))
        print("\r%d of %d prompts" % (len(rows), want), end="", file=sys.stderr, flush=True)
    assert len(rows) == want, "too few prompts"
    return rows, left_out


def cut(accept, n_new):
    """the last step counts only tokens within n_new (the first token is prefill's)"""
    accept = list(accept)
    accept[-1] -= sum(accept) + 1 - n_new
    return [a for a in accept if a > 0]


def flat(name, lists):
    """ragged lists -> NAME and NAME_offsets"""
    off = [0]
    for x in lists:
        off.append(off[-1] + len(x))
    return {name: torch.tensor([int(v) for x in lists for v in x]), name + "_offsets": torch.tensor(off)}


def detail(i, prompt, first, with_taps):
    t = {f"d{i}.input_ids": prompt, f"d{i}.z": first["z"], f"d{i}.anchor": first["anchor"].reshape(1), f"d{i}.u": first["u"],
         f"d{i}.draft_ids": first["draft_ids"]}
    if with_taps:
        t[f"d{i}.taps"] = first["taps"]
    for l, (k, v) in enumerate(first["ctx"]):
        t.update({f"d{i}.l{l}.k": k, f"d{i}.l{l}.v": v})
    return t


def agree(a, b):
    """largest relative difference of two first_block() results"""
    worst = 0.0
    pairs = [(a["z"], b["z"]), (a["u"], b["u"])] + [p for x, y in zip(a["ctx"], b["ctx"]) for p in zip(x, y)]
    for x, y in pairs:
        worst = max(worst, float((x - y).abs().max() / y.abs().max()))
    assert worst < 1e-4 and a["draft_ids"].tolist() == b["draft_ids"].tolist(), worst
    return worst


def tiny_prompts(vocab, counting):
    """endless: counting sequences (the pair has learned them) and random ids"""
    g = torch.Generator().manual_seed(77)
    i = 0
    while True:
        n = int(torch.randint(1, 60, (1,), generator=g))
        if counting and i % 3 != 2:
            yield train_pair.sequences(g, 1, n)[0]
        else:
            yield torch.randint(0, vocab, (n,), generator=g)
        i += 1


def make_tiny(reference_dir, target_dir, draft_dir, config="config.json", suffix="", counting=True, n_prompts=48, n_new=64, with_taps=False):
    target, draft = common.load_target(target_dir), load_draft(draft_dir, config)
    reference = None if uses_rule(draft) else Reference(reference_dir, draft_dir)
    vocab, tensors, worst = target.config.vocab_size, {}, 0.0
    for i, n in enumerate(DETAIL_LENGTHS):
        prompt = common.random_prompt(300 + i, n, vocab)
        first = first_block(draft, target, prompt)
        if reference:
            ours, first = first, reference.first_block(target, prompt)
            worst = max(worst, agree(ours, first))
        rows = detail(i, prompt, first, with_taps)
        if suffix:  # context K and V do not depend on the override
            rows = {k: v for k, v in rows.items() if not k.endswith((".k", ".v", ".z"))}
        tensors.update(rows)
    rows, left_out = decode_all(draft, target, reference, tiny_prompts(vocab, counting), n_new, n_prompts)
    for name, k in (("prompts", 0), ("tokens", 1), ("accept", 2)):
        tensors.update(flat(name, [r[k] for r in rows]))
    name = os.path.basename(draft_dir) + suffix
    meta = {"n_prompts": n_prompts, "n_new": n_new, "n_details": len(DETAIL_LENGTHS), "target": os.path.basename(target_dir), "draft_config": config,
            "made_by": f"published z-lab/dflash {reference.commit[:7]}, dflash_ref.py agrees within {worst:.1e}" if reference
            else "dflash_ref.py (the published code has no causal rule for sliding layers)"}
    common.save_golden(os.path.join(common.OUT, name + ".golden.safetensors"), tensors, **meta)
    accept = [int(a) for r in rows for a in r[2]]
    print(name, meta["made_by"], "| mean accept %.2f" % (sum(accept) / len(accept)), sorted(collections.Counter(accept).items()), "left out", left_out)


def variants(draft_dir):
    """the sliding draft again with its two overrides of the causal rule"""
    with open(os.path.join(draft_dir, "config.json")) as f:
        cfg = json.load(f)
    common.write_json(os.path.join(draft_dir, "config.noncausal.json"), {**cfg, "is_causal": False})
    causal = {**cfg, "dflash_config": {**cfg["dflash_config"], "causal": True}}
    common.write_json(os.path.join(draft_dir, "config.allcausal.json"), causal)


def random_draft(name, block, kinds, **fields):
    """a draft with random weights: next to nothing is accepted, but taps and rows are checked -> its directory"""
    path = os.path.join(common.OUT, name)
    cfg = train_pair.draft_config(block, kinds, {})
    cfg.update(fields)
    weights = train_pair.draft_weights(cfg, torch.Generator().manual_seed(9), len(cfg["dflash_config"]["target_layer_ids"]))
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    save_file({k: v.detach().to(torch.bfloat16) for k, v in weights.items()}, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    common.write_json(os.path.join(path, "config.json"), cfg)
    return path


def llama_draft():
    """one layer, for the random Llama target"""
    return random_draft("llama_draft_random_b4", 4, ["full_attention"], hidden_size=64, intermediate_size=72, num_hidden_layers=1, head_dim=16,
                        vocab_size=288, num_target_layers=3, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
                        dflash_config={"mask_token_id": 287, "target_layer_ids": [0, 1]})


def gptoss_draft():
    """as those of gpt-oss: biases, YaRN by its own keys (truncated, unlike the target's), a block of 10"""
    return random_draft("gptoss_draft_random_b10", 10, ["full_attention"] * 2, hidden_size=48, intermediate_size=56, head_dim=16, vocab_size=300,
                        num_target_layers=4, rms_norm_eps=1e-6, attention_bias=True, max_position_embeddings=512,
                        rope_parameters={"rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "original_max_position_embeddings": 64,
                                         "beta_fast": 32.0, "beta_slow": 1.0},
                        dflash_config={"mask_token_id": 299, "target_layer_ids": [0, 2]})


def make_demo(reference_dir, target_dir, draft_dir, n_new=96, n_details=4):
    """tests/golden/demo.jsonl: one prompt a line; demo.safetensors: first block of a few prompts"""
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(os.path.join(target_dir, "tokenizer.json"))
    target, draft = common.load_target(target_dir), load_draft(draft_dir)
    reference = None if uses_rule(draft) else Reference(reference_dir, draft_dir)
    texts = demo_prompts.prompts()
    encoded = {tuple(tok.encode(t, add_special_tokens=False).ids): (name, t) for name, t in texts}
    want = min(44, len(encoded))
    rows, left_out = decode_all(draft, target, reference, [torch.tensor(k) for k in encoded], n_new, want, n_both=3, min_gap=MIN_GAP_DEMO)
    out, tensors, worst = os.path.dirname(common.OUT), {}, 0.0
    for i, (prompt, _, _) in enumerate(rows[:n_details]):
        first = first_block(draft, target, prompt)
        if reference:
            ours, first = first, reference.first_block(target, prompt)
            worst = max(worst, agree(ours, first))
        tensors.update(detail(i, prompt, first, False))
        tensors = {k: v for k, v in tensors.items() if not k.endswith((".k", ".v", ".z"))}
    made_by = f"published z-lab/dflash {reference.commit[:7]}" if reference else "dflash_ref.py (sliding layers)"
    common.save_golden(os.path.join(out, "demo.safetensors"), tensors, n_details=n_details, made_by=made_by, n_new=n_new, **fingerprints(target_dir, draft_dir))
    with open(os.path.join(out, "demo.jsonl"), "w") as f:
        for prompt, ids, accept in rows:
            name, text = encoded[tuple(prompt.tolist())]
            row = {"id": name, "prompt": text, "prompt_token_ids": prompt.tolist(), "max_tokens": n_new, "token_ids": ids.tolist(),
                   "accept_lengths": accept, "text": tok.decode(ids.tolist(), skip_special_tokens=False)}
            f.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
    for kind in ("maths", "code"):
        a = [x for p, _, acc in rows if encoded[tuple(p.tolist())][0].startswith(kind) for x in acc]
        print(kind, "steps", len(a), "mean accept %.2f" % (sum(a) / max(1, len(a))))
    print("demo:", made_by, "within %.1e" % worst, "left out", left_out)


def fingerprints(target_dir, draft_dir):
    """so that a test can say 'the pair changed, make the golden file again' instead of failing obscurely"""
    import hashlib
    out = {}
    for name, d in (("target", target_dir), ("draft", draft_dir)):
        h = hashlib.sha256()
        for f in sorted(x for x in os.listdir(d) if x.endswith(".safetensors")):
            h.update(open(os.path.join(d, f), "rb").read())
        out[name + "_sha256"] = h.hexdigest()
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--reference", required=True)
    ap.add_argument("what", choices=["tiny", "gptoss", "demo"])
    ap.add_argument("dirs", nargs="*")
    args = ap.parse_args()
    if args.what == "demo":
        make_demo(args.reference, *args.dirs)
        return
    gptoss = os.path.join(common.OUT, "gptoss_bf16")
    if args.what == "gptoss":
        make_tiny(args.reference, gptoss, gptoss_draft(), counting=False, n_prompts=40, n_new=32, with_taps=True)
        return
    pair = os.path.join(common.OUT, "pair_")
    sliding = pair + "draft_sliding_b8"
    variants(sliding)
    make_tiny(args.reference, pair + "target", pair + "draft_full_b16", with_taps=True)
    make_tiny(args.reference, pair + "target", pair + "draft_bias_b8")
    make_tiny(args.reference, pair + "target", sliding)
    make_tiny(args.reference, pair + "target", sliding, "config.noncausal.json", ".noncausal")
    make_tiny(args.reference, pair + "target", sliding, "config.allcausal.json", ".allcausal")
    make_tiny(args.reference, os.path.join(common.OUT, "llama_rope3_bf16"), llama_draft(), counting=False, n_prompts=40, n_new=32, with_taps=True)


if __name__ == "__main__":
    main()
