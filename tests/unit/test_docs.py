"""Tests of the docs: links lead to existing places, lines are short, names in code style exist,
and the glossary's words are used."""
import functools
import os
import pathlib
import re

import test_tidy
from language import WORDS

ROOT = pathlib.Path(__file__).parent.parent.parent
DOCS = sorted(ROOT.glob("docs/**/*.md"))
NARROW = [ROOT / "docs/ARCHITECTURE.md", *sorted(ROOT.glob("docs/internals/*.md"))]
COLUMNS_MAX = 100
PICTURE_COLUMNS_MAX = 90
ROOMS = ("codec", "common", "storaged", "storcli", "exportd", "rozomount", "deploy", "tests")


def name(path):
    return str(path.relative_to(ROOT))


def lines_of(text):
    """Yields (number, line, True in a code block) for each line."""
    block = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.startswith("```")
        yield number, line, block or fence
        block ^= fence


def prose(text):
    """Returns the text without code blocks, indented or fenced."""
    return "\n".join(line for _, line, block in lines_of(text) if not block and not line.startswith("    "))


def anchor(heading):
    """Returns the anchor that GitHub gives to a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors(text):
    return {anchor(m.group(1)) for m in re.finditer(r"^#+ +(.*)$", prose(text), re.M)}


def broken_links(path, text):
    """Yields relative links of a page whose file or heading does not exist."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, part = target.partition("#")
        to = path if file == "" else pathlib.Path(os.path.normpath(path.parent / file))
        if not to.exists() or (part != "" and part not in anchors(text if to == path else to.read_text())):
            yield target


@functools.cache
def tree():
    """Returns {path: text} of all sources."""
    found = {}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*"):
            if path.suffix in (".c", ".h", ".py", ".proto", ".sh") and "build" not in path.parts:
                found[name(path)] = path.read_text()
    return found


def test_links_lead_to_files_and_headings():
    wrong = ["%s: %s" % (name(p), target) for p in [*DOCS, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
             for target in broken_links(p, p.read_text())]
    assert not wrong, "\n".join(wrong)


def test_a_broken_link_is_found():
    page = ROOT / "docs/ARCHITECTURE.md"
    assert list(broken_links(page, "[a](NOWHERE.md) [b](FORMATS.md#nothing) [c](#none)\n## One\n[d](#one)")) == \
        ["NOWHERE.md", "FORMATS.md#nothing", "#none"]


def test_lines_are_short():
    """Lines of tables may be longer; pictures in code blocks must be shorter."""
    wrong = []
    for path in NARROW:
        for number, line, block in lines_of(path.read_text()):
            if len(line) > (PICTURE_COLUMNS_MAX if block else COLUMNS_MAX) and not line.startswith("|"):
                wrong.append("%s:%d: %d columns" % (name(path), number, len(line)))
    assert not wrong, "\n".join(wrong)


def test_words_are_not_retired_ones():
    wrong = ["%s: %s" % (name(path), m.group(0)) for path in NARROW
             for m in WORDS.finditer(re.sub(r"`[^`]*`", "", prose(path.read_text())))]
    assert not wrong, "\n".join(wrong)


def test_each_step_names_a_function_of_that_file():
    """The tables `step | function | file` of the map name existing functions and files."""
    rows = re.findall(r"^\| (.+?) \| `(\w+)\(\)` \| `([\w./]+)` \|$", (ROOT / "docs/ARCHITECTURE.md").read_text(), re.M)
    assert len(rows) > 50
    wrong = ["%s: %s() is not in %s" % row for row in rows
             if not re.search(r"^[A-Za-z][\w *]*\b%s\(" % row[1], tree().get(row[2], ""), re.M)]
    assert not wrong, "\n".join(wrong)


def test_files_and_functions_that_pages_name_exist():
    wrong, seen = [], 0
    files = set(tree())
    text = "\n".join(tree().values())
    for path in NARROW:
        page = prose(path.read_text())
        for file in set(re.findall(r"`([\w./-]+\.(?:c|h|py|proto))`", page)):
            seen += 1
            if not any(f == file or f.endswith("/" + file) for f in files):
                wrong.append("%s: no file %s" % (name(path), file))
        for function in set(re.findall(r"`(\w+_\w+)\(\)`", page)):
            seen += 1
            if function + "(" not in text:
                wrong.append("%s: no function %s()" % (name(path), function))
    assert seen > 100
    assert not wrong, "\n".join(wrong)


def lost_pages(text):
    """Yields pages, and quoted headings behind them, that comments name and that do not exist.
    A section number is always wrong, since sections have none."""
    text = re.sub(r"\n[ \t]*(\*|//|#)?[ \t]*", " ", text)
    for file, rest in re.findall(r"\b(docs/[\w/-]+\.md)(,? (?:section \d+|\"[^\"\n]{1,60}\"))?", text):
        heading = rest.partition('"')[2].strip('"')
        if not (ROOT / file).exists() or "section" in rest or \
                (heading and anchor(heading) not in anchors((ROOT / file).read_text())):
            yield file + rest


def test_comments_name_pages_that_exist():
    wrong = ["%s: %s" % (path, lost) for path, text in tree().items() if not path.endswith("test_docs.py")
             for lost in lost_pages(text)]
    assert not wrong, "\n".join(wrong)


def test_a_lost_page_is_found():
    assert list(lost_pages("/* docs/NO.md */ // docs/ARCHITECTURE.md,\n * section 6\n"
                           'docs/ARCHITECTURE.md, "Healing" docs/FORMATS.md, "Gone"')) == \
        ["docs/NO.md", "docs/ARCHITECTURE.md, section 6", 'docs/FORMATS.md, "Gone"']


def test_the_glossary_is_sorted_and_has_each_word_once():
    table = (ROOT / "docs/GLOSSARY.md").read_text().split("| --- | --- |\n")[1].split("\n\n")[0]
    words = [re.sub(r"[^a-z0-9 ]", "", row.split("|")[1].strip().lower().replace("-", " "))
             for row in table.splitlines()]
    assert len(words) > 100
    assert words == sorted(set(words))


def test_the_tree_has_all_rooms_and_what_is_below_them():
    """The block under "The tree" agrees with the rozo_room() lines."""
    found = test_tidy.rooms()
    folder = {lib: "common" if lib == "rozo_common" else place for lib, (place, _) in found.items()}
    true = {place: sorted(folder[lib] for lib in libs if lib in folder) for place, libs in found.values() if place}
    block = (ROOT / "docs/ARCHITECTURE.md").read_text().split("## The tree")[1].split("```")[1]
    told = {}
    for line in block.strip().splitlines()[1:]:
        room, below = line[:24].strip(), line[60:].split()
        top = room.split("/")[0] + "/"
        told[room] = sorted(top + name if top + name in true else name for name in below)
    assert told == true
