"""Writes tests/fuzz/corpus/tokenizer/: small tokenizer.json files that reach every part of the parser. Run by hand; no arguments."""
import json
import os

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "fuzz", "corpus", "tokenizer")
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def alphabet():
    own = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or 0xAE <= b]
    rest = [b for b in range(256) if b not in own]
    return [chr(b) if b in own else chr(256 + rest.index(b)) for b in range(256)]


def model(small=False, pairs=True, **kw):
    words = ["a", "b", "x", "Ġ"] if small else alphabet()
    merges = [("a", "a"), ("aa", "aa"), ("a", "b"), ("Ġ", "a")]
    if not small:
        merges += [("l", "l"), ("ll", "o"), ("1", "2"), ("ä", "½"), ("ä½", "ł")]
    vocab = {w: i for i, w in enumerate(words)}
    for a, b in merges:
        vocab.setdefault(a + b, len(vocab))
    return dict({"type": "BPE", "dropout": None, "ignore_merges": False, "vocab": vocab,
                 "merges": [list(m) if pairs else " ".join(m) for m in merges]}, **kw)


def split(p, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: p}, "behavior": behavior, "invert": invert}


BYTE = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
DEC = {"decoder": {"type": "ByteLevel"}}


def seq(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def token(i, content, **kw):
    return dict({"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}, **kw)


SEEDS = {
    "qwen": dict(DEC, normalizer={"type": "NFC"}, pre_tokenizer=seq(split(QWEN), BYTE), model=model(), post_processor=BYTE,
                 added_tokens=[token(300, "<|x|>", special=True), token(301, "<b>", lstrip=True, rstrip=True), token(302, "<é>", normalized=True)]),
    "gpt2": dict(DEC, pre_tokenizer=dict(BYTE, use_regex=True), model=model(pairs=False)),
    "plain": dict(DEC, pre_tokenizer=BYTE, model=model(ignore_merges=True)),
    "prefix": dict(DEC, pre_tokenizer=seq({"type": "Digits", "individual_digits": True}, dict(BYTE, add_prefix_space=True, use_regex=True)),
                   model=model(small=True), added_tokens=[token(3, "Ġ", single_word=True), token(6, "ab", single_word=True)]),
    "general": dict(DEC, pre_tokenizer=seq(split(r"(?<=a)[^\s\w]{1,3}?|\u0061\p{Han}+(?!b)", "MergedWithPrevious"),
                                           split("a.", "MergedWithNext", True, "String"), split(r"\s+", "Contiguous"), BYTE), model=model()),
    "template": dict(DEC, pre_tokenizer=seq(split(r"\d|x*", "Removed"), BYTE), model=model(small=True, pairs=False),
                     added_tokens=[token(9, "<s>", special=True, normalized=True)],
                     post_processor={"type": "Sequence", "processors": [BYTE, {
                         "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                         "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [9], "tokens": ["<s>"]}}}]}),
}
os.makedirs(OUT, exist_ok=True)
for name, d in SEEDS.items():
    with open(os.path.join(OUT, name + ".json"), "w") as f:
        json.dump(d, f, ensure_ascii=(name == "plain"), separators=(",", ":"))
