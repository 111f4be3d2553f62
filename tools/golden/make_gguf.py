"""GGUF files written by gguf-py, and what transformers computes on their dequantized weights.

Owns tests/golden/gguf: NAME.gguf and, where it is a model, NAME.golden.safetensors in the form of make_targets.py. Run by
hand after make_targets.py and make_tokenizers.py (docs/oracles.md).

- {qwen3,llama}_f32: the tiny checkpoints as they are, in F32 (llama: permuted rows, rope_freqs, two shards)
- qwen3_moe: a tiny mixture of experts in F32
- qwen3_moe_mix: one of 256 columns, its stacked experts in Q4_K, Q6_K, Q8_0, Q5_K and MXFP4; keys test.values.NAME hold FNV-1a-64
  of what gguf-py dequantizes, without the highest bit
- deepseek2: tiny/deepseek_bf16 in BF16, names by gguf-py's table, keys and values of latents head by head
- qwen3_q8: a tiny checkpoint in Q8_0; its metadata has tokenizer and chat template
- llama_mix: a model wide enough for K-quants: Q4_K, Q5_K, Q6_K, Q4_0, IQ4_NL, Q8_0, F16, BF16, MXFP4 in one file
- qwen35_mix: a Gated DeltaNet hybrid with value heads in tiled order, norms 1 + w and a layer for further tokens: Q8_0,
  and Q4_K where a head is no whole block
"""
import json
import os
import sys

import gguf
import numpy as np
import torch
import transformers
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_moe import Qwen3MoeConfig, Qwen3MoeForCausalLM
from gguf import GGMLQuantizationType as Q
from safetensors.torch import load_file

import common
import make_hybrids
import make_targets

OUT = os.path.join(os.path.dirname(common.OUT), "gguf")
PRE = {"tiny": "gpt-2"}
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content + '<|im_end|>' }}{% endfor %}"


def q4_k(x):
    """a plain quantizer for Q4_K: least and greatest value of each group of 32 (gguf-py can only read this type)"""
    g = x.reshape(-1, 8, 32)
    low, high = np.minimum(g.min(-1), 0), g.max(-1)
    scale, minimum = (high - low) / 15, -low
    d, dmin = (scale.max(-1, keepdims=True) / 63).astype(np.float16), (minimum.max(-1, keepdims=True) / 63).astype(np.float16)
    s = np.clip(np.rint(scale / np.maximum(d.astype(np.float32), 1e-9)), 1, 63)
    m = np.clip(np.rint(minimum / np.maximum(dmin.astype(np.float32), 1e-9)), 0, 63)
    step, base = d.astype(np.float32) * s, dmin.astype(np.float32) * m
    q = np.clip(np.rint((g + base[..., None]) / step[..., None]), 0, 15).astype(np.uint8)
    return d, dmin, s.astype(np.uint8), m.astype(np.uint8), q


def pack_k_scales(s, m):
    out = np.zeros((len(s), 12), np.uint8)
    out[:, :4] = s[:, :4] | (s[:, 4:] >> 4) << 6
    out[:, 4:8] = m[:, :4] | (m[:, 4:] >> 4) << 6
    out[:, 8:] = (s[:, 4:] & 15) | (m[:, 4:] & 15) << 4
    return out


