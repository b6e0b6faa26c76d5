#!/usr/bin/env python3
"""Finds comments of C and Python files that break the language rules of this project.

Usage: tests/unit/language.py [FILE or FOLDER ...]     (default: the whole tree)

Lists every place that breaks a rule. Rules: a comment begins with a noun or an imperative
verb, stands alone, and uses none of the private words. It has at most four lines, except at
the head of a file and in a header. No line is longer than 90 columns.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parent.parent.parent
ROOMS = ["codec", "common", "storaged", "storcli", "exportd", "rozomount", "deploy", "tests"]
COLUMNS_MAX = 90
LINES_MAX = 4

OPENERS = re.compile(
    r"(what|who|whom|whose|of|the same|it|its|they|them|their|that|those|these|this one|somebody|nobody|"
    r"and|or|but|else|so|also|both|as (above|before|there)|neither|such|there, too|another|where not|"
    r"no matter|see above)\b(?!-)", re.I)
WORDS = re.compile(
    r"\b(told|silent|anew|made again|given up|gave up|in doubt|in vain|makes no sense|of before|is to be|are to be|"
    r"put aside|good-bye|ruins?|ruined|thinks? nothing of|unheard|unmet|ourself)\b", re.I)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')


def comments(text):
    """Yields (line, words, number of lines) for each comment."""
    blank = STRING.sub(lambda m: '"' + "_" * (len(m.group()) - 2) + '"', text)
    for m in COMMENT.finditer(blank):
        words = re.sub(r"\n\s*\*+", "\n", m.group().strip("/*"))
        yield text.count("\n", 0, m.start()) + 1, " ".join(words.split()).strip("*< "), m.group().count("\n") + 1


def faults(path):
    """Yields (line, rule, words) for each place of a file that breaks a rule."""
    text = path.read_text()
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > COLUMNS_MAX:
            yield number, "columns", line.strip()[:60]
    for number, words, n_lines in comments(text):
        head = number <= 2
        if OPENERS.match(words):
            yield number, "opener", words[:60]
        for m in WORDS.finditer(words):
            yield number, "word", m.group()
        if n_lines > LINES_MAX and not head and path.suffix == ".c":
            yield number, "lines", f"{n_lines} lines: {words[:60]}"


def files(places):
    for place in places:
        place = pathlib.Path(place)
        found = [place] if place.is_file() else sorted(place.rglob("*.[ch]"))
        yield from (f for f in found if "build" not in f.relative_to(ROOT).parts)


def main():
    n = {}
    for path in files([pathlib.Path(a).resolve() for a in sys.argv[1:]] or [ROOT / r for r in ROOMS]):
        for line, rule, words in faults(path):
            print(f"{path.relative_to(ROOT)}:{line}: {rule}: {words}")
            n[rule] = n.get(rule, 0) + 1
    print(", ".join(f"{rule} {count}" for rule, count in sorted(n.items())) or "no fault")


if __name__ == "__main__":
    main()
