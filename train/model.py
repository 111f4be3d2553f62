"""The two networks in plain torch: a Qwen3/Llama target and a DFlash v1 draft, with Hugging Face names and files.

Owns: the mathematics of both forward passes, reading and writing their directories (config.json + model.safetensors).
Used by: every other script in train/. Must not: know about data, optimisers or devices other than through arguments.
"""
import glob
import json
import math
import os

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight.float()).to(x.dtype)


def rope_table(cfg, n, device):
    """cos and sin, (n, head_dim) fp32, for the plain and the llama3 kind of rotary embedding."""
    hd = cfg["head_dim"]
    inv = 1.0 / (cfg["rope_theta"] ** (torch.arange(0, hd, 2, device=device, dtype=torch.float32) / hd))
    scaling = cfg.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        old = scaling["original_max_position_embeddings"]
        wave = 2 * math.pi / inv
        smooth = ((old / wave - low) / (high - low)).clamp(0, 1)
        inv = torch.where(wave > old / low, inv / scaling["factor"],
                          torch.where(wave < old / high, inv, (1 - smooth) * inv / scaling["factor"] + smooth * inv))
    elif kind != "default":
        raise ValueError(f"rope scaling of type {kind} is not written here")
    angle = torch.arange(n, device=device, dtype=torch.float32)[:, None] * inv
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def rope(x, cos, sin):
    """x (..., head_dim); cos, sin broadcast against it; the rotation is done in fp32."""
    h = x.shape[-1] // 2
    y = x.float()
    return (y * cos + torch.cat([-y[..., h:], y[..., :h]], -1) * sin).to(x.dtype)


