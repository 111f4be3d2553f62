"""Tiny random checkpoints with a vision tower, and what transformers computes on them, of text and of prompts with images.

Owns tests/golden/tiny/{qwen3_vl,qwen3_vl_moe,qwen3_5_vl,qwen3_5_vl_moe}_bf16: names, layout and types of the published files,
NAME.golden.safetensors (text alone, as make_targets.py has it) and NAME.images.golden.safetensors. Run by hand (docs/oracles.md):
    make_vl.py                 everything
    make_vl.py NAME            one of them
"""
import os
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import torch
from safetensors.torch import save_file

import common
import make_hybrids
import make_targets

IMAGE, VIDEO, START, END = 295, 296, 292, 293
PATCH, MERGE, FRAMES = 4, 2, 2
SIZES = [(16, 24), (24, 8), (8, 8), (40, 16), (24, 56)]  # height, width in pixels
# A prompt: lengths of text, and images between.
PROMPTS = [[5, "i0", 4], [0, "i1", 3, "i2", 0, "i0", 2], [40, "i3", 30], [1, "i4", 0, "i4", 20, "i1", 1],
           [120, "i3", 100, "i1", 0, "i4", 40]]
ALL_ROWS = 120  # of longer prompts, those of images, the ends and the middle
VISION = dict(hidden_size=32, num_heads=2, intermediate_size=56, patch_size=PATCH, spatial_merge_size=MERGE, temporal_patch_size=FRAMES,
              num_position_embeddings=36, in_channels=3, hidden_act="gelu_pytorch_tanh")
TEXT = dict(vocab_size=300, hidden_size=48, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, head_dim=32,
            intermediate_size=80, max_position_embeddings=1024, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2)
ROPE = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_theta": 5e6}
IDS = dict(image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=START, vision_end_token_id=END)


def qwen3_vl():
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
    return Qwen3VLForConditionalGeneration, Qwen3VLConfig(
        text_config={**TEXT, "rope_parameters": ROPE}, tie_word_embeddings=False, **IDS,
        vision_config={**VISION, "depth": 4, "out_hidden_size": 48, "deepstack_visual_indexes": [0, 2]})


def qwen3_vl_moe():
    from transformers import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration
    text = {**TEXT, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "decoder_sparse_step": 1,
            "mlp_only_layers": [1], "rope_parameters": ROPE}
    return Qwen3VLMoeForConditionalGeneration, Qwen3VLMoeConfig(
        text_config=text, tie_word_embeddings=False, **IDS,
        vision_config={**VISION, "depth": 3, "out_hidden_size": 48, "deepstack_visual_indexes": [1]})


def hybrid_text(key_heads, value_heads):
    return dict(vocab_size=300, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
                linear_num_key_heads=key_heads, linear_num_value_heads=value_heads, linear_key_head_dim=16, linear_value_head_dim=16,
                linear_conv_kernel_dim=4, max_position_embeddings=1024, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2,
                layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"],
                rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_interleaved": True,
                                 "mrope_section": [3, 3, 2]})


def qwen3_5_vl():
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration
    text = {**hybrid_text(2, 4), "hidden_size": 64, "intermediate_size": 96}
    return Qwen3_5ForConditionalGeneration, Qwen3_5Config(
        text_config=text, tie_word_embeddings=False, **IDS, vision_config={**VISION, "depth": 3, "out_hidden_size": 64})


def qwen3_5_vl_moe():
    """as Qwen3.5-35B-A3B is published; two and more of key heads, of value heads for each, and of KV heads"""
    from transformers import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration
    text = {**hybrid_text(2, 6), "hidden_size": 48, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20,
            "shared_expert_intermediate_size": 28}
    return Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeConfig(
        text_config=text, tie_word_embeddings=False, **IDS, vision_config={**VISION, "depth": 3, "out_hidden_size": 48})


TARGETS = {"qwen3_vl_bf16": qwen3_vl, "qwen3_vl_moe_bf16": qwen3_vl_moe, "qwen3_5_vl_bf16": qwen3_5_vl,
           "qwen3_5_vl_moe_bf16": qwen3_5_vl_moe}


class WithHead(torch.nn.Module):
    """the text model and its head, as make_targets takes models"""
    def __init__(self, full):
        super().__init__()
        self.config = full.config.text_config
        self.model = full.model.language_model
        self.lm_head = full.lm_head

    def forward(self, ids, output_hidden_states=False, use_cache=False):
        out = self.model(input_ids=ids, output_hidden_states=output_hidden_states, use_cache=use_cache)
        return SimpleNamespace(hidden_states=out.hidden_states, logits=self.lm_head(out.last_hidden_state))


