"""Rules on names, sizes and language. Numbers here may only get smaller."""

import collections
import pathlib
import re

import language

ROOT = language.ROOT
PRODUCT = [r for r in language.ROOMS if r != "tests"]
FILES_MAX = 25  # .c and .h files of a folder
FOLDERS_MAX = {"tests/unit/exportd": 26}
BOOLS_MAX = 6  # fields of a struct
STRUCTS_MAX = {"file": 20, "fuse_op": 19, "repair": 12, "repair_piece": 11,
               "inl": 10, "blk_sync_op": 10, "mount": 10, "trunc": 9, "node": 8, "token": 7, "read_ask": 8, "frun": 8,
               "redist_file": 10, "options": 10, "file_attr": 8, "rebuild": 7, "proj": 7,
               "bench_code_ops": 7}
ASSERTS_MIN = 0.1  # for each function of the product


def sources(rooms):
    return [f for r in rooms for f in language.files([ROOT / r])]


def code(path):
    return language.STRING.sub('""', language.COMMENT.sub("", path.read_text()))


def test_comments_are_in_plain_language():
    n = collections.Counter(f.relative_to(ROOT).parts[0] for f in sources(language.ROOMS) for _ in language.faults(f))
    assert n == {}


def test_each_file_name_and_global_symbol_is_there_once():
    files, symbols = collections.defaultdict(list), collections.defaultdict(set)
    for path in sources(PRODUCT):
        files[path.name].append(str(path.relative_to(ROOT)))
        if path.suffix == ".c":
            for name in re.findall(r"^(?!static\b)[a-z][\w \t*]*?\b(\w+)\([^;{}]*\)\n\{", code(path), re.M):
                symbols[name].add(str(path.relative_to(ROOT)))
    assert len(symbols) > 1500
    assert {n: p for n, p in files.items() if len(p) > 1 and n != "main.c"} == {}
    assert {n: p for n, p in symbols.items() if len(p) > 1 and n != "main"} == {}


def test_each_struct_tag_is_there_once():
    tags = collections.defaultdict(set)
    for path in sources(PRODUCT):
        for name in re.findall(r"^struct (\w+)\s*\n?\{", code(path), re.M):
            tags[name].add(str(path.relative_to(ROOT)))
    assert {n: p for n, p in tags.items() if len(p) > 1} == {}


def test_folders_are_small():
    n = collections.Counter(str(f.parent.relative_to(ROOT)) for f in sources(language.ROOMS))
    assert {d: k for d, k in n.items() if k > FOLDERS_MAX.get(d, FILES_MAX)} == {}


def test_structs_have_few_flags():
    wrong = {}
    for path in sources(PRODUCT):
        for name, body in re.findall(r"^struct (\w+)\s*\n?\{\n(.*?)^\}", code(path), re.M | re.S):
            n = sum(line.count(",") + 1 for line in re.findall(r"\bbool\b([^;(]*);", body))
            if n > STRUCTS_MAX.get(name, BOOLS_MAX):
                wrong["%s in %s" % (name, path.relative_to(ROOT))] = n
    assert wrong == {}


def test_asserts_do_not_get_fewer():
    text = "".join(code(f) for f in sources(PRODUCT) if f.suffix == ".c")
    assert len(re.findall(r"\bassert\(", text)) / len(re.findall(r"^\}$", text, re.M)) > ASSERTS_MIN
