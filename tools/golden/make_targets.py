"""Tiny random target checkpoints and what transformers computes on them.

Owns tests/golden/tiny/{qwen3,llama}_*: Hugging Face directories written by save_pretrained, and NAME.golden.safetensors
beside each. Run by hand (docs/oracles.md):
    make_targets.py                 everything
    make_targets.py NAME            one of TARGETS
    make_targets.py --golden DIR    only the golden file of one directory (the trained one of train_pair.py)
"""
import os
import shutil
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import common

PROMPT_LENGTHS, MOE_PROMPT_LENGTHS = [1, 7, 40, 130], [1, 7, 40, 300]
N_GREEDY = 48
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}


def rope(theta):
    return {"rope_type": "default", "rope_theta": theta}


def qwen3(**kw):
    base = dict(max_position_embeddings=512, rope_parameters=rope(1e6), eos_token_id=2, bos_token_id=1, use_cache=True)
    return Qwen3ForCausalLM, Qwen3Config(**{**base, **kw})


def qwen3_moe(**kw):
    base = dict(max_position_embeddings=512, eos_token_id=2, bos_token_id=1)
    return Qwen3MoeForCausalLM, Qwen3MoeConfig(**{**base, **kw})


def llama(**kw):
    base = dict(max_position_embeddings=512, eos_token_id=[2, 3], bos_token_id=1)
    return LlamaForCausalLM, LlamaConfig(**{**base, **kw})


# name, (class, config), dtype, layout of config.json, shard size
TARGETS = [
    ("qwen3_tied_bf16", qwen3(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
                              intermediate_size=96, vocab_size=320, tie_word_embeddings=True), "bfloat16", "v5", None),
    ("qwen3_odd_bf16", qwen3(hidden_size=96, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=32,
                             intermediate_size=160, vocab_size=203, tie_word_embeddings=True, rms_norm_eps=1e-5,
                             rope_parameters=rope(1e4)), "bfloat16", "v4", None),
    ("qwen3_f32", qwen3(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
                        intermediate_size=48, vocab_size=131, tie_word_embeddings=False), "float32", "v5", None),
    ("llama_rope3_bf16", llama(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                               intermediate_size=112, vocab_size=288, tie_word_embeddings=False, rope_parameters=LLAMA3,
                               rms_norm_eps=1e-5), "bfloat16", "v5", "160KB"),
    ("llama_bias_f16", llama(hidden_size=48, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3, head_dim=8,
                             intermediate_size=80, vocab_size=160, tie_word_embeddings=True, attention_bias=True,
                             rope_parameters=rope(1e4)), "float16", "v4", None),
    ("qwen3_moe_f32", qwen3_moe(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                                intermediate_size=40, moe_intermediate_size=24, num_experts=8, num_experts_per_tok=2,
                                norm_topk_prob=True, vocab_size=131, rope_parameters=rope(1e6)), "float32", "v5", None),
    ("qwen3_moe_bf16", qwen3_moe(hidden_size=48, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, head_dim=32,
                                 intermediate_size=56, moe_intermediate_size=20, num_experts=11, num_experts_per_tok=3,
                                 mlp_only_layers=[1], vocab_size=160, rope_parameters=rope(1e4)), "bfloat16", "v4", None),
]


def spread(model, seed):
    """Random weights large enough that logits are far apart; norms and biases random too, so that none can be forgotten"""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.normal_(0, 0.3, generator=g)
            elif p.dim() == 1:
                p.copy_(1 + 0.25 * torch.randn(p.shape, generator=g))
            elif "embed_tokens" in name:
                p.normal_(0, 0.4, generator=g)
            elif "lm_head" in name:
                p.normal_(0, 0.4, generator=g)
            else:
                p.normal_(0, 1.2 / p.shape[-1] ** 0.5, generator=g)  # inputs last, in stacks of experts too
    return model


