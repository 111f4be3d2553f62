"""Trains the tiny pair of the DFlash golden files: a five-layer Qwen3 target of 117 K parameters that has learned to count
in steps, and three drafts for it. Random weights would give accept lengths of 1 only; this pair gives all of them.

Owns tests/golden/tiny/pair_target and pair_draft_*. A few minutes on one core. Run by hand (docs/oracles.md):
    train_pair.py [target|drafts]
"""
import json
import os
import shutil
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

import common
from dflash_ref import Draft

VOCAB, FIRST, SPAN, MASK = 300, 10, 120, 299
TAPS = [0, 2, 3]
TARGET = os.path.join(common.OUT, "pair_target")


def sequences(g, n, length):
    """x[t+1] = x[t] + step, step 1..4 seen only in the text itself; now and then the step changes"""
    step = torch.randint(1, 5, (n, 1), generator=g)
    change = torch.rand(n, length, generator=g) < 0.04
    steps = torch.where(change, torch.randint(1, 5, (n, length), generator=g), torch.zeros((), dtype=torch.long))
    out, x = [], torch.randint(0, SPAN, (n, 1), generator=g)
    for t in range(length):
        out.append(x)
        step = torch.where(steps[:, t:t + 1] > 0, steps[:, t:t + 1], step)
        x = (x + step) % SPAN
    return torch.cat(out, 1) + FIRST