class Attention(nn.Module):
    """Projections and head norms of one layer; the attention itself is done by whoever calls."""

    def __init__(self, cfg):
        super().__init__()
        h, self.hd = cfg["hidden_size"], cfg["head_dim"]
        self.nh, self.nkv = cfg["num_attention_heads"], cfg["num_key_value_heads"]
        bias = bool(cfg.get("attention_bias"))
        self.q_proj = nn.Linear(h, self.nh * self.hd, bias=bias)
        self.k_proj = nn.Linear(h, self.nkv * self.hd, bias=bias)
        self.v_proj = nn.Linear(h, self.nkv * self.hd, bias=bias)
        self.o_proj = nn.Linear(self.nh * self.hd, h, bias=bias)
        if cfg["qk_norm"]:
            self.q_norm = RMSNorm(self.hd, cfg["rms_norm_eps"])
            self.k_norm = RMSNorm(self.hd, cfg["rms_norm_eps"])
        else:
            self.q_norm = self.k_norm = nn.Identity()

    def queries(self, x, cos, sin):
        """x (N, S, H) -> (N, nh, S, hd); cos, sin (N or 1, S, hd)"""
        q = self.q_norm(self.q_proj(x).unflatten(-1, (self.nh, self.hd)))
        return rope(q, cos[:, :, None], sin[:, :, None]).transpose(1, 2)

    def keys_values(self, x, cos, sin):
        k = self.k_norm(self.k_proj(x).unflatten(-1, (self.nkv, self.hd)))
        v = self.v_proj(x).unflatten(-1, (self.nkv, self.hd))
        return rope(k, cos[:, :, None], sin[:, :, None]).transpose(1, 2), v.transpose(1, 2)

    def attend(self, q, k, v, **how):
        """Grouped heads are expanded by hand so that every attention kernel takes them."""
        if self.nkv != self.nh:
            r = self.nh // self.nkv
            k, v = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
        y = F.scaled_dot_product_attention(q, k, v, **how)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        h, i = cfg["hidden_size"], cfg["intermediate_size"]
        self.gate_proj = nn.Linear(h, i, bias=False)
        self.up_proj = nn.Linear(h, i, bias=False)
        self.down_proj = nn.Linear(i, h, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.input_layernorm = RMSNorm(cfg["hidden_size"], cfg["rms_norm_eps"])
        self.self_attn = Attention(cfg)
        self.post_attention_layernorm = RMSNorm(cfg["hidden_size"], cfg["rms_norm_eps"])
        self.mlp = MLP(cfg)


class Target(nn.Module):
    """Qwen3 or Llama decoder; state_dict() has exactly the names of the published checkpoints."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(cfg["vocab_size"], cfg["hidden_size"])
        self.model.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg["num_hidden_layers"]))
        self.model.norm = RMSNorm(cfg["hidden_size"], cfg["rms_norm_eps"])
        if not cfg["tie_word_embeddings"]:
            self.lm_head = nn.Linear(cfg["hidden_size"], cfg["vocab_size"], bias=False)
        self.table = None

    def embed_weight(self):
        return self.model.embed_tokens.weight

    def head_weight(self):
        return self.embed_weight() if self.cfg["tie_word_embeddings"] else self.lm_head.weight

    def positions(self, start, n, device):
        if self.table is None or self.table[0].device != device:
            self.table = rope_table(self.cfg, self.cfg["max_position_embeddings"], device)
        return self.table[0][None, start:start + n], self.table[1][None, start:start + n]

    def forward(self, ids, taps=(), dtype=None):
        """ids (N, S) from position 0 -> normed hidden states (N, S, H) and the taps side by side (N, S, K*H)."""
        cos, sin = self.positions(0, ids.shape[1], ids.device)
        x = self.model.embed_tokens(ids)
        x = x if dtype is None else x.to(dtype)
        kept = []
        for i, layer in enumerate(self.model.layers):
            a, at = layer.input_layernorm(x), layer.self_attn
            k, v = at.keys_values(a, cos, sin)
            x = x + at.attend(at.queries(a, cos, sin), k, v, is_causal=True)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            if i in taps:
                kept.append(x)
        return self.model.norm(x), torch.cat(kept, -1) if kept else None

    def extend(self, ids, cache, taps=()):
        """Decode: ids (1, R) placed after what `cache` (list of (k, v) per layer) holds; the cache grows by R rows."""
        start, n = (cache[0][0].shape[2] if cache[0] else 0), ids.shape[1]
        cos, sin = self.positions(start, n, ids.device)
        mask = torch.ones(n, start + n, dtype=torch.bool, device=ids.device).tril(start)
        x, kept = self.model.embed_tokens(ids), []
        for i, layer in enumerate(self.model.layers):
            a, at = layer.input_layernorm(x), layer.self_attn
            k, v = at.keys_values(a, cos, sin)
            if cache[i]:
                k, v = torch.cat([cache[i][0], k], 2), torch.cat([cache[i][1], v], 2)
            cache[i] = (k, v)
            x = x + at.attend(at.queries(a, cos, sin), k, v, attn_mask=mask)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            if i in taps:
                kept.append(x)
        return F.linear(self.model.norm(x), self.head_weight()), torch.cat(kept, -1) if kept else None


class Draft(nn.Module):
    """DFlash v1 draft; all layers full attention, non-causal inside the block. No embeddings and no head of its own."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        h = cfg["hidden_size"]
        self.taps = cfg["dflash_config"]["target_layer_ids"]
        self.mask_id = cfg["dflash_config"]["mask_token_id"]
        self.block = cfg["block_size"]
        self.fc = nn.Linear(len(self.taps) * h, h, bias=False)
        self.hidden_norm = RMSNorm(h, cfg["rms_norm_eps"])
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg["num_hidden_layers"]))
        self.norm = RMSNorm(h, cfg["rms_norm_eps"])

    def context(self, taps):
        return self.hidden_norm(self.fc(taps))

    def forward(self, x, z, cos, sin, ctx_cos, ctx_sin, mask):
        """x (N, R, H) block rows, z (N, S, H) context; cos/sin (N, R, hd), ctx_* (1, S, hd); mask (N, 1, R, S + R)."""
        for layer in self.layers:
            a, at = layer.input_layernorm(x), layer.self_attn
            kc, vc = at.keys_values(z, ctx_cos, ctx_sin)
            kn, vn = at.keys_values(a, cos, sin)
            x = x + at.attend(at.queries(a, cos, sin), torch.cat([kc, kn], 2), torch.cat([vc, vn], 2), attn_mask=mask)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x)

    def propose(self, embed, head, anchor, z, table):
        """One block after a context of z (1, c, H): the B-1 drafted ids that follow `anchor`."""
        c, dev = z.shape[1], z.device
        ids = torch.full((1, self.block), self.mask_id, device=dev)
        ids[0, 0] = anchor
        cos, sin = table
        u = self(F.embedding(ids, embed), z, cos[None, c:c + self.block], sin[None, c:c + self.block],
                 cos[None, :c], sin[None, :c], None)
        return F.linear(u[0, 1:], head).argmax(-1)


