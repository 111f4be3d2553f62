"""Trains four small byte-level BPE tokenizers in the styles of published ones and records what the `tokenizers` library
does with a mixed corpus.

Owns tests/golden/tok/ (formats: tests/golden/README.md). Run by hand in an environment with `tokenizers` (docs/oracles.md):
    make_tokenizers.py                         everything
    make_tokenizers.py --golden FILE NAME      only the ids of an existing tokenizer.json, over the stored corpus
                                               (models/demo/target/tokenizer.json demo)
Nothing here runs in `make test`.
"""
import json
import os
import random
import struct
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import textgen

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "golden", "tok")
VOCAB = 4000
CORPUS_BYTES = 1_100_000

HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
SPLITS = {
    "qwen": HEAD + r"\p{N}" + TAIL,
    "llama3": HEAD + r"\p{N}{1,3}" + TAIL,
    "o200k": r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + SUFFIX + r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" + SUFFIX
             + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
FULL_SHARE = {"qwen": 1, "demo": 50}  # ids are stored for the first n/share documents; the others: the first tenth


def added(content, **kw):
    return AddedToken(content, special=kw.pop("special", False), normalized=kw.pop("normalized", False), **kw)


ADDED = {
    "qwen": [added(t, special=True) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
            + [added(t) for t in ("<tool_call>", "<think>", "</think>")]
            + [added("<việt>", normalized=True), added("<raw-ệ>")],
    "llama3": [added(t, special=True) for t in ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                                                "<|eot_id|>", "<|reserved_0|>", "<|im_end|>")],
    "o200k": [added(t, special=True) for t in ("<|endoftext|>", "<|im|>", "<|im_end|>")]
             + [added("<lstrip>", lstrip=True), added("<rstrip>", rstrip=True), added("<both>", lstrip=True, rstrip=True),
                added("word", single_word=True), added("solo", single_word=True, lstrip=True, special=True),
                added("<norm>", normalized=True), added("｜DSML｜", rstrip=True, special=True), added("<mid dle>")],
    "gpt2": [added("<norm>", normalized=True), added("<lstrip>", lstrip=True, normalized=True), added("word", single_word=True),
             added("<mid dle>", normalized=True), added("<think>", special=True, rstrip=True)],
    "qwen35": [added(t, special=True) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")] + [added("<think>"), added("</think>")],
}


def build(name):
    tok = Tokenizer(models.BPE(ignore_merges=(name == "llama3")))
    if name in ("qwen", "qwen35"):
        tok.normalizer = normalizers.NFC()
    if name == "gpt2":
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tok.post_processor = processors.ByteLevel(trim_offsets=False)
    else:
        tok.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(SPLITS[name]), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        tok.post_processor = processors.ByteLevel(trim_offsets=False)
    tok.decoder = decoders.ByteLevel()
    return tok


def train(name, texts):
    """-> dict of tokenizer.json"""
    tok = build(name)
    # gpt2 keeps its special token inside the vocabulary at id 0, as some published files do
    special = ["<|endoftext|>"] if name == "gpt2" else []
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, show_progress=False, special_tokens=special, min_frequency=2,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(texts, trainer)
    # one by one: ids are then in list order whatever the flags
    for t in ADDED[name]:
        tok.add_special_tokens([t]) if t.special else tok.add_tokens([t])
    if name == "llama3":
        bos = "<|begin_of_text|>"
        tok.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=bos + " $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, tok.token_to_id(bos))])])
    d = json.loads(tok.to_str())
    merges = d["model"]["merges"]
    if name == "llama3":
        # words in the vocabulary that merges cannot reach: ignore_merges must find them whole
        drop = set(range(200, len(merges), 53))
        d["model"]["merges"] = [m for i, m in enumerate(merges) if i not in drop]
    if name in ("gpt2", "o200k"):
        d["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in merges]  # layout of older files
    return d


def fnv(data):
    h = 0xcbf29ce484222325
    for b in data:
        h = ((h ^ b) * 0x100000001b3) & 0xffffffffffffffff
    return h


def write_corpus(docs):
    offsets = [0]
    for d in docs:
        offsets.append(offsets[-1] + len(d))
    with open(os.path.join(OUT, "corpus.bin"), "wb") as f:
        f.write(b"SVTC" + struct.pack("<II", 1, len(docs)) + struct.pack("<%dI" % len(offsets), *offsets) + b"".join(docs))


def read_corpus():
    data = open(os.path.join(OUT, "corpus.bin"), "rb").read()
    n = struct.unpack_from("<I", data, 8)[0]
    off = struct.unpack_from("<%dI" % (n + 1), data, 12)
    base = 12 + 4 * (n + 1)
    return [data[base + a:base + b] for a, b in zip(off, off[1:])]


def write_golden(tok, name, docs):
    rows, full, total = [], [], 0
    n_full = len(docs) // FULL_SHARE.get(name, 10)
    for i, doc in enumerate(docs):
        ids = tok.encode(doc.decode("utf-8", "replace"), add_special_tokens=False).ids
        text = tok.decode(ids, skip_special_tokens=False).encode("utf-8")
        packed = struct.pack("<%dH" % len(ids), *ids)
        rows.append(struct.pack("<IIQQ", len(ids), len(text), fnv(packed), fnv(text)))
        total += len(ids)
        if i < n_full:
            full.append(packed)
    with open(os.path.join(OUT, name + ".ids.bin"), "wb") as f:
        f.write(b"SVTG" + struct.pack("<III", 1, len(docs), n_full) + b"".join(rows) + b"".join(full))
    return total


CASES = ["", " ", "  ", "\n", "\r\n", " \n", "\n ", "a", " a", "a ", "  a  b  ", "\ta", "Hello, world!", "don't DON'T won'T 'sup 's", "12345678901",
         "1 22 333 4444", "3.14e-10", "é", "e\u0301", "\u1100\u1161\u11a8", "a\u0323\u0302", "\u212b", "<|im_start|>user\nHi<|im_end|>\n",
         "<|im_start|><|im_start|>", "<|im_start", "x<|endoftext|>y", " <|endoftext|> ", "a <lstrip> b", "a  <rstrip>  b", "a\n<both>\n b",
         "word words sword word. _word word1 Word", "solo  solo,solosolo", " ｜DSML｜  x", "<norm><norm>", "<mid dle>", "<vi\u1ec7t>",
         "<vie\u0323\u0302t>", "<raw-\u1ec7>", "<raw-e\u0323\u0302>", "<think>\n\n</think>\n\n", "{\n    \"a\": [1, 2]\n}\n", "if (x)\r\n\treturn;\r\n",
         "\u4f60\u597d\uff0c\u4e16\u754c", "\u3053\u3093\u306b\u3061\u306f", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea",
         "\u00a0x\u3000y", "a\u200bb", "a\u180eb", "a\u2028b", "a\x85b", "\x1c\x1d\x1e\x1f", "\x00\x01", "\ufffd", "\uffff\U0010ffff", "\ufeffBOM",
         "'\u017f 'S", "iPhone's HTTPServer", "\u01c5ungla", "path/to/file.c//\r\n", "a/\n/b", "!!!\n\n\n", "...   \n   x", " " * 50 + "x", "a" * 200,
         "the" * 60, "\u0661\u0662\u0663\u0664", "\u00bd\u00b2\u2167", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u05e9\u05b8\u05dc\u05d5\u05b9\u05dd"]


def write_cases(tok, name):
    rng = random.Random(name)
    enc = []
    for text in CASES + [textgen.specials(rng) for _ in range(25)] + [textgen.mixed(rng)[:80] for _ in range(20)]:
        plain = tok.encode(text, add_special_tokens=False)
        enc.append({"text": text, "ids": plain.ids, "ids_special": tok.encode(text, add_special_tokens=True).ids})
    dec = []
    for _ in range(60):
        ids = [rng.randrange(tok.get_vocab_size(with_added_tokens=True)) if rng.random() < 0.7 else rng.randrange(256)
               for _ in range(rng.randint(1, 24))]
        dec.append({"ids": ids, "text": tok.decode(ids, skip_special_tokens=False), "text_skip_special": tok.decode(ids, skip_special_tokens=True)})
    with open(os.path.join(OUT, name + ".cases.json"), "w") as f:
        rows = ['  "tokenizers": "%s"' % tokenizers.__version__]
        for key, items in (("encode", enc), ("decode", dec)):
            rows.append('  "%s": [\n    %s\n  ]' % (key, ",\n    ".join(json.dumps(x, ensure_ascii=True, separators=(",", ":")) for x in items)))
        f.write("{\n" + ",\n".join(rows) + "\n}\n")


def golden(path, name, docs):
    tok = Tokenizer.from_file(path)
    n = write_golden(tok, name, docs)
    if name in SPLITS or name == "gpt2":
        write_cases(tok, name)
    print(name, "vocabulary", tok.get_vocab_size(with_added_tokens=True), "ids", n, "of", len(docs), "documents")


def main():
    os.makedirs(OUT, exist_ok=True)
    if len(sys.argv) == 4 and sys.argv[1] == "--golden":
        golden(sys.argv[2], sys.argv[3], read_corpus())
        return
    texts = [d.decode("utf-8") for d in textgen.documents(1, 1_500_000, with_broken=False)]
    docs = textgen.documents(2, CORPUS_BYTES)
    write_corpus(docs)
    for name in ("qwen", "llama3", "o200k", "gpt2", "qwen35"):
        path = os.path.join(OUT, name + ".json")
        with open(path, "w") as f:
            json.dump(train(name, texts), f, ensure_ascii=False, separators=(",", ":"))
        golden(path, name, docs)


if __name__ == "__main__":
    main()