def train_target():
    torch.manual_seed(5)
    cfg = Qwen3Config(hidden_size=48, num_hidden_layers=5, num_attention_heads=3, num_key_value_heads=1, head_dim=16,
                      intermediate_size=80, vocab_size=VOCAB, tie_word_embeddings=False, max_position_embeddings=256,
                      rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, eos_token_id=2, bos_token_id=1,
                      attn_implementation="sdpa")
    model, g = Qwen3ForCausalLM(cfg), torch.Generator().manual_seed(6)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2:
                p.normal_(0, 0.3 if "embed" in name else 0.8 / p.shape[1] ** 0.5, generator=g)
    steps = 1200
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=steps)
    for i in range(steps):
        x = sequences(g, 24, 64)
        loss = F.cross_entropy(model(x[:, :-1]).logits.flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if i % 250 == 0 or i == steps - 1:
            print("target", i, round(loss.item(), 3), flush=True)
    shutil.rmtree(TARGET, ignore_errors=True)
    model.to(torch.float16).save_pretrained(TARGET, max_shard_size="120KB")
    common.both_layouts(TARGET, "v4")
    common.write_tokenizer(TARGET)


# name, block, layer kinds, other keys
DRAFTS = [
    ("pair_draft_full_b16", 16, ["full_attention"] * 2, {}),
    ("pair_draft_sliding_b8", 8, ["sliding_attention", "full_attention"], {"sliding_window": 12, "use_sliding_window": True}),
    ("pair_draft_bias_b8", 8, ["full_attention"] * 2, {"attention_bias": True}),
]


def draft_config(block, kinds, extra):
    """published layout; the sliding one in transformers-4 style, the others in transformers-5 style"""
    cfg = dict(architectures=["DFlashDraftModel"], model_type="qwen3", hidden_size=48, intermediate_size=96, num_hidden_layers=2,
               num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=VOCAB, rms_norm_eps=1e-6, hidden_act="silu",
               attention_bias=False, attention_dropout=0.0, layer_types=kinds, max_position_embeddings=256, max_window_layers=2,
               sliding_window=None, use_sliding_window=False, tie_word_embeddings=False, num_target_layers=5, block_size=block,
               auto_map={"AutoModel": "dflash.DFlashDraftModel"},
               dflash_config={"mask_token_id": MASK, "target_layer_ids": TAPS}, initializer_range=0.02, use_cache=True)
    cfg.update(extra)
    if "sliding_window" in extra:
        cfg.update(rope_theta=10000.0, rope_scaling=None, torch_dtype="bfloat16", transformers_version="4.57.1")
    else:
        cfg.update(rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, dtype="bfloat16", transformers_version="5.12.1")
    return dict(sorted(cfg.items()))


def draft_weights(cfg, g, n_taps=len(TAPS)):
    h, m, q, kv = cfg["hidden_size"], cfg["intermediate_size"], cfg["num_attention_heads"] * 16, cfg["num_key_value_heads"] * 16
    shapes = {"fc.weight": (h, n_taps * h), "hidden_norm.weight": (h,), "norm.weight": (h,)}
    for i in range(cfg["num_hidden_layers"]):
        p = f"layers.{i}."
        for name, shape in (("q", (q, h)), ("k", (kv, h)), ("v", (kv, h)), ("o", (h, q))):
            shapes[p + f"self_attn.{name}_proj.weight"] = shape
            if cfg["attention_bias"]:
                shapes[p + f"self_attn.{name}_proj.bias"] = shape[:1]
        shapes.update({p + "self_attn.q_norm.weight": (16,), p + "self_attn.k_norm.weight": (16,), p + "input_layernorm.weight": (h,),
                       p + "post_attention_layernorm.weight": (h,), p + "mlp.gate_proj.weight": (m, h), p + "mlp.up_proj.weight": (m, h),
                       p + "mlp.down_proj.weight": (h, m)})
    out = {}
    for name, s in shapes.items():
        if len(s) == 2:
            w = torch.randn(s, generator=g) * 0.8 / s[1] ** 0.5
        else:
            w = torch.randn(s, generator=g) * 0.2 + (0 if name.endswith("bias") else 1)
        out[name] = w.requires_grad_()
    return out


def train_draft(target, name, block, kinds, extra, steps):
    cfg = draft_config(block, kinds, extra)
    g = torch.Generator().manual_seed(len(name) + block)
    weights = draft_weights(cfg, g)
    draft = Draft(cfg, weights)
    opt = torch.optim.AdamW(weights.values(), lr=4e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=steps)
    decay = torch.exp(-torch.arange(block - 1) / (block / 2.5))
    for i in range(steps):
        x = sequences(g, 32, 80)
        p = int(torch.randint(1, 60, (1,), generator=g))  # the anchor's position; block p .. p+block-1
        with torch.no_grad():
            out = target(x[:, :p], output_hidden_states=True, use_cache=False)
            taps = torch.cat([out.hidden_states[t + 1] for t in TAPS], -1)
            ids = torch.full((len(x), block), MASK)
            ids[:, 0] = x[:, p]
            h = target.model.embed_tokens(ids)
        pos = torch.arange(p + block)
        u = draft.block_rows(draft.context_kv(draft.features(taps), pos[:p]), pos[:p], h, pos[p:])
        logits = target.lm_head(u[:, 1:])
        loss = F.cross_entropy(logits.flatten(0, 1), x[:, p + 1:p + block].flatten(), reduction="none").view(len(x), -1)
        loss = (loss * decay).mean()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        opt.step()
        sched.step()
        if i % 250 == 0 or i == steps - 1:
            hit = (logits.argmax(-1) == x[:, p + 1:p + block]).int().cumprod(1).sum(1).float().mean() + 1
            print(name, i, round(loss.item(), 3), "accept", round(hit.item(), 2), flush=True)
    path = os.path.join(common.OUT, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    save_file({k: v.detach().to(torch.bfloat16) for k, v in weights.items()}, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    common.write_json(os.path.join(path, "config.json"), cfg)


def main():
    torch.set_num_threads(1)
    what = sys.argv[1:] or ["target", "drafts"]
    if "target" in what:
        train_target()
    if "drafts" in what:
        target = common.load_target(TARGET).requires_grad_(False)
        for name, block, kinds, extra in DRAFTS:
            train_draft(target, name, block, kinds, extra, 2000)


if __name__ == "__main__":
    main()
