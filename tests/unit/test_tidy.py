"""Tests of rules that no compiler checks: includes between rooms, and calls of a core."""
import os
import re
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Folders of cores: they reach the world only through struct env and the vtables beside it.
CORES = ("common/wal", "common/group",
         "storaged/format", "storaged/disk", "storaged/object", "storaged/journal", "storaged/op",
         "storaged/ops", "storaged/heal", "storaged/heal/decide", "storaged/heal/list", "storaged/heal/repair",
         "storaged/heal/jobs",
         "exportd/store", "exportd/namespace", "exportd/tokens", "exportd/quorum",
         "exportd/quorum/raft", "exportd/quorum/log",
         "exportd/cluster", "exportd/sessions",
         "exportd/redistribution", "exportd/requests", "exportd/leader",
         "storcli/rules", "storcli/blocks", "storcli/file")
# Libraries that are no rozo_room(), and headers that lie outside the folder of their room.
OTHERS = {"rozo_codec": ("codec", []), "rozo_proto": ("common/proto", [])}
LIES_IN = {"storcli/blocks.h": "storcli/blocks", "storcli/file.h": "storcli/file"}

# Includes and calls that a core must not have: it uses struct env and vtables instead.
CORE_NEVER = re.compile(
    r"""\#\s*include\s*<(uv|leveldb/|pthread|poll|sys/socket|sys/epoll|fcntl\.h>.*open)   # shells' headers
      | \#\s*include\s*"common/system/                            # of the machine, such as its boot id
      | \b(uv_\w+|pthread_\w+|time|clock|gettimeofday|clock_gettime|rand|random|srand|getrandom
        |open|openat|close|read|write|pread|pwrite|preadv|pwritev|fsync|fdatasync|unlink
        |socket|connect|send|recv|poll|select|sleep|usleep|nanosleep|malloc_usable_size)\s*\(""",
    re.X)
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)


def sources(room):
    for d, _, files in os.walk(os.path.join(ROOT, room)):
        for name in files:
            if name.endswith((".c", ".h")):
                yield os.path.join(d, name)


def strip(text):
    """Returns the text without comments and strings, with the same lines. Included names stay."""
    def blank(m):
        if m.group(0).startswith('"') and re.search(r"#\s*include\s*$", text[:m.start()].rsplit("\n", 1)[-1]):
            return m.group(0)
        return re.sub(r"[^\n]", " ", m.group(0))
    return COMMENT_OR_STRING.sub(blank, text)


def rooms():
    """Returns {library: (folder or None, libraries below it)} from all CMakeLists.txt."""
    found = dict(OTHERS)
    for d, dirs, files in os.walk(ROOT):
        dirs[:] = [x for x in dirs if x not in ("build", ".git")]
        if "CMakeLists.txt" not in files:
            continue
        text = re.sub(r"#.*", "", open(os.path.join(d, "CMakeLists.txt")).read())
        for m in re.finditer(r"rozo_room\((rozo_\w+)\s+([^\s)]+)\s*([^)]*)\)", text):
            folder = os.path.relpath(os.path.normpath(os.path.join(d, m.group(2))), ROOT)
            found[m.group(1)] = (folder, m.group(3).split())
        for m in re.finditer(r"target_link_libraries\((rozo_\w+) INTERFACE\s+([^)]*)\)", text):
            found[m.group(1)] = (None, m.group(2).split())
    return found


def below(found, name):
    """Returns all libraries under this one; a cycle is an error."""
    seen, todo = set(), list(found[name][1])
    while todo:
        lib = todo.pop()
        assert lib != name, "%s lies under itself" % name
        if lib in found and lib not in seen:
            seen.add(lib)
            todo += found[lib][1]
    return seen


def test_rooms_include_only_those_below_them():
    found = rooms()
    assert len(found) > 20
    folders = {folder for folder, _ in found.values()}
    wrong = []
    for name, (folder, _) in found.items():
        if folder is None or folder == "common/proto":
            continue
        may = {found[lib][0] for lib in below(found, name)} | {folder}
        for path in [os.path.join(ROOT, folder, f) for f in os.listdir(os.path.join(ROOT, folder))]:
            if not path.endswith((".c", ".h")):
                continue
            for m in re.finditer(r'^\s*#\s*include\s+"([^"]+)/([^"/]+)"', open(path).read(), re.M):
                where = LIES_IN.get("%s/%s" % m.groups(), m.group(1))
                if where in folders and where not in may:
                    wrong.append("%s includes %s" % (os.path.relpath(path, ROOT), where))
    assert not wrong, "\n".join(wrong)