def blocks(x, kind):
    """the bytes of a float matrix in a type: (rows, bytes of a row)"""
    x = np.ascontiguousarray(x, np.float32)
    if kind in (Q.Q4_K, Q.Q5_K):
        d, dmin, s, m, q = q4_k(x)
        high = np.zeros((len(q), 32), np.uint8)
        if kind == Q.Q5_K:  # codes of five bits: the same, halved steps
            five = q.astype(np.uint8) * 2
            d = (d.astype(np.float32) / 2).astype(np.float16)
            for j in range(8):
                high |= (five[:, j] >> 4) << j
            q = five & 15
        nibbles = q[:, 0::2] | q[:, 1::2] << 4
        parts = [d.view(np.uint8), dmin.view(np.uint8), pack_k_scales(s, m)] + ([high] if kind == Q.Q5_K else [])
        return np.concatenate(parts + [nibbles.reshape(len(q), 128)], 1).reshape(len(x), -1)
    if kind == Q.Q6_K:
        g = x.reshape(-1, 16, 16)
        scale = np.abs(g).max(-1) / 31
        d = (scale.max(-1, keepdims=True) / 127).astype(np.float16)
        s = np.clip(np.rint(scale / d.astype(np.float32)), 1, 127).astype(np.int8)
        q = np.clip(np.rint(g / (d.astype(np.float32) * s)[..., None]), -32, 31).astype(np.int8).reshape(-1, 2, 4, 32)
        c = (q + 32).astype(np.uint8)
        low = np.concatenate([c[:, :, 0:1] & 15 | (c[:, :, 2:3] & 15) << 4, c[:, :, 1:2] & 15 | (c[:, :, 3:4] & 15) << 4], 2)
        high = c[:, :, 0] >> 4 | (c[:, :, 1] >> 4) << 2 | (c[:, :, 2] >> 4) << 4 | (c[:, :, 3] >> 4) << 6
        n = len(c)
        return np.concatenate([low.reshape(n, 128), high.reshape(n, 64), s.view(np.uint8).reshape(n, 16), d.view(np.uint8)],
                              1).reshape(len(x), -1)
    if kind == Q.IQ4_NL:
        table = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
        g = x.reshape(-1, 32)
        d = (np.abs(g).max(-1, keepdims=True) / 113).astype(np.float16)
        q = np.abs((g / d.astype(np.float32))[..., None] - table).argmin(-1).astype(np.uint8)
        return np.concatenate([d.view(np.uint8), q[:, :16] | q[:, 16:] << 4], 1).reshape(len(x), -1)
    return gguf.quants.quantize(x, kind)


