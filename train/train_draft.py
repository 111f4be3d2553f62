"""Train a DFlash v1 draft for any Hugging Face Qwen3 or Llama target directory.

Owns: the training objective (anchors, block mask, position weights), the data formats, checkpoints, simulated accept length.
Run by hand: train_draft.py --target DIR --data text.npz|text.jsonl --held held.npz|held.jsonl --out DIR --seconds 500
Data: .npz as generate.py writes it, or jsonl lines {"ids": [...], "prompt_len": n} or {"prompt": "...", "text": "..."}.
Exports the published format: config.json, model.safetensors in bf16. Resumes from OUT/checkpoint.pt with --resume.
"""
import argparse
import json
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

import model
import optim


def default_taps(layers, n):
    """The published rule, for when no list is given (half to even, as Python rounds)."""
    return [layers // 2] if n == 1 else [round(1 + i * (layers - 4) / (n - 1)) for i in range(n)]


def draft_config(t, a):
    """t: the target's config. Only sizes are ours to choose; vocabulary, rope and eps are the target's."""
    taps = [int(x) for x in a.taps.split(",")] if a.taps else default_taps(t["num_hidden_layers"], 3)
    if taps != sorted(set(taps)) or taps[0] < 0 or taps[-1] > t["num_hidden_layers"] - 2:
        raise SystemExit(f"taps {taps} must ascend within 0..{t['num_hidden_layers'] - 2}")
    heads = a.heads or t["num_attention_heads"]
    return {"architectures": ["DFlashDraftModel"], "attention_bias": False, "attention_dropout": 0.0,
            "block_size": a.block, "dflash_config": {"mask_token_id": a.mask_id, "target_layer_ids": taps},
            "dtype": "bfloat16", "eos_token_id": t.get("eos_token_id"), "head_dim": t["head_dim"], "hidden_act": "silu",
            "hidden_size": t["hidden_size"], "initializer_range": 0.02, "intermediate_size": a.mlp or t["intermediate_size"],
            "layer_types": ["full_attention"] * a.layers, "max_position_embeddings": t["max_position_embeddings"],
            "max_window_layers": a.layers, "model_type": "qwen3", "num_attention_heads": heads,
            "num_hidden_layers": a.layers, "num_key_value_heads": a.kv_heads or t["num_key_value_heads"],
            "num_target_layers": t["num_hidden_layers"], "rms_norm_eps": t["rms_norm_eps"],
            "rope_scaling": t.get("rope_scaling"), "rope_theta": t["rope_theta"], "sliding_window": None,
            "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.57.0", "use_cache": True,
            "use_sliding_window": False, "vocab_size": t["vocab_size"]}


def read_rows(path, target_dir, length):
    """(ids (N, length) int32, prompt_len (N), total_len (N), kind (N)) from .npz or .jsonl."""
    if path.endswith(".npz"):
        z = np.load(path)
        ids = z["ids"][:, :length].astype(np.int32)
        if ids.shape[1] < length:
            ids = np.pad(ids, ((0, 0), (0, length - ids.shape[1])))
        return ids, z["prompt_len"], np.minimum(z["total_len"], length), z["kind"]
    tok = None
    ids, plen, total, kind = [], [], [], []
    with open(path, encoding="utf-8") as f:
        for line in f:
            row = json.loads(line)
            if "ids" not in row:
                if tok is None:
                    from tokenizers import Tokenizer
                    tok = Tokenizer.from_file(f"{target_dir}/tokenizer.json")
                head = tok.encode(row["prompt"], add_special_tokens=False).ids
                row = {"ids": head + tok.encode(row["text"], add_special_tokens=False).ids, "prompt_len": len(head),
                       "kind": row.get("kind", 0)}
            x = row["ids"][:length]
            ids.append(x + [0] * (length - len(x)))
            plen.append(max(1, row["prompt_len"]))
            total.append(len(x))
            kind.append(1 if row.get("kind") in (1, "code") else 0)
    return np.array(ids, dtype=np.int32), np.array(plen), np.array(total), np.array(kind)


class Rows:
    """The rows on the device. Rows too short to hold an anchor and one label are dropped."""

    def __init__(self, arrays, device):
        ids, plen, total, kind = arrays
        ok = total - plen >= 3
        self.ids = torch.from_numpy(ids[ok]).to(device)
        self.plen = torch.from_numpy(plen[ok].astype(np.int64)).to(device)
        self.total = torch.from_numpy(total[ok].astype(np.int64)).to(device)
        self.kind = kind[ok]

    def __len__(self):
        return len(self.plen)

    def pick(self, index):
        return self.ids[index].long(), self.plen[index], self.total[index]


def sample_anchors(plen, total, length, count):
    """Anchors p with plen <= p and p+1 < total, without replacement, sorted; those beyond a row's supply are -1."""
    pos = torch.arange(length, device=plen.device)
    ok = (pos >= plen[:, None]) & (pos + 1 < total[:, None])
    r = torch.rand(ok.shape, device=plen.device).masked_fill(~ok, -1.0)
    val, idx = r.topk(count, dim=1)
    return torch.where(val >= 0, idx, -1).sort(1).values


class Blocks:
    """Everything that the target lends to the draft, and one forward over many blocks of many rows."""

    def __init__(self, target, draft, device):
        self.target, self.draft = target, draft
        self.embed, self.head = target.embed_weight().detach(), target.head_weight().detach()
        self.cos, self.sin = model.rope_table(draft.cfg, draft.cfg["max_position_embeddings"], device)

    def hidden(self, taps, anchors, anchor_ids):
        """taps (N, S, K*H), anchors (N, A), anchor_ids (N, A) -> final hidden of the mask rows (N, A, B-1, H)."""
        d, b = self.draft, self.draft.block
        n, s = taps.shape[:2]
        a = anchors.shape[1]
        p = anchors.clamp(min=0)
        ids = torch.full((n, a, b), d.mask_id, device=taps.device)
        ids[:, :, 0] = anchor_ids
        x = F.embedding(ids.flatten(1), self.embed).to(taps.dtype)
        pos = (p[:, :, None] + torch.arange(b, device=taps.device)).flatten(1)
        own = torch.arange(a * b, device=taps.device) // b
        see_block = (own[:, None] == own[None, :]).expand(n, -1, -1)
        see_ctx = torch.arange(s, device=taps.device) < p.repeat_interleave(b, 1)[:, :, None]
        mask = torch.cat([see_ctx, see_block], 2)[:, None]
        h = d(x, d.context(taps), self.cos[pos], self.sin[pos], self.cos[None, :s], self.sin[None, :s], mask)
        return h.unflatten(1, (a, b))[:, :, 1:]


def labels_of(ids, anchors, total, block):
    """labels (N, A, B-1) and which of them exist."""
    p = anchors[:, :, None] + torch.arange(1, block, device=ids.device)
    ok = (anchors[:, :, None] >= 0) & (p < total[:, None, None])
    n = ids.shape[0]
    return ids.gather(1, p.clamp(0, ids.shape[1] - 1).reshape(n, -1)).view_as(p), ok


def block_loss(logits, labels, ok, gamma, kind, alpha, soft=None, kl=0.0):
    """Weighted cross entropy. kind 'decay': exp(-(k-1)/gamma). kind 'dpace': weight of row k = how much of the expected
    accept length passes through it, from the draft's own (detached, smoothed) probabilities."""
    lp = -F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), reduction="none").view_as(ok)
    if kind == "decay":
        w = torch.exp(-torch.arange(ok.shape[-1], device=ok.device) / gamma) * ok
        total = w.sum()
    else:
        s = ((1 - alpha) * lp.detach().exp() + alpha) * ok
        w = s.cumprod(-1).flip(-1).cumsum(-1).flip(-1) * ok
        total = w.sum()
    loss = -(w * lp).sum() / total
    if soft is not None:
        q = soft.float().log_softmax(-1)
        ce = -(q.exp() * logits.float().log_softmax(-1)).sum(-1)
        loss = (1 - kl) * loss + kl * (w * ce).sum() / total
    return loss