def kept_rows(n, all_rows):
    """all rows of short prompts; of long ones the ends and the middle"""
    return list(range(n)) if n <= all_rows else sorted({0, 1, n // 2 - 1, n // 2, n // 2 + 1, n - 3, n - 2, n - 1})


@torch.inference_mode()
def residual_states(model, ids):
    """-> [r_0 .. r_L] (each (n, hidden_size)), final-norm output, logits. r_0 is the embedding; r_L is taken by a hook because
    the last entry of hidden_states is already normed."""
    raw = {}
    hook = model.model.layers[-1].register_forward_hook(lambda m, i, o: raw.update(last=o[0] if isinstance(o, tuple) else o))
    out = model(ids[None], output_hidden_states=True, use_cache=False)
    hook.remove()
    n_layers = model.config.num_hidden_layers
    states = [h[0] for h in out.hidden_states[:n_layers]] + [raw["last"].reshape(len(ids), -1)]
    return states, out.hidden_states[n_layers][0], out.logits[0]


def watch_routers(model, gaps):
    """hooks: for each pass of a router the least distance of the last chosen logit and the first that was not chosen is appended to
    gaps; what is closer than rounding may be routed elsewhere"""
    def keep(module, given, out):
        best = out[0].float().topk(module.top_k + 1).values
        gaps.append(float((best[:, -2] - best[:, -1]).min()))
    return [m.register_forward_hook(keep) for name, m in model.named_modules()
            if hasattr(m, "top_k") and name.endswith(("mlp.gate", "mlp.router"))]


@torch.inference_mode()
def router_gap(model, ids):
    """the least of a text's distances, over layers and rows; None without routers"""
    gaps = []
    hooks = watch_routers(model, gaps)
    model(ids[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    return min(gaps, default=None)


@torch.inference_mode()
def greedy(model, ids, n):
    """plain greedy decoding without a cache -> ids, distance between the best and the second logit at each step"""
    ids, gaps = ids.clone(), []
    for _ in range(n):
        top = model(ids[None], use_cache=False).logits[0, -1].topk(2)
        gaps.append(float(top.values[0] - top.values[1]))
        ids = torch.cat([ids, top.indices[:1]])
    return ids[-n:], gaps


def write_golden(path, lengths=None, all_rows=40, model=None, gap=router_gap):
    """model: what the directory holds, where transformers cannot read it; gap: as router_gap"""
    name = os.path.basename(path.rstrip("/"))
    model = model or common.load_target(path)
    tensors, min_gap, meta = {}, 1e9, {}
    lengths = lengths or (MOE_PROMPT_LENGTHS if hasattr(model.config, "num_experts") else PROMPT_LENGTHS)
    for i, n in enumerate(lengths):
        ids = common.random_prompt(100 + i, n, model.config.vocab_size)
        rows = kept_rows(n, all_rows)
        states, final, logits = residual_states(model, ids)
        cont, gaps = greedy(model, ids, N_GREEDY)
        min_gap = min(min_gap, min(gaps))
        routed = gap(model, torch.cat([ids, cont]))
        if routed is not None:
            meta["min_router_gap"] = min(meta.get("min_router_gap", routed), routed)
        tensors.update({f"p{i}.input_ids": ids, f"p{i}.rows": torch.tensor(rows), f"p{i}.final_norm": final[rows],
                        f"p{i}.logits": logits[rows], f"p{i}.greedy_ids": cont, f"p{i}.greedy_gap": torch.tensor(gaps)})
        tensors.update({f"p{i}.r{l}": s[rows] for l, s in enumerate(states)})
    common.save_golden(os.path.join(os.path.dirname(path.rstrip("/")), name + ".golden.safetensors"), tensors,
                       what="float32 on upcast weights, eager attention, no cache", min_greedy_gap="%.3g" % min_gap,
                       n_prompts=len(lengths), **{k: "%.3g" % v for k, v in meta.items()})
    print(name, "least distance of the two best logits", min_gap, meta)
    return {"min_greedy_gap": min_gap, **meta}


def main():
    os.makedirs(common.OUT, exist_ok=True)
    if len(sys.argv) == 3 and sys.argv[1] == "--golden":
        write_golden(sys.argv[2])
        return
    for seed, (name, (cls, cfg), dtype, layout, shard) in enumerate(TARGETS):
        if name not in (sys.argv[1:] or [name]):
            continue
        path = os.path.join(common.OUT, name)
        shutil.rmtree(path, ignore_errors=True)
        torch.manual_seed(seed)
        model = spread(cls(cfg), seed).to(getattr(torch, dtype))
        model.save_pretrained(path, **({"max_shard_size": shard} if shard else {}))
        common.both_layouts(path, layout)
        if name == "qwen3_tied_bf16":
            common.write_tokenizer(path)
        write_golden(path)


if __name__ == "__main__":
    main()
