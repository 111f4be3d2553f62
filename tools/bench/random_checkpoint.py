#!/usr/bin/env python3
"""Writes an untrained checkpoint: DIR/config.json's shapes, sharded, random bf16 numbers, and a tokenizer of the
same size made from the demo's. For timing starts at real sizes; about 2 GB/s a shard, all at once. Standard library only.

    tools/bench/random_checkpoint.py [--sparse] [--fp8 | --int4 | --nvfp4] CONFIG_DIR OUT_DIR [TOKENIZER_DIR]
    tools/bench/random_checkpoint.py --q4_k | --q4_k_m CONFIG_DIR OUT.gguf

A target gets TOKENIZER_DIR's tokenizer (default models/demo/target), grown by merges up to the vocabulary's size. With
--fp8 its layers' matrices are e4m3 in blocks of 128 x 128, with --int4 pack-quantized in groups of 128, with --nvfp4
e2m1 in groups of 16. A GGUF file, of Qwen3 alone, has no tokenizer, and its layers' matrices are Q4_K; with --q4_k_m
some are Q6_K, and the head, as llama-quantize has it. With --sparse all but norms and scales are zeros that take no
space on a disk: once read they fill the page cache of a file system such as ext4 like others (tmpfs: not).
"""
import json
import math
import os
import random
import struct
import sys

SHARD = 4 << 30
BLOCK_ELEMENTS = (1 << 23) - 3  # odd: rows of a matrix do not repeat one another


def hybrid_tensors(c):
    """Those of Qwen3.5's and its experts' text, likewise."""
    t = c["text_config"]
    h, hd, pre = t["hidden_size"], t["head_dim"], "model.language_model."
    q, kv, nv = t["num_attention_heads"] * hd, t["num_key_value_heads"] * hd, t["linear_num_value_heads"]
    out = nv * t["linear_value_head_dim"]
    qkv = 2 * t["linear_num_key_heads"] * t["linear_key_head_dim"] + out
    yield pre + "embed_tokens.weight", [t["vocab_size"], h]
    for i, kind in enumerate(t["layer_types"]):
        at = f"{pre}layers.{i}."
        mixer = (
            ("self_attn.q_proj.weight", [2 * q, h]), ("self_attn.k_proj.weight", [kv, h]),
            ("self_attn.v_proj.weight", [kv, h]), ("self_attn.o_proj.weight", [h, q]),
            ("self_attn.q_norm.weight", [hd]), ("self_attn.k_norm.weight", [hd]),
        ) if kind == "full_attention" else (
            ("linear_attn.in_proj_qkv.weight", [qkv, h]), ("linear_attn.in_proj_z.weight", [out, h]),
            ("linear_attn.in_proj_b.weight", [nv, h]), ("linear_attn.in_proj_a.weight", [nv, h]),
            ("linear_attn.conv1d.weight", [qkv, 1, t["linear_conv_kernel_dim"]]), ("linear_attn.A_log", [nv]),
            ("linear_attn.dt_bias", [nv]), ("linear_attn.norm.weight", [t["linear_value_head_dim"]]),
            ("linear_attn.out_proj.weight", [h, out]),
        )
        for name, shape in (("input_layernorm.weight", [h]), *mixer, ("post_attention_layernorm.weight", [h])):
            yield at + name, shape
        mlps = [("mlp.", t["intermediate_size"])] if "intermediate_size" in t else [
            ("mlp.shared_expert.", t["shared_expert_intermediate_size"]),
            *((f"mlp.experts.{e}.", t["moe_intermediate_size"]) for e in range(t["num_experts"]))]
        if "num_experts" in t:
            yield at + "mlp.gate.weight", [t["num_experts"], h]
            yield at + "mlp.shared_expert_gate.weight", [1, h]
        for name, inter in mlps:
            yield at + name + "gate_proj.weight", [inter, h]
            yield at + name + "up_proj.weight", [inter, h]
            yield at + name + "down_proj.weight", [h, inter]
    yield pre + "norm.weight", [h]
    if not c.get("tie_word_embeddings"):
        yield "lm_head.weight", [t["vocab_size"], h]


