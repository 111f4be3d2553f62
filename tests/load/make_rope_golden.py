#!/usr/bin/env python3
"""Writes rope_golden.json: cos and sin of transformers' Qwen3 rotary embedding for test_rope.c.

Run it where transformers is installed (docs/oracles.md): python3 make_rope_golden.py > rope_golden.json
"""
import json

import torch
import transformers
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

POSITIONS = [1, 2, 3, 31, 255, 4095, 12345, 40959]

CASES = [
    ("default", 128, 40960, {"rope_type": "default", "rope_theta": 1e6}),
    ("default 1e4", 16, 512, {"rope_type": "default", "rope_theta": 1e4}),
    ("default 1e7", 64, 262144, {"rope_type": "default", "rope_theta": 1e7}),
    ("odd theta", 80, 4096, {"rope_type": "default", "rope_theta": 12345.678}),
    ("linear", 64, 8192, {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}),
    ("llama 3.1", 128, 131072, {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    ("llama 3.2", 64, 131072, {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0,
                               "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    ("llama tiny", 16, 512, {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 64}),
    ("yarn qwen3", 128, 131072, {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
                                 "original_max_position_embeddings": 32768}),
    ("yarn gpt-oss", 64, 131072, {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0,
                                  "beta_slow": 1.0, "original_max_position_embeddings": 4096, "truncate": False}),
    ("yarn kimi", 128, 262144, {"rope_type": "yarn", "rope_theta": 50000.0, "factor": 64.0, "beta_fast": 32.0,
                                "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                                "original_max_position_embeddings": 4096}),
    ("yarn mscale", 128, 163840, {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "beta_fast": 24.0,
                                  "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.707,
                                  "original_max_position_embeddings": 4096}),
    ("yarn attention factor", 32, 8192, {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "attention_factor": 1.25,
                                         "original_max_position_embeddings": 4096}),
    ("yarn no room", 16, 512, {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "beta_fast": 4.0, "beta_slow": 4.0,
                               "original_max_position_embeddings": 64, "truncate": False}),
]


def one(name, head_dim, max_position, rope):
    cfg = Qwen3Config(hidden_size=4 * head_dim, num_attention_heads=4, num_key_value_heads=4, head_dim=head_dim,
                      max_position_embeddings=max_position, rope_parameters=dict(rope))
    emb = Qwen3RotaryEmbedding(cfg)
    pos = [p for p in POSITIONS if p < max_position]
    cos, sin = emb(torch.zeros(1, 1, dtype=torch.float32), torch.tensor([pos]))
    half = head_dim // 2
    flat = lambda x: [float(f"{v:.9g}") for v in x[0, :, :half].reshape(-1).tolist()]
    return {"name": name, "head_dim": head_dim, "max_position_embeddings": max_position, "rope_parameters": rope,
            "positions": pos, "cos": flat(cos), "sin": flat(sin)}


out = {"transformers": transformers.__version__, "torch": torch.__version__, "cases": [one(*c) for c in CASES]}
print("{")
print(f' "transformers": {json.dumps(out["transformers"])}, "torch": {json.dumps(out["torch"])},\n "cases": [')
print(",\n".join(json.dumps(c) for c in out["cases"]))
print("]}")
