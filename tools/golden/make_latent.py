"""Tiny random checkpoints with latent attention and what transformers computes on them.

Owns tests/golden/tiny/{deepseek,kimi}_* and tests/golden/quant/deepseek_fp8: directories with the names, layouts and element
types of the published files, and NAME.golden.safetensors beside each. Run by hand (docs/oracles.md):
    make_latent.py                 everything
    make_latent.py NAME ...        these alone
Seeds are taken in turn until no two logits, router scores or sums of groups lie so close that rounding could change a token.
"""
import os
import shutil
import sys

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

import common
import make_quant
import make_targets

PROMPT_LENGTHS = [1, 5, 17, 64, 300]
LEAST_LOGIT_GAP, LEAST_ROUTER_GAP = 5e-4, 1e-5
IDS = dict(eos_token_id=2, bos_token_id=1, max_position_embeddings=1024, use_cache=True)


def yarn(theta, factor, **kw):
    return {"rope_type": "yarn", "rope_theta": theta, "factor": factor, "original_max_position_embeddings": 64, "beta_fast": 32,
            "beta_slow": 1, **kw}


def heads(n, q_lora, kv_lora, nope, rope, v):
    return dict(num_attention_heads=n, num_key_value_heads=n, q_lora_rank=q_lora, kv_lora_rank=kv_lora, qk_nope_head_dim=nope,
                qk_rope_head_dim=rope, v_head_dim=v)


def experts(n, chosen, groups, kept, inter, shared=1):
    return dict(n_routed_experts=n, num_experts_per_tok=chosen, n_group=groups, topk_group=kept, moe_intermediate_size=inter,
                n_shared_experts=shared)


TARGETS = {
    # groups, an MTP layer, two shared experts, value heads narrower than key heads; a kept vector of 48 numbers
    "deepseek_bf16": DeepseekV3Config(
        vocab_size=300, hidden_size=48, num_hidden_layers=3, intermediate_size=64, first_k_dense_replace=1, routed_scaling_factor=2.5,
        norm_topk_prob=True, rope_parameters=yarn(1e4, 40.0, mscale=1.0, mscale_all_dim=1.0),
        **heads(3, 40, 32, 24, 16, 16), **experts(8, 3, 4, 2, 20, 2), **IDS),
    # queries of one product, biases, half-split rotation, weights not renormalised, mscale of its own, no dense layer
    "deepseek_plain_f32": DeepseekV3Config(
        vocab_size=131, hidden_size=32, num_hidden_layers=2, intermediate_size=40, first_k_dense_replace=0, routed_scaling_factor=1.5,
        norm_topk_prob=False, attention_bias=True, rope_interleave=False, rms_norm_eps=1e-5,
        rope_parameters=yarn(1e4, 8.0, mscale=0.7, mscale_all_dim=0.4),
        **heads(2, None, 40, 16, 8, 32), **experts(6, 2, 1, 1, 24), **IDS),
    # the wrapper, int4 experts in groups of 32; a kept vector of 96 numbers
    "kimi_int4": DeepseekV3Config(
        vocab_size=300, hidden_size=64, num_hidden_layers=3, intermediate_size=64, first_k_dense_replace=1, routed_scaling_factor=2.827,
        norm_topk_prob=True, rms_norm_eps=1e-5, rope_parameters=yarn(5e4, 64.0, mscale=1.0, mscale_all_dim=1.0),
        **heads(3, 32, 64, 16, 32, 24), **experts(8, 3, 1, 1, 32), **IDS),
    # FP8 in blocks, kv_b_proj among them
    "deepseek_fp8": DeepseekV3Config(
        vocab_size=64, hidden_size=64, num_hidden_layers=2, intermediate_size=64, first_k_dense_replace=1, routed_scaling_factor=2.5,
        norm_topk_prob=True, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        **heads(2, 32, 32, 16, 16, 16), **experts(4, 2, 2, 1, 32), **IDS),
}
INT4 = make_quant.ct([(["Linear"], make_quant.weights(4, "int", "group", 32))], "pack-quantized",
                     ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"])
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [24, 40], "activation_scheme": "dynamic"}