def tensors(c):
    """(name, shape) in file order."""
    if "text_config" in c:
        yield from hybrid_tensors(c)
        return
    h, inter, hd = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * hd, c["num_key_value_heads"] * hd
    draft = "dflash_config" in c
    pre = "" if draft else "model."
    if not draft:
        yield "model.embed_tokens.weight", [c["vocab_size"], h]
    for i in range(c["num_hidden_layers"]):
        for name, shape in (
            ("input_layernorm", [h]), ("self_attn.q_proj", [q, h]), ("self_attn.k_proj", [kv, h]),
            ("self_attn.v_proj", [kv, h]), ("self_attn.o_proj", [h, q]), ("self_attn.q_norm", [hd]),
            ("self_attn.k_norm", [hd]), ("post_attention_layernorm", [h]), ("mlp.gate_proj", [inter, h]),
            ("mlp.up_proj", [inter, h]), ("mlp.down_proj", [h, inter]),
        ):
            if c["model_type"] != "llama" or name[-6:] not in ("q_norm", "k_norm"):
                yield f"{pre}layers.{i}.{name}.weight", shape
    yield pre + "norm.weight", [h]
    if draft:
        yield "fc.weight", [h, len(c["dflash_config"]["target_layer_ids"]) * h]
        yield "hidden_norm.weight", [h]
    elif not c.get("tie_word_embeddings"):
        yield "lm_head.weight", [c["vocab_size"], h]


QUANTIZED = "_proj.", ".in_proj_qkv.", ".in_proj_z."  # not a delta rule's a and b, as in published files
BYTES = {"BF16": 2, "F8_E4M3": 1, "U8": 1, "I32": 4, "I64": 8, "F32": 4}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
INT4 = {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True, "dynamic": False}}}}

NVFP4 = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "quantization_status": "compressed",
         "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
             "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True,
             "dynamic": False}}}}


