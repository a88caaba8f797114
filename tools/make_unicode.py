#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_table.c: general categories, the script Han, and what NFC needs.

    python3 -m venv v && v/bin/pip install unicodedata2==16.0.0 fonttools==4.60.1 tokenizers==0.23.3
    v/bin/python tools/make_unicode.py >src/tokenizer/unicode_table.c

16.0 is what the regular expressions of tiktoken 0.14 and tokenizers 0.23 know: for every code point the classes L, Lu, Ll, Lt, Lm, Lo, M, N, Nd, P, S, Z,
Han and white space were asked from both packages, and agree with these tables (tools/peers/tokenizers.py repeats it).
The NFC of tokenizers stands on an older version (a crate of 2018): characters that it takes for unassigned have no combining class and compose to nothing. Which
these are is asked from the package, one by one, so that ids agree for them too.
"""
import unicodedata2 as ud
from tokenizers import normalizers
from fontTools import unicodedata as scripts
import fontTools.unicodedata.Scripts as data

VERSION = "16.0.0"
GC = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
assert ud.unidata_version == VERSION and f"Scripts-{VERSION}" in open(data.__file__).read(4000)


def runs(of):
    out, last = [], None
    for c in range(0x110000):
        x = of(c)
        if x != last:
            out.append((c, x))
            last = x
    return out


def table(kind, name, rows):
    print(f"const {kind} {name}[] = {{")
    line = "   "
    for r in rows:
        if len(line) + len(r) + 2 > 160:
            print(line)
            line = "   "
        line += " " + r + ","
    print(line + "\n};\n")


def old_combining(nfc, c):
    if not ud.combining(chr(c)):
        return 0
    text = "a" + chr(c) + "\u0323\u0301\u0345"
    return ud.combining(chr(c)) if nfc.normalize_str(text) == ud.normalize("NFC", text) else 0


def main():
    nfc = normalizers.NFC()
    gc = runs(lambda c: GC.index(ud.category(chr(c))) | (32 if scripts.script(chr(c)) == "Hani" else 0))
    ccc = runs(lambda c: old_combining(nfc, c))
    pairs, exclude = [], 0
    for c in range(0x110000):
        d = ud.decomposition(chr(c))
        if not d or d.startswith("<") or 0xAC00 <= c < 0xD7A4:
            continue
        if nfc.normalize_str(ud.normalize("NFD", chr(c))) != ud.normalize("NFC", chr(c)):
            continue
        parts = [int(x, 16) for x in d.split()]
        composes = len(parts) == 2 and ud.normalize("NFC", "".join(map(chr, parts))) == chr(c)
        pairs.append((c, parts[0], parts[1] if len(parts) == 2 else 0, composes))
        exclude += not composes
    print(f"""/* unicode_table.c: made by tools/make_unicode.py from the Unicode Character Database {VERSION}; not to be edited.
 * Source: Unicode, Inc., UnicodeData.txt, Scripts.txt and CompositionExclusions.txt, through the Python packages unicodedata2 and fontTools.
 * {len(gc)} runs of category and script, {len(ccc)} runs of combining class, {len(pairs)} canonical decompositions ({exclude} never composed again).
 * Combining classes and decompositions are those that the NFC of tokenizers 0.23 knows (an older version of Unicode).
 */
#include "tokenizer/unicode.h"
""")
    table("uint32_t", "cdr__unicode_gc", [f"0x{c << 8 | x:x}" for c, x in gc])
    print(f"const int cdr__unicode_n_gc = {len(gc)};\n")
    table("uint32_t", "cdr__unicode_ccc", [f"0x{c << 8 | x:x}" for c, x in ccc])
    print(f"const int cdr__unicode_n_ccc = {len(ccc)};\n")
    table("cdr__unicode_pair", "cdr__unicode_pairs", [f"{{0x{c:x},0x{a:x},0x{b:x},{int(k)}}}" for c, a, b, k in pairs])
    print(f"const int cdr__unicode_n_pairs = {len(pairs)};\n")
    joins = sorted((b, a, c) for c, a, b, k in pairs if k)
    table("cdr__unicode_join", "cdr__unicode_joins", [f"{{0x{b:x},0x{a:x},0x{c:x}}}" for b, a, c in joins])
    print(f"const int cdr__unicode_n_joins = {len(joins)};")


main()