def spread(model, seed, dtype):
    """as make_targets.spread, and biases of the choice of experts; rounded to what the file stores"""
    make_targets.spread(model, seed)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.to(dtype).float())
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.uniform_(-0.3, 0.3, generator=g)
    return model


@torch.inference_mode()
def router_gap(model, ids):
    """least distance of what was chosen and the first that was not, of groups and of experts in the chosen groups"""
    gaps, hooks = [], []

    def look(moe, inputs, logits):
        score = logits.sigmoid() + moe.gate.e_score_correction_bias
        groups = score.view(-1, moe.n_group, moe.n_routed_experts // moe.n_group)
        sums = groups.topk(2, -1)[0].sum(-1).sort(-1, descending=True)
        if moe.topk_group < moe.n_group:
            gaps.append(float((sums.values[:, moe.topk_group - 1] - sums.values[:, moe.topk_group]).min()))
        kept = groups.gather(1, sums.indices[:, :moe.topk_group, None].expand(-1, -1, groups.shape[-1])).flatten(1)
        best = kept.topk(min(moe.top_k + 1, kept.shape[1])).values
        if best.shape[1] > moe.top_k:
            gaps.append(float((best[:, -2] - best[:, -1]).min()))

    for m in model.modules():
        if hasattr(m, "route_tokens_to_experts"):
            hooks.append(m.gate.register_forward_hook(lambda gate, i, o, m=m: look(m, i, o)))
    model(ids[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    return min(gaps, default=None)


def apart(model):
    """the model's tensors by published name, f32, a tensor for each expert"""
    out = {}
    for key, t in model.state_dict().items():
        if key.endswith("experts.gate_up_proj"):
            for e, both in enumerate(t):
                for part, w in zip(("gate", "up"), both.chunk(2)):
                    out[key.replace("gate_up_proj", f"{e}.{part}_proj.weight")] = w
        elif key.endswith("experts.down_proj"):
            for e, w in enumerate(t):
                out[key.replace("down_proj", f"{e}.down_proj.weight")] = w
        else:
            out[key] = t
    return {k: t.detach().clone() for k, t in out.items()}


def together(tensors):
    """the reverse of apart: a state_dict"""
    out, stacks = {}, {}
    for key, t in tensors.items():
        head, _, tail = key.partition(".experts.")
        if not tail or "shared" in key:
            out[key] = t
            continue
        e, part, _ = tail.split(".")
        stacks.setdefault(head + ".experts.", {}).setdefault(int(e), {})[part] = t
    for head, each in stacks.items():
        both = [torch.cat([each[e]["gate_proj"], each[e]["up_proj"]]) for e in sorted(each)]
        out[head + "gate_up_proj"] = torch.stack(both)
        out[head + "down_proj"] = torch.stack([each[e]["down_proj"] for e in sorted(each)])
    return out


def quantize(tensors, stored, makers):
    """replaces weights by random codes and scales, in the model's tensors by their values"""
    for key in list(tensors):
        make = next((m for part, m in makers if part in key), None) if key.endswith("_proj.weight") or "with_mqa.weight" in key else None
        if make:
            parts, value = make(*tensors[key].shape)
            tensors[key] = value
            del stored[key]
            stored.update({f"{key[:-len('.weight')]}.{suffix}": make_quant.tensor(p) for suffix, p in parts.items()})


def mtp_layer(config):
    """tensors of the layer behind the last one, which must be skipped by name"""
    i, h = config.num_hidden_layers, config.hidden_size
    shapes = {"eh_proj.weight": (h, 2 * h), "enorm.weight": (h,), "hnorm.weight": (h,), "shared_head.norm.weight": (h,),
              "embed_tokens.weight": (7, h), "self_attn.o_proj.weight": (h, 12), "mlp.experts.0.up_proj.weight": (5, h)}
    return {f"model.layers.{i}.{k}": torch.full(shape, 0.5, dtype=torch.bfloat16) for k, shape in shapes.items()}


def config_json(config, name):
    rope = dict(config.rope_parameters)
    out = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_act": "silu", "moe_layer_freq": 1,
           "scoring_func": "sigmoid", "topk_method": "noaux_tc", "tie_word_embeddings": False, "num_nextn_predict_layers": 0}
    for key in ("vocab_size hidden_size num_hidden_layers intermediate_size first_k_dense_replace routed_scaling_factor norm_topk_prob "
                "attention_bias rms_norm_eps num_attention_heads num_key_value_heads q_lora_rank kv_lora_rank qk_nope_head_dim "
                "qk_rope_head_dim v_head_dim n_routed_experts num_experts_per_tok n_group topk_group moe_intermediate_size "
                "n_shared_experts eos_token_id bos_token_id max_position_embeddings").split():
        out[key] = getattr(config, key)
    if name == "deepseek_plain_f32":
        return {**out, "rope_interleave": False, "rope_parameters": rope, "dtype": "float32", "head_dim": config.qk_rope_head_dim}
    out.update(rope_theta=rope.pop("rope_theta"), torch_dtype="bfloat16")
    rope["type"] = rope.pop("rope_type")
    out["rope_scaling"] = rope if rope["type"] == "yarn" else None
    if name == "deepseek_bf16":
        out["num_nextn_predict_layers"] = 1
    if name == "deepseek_fp8":
        out["quantization_config"] = FP8
    if name != "kimi_int4":
        return out
    out.update(model_type="kimi_k2", quantization_config=INT4)
    return {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": out, "ignore_index": -100,
            "media_placeholder_token_id": 163605, "pad_token_id": 299, "tie_word_embeddings": False, "vision_config": {"model_type": "moonvit"}}


def make(name, seed):
    config = TARGETS[name]
    config._attn_implementation = "eager"
    make_quant.RNG = np.random.default_rng(seed)
    dtype = torch.float32 if name.endswith("f32") else torch.bfloat16
    path = os.path.join(make_quant.OUT if name == "deepseek_fp8" else common.OUT, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    model = spread(DeepseekV3ForCausalLM(config), seed, dtype).float().eval()
    tensors = apart(model)
    stored = {k: t if k.endswith("e_score_correction_bias") else t.to(dtype) for k, t in tensors.items()}
    if name == "kimi_int4":
        quantize(tensors, stored, [(".experts.", make_quant.packed(4, 32))])
    if name == "deepseek_fp8":
        quantize(tensors, stored, [("", make_quant.fp8(*FP8["weight_block_size"], "weight_scale_inv"))])
    if name == "deepseek_bf16":
        stored.update(mtp_layer(config))
    if name == "kimi_int4":
        stored = {"language_model." + k: t for k, t in stored.items()}
        stored.update({k: torch.full((4, 3), 0.5, dtype=torch.bfloat16) for k in
                       ("vision_tower.patch_embed.proj.weight", "vision_tower.encoder.blocks.0.wqkv.weight", "mm_projector.proj.0.weight")})
    model.load_state_dict(together(tensors))
    save_file({k: t.contiguous() for k, t in stored.items()}, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    os.chmod(os.path.join(path, "model.safetensors"), 0o644)
    common.write_json(os.path.join(path, "config.json"), config_json(config, name))
    if name == "kimi_int4":
        common.write_tokenizer(path)
    small = name == "deepseek_fp8"
    return make_targets.write_golden(path, [1, 12] if small else PROMPT_LENGTHS, all_rows=17, model=model, gap=router_gap)


def main():
    for at, name in enumerate(TARGETS):
        seed = 100 * at
        while name in (sys.argv[1:] or [name]):
            made = make(name, seed)
            if made["min_greedy_gap"] > LEAST_LOGIT_GAP and made["min_router_gap"] > LEAST_ROUTER_GAP:
                break
            seed += 1


if __name__ == "__main__":
    main()