def stored(items, quant):
    """(name, dtype, shape, contents or None) of these: a quantized matrix is several tensors."""
    for name, shape in items:
        n, k = shape[0], shape[-1]
        if not quant or not any(part in name for part in QUANTIZED):
            yield name, "BF16", shape, b"\x80\x3f" if name.endswith("norm.weight") else None
        elif quant == FP8:
            yield name, "F8_E4M3", shape, None
            yield name + "_scale_inv", "BF16", [(n + 127) // 128, (k + 127) // 128], b"\x00\x3d"
        elif quant == NVFP4:
            yield name + "_packed", "U8", [n, k // 2], None
            yield name + "_scale", "F8_E4M3", [n, k // 16], b"\x38\x3b\x3e"
            yield name + "_global_scale", "F32", [1], struct.pack("<f", 150)
        else:
            yield name + "_packed", "I32", [n, k // 8], None
            yield name + "_scale", "BF16", [n, k // 128], b"\x80\x3b"
            yield name + "_shape", "I64", [2], n.to_bytes(8, "little") + k.to_bytes(8, "little")


def n_bytes(dtype, shape):
    n = BYTES[dtype]
    for d in shape:
        n *= d
    return n


def random_block():
    """bf16 numbers of either sign in [2^-6, 2^-5): about the spread of a trained matrix. As e4m3, none is NaN."""
    n = 2 * BLOCK_ELEMENTS
    bits = int.from_bytes(os.urandom(n), "little")
    keep = int.from_bytes(b"\x7f\x80" * BLOCK_ELEMENTS, "little")
    exponent = int.from_bytes(b"\x80\x3c" * BLOCK_ELEMENTS, "little")
    return (bits & keep | exponent).to_bytes(n, "little")


def random_codes():
    """Bytes of two codes of 4 bits, or of one of e4m3 that is at most 1.875."""
    n = 2 * BLOCK_ELEMENTS
    return (int.from_bytes(os.urandom(n), "little") & int.from_bytes(b"\xbf" * n, "little")).to_bytes(n, "little")


def write_shard(path, items, blocks):
    header, at = {}, 0
    for name, dtype, shape, _ in items:
        n = n_bytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    used = 0
    with open(path, "wb", buffering=0) as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, dtype, shape, contents in items:
            n = n_bytes(dtype, shape)
            if contents:
                f.write((contents * (n // len(contents) + 1))[:n])
                continue
            if not blocks:
                f.truncate(f.seek(n, os.SEEK_CUR))
                continue
            view = memoryview(blocks[dtype != "BF16"])
            while n:
                used %= len(view)
                n_written = f.write(view[used : used + min(n, len(view) - used)])
                n -= n_written
                used += n_written


# ---------------------------------------------------------------- GGUF

GGUF_NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
              "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
              "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
              "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
F32, Q4_K, Q6_K, GGUF_BF16 = 0, 12, 14, 30
# Bytes of so many weights, and where scales stand that make these about as large as trained ones.
GGUF_BLOCKS = {F32: (4, 1), GGUF_BF16: (2, 1), Q4_K: (144, 256, 0, b"\x40\x02\x80\x0a"), Q6_K: (210, 256, 208, b"\x10\x01")}


def gguf_tensors(c, mixed):
    """(name, shape, type) in file order."""
    n = c["num_hidden_layers"]
    for name, shape in tensors(c):
        part = name.split(".")
        if part[1] != "layers":
            to = {"embed_tokens": "token_embd", "norm": "output_norm", "weight": "output"}[part[1]]
            head = mixed and to == ("token_embd" if c.get("tie_word_embeddings") else "output")
            yield to + ".weight", shape, F32 if to == "output_norm" else Q6_K if head else GGUF_BF16
            continue
        i, to = int(part[2]), GGUF_NAMES[".".join(part[3:-1])]
        more = mixed and to in ("attn_v", "ffn_down") and (i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2)
        yield f"blk.{i}.{to}.weight", shape, F32 if len(shape) == 1 else Q6_K if more else Q4_K


def gguf_block(kind):
    if kind == GGUF_BF16:
        return random_block()
    n_bytes, _, at, scales = GGUF_BLOCKS[kind]
    n = BLOCK_ELEMENTS // n_bytes
    ones = b"\xff" * n_bytes
    keep = ones[:at] + bytes(len(scales)) + ones[at + len(scales):]
    here = bytes(at) + scales + bytes(n_bytes - at - len(scales))
    bits = int.from_bytes(os.urandom(n * n_bytes), "little")
    return (bits & int.from_bytes(keep * n, "little") | int.from_bytes(here * n, "little")).to_bytes(n * n_bytes, "little")


def write_gguf(path, c, mixed):
    def text(s):
        return struct.pack("<Q", len(s)) + s.encode()

    sizes = {"block_count": "num_hidden_layers", "context_length": "max_position_embeddings", "vocab_size": "vocab_size",
             "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size", "attention.key_length": "head_dim",
             "attention.value_length": "head_dim", "attention.head_count": "num_attention_heads",
             "attention.head_count_kv": "num_key_value_heads"}
    floats = {"attention.layer_norm_rms_epsilon": "rms_norm_eps", "rope.freq_base": "rope_theta"}
    strings = {"general.architecture": "qwen3", "tokenizer.ggml.model": "none"}
    keys = [text(k) + struct.pack("<I", 8) + text(v) for k, v in strings.items()]
    keys += [text("qwen3." + k) + struct.pack("<II", 4, c[v]) for k, v in sizes.items()]
    keys += [text("qwen3." + k) + struct.pack("<If", 6, c[v]) for k, v in floats.items()]
    keys += [text(f"tokenizer.ggml.{k}_token_id") + struct.pack("<II", 4, c[k + "_token_id"]) for k in ("bos", "eos")]
    info, at, items = b"", 0, []
    for name, shape, kind in gguf_tensors(c, mixed):
        n = GGUF_BLOCKS[kind][0] * math.prod(shape) // GGUF_BLOCKS[kind][1]
        info += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, at)
        items.append((kind, n))
        at += n + -n % 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(items), len(keys)) + b"".join(keys) + info
    blocks = {kind: memoryview(gguf_block(kind)) for kind, _ in items if kind != F32}
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32))
        for kind, n in items:
            if kind == F32:
                f.write(struct.pack("<f", 1) * (n // 4))
            else:
                for done in range(0, n, len(blocks[kind])):
                    f.write(blocks[kind][: n - done])
            f.write(bytes(-n % 32))


# ---------------------------------------------------------------- tokenizers


def write_tokenizer(src, out, vocab_size, ends):
    """The demo's tokenizer with merges of random pairs up to vocab_size; the first words keep their ids."""
    t = json.load(open(os.path.join(src, "tokenizer.json"), encoding="utf-8"))
    vocab, merges = t["model"]["vocab"], t["model"]["merges"]
    rng, words = random.Random(1), list(vocab)
    first_special = min(ends + [vocab_size - 16])
    if first_special < len(words):
        sys.exit(f"vocabulary of {vocab_size}: special tokens begin at {first_special}, inside the {len(words)} of {src}")
    while len(words) < first_special:
        a, b = rng.choice(words), rng.choice(words)
        if len(a) + len(b) < 16 and a + b not in vocab:
            vocab[a + b] = len(words)
            words.append(a + b)
            merges.append([a, b] if isinstance(merges[0], list) else f"{a} {b}")
    for i, special in enumerate(t["added_tokens"]):
        special["id"] = first_special + i
    json.dump(t, open(os.path.join(out, "tokenizer.json"), "w", encoding="utf-8"), ensure_ascii=False)
    c = json.load(open(os.path.join(src, "tokenizer_config.json"), encoding="utf-8"))
    c.pop("added_tokens_decoder", None)
    json.dump(c, open(os.path.join(out, "tokenizer_config.json"), "w", encoding="utf-8"), ensure_ascii=False)


def main():
    args = sys.argv[1:]
    if len(args) == 3 and args[0] in ("--q4_k", "--q4_k_m"):
        c = json.load(open(os.path.join(args[1], "config.json"), encoding="utf-8"))
        return write_gguf(args[2], c, args[0] == "--q4_k_m")
    sparse = args[:1] == ["--sparse"]
    args = args[sparse:]
    quant = {"--fp8": FP8, "--int4": INT4, "--nvfp4": NVFP4}.get(args[0] if args else "")
    args = args[1:] if quant else args
    if len(args) not in (2, 3):
        sys.exit(__doc__)
    src, out = args[:2]
    c = json.load(open(os.path.join(src, "config.json"), encoding="utf-8"))
    if quant:
        c["quantization_config"] = quant
    os.makedirs(out, exist_ok=True)
    json.dump(c, open(os.path.join(out, "config.json"), "w", encoding="utf-8"), indent=1)
    shards, size = [[]], 0
    for item in stored(tensors(c), quant):
        n = n_bytes(item[1], item[2])
        if size + n > SHARD and shards[-1]:
            shards.append([])
            size = 0
        shards[-1].append(item)
        size += n
    blocks = () if sparse else (random_block(), random_codes())
    index, writers = {}, []
    for i, items in enumerate(shards):
        name = "model.safetensors" if len(shards) == 1 else f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        index.update((item[0], name) for item in items)
        writers.append(os.fork())
        if not writers[-1]:
            write_shard(os.path.join(out, name), items, blocks)
            os._exit(0)
    if len(shards) > 1:
        json.dump({"metadata": {}, "weight_map": index}, open(os.path.join(out, "model.safetensors.index.json"), "w"))
    if "dflash_config" not in c:
        here = os.path.dirname(os.path.abspath(__file__))
        tok = args[2] if len(args) == 3 else os.path.join(here, "..", "..", "models", "demo", "target")
        t = c.get("text_config", c)
        eos = t["eos_token_id"]
        write_tokenizer(tok, out, t["vocab_size"], [t["bos_token_id"]] + (eos if isinstance(eos, list) else [eos]))
    if any(os.waitpid(pid, 0)[1] for pid in writers):
        sys.exit(f"{out}: a shard is not whole")


main()
