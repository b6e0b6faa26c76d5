"""The rules a compiler does not check: who includes whom, and what a core may call."""
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# room -> rooms whose headers it may include (its own always). docs/ARCHITECTURE.md, section 2.
MAY_INCLUDE = {
    "codec": set(),
    "common": {"codec"},
    "storaged": {"codec", "common"},
    "exportd": {"codec", "common"},
    "storcli": {"codec", "common"},
    "rozomount": {"codec", "common", "storcli"},
    "deploy": {"codec", "common"},
}
# A client inside a daemon: what it may include of the rooms that know nothing of each other.
HEAL = "storaged/heal"
HEAL_MAY = ("storcli/", "storaged/heal/", "storaged/core/disk.h", "storaged/core/identity.h",
            "storaged/core/patient.h", "storaged/core/projfile.h", "storaged/core/revoked_sessions.h")

# What a core never does: the world comes in through struct env and the vtables beside it.
CORE_NEVER = re.compile(
    r"""\#\s*include\s*<(uv|leveldb/|pthread|poll|sys/socket|sys/epoll|fcntl\.h>.*open)   # shells' headers
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
    """Without comments and strings, line numbers kept; include lines keep their name."""
    def blank(m):
        if m.group(0).startswith('"') and re.search(r"#\s*include\s*$", text[:m.start()].rsplit("\n", 1)[-1]):
            return m.group(0)
        return re.sub(r"[^\n]", " ", m.group(0))
    return COMMENT_OR_STRING.sub(blank, text)


def test_rooms_include_only_those_below_them():
    wrong = []
    for room, may in MAY_INCLUDE.items():
        for path in sources(room):
            for m in re.finditer(r'^\s*#\s*include\s+"([^"/]+)/', open(path).read(), re.M):
                if os.path.relpath(path, ROOT).startswith(HEAL + "/"):
                    continue
                if m.group(1) in MAY_INCLUDE and m.group(1) != room and m.group(1) not in may:
                    wrong.append("%s includes %s" % (os.path.relpath(path, ROOT), m.group(1)))
    assert not wrong, "\n".join(wrong)


def test_healing_is_a_client_and_nobody_below_knows_it():
    wrong = []
    for path in sources(HEAL):
        for m in re.finditer(r'^\s*#\s*include\s+"([^"]+)"', open(path).read(), re.M):
            if m.group(1).split("/")[0] in ("storaged", "exportd", "rozomount", "deploy", "tests") \
                    and not m.group(1).startswith(HEAL_MAY):
                wrong.append("%s includes %s" % (os.path.relpath(path, ROOT), m.group(1)))
    for path in sources("storaged/core"):
        if re.search(r'^\s*#\s*include\s+"(storcli|storaged/heal)/', open(path).read(), re.M):
            wrong.append("%s knows healing" % os.path.relpath(path, ROOT))
    assert not wrong, "\n".join(wrong)


def test_cores_reach_the_world_only_through_their_env():
    wrong, seen = [], 0
    for room in ("storaged", "exportd", "storcli"):
        for path in list(sources(room + "/core")) + (list(sources(HEAL)) if room == "storaged" else []):
            seen += 1
            for n, line in enumerate(strip(open(path).read()).split("\n"), 1):
                # A member or a function pointer of that name is somebody's vtable.
                m = CORE_NEVER.search(re.sub(r"(->|\.)\s*\w+\s*\(|\(\*\w+\)\s*\(", "(", line))
                if m:
                    wrong.append("%s:%d: %s" % (os.path.relpath(path, ROOT), n, m.group(0)))
    assert seen > 10
    assert not wrong, "\n".join(wrong)


def test_the_rule_bites():
    assert CORE_NEVER.search("    fd = open(path, O_RDONLY);")
    assert CORE_NEVER.search("#include <uv.h>")
    assert not CORE_NEVER.search("    disk_open(d, path);")