def test_cores_reach_the_world_only_through_their_env():
    wrong, seen = [], 0
    for room in CORES:
        for path in sources(room):
            seen += 1
            for n, line in enumerate(strip(open(path).read()).split("\n"), 1):
                # A member or a function pointer of that name belongs to a vtable.
                m = CORE_NEVER.search(re.sub(r"(->|\.)\s*\w+\s*\(|\(\*\w+\)\s*\(", "(", line))
                if m:
                    wrong.append("%s:%d: %s" % (os.path.relpath(path, ROOT), n, m.group(0)))
    assert seen > 100
    assert not wrong, "\n".join(wrong)


def raft_includers(texts):
    return sorted(name for name, text in texts if re.search(r"#\s*include\s*<raft", text))


def test_only_raft_core_sees_libraft():
    """Who frees what differs between versions of libraft: the core's three files know, and a test of its defects."""
    core = "exportd/quorum/raft/"
    texts = [(os.path.relpath(p, ROOT), strip(open(p).read()))
             for room in ("common", "codec", "storaged", "storcli", "exportd", "rozomount", "deploy", "tests")
             for p in sources(room)]
    assert raft_includers(texts) == [core + "raft_core_in.h", "tests/unit/quorum/test_guards.c"]
    assert sorted(name for name, text in texts if core + "raft_core_in.h\"" in text) == [
        core + name for name in ("raft_collect.c", "raft_core.c", "raft_receive.c")]
    assert raft_includers([("a.c", "#include <raft.h>"), ("b.c", "#include <raft/uv.h>")]) == ["a.c", "b.c"]


def test_raft_core_refuses_other_versions_of_libraft():
    """R9, R11. Compiles raft_core.c with a header that says 0.22.2."""
    with tempfile.TemporaryDirectory() as d:
        for release, wanted in (("1", True), ("2", False)):
            with open(os.path.join(d, "raft.h"), "w") as f:
                f.write("#include_next <raft.h>\n#undef RAFT_VERSION_RELEASE\n"
                        "#define RAFT_VERSION_RELEASE %s\n" % release)
            done = subprocess.run(["cc", "-fsyntax-only", "-std=gnu17", "-I", d, "-I", ROOT,
                                   os.path.join(ROOT, "exportd/quorum/raft/raft_core.c")],
                                  capture_output=True, text=True)
            assert (done.returncode == 0) == wanted, done.stderr
    assert "0.22.1" in done.stderr


def test_no_program_has_the_name_that_libraft_treats_differently():
    names = [m for d, dirs, files in os.walk(ROOT) if "CMakeLists.txt" in files
             for m in re.findall(r"add_executable\((\S+)", open(os.path.join(d, "CMakeLists.txt")).read())]
    assert len(names) > 5 and "unit-test" not in names  # R11


def test_the_rule_bites():
    assert CORE_NEVER.search("    fd = open(path, O_RDONLY);")
    assert CORE_NEVER.search("#include <uv.h>")
    assert not CORE_NEVER.search("    disk_open(d, path);")


def test_fuse_operations_begin_with_their_common_part():
    """A step gets a struct fuse_op and casts it to the struct of its operation."""
    ops = tables = 0
    for path in [p for room in ("rozomount/op", "rozomount/ops") for p in sources(room)]:
        text = strip(open(path).read())
        for name, first in re.findall(r"^struct (\w+_op)\s*\{\s*([^;]*);", text, re.M):
            ops += 1
            assert name == "fuse_op" or first in ("struct fuse_op op", "struct open_op open"), name
        for name, steps in re.findall(r"fuse_op_step \*const (\w+)\[\] = \{(.*?)\};", text, re.S):
            tables += 1
            assert re.search(r"\bNULL\s*,?\s*$", steps), \
                "%s: %s does not end with NULL" % (os.path.relpath(path, ROOT), name)
    assert ops > 15 and tables > 25
