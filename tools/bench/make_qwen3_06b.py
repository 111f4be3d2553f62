"""Writes a model with the shapes of Qwen3-0.6B and random bf16 weights, twice: as a Hugging Face directory (for salvo) and as
a GGUF file (for llama.cpp), so that both can be timed on the same bytes.

Run by hand, in an environment with torch, safetensors and python3-gguf (docs/oracles.md):
    make_qwen3_06b.py OUT_DIR        writes OUT_DIR/hf/{config.json,model.safetensors,...} and OUT_DIR/qwen3-06b-random-bf16.gguf
    make_qwen3_06b.py OUT_DIR 4b     writes OUT_DIR/qwen3-4b-random-bf16.gguf, of Qwen3-4B's shapes, 8 GB
1.2 GB each; never inside the repository. The output of such a model means nothing; only its speed does.
"""
import json
import os
import sys

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

SIZE = sys.argv[2] if len(sys.argv) > 2 else "06b"
HIDDEN, LAYERS, HEADS, KV, HEAD_DIM, MLP = {"06b": (1024, 28, 16, 8, 128, 3072), "4b": (2560, 36, 32, 8, 128, 9728)}[SIZE]
VOCAB, CONTEXT, EPS, THETA = 151936, 40960, 1e-6, 1000000.0

# name in a Hugging Face file, name in GGUF, shape
PER_LAYER = [
    ("input_layernorm.weight", "attn_norm.weight", (HIDDEN,)),
    ("self_attn.q_proj.weight", "attn_q.weight", (HEADS * HEAD_DIM, HIDDEN)),
    ("self_attn.k_proj.weight", "attn_k.weight", (KV * HEAD_DIM, HIDDEN)),
    ("self_attn.v_proj.weight", "attn_v.weight", (KV * HEAD_DIM, HIDDEN)),
    ("self_attn.o_proj.weight", "attn_output.weight", (HIDDEN, HEADS * HEAD_DIM)),
    ("self_attn.q_norm.weight", "attn_q_norm.weight", (HEAD_DIM,)),
    ("self_attn.k_norm.weight", "attn_k_norm.weight", (HEAD_DIM,)),
    ("post_attention_layernorm.weight", "ffn_norm.weight", (HIDDEN,)),
    ("mlp.gate_proj.weight", "ffn_gate.weight", (MLP, HIDDEN)),
    ("mlp.up_proj.weight", "ffn_up.weight", (MLP, HIDDEN)),
    ("mlp.down_proj.weight", "ffn_down.weight", (HIDDEN, MLP)),
]


def names():
    yield "model.embed_tokens.weight", "token_embd.weight", (VOCAB, HIDDEN)
    for i in range(LAYERS):
        for hf, gg, shape in PER_LAYER:
            yield f"model.layers.{i}.{hf}", f"blk.{i}.{gg}", shape
    yield "model.norm.weight", "output_norm.weight", (HIDDEN,)


def weights():
    g = torch.Generator().manual_seed(6)
    out = {}
    for hf, _, shape in names():
        w = torch.empty(shape)
        if len(shape) == 1:
            w.fill_(1.0)
        else:
            w.normal_(0, 1.0 / shape[1] ** 0.5, generator=g)
        out[hf] = w.to(torch.bfloat16)
    return out


def byte_chars():
    """the byte-level alphabet: a printable character for every byte"""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    extra = [b for b in range(256) if b not in keep]
    return [chr(b) for b in keep] + [chr(256 + i) for i in range(len(extra))]


def write_hf(path, w):
    os.makedirs(path, exist_ok=True)
    save_file(w, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    config = {"architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": HEAD_DIM,
              "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": MLP, "max_position_embeddings": CONTEXT, "model_type": "qwen3",
              "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "num_key_value_heads": KV, "rms_norm_eps": EPS, "rope_scaling": None,
              "rope_theta": THETA, "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
              "use_cache": True, "use_sliding_window": False, "vocab_size": VOCAB}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": {"type": "NFC"},
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
                 "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                 "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(byte_chars() + ["ab"])}, "merges": [["a", "b"]]}}
    for name, obj in (("config.json", config), ("generation_config.json", {"eos_token_id": [151645, 151643]}), ("tokenizer.json", tokenizer)):
        with open(os.path.join(path, name), "w") as f:
            json.dump(obj, f, indent=1, ensure_ascii=False)
    os.chmod(os.path.join(path, "model.safetensors"), 0o644)


def write_gguf(path, w):
    out = gguf.GGUFWriter(path, "qwen3")
    out.add_name("random weights, shapes of Qwen3-0.6B" if SIZE == "06b" else "random weights, shapes of Qwen3-4B")
    out.add_block_count(LAYERS)
    out.add_context_length(CONTEXT)
    out.add_embedding_length(HIDDEN)
    out.add_feed_forward_length(MLP)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV)
    out.add_key_length(HEAD_DIM)
    out.add_value_length(HEAD_DIM)
    out.add_layer_norm_rms_eps(EPS)
    out.add_rope_freq_base(THETA)
    out.add_vocab_size(VOCAB)
    out.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    chars = byte_chars() + ["ab"]  # llama.cpp wants at least one merge
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen2")
    out.add_token_list(chars + ["<%d>" % i for i in range(len(chars), VOCAB)])
    out.add_token_types([gguf.TokenType.NORMAL] * VOCAB)
    out.add_token_merges(["a b"])
    out.add_eos_token_id(151645)
    for hf, gg, shape in names():
        if len(shape) == 1:  # llama.cpp keeps norms in f32
            out.add_tensor(gg, w[hf].float().numpy())
        else:
            raw = w[hf].view(torch.int16).numpy().view(np.uint8)
            out.add_tensor(gg, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def main():
    path = sys.argv[1]
    os.makedirs(path, exist_ok=True)
    w = weights()
    if SIZE == "06b":
        write_hf(os.path.join(path, "hf"), w)
    write_gguf(os.path.join(path, f"qwen3-{SIZE}-random-bf16.gguf"), w)


if __name__ == "__main__":
    main()