def permute(w, heads):
    """rows as llama.cpp's converter orders them for rotation of neighbouring pairs"""
    return w.reshape(heads, 2, len(w) // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def unpermute(w, heads):
    return w.reshape(heads, len(w) // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
PARTS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_name(name):
    stem, suffix = name.rsplit(".", 1)
    if stem in NAMES:
        return f"{NAMES[stem]}.{suffix}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{PARTS[part]}.{suffix}"


def put_config(w, c, arch):
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_rope_dimension_count(c.head_dim)
    if arch == "llama":
        w.add_vocab_size(c.vocab_size)


def rope_factors(c):
    """what llama.cpp's converter writes for llama3 scaling"""
    r, out = c.rope_parameters, []
    low, high = r["original_max_position_embeddings"] / r["low_freq_factor"], r["original_max_position_embeddings"] / r["high_freq_factor"]
    for freq in 1.0 / r["rope_theta"] ** (np.arange(0, c.head_dim, 2) / c.head_dim):
        wavelen = 2 * np.pi / freq
        smooth = (r["original_max_position_embeddings"] / wavelen - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
        out.append(1 if wavelen < high else r["factor"] if wavelen > low else 1 / ((1 - smooth) / r["factor"] + smooth))
    return np.array(out, np.float32)


def put_tokenizer(w, path, pre, n_vocab=0, ids=()):
    j = json.load(open(path))
    added = {a["id"]: a for a in j["added_tokens"]}
    names = {v: k for k, v in j["model"]["vocab"].items()}
    names.update({i: a["content"] for i, a in added.items()})
    n = max(max(names) + 1, n_vocab)
    types = [(3 if added[i]["special"] else 4) if i in added else 1 if i in names else 5 for i in range(n)]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list([names.get(i, f"[PAD{i}]") for i in range(n)])
    w.add_token_types(types)
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in j["model"]["merges"]])
    for key, v in ids:
        w.add_uint32(f"tokenizer.ggml.{key}_token_id", v)


class Splitter:
    """two shards as gguf-split makes them"""

    def __init__(self, path, arch):
        self.w = [gguf.GGUFWriter(path % (i + 1), arch) for i in range(2)]
        for i, w in enumerate(self.w):
            w.add_uint16("split.no", i)
            w.add_uint16("split.count", 2)


def write_model(name, model, arch, kinds, tokenizer=None, split=False):
    """kinds: how a gguf name is stored. Returns the model with the values that a reader gets"""
    c = model.config
    path = os.path.join(OUT, name + ("-%05d-of-00002.gguf" if split else ".gguf"))
    writers = Splitter(path, arch).w if split else [gguf.GGUFWriter(path, arch)]
    w = writers[0]
    put_config(w, c, arch)
    if tokenizer:
        put_tokenizer(w, tokenizer, PRE["tiny"], c.vocab_size, [("bos", 1), ("eos", 2), ("padding", 0)])
        w.add_chat_template(TEMPLATE)
    state, values = model.state_dict(), {}
    if c.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    tensors = [("rope_freqs.weight", rope_factors(c), None)] if c.rope_parameters.get("rope_type") == "llama3" else []
    for key, t in state.items():
        x, g = t.float().numpy(), gguf_name(key)
        heads = {"attn_q": c.num_attention_heads, "attn_k": c.num_key_value_heads}.get(g.split(".")[2] if g.startswith("blk") else "")
        if arch == "llama" and heads:
            x = permute(x, heads)
        kind = Q.F32 if x.ndim == 1 else kinds(g, x.shape)
        if kind == Q.F32:
            data, back = x, x
        elif kind == Q.F16:
            data = x.astype(np.float16)
            back = data.astype(np.float32)
        else:
            data = blocks(x, kind)
            back = gguf.quants.dequantize(data, kind)
        tensors.append((g, data, kind))
        back = back.reshape(x.shape)
        values[key] = torch.from_numpy(np.array(unpermute(back, heads) if arch == "llama" and heads else back))
    if split:
        w.add_int32("split.tensors.count", len(tensors))
    for i, (g, data, kind) in enumerate(tensors):
        to = writers[i * len(writers) // len(tensors)]
        to.add_tensor(g, np.ascontiguousarray(data), raw_dtype=None if kind in (None, Q.F32, Q.F16) else kind)
    for to in writers:
        to.write_header_to_file()
        to.write_kv_data_to_file()
        to.write_tensors_to_file()
        to.close()
    model = model.float()
    model.load_state_dict(values, strict=False)
    model.tie_weights()
    print(name, sum(os.path.getsize(os.path.join(OUT, f)) for f in os.listdir(OUT) if f.startswith(name) and f.endswith(".gguf")))
    return model.eval()


def write_golden(name, model):
    """as make_targets.write_golden, on a model that is at hand; fewer and shorter prompts"""
    load, common.load_target = common.load_target, lambda path: model
    make_targets.PROMPT_LENGTHS, make_targets.N_GREEDY = [1, 40], 32
    make_targets.write_golden(os.path.join(OUT, name))
    common.load_target = load


def mixed(g, shape):
    table = {"attn_q": Q.Q4_K, "attn_k": Q.Q8_0, "attn_v": Q.Q6_K, "attn_output": Q.Q4_0, "ffn_gate": Q.Q4_K, "ffn_up": Q.Q5_K,
             "ffn_down": Q.Q8_0}
    if not g.startswith("blk"):
        return Q.IQ4_NL if "token" in g else Q.Q8_0
    if g.startswith("blk.1"):
        table.update(attn_output=Q.MXFP4, attn_k=Q.BF16, attn_v=Q.F16, ffn_gate=Q.Q6_K, ffn_up=Q.Q4_0, ffn_down=Q.IQ4_NL)
    return table[g.split(".")[2]]


def write_moe(name, path):
    """a Qwen3-MoE directory as it is: experts stacked, the router in F32"""
    c = transformers.AutoConfig.from_pretrained(path)
    state, w = load_file(os.path.join(path, "model.safetensors")), gguf.GGUFWriter(os.path.join(OUT, name + ".gguf"), "qwen3moe")
    put_config(w, c, "qwen3moe")
    w.add_vocab_size(c.vocab_size)
    w.add_expert_count(c.num_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_expert_feed_forward_length(c.moe_intermediate_size)
    for layer in range(c.num_hidden_layers):
        part = f"model.layers.{layer}.mlp."
        w.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", state.pop(part + "gate.weight").float().numpy())
        for kind in ("gate", "up", "down"):
            x = np.stack([state.pop(f"{part}experts.{e}.{kind}_proj.weight").float().numpy() for e in range(c.num_experts)])
            w.add_tensor(f"blk.{layer}.ffn_{kind}_exps.weight", x)
    for key, t in state.items():
        w.add_tensor(gguf_name(key), t.float().numpy())
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def fnv(data):
    h = 0xcbf29ce484222325
    for b in data:
        h = (h ^ b) * 0x100000001b3 & (1 << 64) - 1
    return h & (1 << 63) - 1


def write_moe_mix(name):
    """stacked experts in several types -> the model with the values that a reader gets"""
    c = Qwen3MoeConfig(hidden_size=256, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16, intermediate_size=64,
                       moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True, vocab_size=96,
                       tie_word_embeddings=False, rms_norm_eps=1e-6, rope_parameters=make_targets.rope(1e4), bos_token_id=1, eos_token_id=2)
    c._attn_implementation = "eager"
    torch.manual_seed(5)
    model = make_targets.spread(Qwen3MoeForCausalLM(c), 5).float()
    w, values = gguf.GGUFWriter(os.path.join(OUT, name + ".gguf"), "qwen3moe"), {}
    put_config(w, c, "qwen3moe")
    w.add_vocab_size(c.vocab_size)
    w.add_expert_count(c.num_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_expert_feed_forward_length(c.moe_intermediate_size)

    def put(g, x, kind):
        data = blocks(x.reshape(-1, x.shape[-1]), kind)
        back = gguf.quants.dequantize(data, kind).reshape(x.shape)
        w.add_tensor(g, data.reshape(*x.shape[:-1], -1), raw_dtype=kind)
        w.add_uint64("test.values." + g, fnv(back.astype("<f4").tobytes()))
        return back

    for key, t in model.state_dict().items():
        x, part = t.float().numpy(), key.split(".", 3)[-1]
        layer = int(key.split(".")[2]) if "layers" in key else 0
        if part == "mlp.experts.gate_up_proj":
            kinds = [(Q.Q4_K, Q.Q6_K), (Q.MXFP4, Q.Q5_K)][layer]
            both = [put(f"blk.{layer}.ffn_{n}_exps.weight", h, k) for n, h, k in zip(("gate", "up"), np.split(x, 2, 1), kinds)]
            values[key] = torch.from_numpy(np.concatenate(both, 1))
        elif part == "mlp.experts.down_proj":
            values[key] = torch.from_numpy(put(f"blk.{layer}.ffn_down_exps.weight", x, [Q.Q8_0, Q.MXFP4][layer]))
        elif part == "mlp.gate.weight":
            w.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", x)
        elif x.ndim == 1:
            w.add_tensor(gguf_name(key), x)
        else:
            values[key] = torch.from_numpy(put(gguf_name(key), x, Q.Q8_0))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    model.load_state_dict(values, strict=False)
    print(name, os.path.getsize(os.path.join(OUT, name + ".gguf")))
    return model.eval()


def write_latent(name, path):
    """a DeepSeek-V3 directory in BF16 as llama.cpp's converter arranges it"""
    c = transformers.AutoConfig.from_pretrained(path)
    state, w = load_file(os.path.join(path, "model.safetensors")), gguf.GGUFWriter(os.path.join(OUT, name + ".gguf"), "deepseek2")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.DEEPSEEK2, c.num_hidden_layers)
    put_config(w, c, "llama")
    w.kv_data[0] = {k.replace("llama.", "deepseek2."): v for k, v in w.kv_data[0].items()
                    if not k.endswith(("head_count_kv", "key_length", "value_length", "dimension_count", "architecture"))}
    w.add_architecture()
    w.add_head_count_kv(1)
    w.add_key_length(c.kv_lora_rank + c.qk_rope_head_dim)
    w.add_value_length(c.kv_lora_rank)
    w.add_key_length_mla(c.qk_nope_head_dim + c.qk_rope_head_dim)
    w.add_value_length_mla(c.v_head_dim)
    w.add_rope_dimension_count(c.qk_rope_head_dim)
    w.add_q_lora_rank(c.q_lora_rank)
    w.add_kv_lora_rank(c.kv_lora_rank)
    w.add_leading_dense_block_count(c.first_k_dense_replace)
    w.add_expert_count(c.n_routed_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_expert_feed_forward_length(c.moe_intermediate_size)
    w.add_expert_shared_count(c.n_shared_experts)
    w.add_expert_group_count(c.n_group)
    w.add_expert_group_used_count(c.topk_group)
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_expert_weights_scale(c.routed_scaling_factor)
    w.add_expert_weights_norm(c.norm_topk_prob)
    r = c.rope_parameters
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(r["factor"])
    w.add_rope_scaling_orig_ctx_len(r["original_max_position_embeddings"])
    w.add_rope_scaling_yarn_beta_fast(r["beta_fast"])
    w.add_rope_scaling_yarn_beta_slow(r["beta_slow"])
    w.add_rope_scaling_yarn_log_mul(0.1 * r["mscale_all_dim"])

    def put(key, t):
        g = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if t.dim() == 1 or key.endswith("mlp.gate.weight"):
            w.add_tensor(g, t.float().numpy())
        else:
            raw = t.bfloat16().contiguous().view(torch.uint8).numpy()
            w.add_tensor(g, raw.reshape(*t.shape[:-1], -1), raw_dtype=Q.BF16)

    state = {k: t for k, t in state.items() if f".layers.{c.num_hidden_layers}." not in k}
    for layer in range(c.first_k_dense_replace, c.num_hidden_layers):
        for part in ("gate", "up", "down"):
            one = f"model.layers.{layer}.mlp.experts.%s{part}_proj.weight"
            put(one % "", torch.stack([state.pop(one % f"{e}.") for e in range(c.n_routed_experts)]))
    for key, t in state.items():
        if key.endswith("kv_b_proj.weight"):
            k, v = t.view(c.num_attention_heads, -1, c.kv_lora_rank).split([c.qk_nope_head_dim, c.v_head_dim], 1)
            put(key.replace("kv_b", "k_b"), k.transpose(1, 2))
            put(key.replace("kv_b", "v_b"), v)
        else:
            put(key.replace("e_score_correction_bias", "e_score_correction.bias"), t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(name, os.path.getsize(os.path.join(OUT, name + ".gguf")))


def tile(x, c, first, unit, axis=0):
    """value heads behind the first rows or columns: head j of group g goes to j * groups + g"""
    x = np.moveaxis(x, axis, 0)
    head, tail = x[:first], x[first:]
    k, per = c.linear_num_key_heads, c.linear_num_value_heads // c.linear_num_key_heads
    tail = tail.reshape(k, per, unit, *x.shape[1:]).swapaxes(0, 1).reshape(tail.shape)
    return np.moveaxis(np.concatenate([head, tail]), 0, axis)


def untile(x, c, first, unit, axis=0):
    x = np.moveaxis(x, axis, 0)
    head, tail = x[:first], x[first:]
    k, per = c.linear_num_key_heads, c.linear_num_value_heads // c.linear_num_key_heads
    tail = tail.reshape(per, k, unit, *x.shape[1:]).swapaxes(0, 1).reshape(tail.shape)
    return np.moveaxis(np.concatenate([head, tail]), 0, axis)


def write_hybrid(name):
    """a random Qwen3.5, as llama.cpp's converter changes it -> the model with the values that a reader gets"""
    c = Qwen3_5TextConfig(
        hidden_size=32, num_hidden_layers=4, intermediate_size=64, vocab_size=96, tie_word_embeddings=True, full_attention_interval=4,
        rope_parameters={**make_hybrids.PARTIAL, "mrope_interleaved": True, "mrope_section": [2, 1, 1]},
        **make_hybrids.attention(2, 1, 32), **make_hybrids.linear(2, 8, 16, 32), **make_hybrids.IDS)
    c._attn_implementation = "eager"
    torch.manual_seed(3)
    model = make_hybrids.spread(Qwen3_5ForCausalLM(c), 3).float()
    parts = {"post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
             "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.conv1d": "ssm_conv1d",
             "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out"}
    names = {**PARTS, **parts}
    keys, head = 2 * c.linear_num_key_heads * c.linear_key_head_dim, c.linear_value_head_dim
    tiled = {"in_proj_qkv": (keys, head, 0), "in_proj_z": (0, head, 0), "in_proj_b": (0, 1, 0), "in_proj_a": (0, 1, 0),
             "conv1d": (keys, head, 0), "A_log": (0, 1, 0), "dt_bias": (0, 1, 0), "out_proj": (0, head, 1)}
    w = gguf.GGUFWriter(os.path.join(OUT, name + ".gguf"), "qwen35")
    put_config(w, c, "qwen35")
    w.kv_data[0].pop("qwen35.block_count")
    w.kv_data[0].pop("qwen35.rope.dimension_count")
    w.add_block_count(c.num_hidden_layers + 1)
    w.add_nextn_predict_layers(1)
    w.add_rope_dimension_count(c.head_dim // 4)
    w.add_rope_dimension_sections([2, 1, 1, 0])
    w.add_vocab_size(c.vocab_size)
    w.add_ssm_conv_kernel(4)
    w.add_ssm_state_size(c.linear_key_head_dim)
    w.add_ssm_group_count(c.linear_num_key_heads)
    w.add_ssm_time_step_rank(c.linear_num_value_heads)
    w.add_ssm_inner_size(head * c.linear_num_value_heads)
    w.add_full_attention_interval(4)
    values = {}
    for key, t in model.state_dict().items():
        if key == "lm_head.weight":
            continue
        x, stem = t.float().numpy(), key.removesuffix(".weight")
        part, layer = stem.split(".")[-1], key.split(".")[2]
        change = tiled.get(part) if "linear_attn" in key else None
        plain = not (part.endswith("norm") and "linear_attn" not in key)
        if change:
            x = tile(x, c, *change)
        if part == "conv1d":
            x = x.squeeze(1)
        if part in ("A_log", "dt_bias"):
            g = f"blk.{layer}." + ("ssm_a" if part == "A_log" else "ssm_dt.bias")
        else:
            g = f"{NAMES[stem]}.weight" if stem in NAMES else f"blk.{layer}.{names[stem.split('.', 3)[3]]}.weight"
        kind = Q.F32 if x.ndim == 1 or part == "conv1d" else Q.Q4_K if part == "out_proj" and layer != "1" else Q.Q8_0
        data = x if kind == Q.F32 else blocks(x, kind)
        back = x if kind == Q.F32 else gguf.quants.dequantize(data, kind).reshape(x.shape)
        if part == "A_log":
            data = -np.exp(x)
        if not plain:
            data = x + np.float32(1)
        w.add_tensor(g, np.ascontiguousarray(data, dtype=data.dtype), raw_dtype=None if kind == Q.F32 else kind)
        if part == "conv1d":
            back = back[:, None]
        values[key] = torch.from_numpy(np.array(untile(back, c, *change) if change else back))
    w.add_tensor("blk.4.nextn.eh_proj.weight", np.ones((2, 64), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    model.load_state_dict(values, strict=False)
    model.tie_weights()
    print(name, os.path.getsize(os.path.join(OUT, name + ".gguf")))
    return model.eval()


def main():
    os.makedirs(OUT, exist_ok=True)
    write_moe("qwen3_moe", os.path.join(common.OUT, "qwen3_moe_f32"))
    eager = dict(dtype=torch.float32, attn_implementation="eager")
    tiny = {n: transformers.AutoModelForCausalLM.from_pretrained(os.path.join(common.OUT, n), **eager)
            for n in ("qwen3_tied_bf16", "llama_rope3_bf16")}
    write_model("llama_f32", tiny["llama_rope3_bf16"], "llama", lambda g, s: Q.F32, split=True)
    m = write_model("qwen3_q8", tiny["qwen3_tied_bf16"], "qwen3", lambda g, s: Q.Q8_0,
                    tokenizer=os.path.join(common.OUT, "qwen3_tied_bf16", "tokenizer.json"))
    write_golden("qwen3_q8", m)
    cls, cfg = make_targets.llama(hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                                  intermediate_size=128, vocab_size=96, tie_word_embeddings=False, rms_norm_eps=1e-5,
                                  rope_parameters=make_targets.rope(1e4))
    cfg._attn_implementation = "eager"
    torch.manual_seed(9)
    write_golden("llama_mix", write_model("llama_mix", make_targets.spread(cls(cfg), 9), "llama", mixed))
    write_golden("qwen35_mix", write_hybrid("qwen35_mix"))
    write_golden("qwen3_moe_mix", write_moe_mix("qwen3_moe_mix"))
    write_latent("deepseek2", os.path.join(common.OUT, "deepseek_bf16"))


if __name__ == "__main__":
    main()
