"""Images in the formats that are read, what Pillow makes of them as transformers loads them, and what transformers' image
processor of Qwen3-VL makes of pixels.

Owns tests/golden/images. Run by hand (docs/oracles.md).
"""
import hashlib
import io
import json
import os
import shutil
import struct
import zlib

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file
from transformers.image_utils import load_image
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor, smart_resize

import common

OUT = os.path.normpath(os.path.join(common.OUT, "..", "images"))


def picture(w, h, channels=3):
    """smooth, with edges and corners that tell it from its mirror images"""
    y, x = np.mgrid[0:h, 0:w]
    out = np.stack([127 + 60 * np.sin(x / 5 + c) + 50 * np.cos(y / 7 - c) + 18 * ((x // 6 + y // 4 + c) % 2) for c in range(channels)], -1)
    out[: h // 4, : w // 3] = [250, 20, 90, 128][:channels]
    return np.clip(out, 0, 255).astype(np.uint8)


def pattern(w, h):
    """what tests/media/test_prep.c makes again"""
    y, x = np.mgrid[0:h, 0:w].astype(np.int64)
    return np.stack([(x * x * (c + 1) + y * 5 + x * y // (3 + c)) & 255 for c in range(3)], -1).astype(np.uint8)


# ---------------------------------------------------------------- PNG as Pillow does not write it

def png(w, h, depth, kind, rows, interlaced=False):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    data = b"".join(b"\0" + r for r in rows)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, kind, 0, 0, interlaced)) +
            chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b""))


def interlaced(a):
    h, w = a.shape[:2]
    rows = []
    for x0, y0, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)):
        part = a[y0::dy, x0::dx]
        rows += [r.tobytes() for r in part] if part.size else []
    return png(w, h, 8, 2, rows, True)


def exif(orientation, order="<"):
    """TIFF with one entry before the orientation"""
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8)
    entries = struct.pack(order + "HHHIHH", 2, 0x100, 3, 1, 7, 0) + struct.pack(order + "HHIHH", 0x112, 3, 1, orientation, 0)
    return head + entries + struct.pack(order + "I", 0)


def encode():
    w, h = 23, 17
    rgb, rgba = picture(w, h), picture(w, h, 4)
    rgba[:, :, 3] = np.linspace(0, 255, w)[None].astype(np.uint8)
    image, grey = Image.fromarray(rgb), Image.fromarray(rgb[:, :, 0])
    wide = np.arange(w * h, dtype=np.uint16).reshape(h, w) * 3
    deep = (rgb.astype(np.uint16) << 8) | picture(w, h)[::-1]
    files = {}

    def save(name, im, **how):
        b = io.BytesIO()
        im.save(b, **how)
        files[name] = b.getvalue()

    save("rgb.png", image, format="PNG", optimize=True)
    save("rgba.png", Image.fromarray(rgba), format="PNG", optimize=True)
    save("grey.png", grey, format="PNG", optimize=True)
    save("grey1.png", grey.convert("1"), format="PNG")
    files["grey2.png"] = png(w, h, 2, 0, [bytes((7 * i + 31 * y) & 255 for i in range((w + 3) // 4)) for y in range(h)])
    files["grey4.png"] = png(w, h, 4, 0, [bytes((7 * i + 31 * y) & 255 for i in range((w + 1) // 2)) for y in range(h)])
    files["grey16.png"] = png(w, h, 16, 0, [r.astype(">u2").tobytes() for r in wide])
    save("grey_alpha.png", Image.merge("LA", (grey, Image.fromarray(rgba[:, :, 3]))), format="PNG")
    files["grey_alpha16.png"] = png(w, h, 16, 4, [r.astype(">u2").tobytes() for r in deep[:, :, :2]])
    files["rgb16.png"] = png(w, h, 16, 2, [r.astype(">u2").tobytes() for r in deep])
    files["interlaced.png"] = interlaced(rgb)
    palette = image.quantize(40)
    save("palette.png", palette, format="PNG", transparency=bytes(range(0, 240, 6)))
    save("palette4.png", image.quantize(7), format="PNG", bits=4)
    save("orientation6.png", image, format="PNG", exif=b"Exif\0\0" + exif(6, ">"))
    save("animated.png", image, format="PNG", save_all=True, append_images=[Image.fromarray(rgb[::-1])])

    save("baseline.jpg", Image.fromarray(picture(61, 47)), format="JPEG", quality=90)
    save("444.jpg", image, format="JPEG", quality=80, subsampling=0)
    save("progressive.jpg", Image.fromarray(picture(61, 47)), format="JPEG", quality=70, progressive=True)
    save("grey.jpg", grey, format="JPEG", quality=80)
    for i in range(1, 9):
        save(f"orientation{i}.jpg", image, format="JPEG", quality=60, exif=b"Exif\0\0" + exif(i, "<>"[i % 2]))
    save("lossy.webp", Image.fromarray(picture(61, 47)), format="WEBP", quality=75)
    save("lossless.webp", image, format="WEBP", lossless=True)
    save("alpha.webp", Image.fromarray(rgba), format="WEBP", quality=75, exact=True)
    save("alpha_lossless.webp", Image.fromarray(rgba), format="WEBP", lossless=True, exact=True)
    save("orientation8.webp", image, format="WEBP", lossless=True, exif=exif(8))
    # known and refused
    save("cmyk.jpg", image.convert("CMYK"), format="JPEG", quality=60)
    save("animated.webp", image, format="WEBP", save_all=True, append_images=[Image.fromarray(rgb[::-1])], lossless=True)
    save("still.gif", image, format="GIF")
    return files


def decoded(files):
    refused = ("cmyk.jpg", "animated.webp", "still.gif")
    out = {}
    for name, data in files.items():
        path = os.path.join(OUT, name)
        with open(path, "wb") as f:
            f.write(data)
        os.chmod(path, 0o644)
        if name not in refused:
            out[name] = torch.from_numpy(np.array(load_image(path)))
            assert out[name].dtype == torch.uint8 and out[name].shape[2] == 3, name
    return out


# ---------------------------------------------------------------- preparation

def prepare(array, **how):
    processor = Qwen2VLImageProcessor(**how)
    out = processor(images=Image.fromarray(array), return_tensors="pt")
    return out["pixel_values"], [int(v) for v in out["image_grid_thw"][0]]


SMALL = dict(patch_size=4, merge_size=2, temporal_patch_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3)
CLIP = dict(patch_size=4, merge_size=2, temporal_patch_size=1)  # the class's own mean and deviation
FULL = dict(patch_size=16, merge_size=2, temporal_patch_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3,
            size={"shortest_edge": 65536, "longest_edge": 16777216})


def edges(lo, hi):
    return {"shortest_edge": lo, "longest_edge": hi}


def prepared():
    """values where they are few, else their hash"""
    out, cases = {}, []
    for w, h, how in ((32, 24, {**SMALL, "size": edges(256, 1024)}), (61, 47, {**SMALL, "size": edges(256, 1024)}),
                      (9, 7, {**SMALL, "size": edges(256, 1024)}), (190, 3, {**SMALL, "size": edges(64, 800)}),
                      (32, 29, {**SMALL, "size": edges(256, 1024)}), (45, 30, {**CLIP, "size": edges(256, 900)}),
                      (1021, 683, FULL), (97, 61, FULL), (640, 1333, {**FULL, "size": edges(65536, 262144)})):
        values, grid = prepare(pattern(w, h), **how)
        processor = Qwen2VLImageProcessor(**how)
        case = {"width": w, "height": h, "grid": grid[1:], "patch": how["patch_size"], "merge": how["merge_size"],
                "temporal": how["temporal_patch_size"], "mean": list(processor.image_mean), "std": list(processor.image_std),
                "min_pixels": how["size"]["shortest_edge"], "max_pixels": how["size"]["longest_edge"],
                "sha256": hashlib.sha256(values.numpy().astype("<f4").tobytes()).hexdigest()}
        if values.numel() < 8000:
            out[f"values.{len(cases)}"] = values.contiguous()
        cases.append(case)
    return out, cases


def sizes():
    rng = np.random.default_rng(7)
    out = []
    for factor, lo, hi in ((32, 65536, 16777216), (28, 3136, 1003520), (8, 256, 1024)):
        for _ in range(60):
            w, h = (int(v) for v in np.exp(rng.uniform(0, 9, 2)))
            w, h = max(1, w), max(1, h)
            try:
                fit = smart_resize(h, w, factor, lo, hi)
            except ValueError:
                fit = (0, 0)
            out.append([factor, lo, hi, w, h, int(fit[1]), int(fit[0])])
    return out


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    meta = {**common.versions(), "pillow": PIL.__version__, "torchvision": torchvision.__version__}
    save_file(decoded(encode()), os.path.join(OUT, "decoded.safetensors"), metadata=meta)
    values, cases = prepared()
    save_file(values, os.path.join(OUT, "prepared.safetensors"), metadata=meta)
    with open(os.path.join(OUT, "prepared.json"), "w") as f:
        f.write('{"cases": [\n' + ",\n".join(json.dumps(c) for c in cases) + '],\n"sizes": [\n' +
                ",\n".join(json.dumps(s) for s in sizes()) + "]}\n")
    for name in ("decoded.safetensors", "prepared.safetensors", "prepared.json"):
        os.chmod(os.path.join(OUT, name), 0o644)


if __name__ == "__main__":
    main()
