"""What the golden generators share: saving, versions, prompts. Imported by make_targets.py, train_pair.py, make_drafts.py."""
import json
import os

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.normpath(os.path.join(HERE, "..", "..", "tests", "golden", "tiny"))


def versions():
    return {"torch": torch.__version__, "transformers": transformers.__version__, "generator": "tools/golden"}


def save_golden(path, tensors, **meta):
    """f32 and int32 tensors only; metadata values are strings"""
    out = {}
    for name, t in tensors.items():
        t = torch.as_tensor(np.asarray(t) if not torch.is_tensor(t) else t).detach()
        t = t.to(torch.float32) if t.is_floating_point() else t.to(torch.int32)
        out[name] = t.contiguous().clone()
    save_file(out, path, metadata={k: str(v) for k, v in {**versions(), **meta}.items()})
    os.chmod(path, 0o644)


def load_target(path):
    """a Hugging Face directory, weights upcast to float32, plain attention"""
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def random_prompt(seed, n, vocab):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (n,), generator=g)


def v4_layout(cfg):
    """the same config as transformers 4 wrote it: rope_theta, rope_scaling, torch_dtype"""
    cfg = dict(cfg)
    rope = dict(cfg.pop("rope_parameters"))
    cfg["rope_theta"] = rope.pop("rope_theta")
    kind = rope.get("rope_type", "default")
    cfg["rope_scaling"] = None if kind == "default" else rope
    if "dtype" in cfg:
        cfg["torch_dtype"] = cfg.pop("dtype")
    cfg["transformers_version"] = "4.51.3"
    if cfg.get("model_type") in ("qwen3", "gpt_oss"):
        cfg.pop("layer_types", None)
    if cfg.get("model_type") == "gpt_oss":  # as published
        cfg["experts_per_token"] = cfg["num_experts_per_tok"]
        cfg["initial_context_length"] = rope["original_max_position_embeddings"]
    elif "num_local_experts" in cfg:
        cfg["num_experts"] = cfg.pop("num_local_experts")
    if cfg.get("model_type") == "llama":
        cfg.pop("head_dim", None)  # older files leave it to hidden_size / num_attention_heads
    return dict(sorted(cfg.items()))


def write_json(path, obj):
    with open(path, "w") as f:
        json.dump(obj, f, indent=2)
        f.write("\n")


def both_layouts(path, main):
    """leaves config.json in the layout `main` ("v4" or "v5") and the other one as config.v5.json / config.v4.json"""
    with open(os.path.join(path, "config.json")) as f:
        v5 = json.load(f)
    v4 = v4_layout(v5)
    write_json(os.path.join(path, "config.json"), v5 if main == "v5" else v4)
    write_json(os.path.join(path, "config.v4.json" if main == "v5" else "config.v5.json"), v4 if main == "v5" else v5)


def write_tokenizer(path):
    """a byte-level tokenizer of 290 ids (0..3 special, then bytes, then a few merges), so that text can be fed to tiny models.
    Models have more ids than it: those decode to nothing."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    import textgen
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=290, show_progress=False, special_tokens=["<|pad|>", "<|bos|>", "<|endoftext|>", "<|im_end|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator([textgen.SENTENCES["english"]] * 5, trainer)
    tok.save(os.path.join(path, "tokenizer.json"), pretty=False)
    template = "{% for m in messages %}{{ m.role + ': ' + m.content + '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    write_json(os.path.join(path, "tokenizer_config.json"), {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>",
               "eos_token": "<|endoftext|>", "pad_token": "<|pad|>", "add_bos_token": False, "chat_template": template})
