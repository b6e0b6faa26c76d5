"""Rules on names, sizes and language. Numbers here may only get smaller."""

import collections
import re

import language

ROOT = language.ROOT
PRODUCT = [r for r in language.ROOMS if r != "tests"]
FILES_MAX = 25  # .c and .h files of a folder
SCRIPT_COLUMNS_MAX = 120
BOOLS_MAX = 6  # fields of a struct
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
    assert {d: k for d, k in n.items() if k > FILES_MAX} == {}


def scripts():
    """Yields programs in Python and shell, also those whose names have no ending."""
    for folder in [".ci", *language.ROOMS]:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and (path.suffix in (".py", ".sh") or not path.suffix and path.read_bytes()[:2] == b"#!"):
                yield path


def test_lines_of_scripts_are_short():
    seen = {path: [n for n, line in enumerate(path.read_text().splitlines(), 1) if len(line) > SCRIPT_COLUMNS_MAX]
            for path in scripts()}
    assert len(seen) > 70
    assert {str(path.relative_to(ROOT)): lines for path, lines in seen.items() if lines} == {}


def test_system_tests_are_independent():
    """Their names are unique over all folders, as pytest and the names of results need; they import no other test."""
    tests = sorted((ROOT / "tests/system").rglob("test_*.py"))
    assert len(tests) > 30 and all(t.parent.parent.name == "system" for t in tests)
    assert [n for n, k in collections.Counter(t.name for t in tests).items() if k > 1] == []
    assert [t.name for t in tests if re.search(r"^ *(from|import) test_", t.read_text(), re.M)] == []


def test_structs_have_few_flags():
    wrong = {}
    for path in sources(PRODUCT):
        for name, body in re.findall(r"^struct (\w+)\s*\n?\{\n(.*?)^\}", code(path), re.M | re.S):
            n = sum(line.count(",") + 1 for line in re.findall(r"\bbool\b([^;()]*);", body))
            if n > BOOLS_MAX:
                wrong["%s in %s" % (name, path.relative_to(ROOT))] = n
    assert wrong == {}


def parts_written_by_others(room, text_of, header="file_int.h", whole="file"):
    """Yields (file, part): writes to a part of a struct outside the .c file whose header declares the part."""
    owner = {tag: h.stem for h in room.glob("*.h") for tag in re.findall(r"^struct (\w+) \{", h.read_text(), re.M)}
    body = re.search(r"^struct %s \{\n(.*?)^\};" % whole, (room / header).read_text(), re.M | re.S).group(1)
    for tag, part in re.findall(r"^ +struct (\w+) (\w+);", body, re.M):
        if tag not in owner:
            continue
        field = r"\bf->%s\.[\w.]+(\[\w+\])?" % part
        change = re.compile(field + r"\s*([-+|&^]?=(?!=)|\+\+|--)|(\+\+|--)[\w>-]*" + field +
                            r"|(?<!const )struct %s \*\w+ = &|list_(init|add\w*)\(&[\w>-]*" % tag + field)
        for path in room.glob("*.c"):
            if path.stem != owner[tag] and change.search(text_of(path)):
                yield path.name, part


def test_parts_of_a_file_are_written_by_their_owner():
    room = ROOT / "storcli/file"
    assert list(parts_written_by_others(room, code)) == []
    redist = ROOT / "exportd/redistribution"
    assert list(parts_written_by_others(redist, code, "redist_file.h", "redist_file")) == []
    bad = ("f->size.now = 1; op->f->queue.n_active++; list_add_tail(&f->writeback.want, n); "
           "struct file_inline *i = &f->inl;")
    assert {part for name, part in parts_written_by_others(room, lambda path: bad) if name == "file_seek.c"} == {
        "size", "queue", "writeback", "inl"}


def test_structs_are_found_by_container_of():
    """No cast of a member's address other than the one in common/base/list.h."""
    cast = re.compile(r"\(char \*\)[^;]*-\s*offsetof\b|define container_of\b")
    found = {str(f.relative_to(ROOT)) for f in sources(language.ROOMS) if cast.search(code(f))}
    assert found == {"common/base/list.h"}


def test_results_of_our_own_have_names():
    """No errno in place of a ROZO_E of common/base/err.h."""
    private = re.findall(r"ROZO_E\w+ = (E\w+)", (ROOT / "common/base/err.h").read_text())
    assert len(private) > 10
    found = [str(f.relative_to(ROOT)) for f in sources(language.ROOMS)
             if f.name != "err.h" and re.search(r"\b(%s)\b" % "|".join(private), code(f))]
    assert found == []


def test_asserts_do_not_get_fewer():
    text = "".join(code(f) for f in sources(PRODUCT) if f.suffix == ".c")
    assert len(re.findall(r"\bassert\(", text)) / len(re.findall(r"^\}$", text, re.M)) > ASSERTS_MIN


def test_parts_of_exportd_are_touched_by_their_owners_only():
    """A part's struct lies in struct exportd, struct cluster_storage or struct sessions: member -> file."""
    owners = {"numbers": "cluster.c", "room": "metadata_room.c", "writer_recovery": "writer_recovery.c",
              "deletions": "deletion.c", "strays": "strays.c", "map": "map_push.c", "orphans": "session.c",
              "table": "session.c", "grace": "session_store.c", "fences": "session_fence.c",
              "delayed": "delayed_unlink.c", "reply_search": "reply_log.c", "shares": "token_share.c",
              "turns": "token_wait.c", "admissions": "admission.c", "listings": "inodes.c"}
    wrong = []
    for path in sources(["exportd"]):
        for name in re.findall(r"(?:\bx|\bs|\ball|sessions|requests)->(\w+)\.\w", code(path)):
            if owners.get(name, path.name) != path.name and (name, path.name) != ("table", "token_share.c"):
                wrong.append("%s of %s in %s" % (name, owners[name], path.relative_to(ROOT)))
    assert wrong == []


def test_test_names_have_a_subject():
    """The name of a test says what is tested in the words of docs/GLOSSARY.md. It never begins with a pronoun."""
    riddle = re.compile(r"^(?:static void|def) (test_(?:what|who|it|they)_\w*)\(", re.M)
    files = [f for pattern in ("test_*.c", "test_*.py") for f in sorted((ROOT / "tests").rglob(pattern))]
    assert len(files) > 150 and riddle.search("static void test_what_is_held(void **state)\n")
    assert {str(f.relative_to(ROOT)): found for f in files if (found := riddle.findall(f.read_text()))} == {}
