"""Writes tests/token/variants.json: what the reference library does with unusual pipelines, on short random texts.

Run by hand where `tokenizers` is installed (docs/oracles.md): make_variants.py [SEED TEXTS_PER_VARIANT OUTPUT]. Each variant
is a patch of top-level fields over a tokenizer of tests/golden/tok. Nothing here runs in `make test`.
"""
import json
import os
import random
import sys

import tokenizers
from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
TOK = os.path.join(HERE, "..", "..", "tests", "golden", "tok")
OUT = os.path.join(HERE, "..", "..", "tests", "text", "variants.json")
BYTE = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
          r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|"
            r"\s+(?!\S)|\s+")


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def seq(*parts):
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(parts)}}


def token(i, content, **kw):
    d = {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    d.update(kw)
    return d


def variants():
    for b in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for inv in (False, True):
            yield "qwen", "%s %s" % (b, inv), seq(split(r"\s+|\p{N}", b, inv), BYTE)
            yield "qwen", "single %s %s" % (b, inv), seq(split(r"[,. ]", b, inv), BYTE)
    yield "qwen", "string", seq(split("a.", kind="String"), split(" ", "MergedWithNext", kind="String"), BYTE)
    yield "qwen", "digits", seq({"type": "Digits", "individual_digits": True}, dict(BYTE, use_regex=True))
    yield "qwen", "digit runs", seq({"type": "Digits", "individual_digits": False}, dict(BYTE, use_regex=True))
    yield "qwen", "prefix", {"pre_tokenizer": dict(BYTE, add_prefix_space=True, use_regex=True)}
    yield "qwen", "prefix, no regex", seq(split(QWEN), dict(BYTE, add_prefix_space=True))
    yield "qwen", "prefix after digits", seq(split(r"\p{N}{1,3}"), dict(BYTE, add_prefix_space=True, use_regex=True))
    yield "qwen", "no split", {"pre_tokenizer": BYTE}
    yield "qwen", "deepseek", seq(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK), BYTE)
    yield "qwen", "tekken", seq(split(TEKKEN), BYTE)
    for i, p in enumerate([r"x*", r"\b", r"^.", r".$", r"(?<=a)b", r"(?=[A-Z])", r"\w+|\s", r"\W+", r"[\w']+", r"\h+", r"\p{Han}+", r"[^\S\r\n]+",
                           r"a{,2}", r"(?i)straße|the", r"(?>a+)b", r"\p{^L}+", r"\P{L}", r"\d+|\D", r"a++|b*?", r"\u0061|\x62", r"[\h]+", r"(a|b)+c"]):
        yield "qwen", "pattern %d" % i, seq(split(p), BYTE)
    flags = [dict(lstrip=True), dict(rstrip=True), dict(single_word=True), dict(lstrip=True, rstrip=True, normalized=True),
             dict(normalized=True, single_word=True), dict(special=True, lstrip=True), dict(special=True, normalized=True, rstrip=True)]
    for i in range(8):
        rng = random.Random(i)
        words = ["<a>", "<a><b>", "ab", "b", " ", "  x", "é", "o\u0301", "Å", "1", "<", "\n\n", "日本", "aa", "aaa"]
        rng.shuffle(words)
        yield "qwen", "added %d" % i, {"added_tokens": [token(4000 + k, w, **rng.choice(flags)) for k, w in enumerate(words[:7])]}
    yield "llama3", "ignore merges, no pieces", {"pre_tokenizer": BYTE}


POOL = ([chr(c) for c in range(32, 127)] * 3
        + list("\t\n\r\x0b\x0c\x85\xa0\u1680\u2003\u2028\u3000\u200b\u180e\x1c\x00\ufeff") * 3
        + list("éèÅåßſµªºǅʰーあア漢字日本한국กำ์ا\u0301\u0323\u0308\u0344\u1100\u1161\u11a8\u0f71\u0f72\u0f80\u0958\u1e9b\u212b\u2126\ufb1d\u20d0\u200d")
        + list("①½²Ⅷ٣०𝟗᧚") + list("€+<=>¢§«»“”’—…‿⁀・") + list("😀👍🏽\U0001F1E9\U0001F1EA☕\ufe0f\u20e3")
        # newer than Unicode 14
        + list("\U0001e4d0\U0001e4ec\U00010d40\U00010d4a\U00011f02\U00011f04\U0001fa87\u1c89\ua7cb\U000105c0\U00016d40\U0001ccf5"))
BITS = ["'s", "'S", "'ſ", "'re", "'LL", "don't", "Straße", "THE", "the ", " the", "aab", "bbc", "abc", "  ", "   ", "\r\n", "\n\n", "<a>", "<a><b>",
        "ab", "aa", "日本", "e\u0301", "a\u0323\u0302", "123", "4567", "HTTPServer", "iPhone", "a.b", "a. ", "//", "/\n", "!!\n", "<|im_end|>", "<think>",
        "_", "camelCase", "x" * 30, " " * 9, "ﬁ", "İ", "ı", "K", "Å"]


def text(rng):
    out = []
    for _ in range(rng.choice([1, 2, 3, 5, 8, 13, 30])):
        r = rng.random()
        out.append(rng.choice(BITS) if r < 0.4 else rng.choice(POOL) if r < 0.97 else chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])))
    return "".join(out)


def main():
    seed, per = (int(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else (1, 14)
    path = sys.argv[3] if len(sys.argv) > 3 else OUT
    out = []
    todo = list(variants())
    if len(sys.argv) > 2:
        todo += [(n, n, {}) for n in ("qwen", "llama3", "o200k", "gpt2", "qwen35")] * 4
    for base, name, patch in todo:
        d = json.load(open(os.path.join(TOK, base + ".json")))
        d.update(patch)
        try:
            tok = Tokenizer.from_str(json.dumps(d))
        except Exception as e:
            print("refused by the library:", name, e)
            continue
        for t in patch.get("added_tokens", []):
            t["id"] = tok.token_to_id(t["content"])  # the file must agree with the vocabulary
        rng = random.Random("%s %d" % (name, seed))
        cases = []
        for _ in range(per):
            t = text(rng)
            tok.encode_special_tokens = False
            ids = tok.encode(t, add_special_tokens=False).ids
            tok.encode_special_tokens = True
            plain = tok.encode(t, add_special_tokens=False).ids
            case = {"text": t, "ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False)}
            if plain != ids:
                case["plain"] = plain  # special tokens read as text
            cases.append(case)
        out.append({"base": base, "name": name, "patch": patch, "cases": cases})
    with open(path, "w") as f:
        f.write('{"tokenizers":"%s","variants":[\n' % tokenizers.__version__)
        f.write(",\n".join(json.dumps(v, ensure_ascii=True, separators=(",", ":")) for v in out) + "\n]}\n")


if __name__ == "__main__":
    main()
