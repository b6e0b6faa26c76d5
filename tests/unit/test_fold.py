"""The tables of exportd/namespace/fold_table.c against Python's own data of Unicode."""

import re
import sys
import unicodedata

import language

TABLE = (language.ROOT / "exportd/namespace/fold_table.c").read_text()
VERSION = float(".".join(unicodedata.unidata_version.split(".")[:2]))


def rows(name):
    body = re.search(r"\b%s\[\] = \{(.*?)\n\};" % name, TABLE, re.S).group(1)
    return [[int(n, 0) for n in row.split(",")] for row in re.findall(r"\{ ([^{}]*) \}", body)]


def expand(runs):
    return {p: value for first, last, step, value in runs for p in range(first, last + 1, step)}


CASES = {p: p + more for p, more in expand(rows("fold_cases")).items()}
CLASSES = expand(rows("fold_classes"))
PARTS = {p: [a, b][: 1 + (b != 0)] for p, a, b in rows("fold_pairs")}


def known():
    """Yields the characters that Python knows, and the table at this version of Unicode."""
    for point in range(sys.maxunicode + 1):
        c = chr(point)
        if unicodedata.category(c) not in ("Cn", "Cs") and (VERSION <= 15.1 or point in CASES | CLASSES | PARTS):
            yield point, c


def decomposed(point):
    first, *second = PARTS.get(point, [point])
    return (decomposed(first) if first != point else [point]) + second


def test_tables_are_sorted_and_large_enough():
    for name in ("fold_cases", "fold_classes"):
        runs = rows(name)
        assert len(runs) > 100 and all(a[1] < b[0] for a, b in zip(runs, runs[1:])), name
        assert all((last - first) % step == 0 for first, last, step, _ in runs), name
    assert len(PARTS) == len(rows("fold_pairs")) > 2000 and list(PARTS) == sorted(PARTS)


def test_decompositions_and_classes_are_those_of_unicode():
    n = 0
    for point, c in known():
        n += 1
        assert CLASSES.get(point, 0) == unicodedata.combining(c), hex(point)
        if not 0xAC00 <= point < 0xAC00 + 11172:
            assert [chr(p) for p in decomposed(point)] == list(unicodedata.normalize("NFD", c)), hex(point)
    assert n > 100000 or VERSION > 15.1


def test_cases_are_the_simple_foldings_of_what_has_no_parts():
    n = 0
    for point, c in known():
        if point in PARTS:
            assert point not in CASES
            continue
        full = c.casefold()
        if len(full) == 1:
            # Cherokee is folded to the capital letters, as str.casefold() does.
            assert CASES.get(point, point) == ord(full), hex(point)
        elif point in CASES:  # sharp s: the simple folding is to the small letter
            assert chr(CASES[point]) == c.lower() and c.lower().casefold() == full, hex(point)
        n += point in CASES
    assert n > 1000