@torch.no_grad()
def simulate(blocks, rows, device, taps, max_new, chunk=32, batch=32):
    """Walk each greedy text as the engine would: accept the longest right prefix of every block, add the bonus token.
    {kind: (accept length with bonus, cycles, share of drafted rows right at each position)}."""
    out = {}
    b = blocks.draft.block
    for kind in (0, 1):
        index = np.flatnonzero(rows.kind == kind)
        steps = tokens = 0
        hist = np.zeros(b)
        for i in range(0, len(index), batch):
            part = torch.from_numpy(index[i:i + batch]).to(device)
            ids, plen, total = rows.pick(part)
            total = torch.minimum(total, plen + max_new)
            with torch.autocast(device.type, torch.bfloat16):
                _, t = blocks.target(ids, taps=taps, dtype=torch.bfloat16)
                got = []
                for k in range(0, max_new, chunk):
                    p = plen[:, None] + k + torch.arange(chunk, device=device)
                    p = torch.where(p + 1 < total[:, None], p, -1)
                    lab, ok = labels_of(ids, p, total, b)
                    h = blocks.hidden(t, p, ids.gather(1, p.clamp(min=0)))
                    guess = F.linear(h, blocks.head.to(h.dtype)).argmax(-1)
                    got.append(((guess == lab) & ok).cumprod(-1).sum(-1))
            acc = torch.cat(got, 1).cpu().numpy()
            for row, p, n in zip(acc, plen.cpu().numpy(), total.cpu().numpy()):
                at = p
                while at < n - 1:
                    take = min(row[at - p] + 1, n - 1 - at)
                    hist[row[at - p]] += 1
                    steps, tokens, at = steps + 1, tokens + take, at + take
        if steps:
            out["code" if kind else "maths"] = (tokens / steps, steps, hist / steps)
    return out


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--target", required=True)
    p.add_argument("--loader", choices=["auto", "transformers", "own"], default="auto")
    p.add_argument("--data", required=True)
    p.add_argument("--held", required=True, help="greedy texts on held-out prompts, for the simulated accept length")
    p.add_argument("--out", required=True)
    p.add_argument("--seconds", type=float, default=500)
    p.add_argument("--max-steps", type=int, default=10**9)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--mlp", type=int, default=0, help="0: as the target")
    p.add_argument("--heads", type=int, default=0)
    p.add_argument("--kv-heads", type=int, default=0)
    p.add_argument("--block", type=int, default=16)
    p.add_argument("--mask-id", type=int, required=True)
    p.add_argument("--taps", default="", help="comma separated; empty: the published rule for 3")
    p.add_argument("--batch", type=int, default=64, help="rows per step")
    p.add_argument("--anchors", type=int, default=32, help="blocks per row")
    p.add_argument("--length", type=int, default=384)
    p.add_argument("--loss", choices=["decay", "dpace"], default="decay")
    p.add_argument("--gamma", type=float, default=7.0)
    p.add_argument("--alpha", type=float, default=0.5)
    p.add_argument("--kl", type=float, default=0.0, help="share of the loss that is distilled from target probabilities")
    p.add_argument("--matrix-lr", type=float, default=0.02)
    p.add_argument("--vector-lr", type=float, default=0.004)
    p.add_argument("--decay", type=float, default=0.6, help="share of the run over which the rate falls to 0")
    p.add_argument("--new-tokens", type=int, default=160)
    p.add_argument("--reports", type=int, default=8)
    p.add_argument("--init", default="", help="draft directory to start from")
    p.add_argument("--resume", action="store_true")
    p.add_argument("--compile", type=int, default=1)
    p.add_argument("--seed", type=int, default=42)
    return p.parse_args()


