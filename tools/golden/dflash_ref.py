"""DFlash v1 in plain torch, float32: our own statement of the draft model and of greedy draft-and-verify.

Owns the rule for attention inside the block (full layers see everything; sliding layers see the window and are causal in
the block unless the config says otherwise). Used for what the published code does not do (sliding layers), for training the
tiny pair, and as a second opinion on the published code elsewhere. Imported by train_pair.py and make_drafts.py.
"""
import math

import torch
import torch.nn.functional as F


def rms_norm(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def frequencies(cfg):
    """a draft's own rope keys, plain or YaRN -> frequencies (head_dim / 2,), factor of cos and sin"""
    d, hd = cfg.get("rope_parameters") or cfg.get("rope_scaling") or {}, cfg["head_dim"]
    theta = cfg["rope_theta"] if "rope_theta" in cfg else d["rope_theta"]
    i = torch.arange(0, hd // 2, dtype=torch.float32)
    inv = 1.0 / (theta ** (i * 2 / hd))
    if d.get("rope_type", "default") == "default":
        return inv, 1.0
    assert d["rope_type"] == "yarn"
    low, high = (hd * math.log(d["original_max_position_embeddings"] / (n * 2 * math.pi)) / (2 * math.log(theta))
                 for n in (d.get("beta_fast", 32), d.get("beta_slow", 1)))
    if d.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, hd - 1)
    ramp = ((i - low) / (high - low)).clamp(0, 1)
    return inv * (1 - ramp) + inv / d["factor"] * ramp, 0.1 * math.log(d["factor"]) + 1


def rope(x, pos, inv, scale):
    """x (..., n, heads, head_dim), pos (n,): first half with second half"""
    half = x.shape[-1] // 2
    ang = pos.float()[:, None] * inv
    cos, sin = ang.cos()[:, None, :] * scale, ang.sin()[:, None, :] * scale
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Draft:
    """weights: dict by published tensor names, float32; cfg: config.json as a dict"""

    def __init__(self, cfg, weights):
        d = cfg.get("dflash_config", {})
        self.cfg, self.w = cfg, weights
        self.block = d.get("block_size", cfg.get("block_size"))
        self.mask_id = d.get("mask_token_id", cfg.get("mask_token_id"))
        self.taps = d.get("target_layer_ids", cfg.get("target_layer_ids"))
        self.n_layers, self.eps = cfg["num_hidden_layers"], cfg["rms_norm_eps"]
        self.nh, self.nkv, self.hd = cfg["num_attention_heads"], cfg["num_key_value_heads"], cfg["head_dim"]
        self.rope = frequencies(cfg)
        kinds = cfg.get("layer_types") or ["full_attention"] * self.n_layers
        forced = cfg.get("is_causal", d.get("causal"))
        self.window = [cfg["sliding_window"] if k == "sliding_attention" else None for k in kinds]
        self.causal = [forced if forced is not None else k == "sliding_attention" for k in kinds]

    def linear(self, x, name):
        return F.linear(x, self.w[name + ".weight"], self.w.get(name + ".bias"))

    def features(self, taps):
        """taps (..., n, K*H_t) -> z (..., n, H)"""
        return rms_norm(self.linear(taps, "fc"), self.w["hidden_norm.weight"], self.eps)

    def heads(self, x, layer, which, pos):
        y = self.linear(x, f"layers.{layer}.self_attn.{which}_proj")
        y = y.view(*y.shape[:-1], -1, self.hd)
        if which == "v":
            return y
        return rope(rms_norm(y, self.w[f"layers.{layer}.self_attn.{which}_norm.weight"], self.eps), pos, *self.rope)

    def context_kv(self, z, pos):
        """-> per layer (K, V), each (..., n, n_kv_heads, head_dim), K normed and rotated"""
        return [(self.heads(z, l, "k", pos), self.heads(z, l, "v", pos)) for l in range(self.n_layers)]

    def mask(self, layer, ctx_pos, pos):
        """(rows, context + rows) True where a row may look"""
        key = torch.cat([ctx_pos, pos])
        dist = pos[:, None] - key[None, :]
        ok = torch.ones_like(dist, dtype=torch.bool)
        if self.window[layer]:
            ok &= dist.abs() < self.window[layer]
        if self.causal[layer]:
            ok &= dist >= 0
        return ok

    def block_rows(self, ctx, ctx_pos, h, pos):
        """ctx: context_kv(); h (..., B, H) embeddings of anchor and masks -> u (..., B, H), normed"""
        group = self.nh // self.nkv
        for l in range(self.n_layers):
            p = f"layers.{l}."
            a = rms_norm(h, self.w[p + "input_layernorm.weight"], self.eps)
            q = self.heads(a, l, "q", pos)
            k = torch.cat([ctx[l][0], self.heads(a, l, "k", pos)], -3).repeat_interleave(group, -2)
            v = torch.cat([ctx[l][1], self.heads(a, l, "v", pos)], -3).repeat_interleave(group, -2)
            s = torch.einsum("...qhd,...khd->...hqk", q, k) * self.hd ** -0.5
            s = s.masked_fill(~self.mask(l, ctx_pos, pos), float("-inf"))
            o = torch.einsum("...hqk,...khd->...qhd", s.softmax(-1), v).flatten(-2)
            h = h + self.linear(o, p + "self_attn.o_proj")
            m = rms_norm(h, self.w[p + "post_attention_layernorm.weight"], self.eps)
            m = F.silu(self.linear(m, p + "mlp.gate_proj")) * self.linear(m, p + "mlp.up_proj")
            h = h + self.linear(m, p + "mlp.down_proj")
        return rms_norm(h, self.w["norm.weight"], self.eps)


@torch.inference_mode()
def target_forward(target, ids, taps, cache=None):
    """ids (n,) after what the cache holds -> logits (n, V), taps (n, K*H_t)"""
    out = target(ids[None], past_key_values=cache, use_cache=cache is not None, output_hidden_states=True)
    return out.logits[0], torch.cat([out.hidden_states[i + 1][0] for i in taps], -1)


@torch.inference_mode()
def first_block(draft, target, prompt):
    """everything about the first block after a prompt"""
    n, b = len(prompt), draft.block
    logits, taps = target_forward(target, prompt, draft.taps)
    anchor = logits[-1].argmax()
    pos = torch.arange(n + b)
    z = draft.features(taps)
    ctx = draft.context_kv(z, pos[:n])
    ids = torch.full((b,), draft.mask_id)
    ids[0] = anchor
    u = draft.block_rows(ctx, pos[:n], target.model.embed_tokens(ids), pos[n:])
    logits = target.lm_head(u[1:])
    return {"taps": taps, "z": z, "ctx": ctx, "anchor": anchor, "u": u, "draft_ids": logits.argmax(-1), "draft_logits": logits}


@torch.inference_mode()
def generate(draft, target, prompt, n_new):
    """greedy draft-and-verify without caches (everything recomputed) -> n_new token ids, accept length of each step (bonus
    included, the last one not cut at n_new), least distance of the two best logits of any row, of target or draft, that
    decided something"""
    ids = prompt.clone()
    logits, taps = target_forward(target, ids, draft.taps)
    top = logits[-1].topk(2)
    ids, accept, gap = torch.cat([ids, top.indices[:1]]), [], float(top.values[0] - top.values[1])
    while len(ids) < len(prompt) + n_new:
        c = len(ids) - 1
        pos = torch.arange(c + draft.block)
        block = torch.full((draft.block,), draft.mask_id)
        block[0] = ids[-1]
        ctx = draft.context_kv(draft.features(taps[:c]), pos[:c])
        u = draft.block_rows(ctx, pos[:c], target.model.embed_tokens(block), pos[c:])
        guess = target.lm_head(u[1:]).topk(2)
        block[1:] = guess.indices[:, 0]
        logits, taps = target_forward(target, torch.cat([ids[:-1], block]), draft.taps)
        best = logits[c:].topk(2)
        want = best.indices[:, 0]
        a = int((block[1:] == want[:-1]).int().cumprod(0).sum())
        for top in (best, guess):
            gap = min(gap, float((top.values[:a + 1, 0] - top.values[:a + 1, 1]).min()))
        ids = torch.cat([ids[:-1], block[:a + 1], want[a:a + 1]])
        accept.append(a + 1)
    return ids[len(prompt):len(prompt) + n_new], accept, gap