def patches_of(rgb):
    """(h, w, 3) bytes -> (patches, 3 * FRAMES * PATCH * PATCH), block by block"""
    h, w, _ = rgb.shape
    x = (rgb.astype(np.float32) / 255 - 0.5) / 0.5
    x = np.broadcast_to(x.transpose(2, 0, 1)[None], (FRAMES, 3, h, w))
    gh, gw = h // PATCH, w // PATCH
    x = x.reshape(FRAMES, 3, gh // MERGE, MERGE, PATCH, gw // MERGE, MERGE, PATCH)
    x = x.transpose(2, 5, 3, 6, 1, 0, 4, 7)  # block row, block column, row, column in it; channel, frame, pixels
    return torch.from_numpy(np.ascontiguousarray(x).reshape(gh * gw, -1)), (1, gh, gw)


class Seen:
    """forward with hooks: the stream as each layer (or the final norm) finds it, and the rotation's positions"""
    def __init__(self, model):
        text = model.model.language_model
        self.model, self.states, self.positions, self.final = model, {}, None, None
        for i, layer in enumerate(list(text.layers) + [text.norm]):
            layer.register_forward_pre_hook(self.keep(i), with_kwargs=True)
        text.norm.register_forward_hook(lambda m, a, o: setattr(self, "final", o[0]))
        text.rotary_emb.register_forward_pre_hook(self.place, with_kwargs=True)

    def keep(self, i):
        return lambda m, a, k: self.states.__setitem__(i, (a[0] if a else k["hidden_states"])[0])

    def place(self, m, a, k):
        self.positions = (a[1] if len(a) > 1 else k["position_ids"])

    @torch.inference_mode()
    def __call__(self, ids, patches, grids):
        pixels = dict(pixel_values=torch.cat(patches), image_grid_thw=torch.tensor(grids))
        kinds = (ids == IMAGE).int()[None]
        self.model.model.rope_deltas = None
        try:
            out = self.model(input_ids=ids[None], mm_token_type_ids=kinds, use_cache=False, **pixels)
        except TypeError:
            out = self.model(input_ids=ids[None], use_cache=False, **pixels)
        return out.logits[0]


@torch.inference_mode()
def rows_of(model, patches, grid):
    out = model.model.visual(patches, grid_thw=torch.tensor([grid]))
    if isinstance(out, tuple):
        return out[0], list(out[1])
    rows = out.pooler_output if out.pooler_output is not None else out.last_hidden_state
    return rows, list(getattr(out, "deepstack_features", None) or [])


def write_images(path, model):
    g = np.random.default_rng(5)
    images = [g.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in SIZES]
    tensors, min_gap = {}, 1e9
    made = [patches_of(x) for x in images]
    for i, (rgb, (patches, grid)) in enumerate(zip(images, made)):
        rows, deep = rows_of(model, patches, grid)
        tensors.update({f"i{i}.rgb": torch.from_numpy(rgb.astype(np.int32)), f"i{i}.grid": torch.tensor(grid[1:]),
                        f"i{i}.patches": patches, f"i{i}.rows": rows})
        tensors.update({f"i{i}.deep{j}": d for j, d in enumerate(deep)})
    seen, routed = Seen(model), []
    make_targets.watch_routers(model, routed)
    for p, parts in enumerate(PROMPTS):
        short, long, shown = [], [], []
        for k, part in enumerate(parts):
            if isinstance(part, int):
                text = common.random_prompt(300 + 10 * p + k, part, 290).tolist()
                short += text
                long += text
                continue
            i = int(part[1:])
            shown.append(i)
            n = made[i][1][1] * made[i][1][2] // MERGE ** 2
            short += [START, IMAGE, END]
            long += [START] + [IMAGE] * n + [END]
        ids = torch.tensor(long)
        patches, grids = [made[i][0] for i in shown], [made[i][1] for i in shown]
        logits = seen(ids, patches, grids)
        rows = sorted({*make_targets.kept_rows(len(long), ALL_ROWS), *(i for i, t in enumerate(long) if t == IMAGE)})
        tensors.update({f"q{p}.short_ids": torch.tensor(short), f"q{p}.images": torch.tensor(shown), f"q{p}.input_ids": ids,
                        f"q{p}.positions": seen.positions[-3:, 0], f"q{p}.rows": torch.tensor(rows), f"q{p}.logits": logits[rows],
                        f"q{p}.final_norm": seen.final[rows]})
        tensors.update({f"q{p}.r{i}": s[rows] for i, s in seen.states.items()})
        all_ids, gaps = ids, []
        for _ in range(make_targets.N_GREEDY):
            top = seen(all_ids, patches, grids)[-1].topk(2)
            assert top.indices[0] != IMAGE
            gaps.append(float(top.values[0] - top.values[1]))
            all_ids = torch.cat([all_ids, top.indices[:1]])
        tensors.update({f"q{p}.greedy_ids": all_ids[len(ids):], f"q{p}.greedy_gap": torch.tensor(gaps)})
        min_gap = min(min_gap, min(gaps))
    common.save_golden(path + ".images.golden.safetensors", tensors, what="float32 on upcast weights, eager attention, no cache",
                       min_greedy_gap="%.3g" % min_gap, n_images=len(images), n_prompts=len(PROMPTS),
                       **({"min_router_gap": "%.3g" % min(routed)} if routed else {}))
    print(os.path.basename(path), "images: least distance of the two best logits", min_gap, "of routers", min(routed, default=None))


def stored(model, name):
    if name.startswith("qwen3_5"):
        tensors = {}
        for key, t in model.state_dict().items():
            keeps = key.endswith(("A_log", "linear_attn.norm.weight"))
            tensors[key] = t.float() if keeps else t.bfloat16()
    else:
        tensors = {k: t.bfloat16() for k, t in model.state_dict().items()}
    hidden = model.config.text_config.hidden_size
    for key in list(tensors):  # inputs first, as published
        if name.startswith("qwen3_vl_moe") and ".experts." in key:
            inputs = 1 if key.endswith("gate_up_proj") else 2
            if tensors[key].shape[inputs] != hidden:
                tensors[key] = tensors[key].transpose(1, 2)
            assert tensors[key].shape[inputs] == hidden, key
    return {k: t.contiguous().clone() for k, t in tensors.items()}


def config_json(model, name):
    full = model.config.to_dict()
    keep = ("architectures", "model_type", "tie_word_embeddings", *IDS)
    full["architectures"] = [type(model).__name__]
    text = {k: v for k, v in full["text_config"].items() if v is not None and k not in ("_name_or_path", "transformers_version")}
    vision = {k: v for k, v in full["vision_config"].items() if k in VISION or k in ("depth", "out_hidden_size", "deepstack_visual_indexes",
                                                                                   "model_type")}
    text["dtype"] = "bfloat16"
    for key in ("output_hidden_states", "return_dict", "chunk_size_feed_forward", "is_encoder_decoder", "id2label", "label2id",
                "output_attentions", "partial_rotary_factor"):  # the last one is in rope_parameters
        text.pop(key, None)
    if not name.startswith("qwen3_5"):  # as transformers 4 wrote it
        rope = dict(text.pop("rope_parameters"))
        text["rope_theta"] = rope.pop("rope_theta")
        text["rope_scaling"] = rope
    return {**{k: full[k] for k in keep}, "text_config": text, "vision_config": vision}


def make(name, seed):
    cls, config = TARGETS[name]()
    for part in (config, config.text_config, config.vision_config):
        part._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = (make_hybrids if name.startswith("qwen3_5") else make_targets).spread(cls(config), seed).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if not key.endswith("A_log"):
                p.copy_(p.bfloat16().float())
        model.lm_head.weight[[IMAGE, VIDEO]] = 0  # never written: the reference would take it for an image's row
    path = os.path.join(common.OUT, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    beside = make_hybrids.beside(config.text_config.hidden_size) if name.startswith("qwen3_5_vl_moe") else {}
    save_file({**stored(model, name), **beside}, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    os.chmod(os.path.join(path, "model.safetensors"), 0o644)
    common.write_json(os.path.join(path, "config.json"), config_json(model, name))
    common.write_json(os.path.join(path, "preprocessor_config.json"), {
        "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": FRAMES,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "size": {"shortest_edge": 64, "longest_edge": 16384}})
    make_targets.write_golden(path, [1, 7, 40, 130, 300], all_rows=17, model=WithHead(model))
    write_images(path, model)


def main():
    for seed, name in enumerate(TARGETS):
        if name in sys.argv[1:] or len(sys.argv) == 1:
            make(name, 20 + seed)


if __name__ == "__main__":
    main()
