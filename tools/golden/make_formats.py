"""Blocks of every weight format and what they are worth, as computed by gguf-py, PyTorch and transformers.

Owns tests/golden/formats/blocks.safetensors: for each case NAME.data (bytes), NAME.scales, NAME.zeros, NAME.g_idx where
the format has them, and NAME.value (f32). Run by hand (docs/oracles.md). Packings that no installed library decodes
(AWQ, GPTQ, pack-quantized) are packed here from integer codes, so that the value is code minus zero times scale.
"""
import os

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import common

OUT = os.path.join(os.path.dirname(common.OUT), "formats")
RNG = np.random.default_rng(21)
T = {}


def put(name, **parts):
    for key, v in parts.items():
        t = v if isinstance(v, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(v))
        T[f"{name}.{key}"] = t.contiguous().clone()


def bytes_of(a):
    return np.frombuffer(np.ascontiguousarray(a).tobytes(), np.uint8).copy()


# ---------------------------------------------------------------- GGUF

def gguf_cases():
    """random bytes: every bit of codes and scales is used. f16 scales are finite, e8m0 ones so small that 6 times them is"""
    types = gguf.GGMLQuantizationType
    for t, name, halves, e8m0 in [(types.Q4_0, "q4_0", [0], []), (types.Q8_0, "q8_0", [0], []), (types.Q4_K, "q4_k", [0, 2], []),
                                  (types.Q5_K, "q5_k", [0, 2], []), (types.Q6_K, "q6_k", [208], []),
                                  (types.IQ4_NL, "iq4_nl", [0], []), (types.MXFP4, "gg_mxfp4", [], [0])]:
        block, size = gguf.GGML_QUANT_SIZES[t]
        rows, per_row = 3, 1024 // block // (2 if block == 256 else 4)
        b = RNG.integers(0, 256, (rows, per_row, size), dtype=np.uint8)
        for at in halves:
            half = RNG.normal(0, 3, (rows, per_row)).astype(np.float16)
            half[0, 0] = np.float16(6e-8)  # subnormal
            b[:, :, at:at + 2] = half[..., None].view(np.uint8)
        for at in e8m0:
            b[:, :, at] = RNG.integers(0, 250, (rows, per_row))
            b[0, :3, at] = [0, 1, 250]
        with np.errstate(over="ignore"):
            value = gguf.quants.dequantize(b.reshape(rows, -1), t)
        assert value.shape == (rows, per_row * block) and np.isfinite(value).all()
        put(name, data=b.reshape(rows, -1), value=value.astype(np.float32))


# ---------------------------------------------------------------- bytes and e2m1

def fp8_cases():
    def codes(n, k):
        c = RNG.integers(0, 256, (n, k), dtype=np.uint8)
        c[(c & 0x7f) == 0x7f] = 0x01
        return c

    every = np.array([c for c in range(256) if c & 0x7f != 0x7f], np.uint8)
    c = codes(150, 141)
    c.reshape(-1)[:len(every)] = every
    # neighbouring scales differ by much: a transposed index cannot pass
    s = (10.0 ** RNG.uniform(-4, 4, (2, 2))).astype(np.float32)
    value = torch.from_numpy(c).view(torch.float8_e4m3fn).float()
    full = torch.from_numpy(s).repeat_interleave(128, 0).repeat_interleave(128, 1)[:150, :141]
    put("f8_block", data=c, scales=s, value=value * full)
    c, s = codes(6, 40), torch.from_numpy(RNG.uniform(0.001, 5, (6, 1))).bfloat16()
    put("f8_row", data=c, scales=s, value=torch.from_numpy(c).view(torch.float8_e4m3fn).float() * s.float())
    c, s = codes(5, 33), np.array([0.0371], np.float32)
    put("f8_tensor", data=c, scales=s, value=torch.from_numpy(c).view(torch.float8_e4m3fn).float() * float(s[0]))
    c, s = RNG.integers(-128, 128, (5, 33), dtype=np.int8), RNG.uniform(0.001, 1, (5, 1)).astype(np.float32)
    put("i8_row", data=c.view(np.uint8), scales=s, value=torch.from_numpy(c).float() * torch.from_numpy(s))


