"""Tiny random gpt-oss checkpoints and what transformers computes on them.

Owns tests/golden/tiny/gptoss_*: f32 and bf16 experts as save_pretrained writes them, and one checkpoint with MXFP4 experts in
the published layout. Run by hand (docs/oracles.md). The MXFP4 experts are quantized here; gptoss_dequantized is the same model
in bf16 with the experts that transformers' own decoder makes of them, and has the golden file of both.
"""
import json
import os
import shutil

import torch
from safetensors.torch import save_file
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import common
import make_targets

# a router whose k-th and next logit are closer than this could choose another expert after rounding
MIN_ROUTER_GAP = 2e-5
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def config(**kw):
    """as published but for the sizes: YaRN without truncation, alternating layers, every projection with a bias"""
    rope = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 64}
    base = dict(max_position_embeddings=512, rope_parameters=rope, eos_token_id=2, bos_token_id=1, sliding_window=128, swiglu_limit=7.0)
    return GptOssConfig(**{**base, **kw})


# name, config, dtype, layout of config.json, shard size
TARGETS = [
    ("gptoss_f32", config(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=24,
                          vocab_size=131, num_local_experts=5, num_experts_per_tok=2, sliding_window=20), "float32", "v5", None),
    ("gptoss_bf16", config(hidden_size=48, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, head_dim=16, intermediate_size=16,
                           vocab_size=300, num_local_experts=6, num_experts_per_tok=3, sliding_window=40), "bfloat16", "v4", "160KB"),
]
MXFP4 = config(hidden_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1, head_dim=16, intermediate_size=32,
               vocab_size=160, num_local_experts=4, num_experts_per_tok=3)


def spread(model, seed):
    """as make_targets.spread; gates and ups reach beyond the clamp, sinks take from none to most of the probability"""
    g = torch.Generator().manual_seed(seed)
    make_targets.spread(model, seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("sinks"):
                p.normal_(0, 2, generator=g)
            elif name.endswith("gate_up_proj"):
                p.normal_(0, 3 / p.shape[1] ** 0.5, generator=g)
            elif name.endswith("experts.down_proj"):
                p.normal_(0, 1.2 / p.shape[1] ** 0.5, generator=g)
    return model


def quantize(w):
    """(experts, inputs, outputs) -> blocks (experts, outputs, inputs / 32, 16) and scales, both uint8"""
    w = w.transpose(1, 2).float()
    w = w.reshape(*w.shape[:2], -1, 32)
    exponent = (w.abs().amax(-1) / 6).log2().ceil()
    unit = w / exponent.exp2()[..., None]
    code = (unit.abs()[..., None] - E2M1).abs().argmin(-1) + 8 * (unit < 0)
    return (code[..., ::2] | code[..., 1::2] << 4).to(torch.uint8), (exponent + 127).to(torch.uint8)


def write_mxfp4(path, model):
    """the published layout: experts in blocks and scales, everything else in bf16; -> the dequantized model"""
    tensors, plain = {}, {}
    for name, t in model.state_dict().items():
        plain[name] = t
        if name.endswith(("gate_up_proj", "down_proj")):
            blocks, scales = quantize(t)
            tensors.update({name + "_blocks": blocks, name + "_scales": scales})
            plain[name] = convert_moe_packed_tensors(blocks, scales)
        else:
            tensors[name] = t
    save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    model.load_state_dict(plain)
    return model


def edit(path, **fields):
    for f in ("config.json", "config.v4.json", "config.v5.json"):
        f = os.path.join(path, f)
        if os.path.exists(f):
            with open(f) as src:
                cfg = json.load(src)
            common.write_json(f, {**cfg, **fields})


def make(name, cfg, seed, dtype, layout, shard):
    path = os.path.join(common.OUT, name)
    shutil.rmtree(path, ignore_errors=True)
    torch.manual_seed(seed)
    model = spread(GptOssForCausalLM(cfg), seed).to(getattr(torch, dtype))
    model.save_pretrained(path, **({"max_shard_size": shard} if shard else {}))
    common.both_layouts(path, layout)
    return path, model


def make_mxfp4(seed):
    """gptoss_mxfp4 and gptoss_dequantized -> the directory of the second"""
    path, model = make("gptoss_mxfp4", MXFP4, seed, "bfloat16", "v4", None)
    model = write_mxfp4(path, model)
    other = os.path.join(common.OUT, "gptoss_dequantized")
    shutil.rmtree(other, ignore_errors=True)
    model.save_pretrained(other)
    common.both_layouts(other, "v5")
    edit(path, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                                       "model.embed_tokens", "lm_head"]})
    return other


def readable():
    """as every file of a repository"""
    for name, _, files in os.walk(common.OUT):
        for f in files:
            os.chmod(os.path.join(name, f), 0o644)


def publish(make_one):
    """the first seed where no row's routing is near a tie"""
    seed = 20
    while make_targets.write_golden(make_one(seed))["min_router_gap"] < MIN_ROUTER_GAP:
        seed += 1


def main():
    for name, cfg, dtype, layout, shard in TARGETS:
        publish(lambda seed: make(name, cfg, seed, dtype, layout, shard)[0])
    publish(make_mxfp4)
    readable()


if __name__ == "__main__":
    main()