def show(blocks, held, device, a, target_params, draft_params):
    sim = simulate(blocks, held, device, blocks.draft.taps, a.new_tokens)
    head = blocks.head.numel()
    text = []
    for kind, (acc, steps, _) in sim.items():
        text.append(f"{kind} {acc:.3f} (est. x{acc / (1.4 + 1.4 * (draft_params + head) / target_params):.2f})")
    return "  ".join(text)


def main():
    a = arguments()
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    target = model.load_any_target(a.target, device, torch.bfloat16, a.loader)
    cfg = draft_config(target.cfg, a)
    draft = model.init_weights(model.Draft({**cfg, "qk_norm": True})).to(device)
    for layer in draft.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    if a.init:
        draft.load_state_dict(model.load_tensors(a.init))
    rows, held = (Rows(read_rows(x, a.target, a.length), device) for x in (a.data, a.held))
    blocks = Blocks(target, draft, device)
    taps = draft.taps
    n_draft = sum(x.numel() for x in draft.parameters())
    n_target = sum(x.numel() for x in (target.parameters() if isinstance(target, torch.nn.Module) else target.hf.parameters()))
    print(f"{a.out}: draft {n_draft / 1e6:.2f} M, target {n_target / 1e6:.2f} M, taps {taps}, {len(rows)} rows, "
          f"{len(held)} held-out rows", flush=True)
    opt = optim.Mixed(draft, a.matrix_lr, a.vector_lr)
    os.makedirs(a.out, exist_ok=True)
    step, before, checkpoint = 0, 0.0, f"{a.out}/checkpoint.pt"
    if a.resume and os.path.exists(checkpoint):
        saved = torch.load(checkpoint, map_location=device)
        draft.load_state_dict(saved["draft"])
        opt.load_state(saved["opt"])
        step, before = saved["step"], saved["elapsed"]
        print(f"resumed at step {step}, {before:.0f} s")

    def loss_of(ids, plen, total):
        with torch.no_grad():
            h, t = target(ids, taps=taps, dtype=torch.bfloat16)
        anchors = sample_anchors(plen, total, ids.shape[1], a.anchors)
        labels, ok = labels_of(ids, anchors, total, draft.block)
        with torch.autocast(device.type, torch.bfloat16):
            u = blocks.hidden(t, anchors, ids.gather(1, anchors.clamp(min=0)))
            logits = F.linear(u, blocks.head)
            soft = None
            if a.kl:
                at = (anchors[:, :, None] + torch.arange(draft.block - 1, device=device)).clamp(0, ids.shape[1] - 1)
                hs = h.gather(1, at.flatten(1)[:, :, None].expand(-1, -1, h.shape[-1])).view(*at.shape, -1)
                soft = F.linear(hs, blocks.head)
        return block_loss(logits, labels, ok, a.gamma, a.loss, a.alpha, soft, a.kl)

    def batch():
        return rows.pick(torch.randint(len(rows), (a.batch,), device=device))

    if isinstance(target, model.Target):
        target.positions(0, 1, device)
    step_loss = torch.compile(loss_of, dynamic=False) if a.compile else loss_of
    step_loss(*batch()).backward()   # compiles before the clock starts
    opt.step(0.0)
    opt.zero_grad()
    start, shown, mean = time.time() - before, before + a.seconds / a.reports, 0.0
    while True:
        now = time.time() - start
        if now >= a.seconds or step >= a.max_steps:
            break
        loss = step_loss(*batch())
        loss.backward()
        opt.step(optim.schedule(now / a.seconds, decay=a.decay))
        opt.zero_grad()
        step += 1
        if step % 10 == 0:
            mean = loss.item() if step == 10 else 0.9 * mean + 0.1 * loss.item()
        if now > shown:
            shown += a.seconds / a.reports
            print(f"{now:6.1f} s step {step:6d} loss {mean:.3f}  held-out "
                  + show(blocks, held, device, a, n_target, n_draft), flush=True)
            torch.save({"draft": draft.state_dict(), "opt": opt.state(), "step": step, "elapsed": time.time() - start}, checkpoint)
    model.save(a.out, draft, cfg)
    blocks.draft = model.load_draft(a.out, device)      # what is reported last is the exported bf16 checkpoint
    sim = simulate(blocks, held, device, taps, a.new_tokens)
    print(f"{a.out}: exported, step {step}, loss {mean:.3f}, " + show(blocks, held, device, a, n_target, n_draft))
    for kind, (acc, steps, hist) in sim.items():
        print(f"  {kind}: accept {acc:.3f} over {steps} cycles; drafts accepted 0..: " + " ".join(f"{x:.2f}" for x in hist))


if __name__ == "__main__":
    main()
