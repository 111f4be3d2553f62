"""Turn fetched source trees and gsm8k into documents, and documents into token streams.

Owns: which files count as usable source code, how maths becomes chat text, which part is held out.
Run by hand (the tokenizer is trained between the first two, see docs/training.md):
    prepare_data.py docs   --tree DIR/tree --tools DIR/fmt --gsm8k FILE --out WORK   -> WORK/{code,code_held,maths,maths_held}.jsonl
    prepare_data.py tokens --work WORK --tokenizer DIR --out CARRY       -> CARRY/tokens.npz.xz
    prepare_data.py prompts --work WORK --humaneval FILE --out CARRY/held_prompts.jsonl
Must not: write anything that git tracks; the data is never committed.
"""
import argparse
import hashlib
import io
import json
import lzma
import os
import random
import re

import numpy as np

import tidy

LANGUAGES = {".py": "python", ".c": "c", ".js": "js", ".mjs": "js", ".jsx": "js"}
BUDGET = {"python": 48e6, "c": 42e6, "js": 26e6}   # characters per language, as printed by tidy.py
DOCSTRINGS = 0.15                                  # share of Python files that keep them
SKIP_PART = re.compile(r"(/testdata/|/locale/|/dist/|/build/|/cjs/|/umd/|/bundles?/|/vendor/|/node_modules/|/min/|\.min\.|"
                       r"_tables?\.|/tables|unicode|/codegen/|generated|zerrors_|zsyscall|zsysnum|ztypes_|_string\.go|"
                       r"/tests?/|/test_[^/]*\.py|_test\.go|/tests?\.rs|[._-](test|spec)\.js|/regress/|"
                       r"/encodings/|/lib2to3/|/i18n/|/core_arch/|/stdarch/|_pb2|\.pb\.go|rewrite[A-Z0-9]|opGen|snowball)")
NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


def strip_licence(text):
    """Drop a leading comment that is a licence: the same lines in thousands of files teach nothing."""
    lines = text.split("\n")
    i = 1 if lines and lines[0].startswith("#!") else 0
    start = i
    if i < len(lines) and lines[i].lstrip().startswith("/*"):
        while i < len(lines) and "*/" not in lines[i]:
            i += 1
        i += 1
    else:
        while i < len(lines) and (lines[i].startswith(("//", "#")) and not lines[i].startswith(("#include", "#if", "#define", "#pragma"))):
            i += 1
    while i < len(lines) and not lines[i].strip():
        i += 1
    head = "\n".join(lines[start:i]).lower()
    if "copyright" in head or "licen" in head:
        return "\n".join(lines[i:]).lstrip("\n")
    return text


def usable(text):
    """Hand-written looking source of a sensible size."""
    if not 400 <= len(text) <= 80000:
        return False
    lines = text.split("\n")
    if max(len(x) for x in lines) > 400 or len(text) / len(lines) > 70:
        return False
    digits = sum(len(m) for m in NUMBER.findall(text))
    if digits > 0.08 * len(text):
        return False
    if len({x for x in lines if x.strip()}) < 0.45 * sum(1 for x in lines if x.strip()):
        return False
    return sum(c > "\x7f" for c in text) < 0.01 * len(text)


def collect_code(tree, tools, rng):
    """{language: [text]} in one style, with exact duplicates removed, cut to the budget, in random order."""
    found = {name: [] for name in BUDGET}
    seen = set()
    for base, dirs, files in os.walk(tree):
        dirs.sort()
        for name in sorted(files):
            lang = LANGUAGES.get(os.path.splitext(name)[1])
            path = os.path.join(base, name)
            if lang is None or os.path.islink(path) or SKIP_PART.search(path):
                continue
            try:
                with open(path, encoding="utf-8") as f:
                    text = f.read()
            except (UnicodeDecodeError, OSError):
                continue
            text = strip_licence(strip_licence(text.replace("\r\n", "\n")))
            key = hashlib.sha1(re.sub(r"\s+", "", text).encode()).digest()
            if key in seen or not usable(text):
                continue
            seen.add(key)
            found[lang].append(text.strip("\n") + "\n")
    for lang, texts in found.items():
        rng.shuffle(texts)
        total = keep = 0
        while keep < len(texts) and total < 2 * BUDGET[lang]:
            total += len(texts[keep])
            keep += 1
        keep_docs = [rng.random() < DOCSTRINGS for _ in texts[:keep]]
        done = tidy.tidy(lang, texts[:keep], keep_docs, tools)
        texts = list(dict.fromkeys(t.strip("\n") + "\n" for t in done if t is not None and usable(t)))
        total = keep = 0
        while keep < len(texts) and total < BUDGET[lang]:
            total += len(texts[keep])
            keep += 1
        print(f"{lang:8s} {len(texts):6d} files usable, {keep:6d} kept, {total / 1e6:6.1f} M characters")
        found[lang] = texts[:keep]
    return found


def chat(question, answer):
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"


def maths_docs(path):
    out = []
    with open(path, encoding="utf-8") as f:
        for line in f:
            row = json.loads(line)
            answer = re.sub(r"<<[^>]*>>", "", row["answer"]).strip()
            question = re.sub(r"[ \t]+", " ", row["question"]).strip()
            out.append({"question": question, "text": chat(question, answer)})
    return out


def write_jsonl(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False) + "\n")


