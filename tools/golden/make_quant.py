"""Tiny checkpoints in each quantized layout, and what transformers computes on their dequantized weights.

Owns tests/golden/quant: directories and NAME.golden.safetensors in the form of make_targets.py. Run by hand
(docs/oracles.md). Weights are random codes and scales, so that nothing depends on a quantizer; layouts and names are those
of transformers' fp8, compressed-tensors, modelopt, AWQ and GPTQ.
"""
import json
import os
import shutil
import sys

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import common
import make_formats
import make_targets

OUT = os.path.join(os.path.dirname(common.OUT), "quant")
RNG = np.random.default_rng(5)
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def tensor(a):
    return a.contiguous().clone() if isinstance(a, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(a)).clone()


def fp8_codes(n, k):
    c = RNG.integers(0, 256, (n, k), dtype=np.uint8)
    c[(c & 0x7f) == 0x7f] = 1
    return torch.from_numpy(c).view(torch.float8_e4m3fn)


def scales(shape, size):
    """within a factor of four, so that a row's weights are about 1 / sqrt(k)"""
    return (size * RNG.uniform(0.5, 2, shape)).astype(np.float32)


def fp8(rows, cols, suffix, scale_type=torch.float32):
    """rows, cols: of a block; 0: all"""
    def make(n, k):
        r, c = rows or n, cols or k
        q = fp8_codes(n, k)
        s = tensor(scales((-(-n // r), -(-k // c)), 1.2 / 120 / k ** 0.5)).to(scale_type)
        full = s.float().repeat_interleave(r, 0).repeat_interleave(c, 1)[:n, :k]
        stored = s if rows or cols else s.reshape(())
        return {"weight": q, suffix: stored}, q.float() * full
    return make


def int8_rows(n, k):
    q, s = RNG.integers(-128, 128, (n, k), dtype=np.int8), tensor(scales((n, 1), 1.2 / 74 / k ** 0.5)).bfloat16()
    return {"weight": q, "weight_scale": s}, tensor(q).float() * s.float()


def e2m1(group, names, inverse=None):
    """group 16: NVFP4 with a second scale, as names[2]; 32: MXFP4"""
    def make(n, k):
        packed = RNG.integers(0, 256, (n, k // 2), dtype=np.uint8)
        codes = E2M1[np.stack([packed & 15, packed >> 4], -1).reshape(n, k)]
        if group == 32:
            s = RNG.integers(119, 122, (n, k // 32), dtype=np.uint8)
            return {names[0]: packed, names[1]: s}, torch.from_numpy(codes * (2.0 ** (s.astype(np.float32) - 127)).repeat(32, 1))
        s = torch.from_numpy(RNG.integers(0x30, 0x48, (n, k // 16), dtype=np.uint8)).view(torch.float8_e4m3fn)
        factor = np.float32(0.31 / k ** 0.5)
        stored = np.float32(1) / factor if inverse else factor
        factor = np.float32(1) / stored if inverse else factor
        value = torch.from_numpy(codes) * s.float().repeat_interleave(16, 1) * float(factor)
        return {names[0]: packed, names[1]: s, names[2]: np.array([stored] if inverse else stored, np.float32)}, value
    return make


def packed(bits, group, zeros=False, order=False):
    def make(n, k):
        g = k // group
        q, z = RNG.integers(0, 1 << bits, (n, k)), np.full((n, g), 1 << bits - 1)
        s = tensor(scales((n, g), 1.2 / (1 << bits) / 0.3 / k ** 0.5)).bfloat16()
        groups = np.arange(k) // group
        parts = {"weight_packed": make_formats.pack_words(q, bits), "weight_scale": s, "weight_shape": np.array([n, k], np.int64)}
        if zeros:
            z = RNG.integers(0, 1 << bits, (n, g))
            parts["weight_zero_point"] = make_formats.pack_words(z.T, bits).T
        if order:
            groups = RNG.permutation(groups)
            parts["weight_g_idx"] = groups.astype(np.int32)
        return parts, torch.from_numpy(make_formats.value_of(q, z, s.double().numpy(), groups))
    return make


def columns(kind, group, bits=4, order=False):
    """awq, gptq (zero points less one) or gptq_v2"""
    def make(n, k):
        g = k // group
        q, z = RNG.integers(0, 1 << bits, (n, k)), RNG.integers(1, 1 << bits, (n, g))
        s = scales((n, g), 1.2 / (1 << bits) / 0.4 / k ** 0.5).astype(np.float16)
        groups = np.arange(k) // group
        if kind == "awq":
            def awq(a):
                return make_formats.pack_words(a.reshape(len(a), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(len(a), -1), 4)
            parts = {"qweight": awq(q.T), "qzeros": awq(z.T), "scales": s.T}
        else:
            groups = RNG.permutation(groups) if order else groups
            parts = {"qweight": make_formats.pack_words(q, bits).T, "scales": s.T, "g_idx": groups.astype(np.int32),
                     "qzeros": make_formats.pack_words((z - (kind == "gptq")).T, bits)}
        return parts, torch.from_numpy(make_formats.value_of(q, z, s, groups))
    return make


def ct(groups, fmt, ignore=("lm_head",)):
    return {"quant_method": "compressed-tensors", "format": fmt, "quantization_status": "compressed", "ignore": list(ignore),
            "kv_cache_scheme": None, "config_groups": {f"group_{i}": {"targets": t, "weights": w} for i, (t, w) in enumerate(groups)}}


def mixed(formats, groups, ignore):
    out = ct(groups, "mixed-precision", ignore)
    for fmt, g in zip(formats, out["config_groups"].values()):
        g["format"] = fmt
    return out


def weights(bits, kind, strategy, group=None, symmetric=True, **more):
    return {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": group, "symmetric": symmetric, "dynamic": False, **more}


LINEAR = ["Linear"]
# name: (configuration, file that holds it, (what a layer's name contains, how it is made) in order)
CASES = {
    "fp8_block": ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [40, 48], "activation_scheme": "dynamic",
                   "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]},
                  [("", fp8(40, 48, "weight_scale_inv"))]),
    "ct_fp8_tensor": (ct([(LINEAR, weights(8, "float", "tensor"))], "float-quantized"), [("", fp8(0, 0, "weight_scale"))]),
    "ct_int8": (ct([(LINEAR, weights(8, "int", "channel"))], "int-quantized"), [("", int8_rows)]),
    "ct_int4": (ct([(LINEAR, weights(4, "int", "group", 32))], "pack-quantized"), [("", packed(4, 32))]),
    "ct_mixed": (mixed(["float-quantized", "pack-quantized"], [(["re:.*self_attn.*"], weights(8, "float", "channel")),
                     (["re:.*mlp\\.(gate|up)_proj"], weights(4, "int", "group", 32, False, actorder="group"))],
                    ["lm_head", "re:.*down_proj$"]),
                 [("self_attn", fp8(1, 0, "weight_scale", torch.bfloat16)), ("down_proj", None), ("", packed(4, 32, True, True))]),
    "ct_nvfp4": (ct([(LINEAR, weights(4, "float", "tensor_group", 16))], "nvfp4-pack-quantized"),
                 [("", e2m1(16, ("weight_packed", "weight_scale", "weight_global_scale"), True))]),
    "ct_mxfp4": (ct([(LINEAR, weights(4, "float", "group", 32))], "mxfp4-pack-quantized"),
                 [("", e2m1(32, ("weight_packed", "weight_scale")))]),
    "modelopt_nvfp4": ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": "FP8",
                                                                          "exclude_modules": ["lm_head", "model.layers.0.self_attn*"]}},
                       [("self_attn", None), ("", e2m1(16, ("weight", "weight_scale", "weight_scale_2")))]),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm", "modules_to_not_convert": None},
            [("", columns("awq", 32))]),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False, "checkpoint_format": "gptq"},
             [("", columns("gptq", 32, order=True))]),
    "gptq8_v2": ({"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": False, "checkpoint_format": "gptq_v2"}, None),
}
NO_ROUTER = ["lm_head", "re:.*mlp\\.gate$"]
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "checkpoint_format": "gptq"}
# the same with a mixture of experts
MOE_CASES = {
    "moe_ct_int4": (ct([(LINEAR, weights(4, "int", "group", 32, False))], "pack-quantized", NO_ROUTER), [("", packed(4, 32, True))]),
    "moe_ct_nvfp4": (ct([(LINEAR, weights(4, "float", "tensor_group", 16))], "nvfp4-pack-quantized", NO_ROUTER),
                     [("", e2m1(16, ("weight_packed", "weight_scale", "weight_global_scale"), True))]),
    "moe_modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
                      "ignore": ["lm_head", "model.layers.*.mlp.gate"]},
                     [("", e2m1(16, ("weight", "weight_scale", "weight_scale_2")))]),
    "moe_awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
                 "modules_to_not_convert": ["mlp.gate."]}, [("", columns("awq", 32))]),
    "moe_gptq": ({**GPTQ, "desc_act": False, "dynamic": {"lm_head": {}, "-:.*attn.*": {}}},
                 [("self_attn", None), ("", columns("gptq", 32))]),
    "moe_gptq_order": ({**GPTQ, "desc_act": True}, [("", columns("gptq", 32, order=True))]),
}


def write(name, quant, rules, moe=False):
    path = os.path.join(OUT, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    sizes = dict(hidden_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=32, intermediate_size=96,
                 vocab_size=64, tie_word_embeddings=False)
    cls, cfg = make_targets.qwen3_moe(**sizes, moe_intermediate_size=64, num_experts=5, num_experts_per_tok=2, norm_topk_prob=True,
                                      rope_parameters=make_targets.rope(1e6)) if moe else make_targets.qwen3(**sizes)
    cfg._attn_implementation = "eager"
    torch.manual_seed(1)
    model = make_targets.spread(cls(cfg), 3).bfloat16()
    model.save_pretrained(path)
    stored, values = {}, {}

    def store(key, t):
        """-> the value of each weight"""
        layer = key.rsplit(".", 1)[0]
        make = next((m for part, m in rules or [("", None)] if part in layer), None) if key.endswith("_proj.weight") else None
        if rules is None and key.endswith("_proj.weight"):
            make = columns("gptq_v2", t.shape[1], 8)
        if not make:
            stored[key] = t
            return t.float()
        parts, value = make(*t.shape)
        stored.update({f"{layer}.{suffix}": tensor(p) for suffix, p in parts.items()})
        return value

    for key, t in model.state_dict().items():
        experts, _, last = key.rpartition(".")
        if t.dim() == 3:  # separate in files, gate and up too
            names = ["gate_proj", "up_proj"] if last == "gate_up_proj" else [last]
            values[key] = torch.stack([torch.cat([store(f"{experts}.{e}.{name}.weight", part.clone()) for name, part in
                                                  zip(names, one.chunk(len(names)))]) for e, one in enumerate(t)])
        else:
            values[key] = store(key, t)
    config = json.load(open(os.path.join(path, "config.json")))
    if "quantization" in quant:
        common.write_json(os.path.join(path, "hf_quant_config.json"), quant)
        stored["model.layers.0.self_attn.k_proj.k_scale"] = torch.tensor(1.0)
        stored["model.layers.0.mlp.up_proj.input_scale"] = torch.tensor(0.01)
    else:
        config["quantization_config"] = quant
    common.write_json(os.path.join(path, "config.json"), config)
    save_file(stored, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    model = cls(cfg).float().eval()  # a new one: casts round its rotary frequencies
    model.load_state_dict(values)
    load, common.load_target = common.load_target, lambda p: model
    make_targets.N_GREEDY = 24
    make_targets.write_golden(path, [1, 12])
    common.load_target = load


def write_pair():
    """tests/golden/tiny/pair_target, the trained one, in FP8 rows and blocks and in int8, for drafts of that directory"""
    source, path = os.path.join(common.OUT, "pair_target"), os.path.join(OUT, "pair_target")
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(source, path, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json", "config.v*.json"))
    state = {}
    for f in sorted(os.listdir(source)):
        if f.endswith(".safetensors"):
            state.update(load_file(os.path.join(source, f)))
    stored = {}
    for key, t in state.items():
        w, layer = t.float(), key.rsplit(".", 1)[0]
        if not key.endswith("_proj.weight"):
            stored[key] = t
        elif "down_proj" in key:
            s = w.abs().amax(1, keepdim=True) / 127
            stored.update({key: (w / s).round().to(torch.int8), f"{layer}.weight_scale": s})
        else:
            r, c = (16, 16) if "self_attn" in key else (1, w.shape[1])
            blocks = w.reshape(w.shape[0] // r, r, w.shape[1] // c, c)
            s = blocks.abs().amax((1, 3)) / 448
            q = (blocks / s[:, None, :, None]).reshape(w.shape).to(torch.float8_e4m3fn)
            stored.update({key: q, f"{layer}.weight_scale": s})
    config = json.load(open(os.path.join(path, "config.json")))
    config["quantization_config"] = mixed(
        ["float-quantized", "float-quantized", "int-quantized"],
        [(["re:.*self_attn.*"], weights(8, "float", "block", block_structure=[16, 16])),
         (["re:.*mlp\\.(gate|up)_proj"], weights(8, "float", "channel")), (["re:.*down_proj"], weights(8, "int", "channel"))], ["lm_head"])
    common.write_json(os.path.join(path, "config.json"), config)
    save_file({k: t.contiguous() for k, t in stored.items()}, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})


def main():
    global RNG
    os.makedirs(OUT, exist_ok=True)
    if len(sys.argv) == 1:
        write_pair()
        for name, (quant, rules) in CASES.items():
            write(name, quant, rules)
    for name in sys.argv[1:] or MOE_CASES:
        RNG = np.random.default_rng(list(name.encode()))
        write(name, *MOE_CASES[name], moe=True)


if __name__ == "__main__":
    main()