def fp4_cases():
    blocks = RNG.integers(0, 256, (1, 4, 3, 16), dtype=np.uint8)
    scales = RNG.integers(90, 160, (1, 4, 3), dtype=np.uint8)
    v = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.bfloat16)
    v = v.transpose(1, 2)[0] if v.shape[1] == 96 else v[0]
    put("mxfp4", data=blocks[0].reshape(4, 48), scales=scales[0], value=v.float())
    e2m1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    packed = RNG.integers(0, 256, (4, 24), dtype=np.uint8)
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(4, 48)
    s = RNG.integers(1, 0x7f, (4, 3), dtype=np.uint8)
    block = torch.from_numpy(s).view(torch.float8_e4m3fn).float().repeat_interleave(16, 1)
    factor = np.float32(0.00317)
    put("nvfp4", data=packed, scales=s, global_scale=np.array([factor]), value=torch.from_numpy(e2m1[codes]) * block * float(factor))


# ---------------------------------------------------------------- integer words

def pack_words(codes, bits):
    """unsigned codes along the last dimension, low bits first"""
    per = 32 // bits
    pad = -codes.shape[-1] % per
    c = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, pad)]).astype(np.uint64)
    c = c.reshape(*c.shape[:-1], -1, per)
    return (c << (np.arange(per, dtype=np.uint64) * np.uint64(bits))).sum(-1).astype(np.uint32).view(np.int32)


def value_of(q, z, s, groups):
    """q (n, k), z and s (n, n_groups), groups (k): in float64, then rounded once"""
    return ((q - z[:, groups]).astype(np.float64) * s[:, groups].astype(np.float64)).astype(np.float32)


def packed_cases():
    n, k, group = 10, 68, 32
    n_groups = -(-k // group)
    for bits, scale in [(4, torch.bfloat16), (8, torch.float16)]:
        q = RNG.integers(0, 1 << bits, (n, k))
        s = torch.from_numpy(RNG.uniform(1e-3, 1, (n, n_groups))).to(scale)
        f = s.double().numpy()
        mid = np.full((n, n_groups), 1 << bits - 1)
        put(f"int{bits}", data=pack_words(q, bits), scales=s, value=value_of(q, mid, f, np.arange(k) // group))
        z = RNG.integers(0, 1 << bits, (n, n_groups))
        g = RNG.permutation(np.arange(k) // group)
        zeros = pack_words(z.T, bits).T  # words along the rows
        put(f"int{bits}_zero", data=pack_words(q, bits), scales=s, zeros=zeros, g_idx=g.astype(np.int32), value=value_of(q, z, f, g))


def awq_gptq_cases():
    n, k, group = 24, 64, 16
    n_groups = k // group
    q, z = RNG.integers(0, 16, (n, k)), RNG.integers(0, 16, (n, n_groups))
    s = RNG.uniform(1e-3, 1, (n, n_groups)).astype(np.float16)
    columns = [0, 2, 4, 6, 1, 3, 5, 7]  # of nibbles 0 to 7

    def awq(a):  # (inputs, n) -> words (inputs, n / 8)
        return pack_words(a.reshape(len(a), -1, 8)[:, :, columns].reshape(len(a), -1), 4)

    put("awq", data=awq(q.T), zeros=awq(z.T), scales=s.T, value=value_of(q, z, s, np.arange(k) // group))
    for bits in (4, 8):
        q, z = RNG.integers(0, 1 << bits, (n, k)), RNG.integers(1, 1 << bits, (n, n_groups))
        for name, g, add in [("", np.arange(k) // group, 1), ("_act", RNG.permutation(np.arange(k) // group), 0)]:
            put(f"gptq{bits}{name}", data=pack_words(q, bits).T, zeros=pack_words((z - add).T, bits), scales=s.T,
                g_idx=g.astype(np.int32), value=value_of(q, z, s, g))


def main():
    os.makedirs(OUT, exist_ok=True)
    gguf_cases()
    fp8_cases()
    fp4_cases()
    packed_cases()
    awq_gptq_cases()
    path = os.path.join(OUT, "blocks.safetensors")
    save_file(T, path, metadata={**common.versions(), "what": "weights of each format: bytes and f32 values"})
    print(path, os.path.getsize(path), len(T))


if __name__ == "__main__":
    main()
