"""Train the small Qwen3-architecture target of the demo pair on chat maths and source code.

Owns: the target's shape, its data mixture and its training run.
Run by hand on a GPU: train_target.py --data tokens.npz.xz --tokenizer DIR --out DIR --seconds 300
Must not: be needed by train_draft.py, which takes any Hugging Face directory.
"""
import argparse
import io
import json
import lzma
import os
import shutil
import time

import numpy as np
import torch
import torch.nn.functional as F

import model
import optim


def target_config(a):
    return {"architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 6140,
            "eos_token_id": 6142, "head_dim": 64, "hidden_act": "silu", "hidden_size": a.hidden,
            "initializer_range": 0.02, "intermediate_size": a.mlp, "max_position_embeddings": 2048,
            "max_window_layers": a.layers, "model_type": "qwen3", "num_attention_heads": a.heads,
            "num_hidden_layers": a.layers, "num_key_value_heads": a.kv_heads, "rms_norm_eps": 1e-06, "rope_scaling": None,
            "rope_theta": 10000.0, "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
            "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False, "vocab_size": 6144}


GENERATION_CONFIG = json.dumps({"bos_token_id": 6140, "do_sample": False, "eos_token_id": [6142, 6140],
                                "pad_token_id": 6140, "transformers_version": "4.51.0"}, indent=2) + "\n"


def load_tokens(path):
    with lzma.open(path) as f:
        return dict(np.load(io.BytesIO(f.read())))


def shuffled_repeats(ids, starts, times, rng):
    """Documents in a new order each time, so that neighbours within a training row differ; returns ids and starts."""
    ends = np.append(starts[1:], len(ids))
    parts, firsts, n = [], [], 0
    for _ in range(times):
        for i in rng.permutation(len(starts)):
            parts.append(ids[starts[i]:ends[i]])
            firsts.append(n)
            n += ends[i] - starts[i]
    return np.concatenate(parts), np.array(firsts)


class Rows:
    """Rows of S+1 tokens from flat streams that live on the GPU: a share that starts at document starts, the rest anywhere."""

    def __init__(self, data, device, seq, maths_share, rng):
        maths, mstarts = shuffled_repeats(data["maths"], data["maths_starts"], 12, rng)
        self.seq, self.share, self.device = seq, maths_share, device
        self.maths = torch.from_numpy(maths.astype(np.int16)).to(device)
        self.code = torch.from_numpy(data["code"].astype(np.int16)).to(device)
        keep = mstarts[mstarts < len(maths) - seq - 1]
        self.mstarts = torch.from_numpy(keep).to(device)
        keep = data["code_starts"]
        self.cstarts = torch.from_numpy(keep[keep < len(data["code"]) - seq - 1]).to(device)
        self.span = torch.arange(seq + 1, device=device)

    def batch(self, n):
        m = int(n * self.share)
        s = self.mstarts[torch.randint(len(self.mstarts), (m,), device=self.device)]
        rows = [self.maths[s[:, None] + self.span]]
        c = n - m
        first = self.cstarts[torch.randint(len(self.cstarts), (c // 5,), device=self.device)]
        anywhere = torch.randint(len(self.code) - self.seq - 1, (c - c // 5,), device=self.device)
        rows.append(self.code[torch.cat([first, anywhere])[:, None] + self.span])
        return torch.cat(rows).long()


def held_out(data, device, seq, limit=64):
    """{kind: rows (n, seq+1)} that start at documents."""
    out = {}
    for kind in ("maths", "code"):
        ids, starts = data[kind + "_held"].astype(np.int64), data[kind + "_held_starts"]
        starts = starts[starts < len(ids) - seq - 1][::max(1, len(starts) // limit)][:limit]
        out[kind] = torch.from_numpy(np.stack([ids[s:s + seq + 1] for s in starts])).to(device)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--data", required=True)
    p.add_argument("--tokenizer", required=True, help="directory with tokenizer.json and tokenizer_config.json")
    p.add_argument("--out", required=True)
    p.add_argument("--seconds", type=float, default=300)
    p.add_argument("--layers", type=int, default=7)
    p.add_argument("--hidden", type=int, default=320)
    p.add_argument("--heads", type=int, default=5)
    p.add_argument("--kv-heads", type=int, default=1)
    p.add_argument("--mlp", type=int, default=896)
    p.add_argument("--seq", type=int, default=512)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--maths-share", type=float, default=0.15)
    p.add_argument("--matrix-lr", type=float, default=0.02)
    p.add_argument("--embed-lr", type=float, default=0.004)
    p.add_argument("--weight-decay", type=float, default=0.0)
    p.add_argument("--max-steps", type=int, default=10**9)
    p.add_argument("--compile", type=int, default=1)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    torch.manual_seed(a.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    data = load_tokens(a.data)
    rows = Rows(data, device, a.seq, a.maths_share, np.random.default_rng(a.seed))
    held = held_out(data, device, a.seq)
    cfg = target_config(a)
    net = model.init_weights(model.Target({**cfg, "qk_norm": True})).to(device)
    for layer in net.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    print(f"target: {sum(x.numel() for x in net.parameters()) / 1e6:.2f} M parameters")
    opt = optim.Mixed(net, a.matrix_lr, a.embed_lr, a.embed_lr, weight_decay=a.weight_decay)

    def loss_of(batch):
        with torch.autocast(device.type, torch.bfloat16):
            h, _ = net(batch[:, :-1], dtype=torch.bfloat16)
            logits = F.linear(h, net.head_weight())
        return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())

    net.positions(0, 1, device)
    step_loss = torch.compile(loss_of, dynamic=False) if a.compile else loss_of
    step_loss(rows.batch(a.batch)).backward()   # compiles before the clock starts
    opt.step(0.0)
    opt.zero_grad()
    start, step, shown = time.time(), 0, 0.0
    while True:
        progress = (time.time() - start) / a.seconds
        if progress >= 1 or step >= a.max_steps:
            break
        loss = step_loss(rows.batch(a.batch))
        loss.backward()
        opt.step(optim.schedule(progress))
        opt.zero_grad()
        step += 1
        if step % 20 == 0:
            torch.cuda.synchronize() if device.type == "cuda" else None
        if time.time() - start > shown:
            shown += a.seconds / 12
            with torch.no_grad():
                h = {k: loss_of(v).item() for k, v in held.items()}
            now = time.time() - start
            print(f"{now:6.1f} s step {step:6d} {step * a.batch * a.seq / 1e6:7.1f} M tokens  loss {loss.item():.3f}  "
                  f"held-out maths {h['maths']:.3f} code {h['code']:.3f}", flush=True)
    with torch.no_grad():
        print("end of training: steps", step, {k: round(loss_of(v).item(), 4) for k, v in held.items()})
    model.save(a.out, net, cfg, {"generation_config.json": GENERATION_CONFIG})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if os.path.abspath(a.tokenizer) != os.path.abspath(a.out):
            shutil.copy(f"{a.tokenizer}/{name}", a.out)


if __name__ == "__main__":
    main()
