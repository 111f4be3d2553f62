"""Writes src/token/unicode_new.h: code points assigned after Unicode 14, by general category, as PCRE2 ranges.

PCRE2 10.42 of Debian 12 knows Unicode 14; the reference library is newer. Run by hand, twice:
    python3 make_unicode_new.py unassigned > FILE          with a Python of Unicode 14 (Debian 12's 3.11)
    python3 make_unicode_new.py FILE > unicode_new.h       with a Python as new as the reference (docs/oracles.md)
Nothing here runs in `make test`.
"""
import sys
import unicodedata


def ranges(points):
    out = []
    for c in points:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


if sys.argv[1] == "unassigned":
    assert unicodedata.unidata_version == "14.0.0"
    for a, b in ranges(c for c in range(0x110000) if unicodedata.category(chr(c)) == "Cn"):
        print("%x %x" % (a, b))
    sys.exit()
groups = {k: [] for k in ("Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "N", "M", "P", "S")}
for line in open(sys.argv[1]):
    a, b = (int(x, 16) for x in line.split())
    for c in range(a, b + 1):
        g = unicodedata.category(chr(c))
        if g in groups or g[0] in groups:
            groups[g if g in groups else g[0]].append(c)
print("""/*
 * unicode_new.h - code points assigned after Unicode 14 and up to %s, by general category, as class members of
 * PCRE2. Written by tools/token/make_unicode_new.py; do not edit. Included by translate.c only.
 */
#ifndef SV_TEXT_UNICODE_NEW_H
#define SV_TEXT_UNICODE_NEW_H

/* clang-format off */""" % unicodedata.unidata_version)
for name, points in groups.items():
    line = "#define SV_NEW_%s \"" % name.upper()
    for a, b in ranges(points):
        item = "\\\\x{%x}" % a + ("-\\\\x{%x}" % b if b > a else "")
        if len(line) + len(item) > 94:
            print(line + '" \\')
            line = '    "'
        line += item
    print(line + '"')
print("/* N above is what is not Nd */")
print("/* clang-format on */\n\n#endif")
