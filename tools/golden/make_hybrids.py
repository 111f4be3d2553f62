"""Tiny random checkpoints of the Gated DeltaNet hybrids and what transformers computes on them.

Owns tests/golden/tiny/{qwen3_5,qwen3_next,qwen3_5_moe}_*: directories with the names, layouts and element types of the
published files, and NAME.golden.safetensors beside each. Run by hand (docs/oracles.md):
    make_hybrids.py                 everything
    make_hybrids.py NAME ...        these alone
"""
import os
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5_moe import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

import common
import make_targets

PROMPT_LENGTHS = [1, 5, 17, 64, 130, 300]
IDS = dict(eos_token_id=2, bos_token_id=1, max_position_embeddings=1024, use_cache=True)
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
MOE = dict(moe_intermediate_size=24, shared_expert_intermediate_size=24)


def attention(heads, kv_heads, head_dim):
    return dict(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim)


def linear(key_heads, value_heads, key_dim, value_dim):
    return dict(linear_num_key_heads=key_heads, linear_num_value_heads=value_heads, linear_key_head_dim=key_dim,
                linear_value_head_dim=value_dim, linear_conv_kernel_dim=4)


def kinds(*full):
    """layer_types of five layers, those of `full` with attention"""
    return ["full_attention" if i in full else "linear_attention" for i in range(5)]


# name: class, text configuration, keys of config.json that it leaves out
TARGETS = {
    "qwen3_5_bf16": (Qwen3_5ForCausalLM, Qwen3_5TextConfig(
        hidden_size=64, num_hidden_layers=5, intermediate_size=96, vocab_size=320, tie_word_embeddings=True, layer_types=kinds(1, 4),
        rope_parameters={**PARTIAL, "mrope_interleaved": True, "mrope_section": [2, 1, 1]},
        **attention(4, 2, 32), **linear(2, 4, 16, 16), **IDS), ["full_attention_interval"]),
    "qwen3_next_bf16": (Qwen3NextForCausalLM, Qwen3NextConfig(
        hidden_size=48, num_hidden_layers=4, intermediate_size=96, vocab_size=300, tie_word_embeddings=False, num_experts=6,
        num_experts_per_tok=3, norm_topk_prob=True, rope_parameters=PARTIAL,
        **attention(4, 2, 32), **linear(2, 4, 32, 16), **MOE, **IDS), ["layer_types"]),
    "qwen3_5_moe_bf16": (Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig(
        hidden_size=48, num_hidden_layers=4, vocab_size=310, tie_word_embeddings=False, num_experts=8, num_experts_per_tok=2,
        rope_parameters={**PARTIAL, "mrope_interleaved": True, "mrope_section": [2, 1, 1]},
        **attention(4, 2, 32), **linear(1, 3, 16, 32), **MOE, **IDS), []),
}


def spread(model, seed):
    """as make_targets.spread; norms are 1 + w here but for that of the delta rule; decays from none to strong"""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("A_log"):
                p.uniform_(-6, 1, generator=g)
            elif name.endswith("dt_bias"):
                p.normal_(0, 1, generator=g)
            elif name.endswith("linear_attn.norm.weight"):
                p.copy_(1 + 0.25 * torch.randn(p.shape, generator=g))
            elif p.dim() == 1:
                p.normal_(0, 0.25, generator=g)
            elif "embed_tokens" in name or "lm_head" in name:
                p.normal_(0, 0.4, generator=g)
            elif "conv1d" in name:
                p.normal_(0, 0.6, generator=g)
            else:
                p.normal_(0, 1.2 / p.shape[-1] ** 0.5, generator=g)
    return model


def published(model, name):
    """the model's tensors under the published names, in the published types"""
    out = {}
    for key, t in model.state_dict().items():
        t = t.detach()
        if "qwen3_5" in name:
            key = key.replace("model.", "model.language_model.", 1) if key.startswith("model.") else key
        if key == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        f32 = key.endswith("A_log") or key.endswith("linear_attn.norm.weight")
        t = t.to(torch.float32 if f32 and "qwen3_5" in name else torch.bfloat16)
        if name.startswith("qwen3_next") and key.endswith("experts.gate_up_proj"):
            for e, both in enumerate(t):
                gate, up = both.chunk(2)
                out[key.replace("gate_up_proj", f"{e}.gate_proj.weight")] = gate.contiguous()
                out[key.replace("gate_up_proj", f"{e}.up_proj.weight")] = up.contiguous()
        elif name.startswith("qwen3_next") and key.endswith("experts.down_proj"):
            for e, down in enumerate(t):
                out[key.replace("down_proj", f"{e}.down_proj.weight")] = down.contiguous()
        else:
            out[key] = t.contiguous().clone()
    return out


def beside(hidden):
    """tensors that the published files hold beside the text model, and that must be skipped by name"""
    extra = {"mtp.fc.weight": (hidden, 2 * hidden), "mtp.norm.weight": (hidden,), "mtp.layers.0.input_layernorm.weight": (hidden,)}
    return {k: torch.full(shape, 0.5, dtype=torch.bfloat16) for k, shape in extra.items()}


def config_json(model, name, left_out):
    text = model.config.to_diff_dict()
    text.update(full_attention_interval=4, layer_types=model.config.layer_types, rms_norm_eps=model.config.rms_norm_eps,
                hidden_act="silu", attention_bias=False, attn_output_gate=True, mamba_ssm_dtype="float32", dtype="bfloat16",
                tie_word_embeddings=model.config.tie_word_embeddings, partial_rotary_factor=0.25)
    for key in left_out + ["architectures", "transformers_version", "_name_or_path"]:
        text.pop(key, None)
    if name.startswith("qwen3_next"):
        for key in ("attn_output_gate", "mamba_ssm_dtype"):
            text.pop(key)
        rope = text.pop("rope_parameters")  # as transformers 4 wrote it
        return {"architectures": ["Qwen3NextForCausalLM"], **text, "decoder_sparse_step": 1, "mlp_only_layers": [],
                "norm_topk_prob": True, "rope_scaling": None, "rope_theta": rope["rope_theta"]}
    text.update(mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False)
    if "moe" in name:
        text.pop("partial_rotary_factor")  # rope_parameters has it
        return {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "image_token_id": 305,
                "text_config": text, "tie_word_embeddings": False, "vision_config": {"model_type": "qwen3_5_moe", "depth": 1}}
    return {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "image_token_id": 310,
            "text_config": text, "tie_word_embeddings": True, "vision_config": {"model_type": "qwen3_5", "depth": 1}}


def make(name, seed):
    cls, config, left_out = TARGETS[name]
    path = os.path.join(common.OUT, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    model = spread(cls(config), seed)
    tensors = {**published(model, name), **beside(config.hidden_size)}
    save_file(tensors, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    os.chmod(os.path.join(path, "model.safetensors"), 0o644)
    common.write_json(os.path.join(path, "config.json"), config_json(model, name, left_out))
    if name == "qwen3_5_bf16":
        common.write_tokenizer(path)
    make_targets.write_golden(path, PROMPT_LENGTHS, all_rows=17)


def main():
    for seed, name in enumerate(TARGETS):
        if name in sys.argv[1:] or len(sys.argv) == 1:
            make(name, seed)


if __name__ == "__main__":
    main()
