#!/usr/bin/env python3
"""Writes fold_table.c, the tables of fold.c, from the files of Debian's package unicode-data.

In:     a folder with UnicodeData.txt and CaseFolding.txt, by default /usr/share/unicode.
Out:    fold_table.c, on standard output.
Keeps:  the output is part of a format on users' disks (FOLD_RULES): the file in the tree is never
        written again from another version of Unicode.
"""

import pathlib
import sys

HANGUL = range(0xAC00, 0xAC00 + 11172)  # decomposed by arithmetic
HEAD = """/*
 * fold_table.c - the data of fold.c: Unicode {version}.
 *
 * Written by fold_table.py; not to be edited. From UnicodeData.txt and CaseFolding.txt,
 * Copyright (C) 1991-2022 Unicode, Inc., in another form. Their terms:
 * www.unicode.org/copyright.html
 */
#include "exportd/namespace/fold.h"
"""


def read(path):
    for line in path.read_text().splitlines():
        fields = [f.strip() for f in line.split("#")[0].split(";")]
        if len(fields) > 1:
            yield fields


def runs(pairs):
    """Joins (point, value) pairs to (first, last, step, value), ascending and apart from each other."""
    out = []
    for point, value in pairs:
        if out and out[-1][3] == value:
            first, last, step, _ = out[-1]
            gap = point - last
            if gap in (1, 2) and (first == last or gap == step):
                out[-1] = (first, point, gap, value)
                continue
        out.append((point, point, 1, value))
    return out


def table(declaration, rows):
    print(f"\n/* clang-format off */\n{declaration} = {{")
    line = "   "
    for row in rows:
        text = " { " + ", ".join(row) + " },"
        if len(line + text) > 88:
            print(line)
            line = "   "
        line += text
    print(f"{line}\n}};\n/* clang-format on */")


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "/usr/share/unicode")
    version = (folder / "CaseFolding.txt").read_text().split(".txt", 1)[0].rsplit("-", 1)[1]
    parts, classes = {}, {}
    for fields in read(folder / "UnicodeData.txt"):
        point = int(fields[0], 16)
        if fields[5] and not fields[5].startswith("<"):
            parts[point] = [int(p, 16) for p in fields[5].split()]
        if fields[3] != "0":
            classes[point] = int(fields[3])
    # Common and simple foldings, of points that are left when all is decomposed.
    cases = {
        int(f[0], 16): int(f[2], 16)
        for f in read(folder / "CaseFolding.txt")
        if f[1] in ("C", "S") and int(f[0], 16) not in parts
    }

    assert not any(p in HANGUL for p in parts)
    for point, folded in cases.items():
        # Folding changes neither the decomposition nor the order of marks, so it is done last.
        assert folded not in parts and folded not in cases
        assert classes.get(point, 0) == classes.get(folded, 0) or point == 0x345
    assert max(classes.values()) == classes[0x345]
    assert all(len(p) in (1, 2) for p in parts.values())

    print(HEAD.format(version=version), end="")
    table(
        "const struct fold_run fold_cases[]",
        [(f"{a:#x}", f"{b:#x}", f"{s}", f"{v}") for a, b, s, v in runs((p, q - p) for p, q in sorted(cases.items()))],
    )
    table(
        "const struct fold_run fold_classes[]",
        [(f"{a:#x}", f"{b:#x}", f"{s}", f"{v}") for a, b, s, v in runs(sorted(classes.items()))],
    )
    table(
        "const struct fold_parts fold_pairs[]",
        [(f"{p:#x}", *(f"{q:#x}" for q in (v + [0])[:2])) for p, v in sorted(parts.items())],
    )
    print(
        """
const size_t fold_n_cases = sizeof(fold_cases) / sizeof(fold_cases[0]);
const size_t fold_n_classes = sizeof(fold_classes) / sizeof(fold_classes[0]);
const size_t fold_n_pairs = sizeof(fold_pairs) / sizeof(fold_pairs[0]);"""
    )


if __name__ == "__main__":
    main()
