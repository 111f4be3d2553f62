"""Writes src/base/unicode_table.h: the class of every code point, as the reference tokenizer library sees it.

Run by hand where `tokenizers` and a Python with the same Unicode version are installed (docs/oracles.md):
    make_unicode.py > src/base/unicode_table.h
General categories are checked against the library's regular expressions and the word property against its single_word
rule, so that the table is what the reference does and not what one Unicode version says. Nothing here runs in `make test`.
"""
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers

BLOCK = 128
LIMIT = 0x33480  # everything above is unassigned, private or listed by hand in unicode.c
CATS = ["OTHER", "LU", "LL", "LT", "LM", "LO", "M", "N", "SPACE", "P", "S"]
COLS = 88
points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def regex_set(pattern):
    text = "".join(map(chr, points))
    kept = set(map(ord, normalizers.Replace(Regex(pattern), "").normalize_str(text)))
    return set(c for c in points if c not in kept)


def category(c):
    g = unicodedata.category(chr(c))
    if c in SPACE:
        return "SPACE"
    if g in ("Lu", "Ll", "Lt", "Lm", "Lo"):
        return g.upper()
    return {"M": "M", "N": "N", "P": "P", "S": "S"}.get(g[0], "OTHER")


def words():
    """Code points that keep a single_word token from matching (Rust's \\w)."""
    tok = Tokenizer(models.BPE(vocab={"\x00": 0}, merges=[]))
    tok.add_tokens([AddedToken("XYZ", single_word=True, normalized=False)])
    out = set()
    for i in range(0, len(points), 50000):
        part = points[i:i + 50000]
        for c, e in zip(part, tok.encode_batch([chr(c) + "XYZ" for c in part])):
            if not e.ids:
                out.add(c)
    return out


REF_NFC = normalizers.NFC().normalize_str  # its tables are older than its regular expressions


def may_compose_back():
    """Code points that can combine with something before them (NFC_QC = Maybe)."""
    out = set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    for c in points:
        d = unicodedata.decomposition(chr(c))
        if d and not d.startswith("<"):
            parts = [int(x, 16) for x in d.split()]
            if len(parts) == 2 and REF_NFC(chr(parts[0]) + chr(parts[1])) == chr(c):
                out.add(parts[1])
    return out


def has_class(c):
    """Whether the reference reorders this code point among combining marks."""
    cc = unicodedata.combining(chr(c))
    pair = "\u0327" + chr(c) if cc == 1 else chr(c) + "\u0334"
    return cc != 0 and REF_NFC("x" + pair) != "x" + pair


SPACE = regex_set(r"\s")
for name in ("Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S"):
    want = set(c for c in points if unicodedata.category(chr(c)).startswith(name))
    assert regex_set(r"\p{%s}" % name) == want, name
WORD, MAYBE = words(), may_compose_back()
sys.stderr.write("word: %d only in \\w of Onig, %d only here\n" % (len(regex_set(r"\w") - WORD), len(WORD - regex_set(r"\w"))))
NOT_NFC = set(c for c in points if REF_NFC(chr(c)) != chr(c))

combos, code_of = [], {}


def combo(c):
    key = (category(c) if c not in range(0xD800, 0xE000) else "OTHER", c in WORD, c in MAYBE or c in NOT_NFC,
           has_class(c))
    if key not in code_of:
        code_of[key] = len(combos)
        combos.append(key)
    return code_of[key]


codes = [combo(c) for c in range(0x110000)]
default = codes[0x10FFFF]
for c in range(LIMIT, 0x110000):
    vs = 0xE0100 <= c <= 0xE01EF
    assert combos[codes[c]] == (("M", True, False, False) if vs else combos[default]), hex(c)
assert len(combos) <= 58
ALPHABET = [chr(x) for x in range(35, 127) if chr(x) not in "\\?\""]
blocks, index, stage = [], {}, []
for b in range(0, LIMIT, BLOCK):
    s = "".join(ALPHABET[x] for x in codes[b:b + BLOCK])
    if s not in index:
        index[s] = len(blocks)
        blocks.append(s)
    stage.append(index[s])
assert len(blocks) <= 256

w = sys.stdout.write
w("/*\n * unicode_table.h - the class of every code point. Written by tools/token/make_unicode.py from Unicode "
  + unicodedata.unidata_version + ";\n * do not edit. Included by unicode.c only.\n */\n#ifndef SV_BASE_UNICODE_TABLE_H\n"
  "#define SV_BASE_UNICODE_TABLE_H\n\n#include \"base/base.h\"\n\n/* clang-format off */\n")
w("#define SV_UNI_LIMIT 0x%X\n#define SV_UNI_BLOCKS %d\n#define SV_UNI_VERSION \"%s\"\n\n" % (LIMIT, len(blocks), unicodedata.unidata_version))
w("/* what each letter of the blocks below stands for */\nstatic const uint8_t uni_combo[128] = {\n")
for (cat, word, nfc, ccc), letter in zip(combos, ALPHABET):
    flags = ["SV_UC_" + cat] + (["SV_UF_WORD"] if word else []) + (["SV_UF_NFC"] if nfc else []) + (["SV_UF_CCC"] if ccc else [])
    w("    ['%s'] = %s,\n" % (letter.replace("'", "\\'"), " | ".join(flags)))
w("};\n\nstatic const uint8_t uni_stage[SV_UNI_LIMIT / %d] = {\n" % BLOCK)
line = "   "
for x in stage:
    item = " %d," % x
    if len(line) + len(item) > COLS:
        w(line + "\n")
        line = "   "
    line += item
w(line + "\n};\n\nstatic const char uni_block[SV_UNI_BLOCKS][%d + 1] = {\n" % BLOCK)
for s in blocks:
    w('    "%s"\n    "%s",\n' % (s[:64], s[64:]))
w("};\n/* clang-format on */\n\n#endif\n")
sys.stderr.write("%d blocks, %d combinations\n" % (len(blocks), len(combos)))