def init_weights(module, std=0.02):
    for m in module.modules():
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=std)
    return module


def read_config(path):
    """config.json with the defaults filled in that the rest of this file relies on."""
    with open(f"{path}/config.json", encoding="utf-8") as f:
        cfg = json.load(f)
    rp = cfg.get("rope_parameters")
    if rp:
        cfg.setdefault("rope_theta", rp["rope_theta"])
        if rp.get("rope_type", "default") != "default":
            cfg.setdefault("rope_scaling", rp)
    cfg.setdefault("head_dim", cfg["hidden_size"] // cfg["num_attention_heads"])
    cfg.setdefault("tie_word_embeddings", False)
    cfg["qk_norm"] = cfg.get("model_type") == "qwen3" or "DFlash" in cfg["architectures"][0]
    return cfg


def write_config(path, cfg):
    os.makedirs(path, exist_ok=True)
    with open(f"{path}/config.json", "w", encoding="utf-8") as f:
        json.dump({k: v for k, v in cfg.items() if k != "qk_norm"}, f, indent=2)
        f.write("\n")


def save(path, module, cfg, extra_files=None):
    """Publishable directory: config.json and bf16 model.safetensors."""
    from safetensors.torch import save_file
    write_config(path, cfg)
    tensors = {k: v.detach().to(torch.bfloat16).contiguous().cpu() for k, v in module.state_dict().items()}
    save_file(tensors, f"{path}/model.safetensors", metadata={"format": "pt"})
    for name, text in (extra_files or {}).items():
        with open(f"{path}/{name}", "w", encoding="utf-8") as f:
            f.write(text)
    return sum(t.numel() for t in tensors.values())


def load_tensors(path):
    from safetensors.torch import load_file
    out = {}
    for f in sorted(glob.glob(f"{path}/*.safetensors")):
        out.update(load_file(f))
    return out


def load_target(path, device="cpu", dtype=torch.float32):
    cfg = read_config(path)
    if cfg["architectures"][0] not in ("Qwen3ForCausalLM", "LlamaForCausalLM"):
        raise ValueError(f"{path}: {cfg['architectures'][0]} is neither Qwen3 nor Llama")
    t = Target(cfg)
    tensors = load_tensors(path)
    if cfg["tie_word_embeddings"]:
        tensors.pop("lm_head.weight", None)
    t.load_state_dict({k: v for k, v in tensors.items() if "inv_freq" not in k})
    return t.to(device=device, dtype=dtype).eval().requires_grad_(False)


def load_draft(path, device="cpu", dtype=torch.float32):
    d = Draft(read_config(path))
    d.load_state_dict(load_tensors(path))
    return d.to(device=device, dtype=dtype).eval().requires_grad_(False)


class TransformersTarget:
    """The same face as Target.forward over a model loaded by transformers: any size, any shard layout."""

    def __init__(self, path, device, dtype):
        from transformers import AutoModelForCausalLM
        self.hf = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device).eval().requires_grad_(False)
        self.cfg = read_config(path)

    def embed_weight(self):
        return self.hf.get_input_embeddings().weight

    def head_weight(self):
        return self.hf.get_output_embeddings().weight

    def __call__(self, ids, taps=(), dtype=None):
        out = self.hf.model(input_ids=ids, output_hidden_states=True, use_cache=False)
        kept = torch.cat([out.hidden_states[i + 1] for i in taps], -1) if taps else None
        return out.last_hidden_state, kept


def load_any_target(path, device, dtype, loader="auto"):
    """transformers where it is installed (loader 'auto' or 'transformers'), else the module above."""
    if loader in ("auto", "transformers"):
        try:
            return TransformersTarget(path, device, dtype)
        except ImportError:
            if loader == "transformers":
                raise
    return load_target(path, device, dtype)
