"""A tiny random checkpoint of Qwen3-VL and what transformers' text model computes on it, of text alone.

Owns tests/golden/tiny/qwen3_vl_bf16: names, layout and types of the published files, and the golden file beside it. Run by
hand (docs/oracles.md).
"""
import os
import shutil
from types import SimpleNamespace

import torch
from safetensors.torch import save_file
from transformers.models.qwen3_vl import Qwen3VLTextConfig, Qwen3VLTextModel

import common
import make_targets

NAME = "qwen3_vl_bf16"
TEXT = dict(vocab_size=300, hidden_size=48, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, head_dim=32,
            intermediate_size=80, max_position_embeddings=1024, rms_norm_eps=1e-6)
ROPE = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5]}


class WithHead(torch.nn.Module):
    """the text model and its head, as make_targets takes models"""
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = Qwen3VLTextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids, output_hidden_states=False, use_cache=False):
        out = self.model(input_ids=ids, output_hidden_states=output_hidden_states, use_cache=use_cache)
        return SimpleNamespace(hidden_states=out.hidden_states, logits=self.lm_head(out.last_hidden_state))


def main():
    config = Qwen3VLTextConfig(**TEXT, rope_parameters={**ROPE, "rope_theta": 5e6})
    config._attn_implementation = "eager"
    model = make_targets.spread(WithHead(config), 11).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.bfloat16().float())
    path = os.path.join(common.OUT, NAME)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    stored = {k.replace("model.", "model.language_model.", 1): t.bfloat16().contiguous() for k, t in model.state_dict().items()}
    for name, shape in {"pos_embed.weight": (9, 16), "patch_embed.proj.weight": (16, 3, 2, 2, 2), "blocks.0.attn.qkv.bias": (48,),
                        "deepstack_merger_list.0.norm.weight": (16,)}.items():
        stored[f"model.visual.{name}"] = torch.full(shape, 0.5, dtype=torch.bfloat16)
    save_file(stored, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    os.chmod(os.path.join(path, "model.safetensors"), 0o644)
    text = {**TEXT, "model_type": "qwen3_vl_text", "attention_bias": False, "hidden_act": "silu", "dtype": "bfloat16", "bos_token_id": 1,
            "eos_token_id": 2, "rope_scaling": ROPE, "rope_theta": 5000000}
    common.write_json(os.path.join(path, "config.json"), {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "image_token_id": 295, "text_config": text,
        "tie_word_embeddings": False, "vision_config": {"model_type": "qwen3_vl", "depth": 1, "deepstack_visual_indexes": [0]}})
    make_targets.write_golden(path, all_rows=17, model=model)


if __name__ == "__main__":
    main()