def cmd_docs(args):
    rng = random.Random(args.seed)
    os.makedirs(args.out, exist_ok=True)
    maths = maths_docs(args.gsm8k)
    rng.shuffle(maths)
    write_jsonl(f"{args.out}/maths_held.jsonl", maths[:args.held_maths])
    write_jsonl(f"{args.out}/maths.jsonl", maths[args.held_maths:])
    code, held = [], []
    for lang, texts in collect_code(args.tree, args.tools, rng).items():
        cut = args.held_code // len(BUDGET)
        held += [{"lang": lang, "text": t} for t in texts[:cut]]
        code += [{"lang": lang, "text": t} for t in texts[cut:]]
    rng.shuffle(code)
    write_jsonl(f"{args.out}/code_held.jsonl", held)
    write_jsonl(f"{args.out}/code.jsonl", code)
    print(f"maths {len(maths) - args.held_maths} + {args.held_maths} held out; code {len(code)} + {len(held)} held out")


def encode_docs(tok, path, eos):
    """All documents of one file as one uint16 stream, each followed by eos, and the start offset of each."""
    with open(path, encoding="utf-8") as f:
        texts = [json.loads(line)["text"] for line in f]
    parts, starts, n = [], [], 0
    for i in range(0, len(texts), 256):
        for enc in tok.encode_batch(texts[i:i + 256], add_special_tokens=False):
            ids = np.array(enc.ids + [eos], dtype=np.uint16)
            parts.append(ids)
            starts.append(n)
            n += len(ids)
    print(f"{os.path.basename(path)}: {len(texts)} documents, {n / 1e6:.2f} M tokens, "
          f"{sum(map(len, texts)) / n:.2f} characters per token")
    return np.concatenate(parts), np.array(starts, dtype=np.int64)


def cmd_tokens(args):
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(f"{args.tokenizer}/tokenizer.json")
    eos = tok.token_to_id("<|endoftext|>")
    arrays = {}
    for name in ("maths", "maths_held", "code", "code_held"):
        ids, starts = encode_docs(tok, f"{args.work}/{name}.jsonl", eos)
        arrays[name] = ids
        arrays[name + "_starts"] = starts
    buf = io.BytesIO()
    np.savez(buf, **arrays)
    os.makedirs(args.out, exist_ok=True)
    with lzma.open(f"{args.out}/tokens.npz.xz", "wb", preset=4) as f:
        f.write(buf.getvalue())
    print(f"{args.out}/tokens.npz.xz: {os.path.getsize(args.out + '/tokens.npz.xz') / 2**20:.1f} MiB")


def code_prompt(text, rng, lines_wanted):
    """The beginning of a file, or of a top-level definition in it: some whole lines, at most 600 characters."""
    lines = text.split("\n")
    tops = [i for i, x in enumerate(lines) if re.match(r"(def |class |async |static |function |export |[a-z_]+ [a-z_* ]+\()", x)]
    first = 0 if not tops or rng.random() < 0.4 else rng.choice(tops)
    out = ""
    for x in lines[first:first + lines_wanted]:
        if len(out) + len(x) > 600:
            break
        out += x + "\n"
    return out


def cmd_prompts(args):
    """Held-out prompts: maths questions, beginnings of held-out source files, HumanEval functions."""
    rng = random.Random(args.seed)
    read = lambda path: [json.loads(x) for x in open(path, encoding="utf-8")]
    rows = []
    for i, m in enumerate(read(f"{args.work}/maths_held.jsonl")[:args.maths]):
        rows.append({"id": f"maths-{i}", "kind": "maths", "prompt": chat(m["question"], "").rsplit("<|im_end|>", 1)[0]})
    held = [(i, r) for i, r in enumerate(read(f"{args.work}/code_held.jsonl"))]
    rng.shuffle(held)
    for i, r in held[:args.code]:
        text = code_prompt(r["text"], rng, rng.randint(3, 12))
        if len(text) >= 40:
            rows.append({"id": f"{r['lang']}-{i}", "kind": "code", "prompt": text})
    tasks = read(args.humaneval)
    rng.shuffle(tasks)
    for t in tasks[:args.functions]:
        rows.append({"id": t["task_id"], "kind": "code", "prompt": t["prompt"].strip("\n") + "\n"})
    write_jsonl(args.out, rows)
    print(f"{args.out}: {len(rows)} prompts")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    sub = p.add_subparsers(required=True)
    a = sub.add_parser("docs")
    a.add_argument("--tree", required=True)
    a.add_argument("--tools", required=True, help="folder where npm installed esbuild and @wasm-fmt/ruff_fmt")
    a.add_argument("--gsm8k", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--held-maths", type=int, default=300)
    a.add_argument("--held-code", type=int, default=200)
    a.add_argument("--seed", type=int, default=1)
    a.set_defaults(func=cmd_docs)
    a = sub.add_parser("tokens")
    a.add_argument("--work", required=True)
    a.add_argument("--tokenizer", required=True)
    a.add_argument("--out", required=True)
    a.set_defaults(func=cmd_tokens)
    a = sub.add_parser("prompts")
    a.add_argument("--work", required=True)
    a.add_argument("--humaneval", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--maths", type=int, default=120)
    a.add_argument("--code", type=int, default=100)
    a.add_argument("--functions", type=int, default=30)
    a.add_argument("--seed", type=int, default=2)
    a.set_defaults(func=cmd_prompts)
    args = p.parse_args()
    args.func(args)


if __name__ == "__main__":
    main()
