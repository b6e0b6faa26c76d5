#!/usr/bin/env python3
"""changed.py BUILD_DIR [REV] - the tests that a change can break.

Prints `unit NAME` for each test of ctest whose program is made from a changed file, directly or through a
library, and `system FILE` for system tests of the rooms concerned. Changed is what differs from REV, files that
git does not know included; REV is by default the newest commit that a remote branch has, or else the one before
the last. Needs a finished build: the build tool knows which object includes which header.
"""
import glob
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# System tests that show within a minute whether what a room is for still works; "": any other file.
SYSTEM = {
    "codec": ["faults", "bench"],
    "common": ["starts", "cli", "mount"],
    "storaged": ["torn", "heal", "bad_input", "full"],
    "exportd": ["exportd", "metas", "coherence", "links", "posix"],
    "storcli": ["faults", "writeback", "direct", "fsx2"],
    "rozomount": ["mount", "posix", "locks", "coherence"],
    "deploy": ["cli", "dev", "bench"],
    "": [],
}
# A change of these can break anything: all of ctest, and the short system tests.
EVERYTHING = re.compile(r"^(CMakeLists\.txt|CMakePresets\.json|tests/CMakeLists\.txt|tests/run\.sh|\.ci/)")
SHORT = ["starts", "cli", "mount", "by_hand", "trees"]


def run(*command, check=True):
    r = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=check)
    return r.stdout


def changed_files(rev):
    if rev is None:
        base = run("git", "rev-list", "-1", "--remotes", check=False).strip()
        rev = run("git", "merge-base", "HEAD", base).strip() if base else "HEAD~1"
    names = run("git", "diff", "--name-only", rev) + run("git", "ls-files", "-o", "--exclude-standard")
    return set(filter(None, names.split("\n")))


def objects_of(build, changed):
    """Objects whose sources or headers are among these files (ninja's record of what compilers read)."""
    found, target = set(), None
    for line in run("ninja", "-C", build, "-t", "deps").split("\n"):
        if line.startswith(" "):
            path = os.path.relpath(os.path.join(build, line.strip()), ROOT)
            if path in changed:
                found.add(target)
        elif ": #deps" in line:
            target = line.split(": #deps")[0]
    return found


def units_of(build, changed):
    """Names of ctest's tests whose program has one of these objects in it, or is changed itself."""
    objects = objects_of(build, changed)
    tests = json.loads(run("ctest", "--test-dir", build, "--show-only=json-v1"))["tests"]
    inputs = {}
    for test in tests:
        program = test.get("command", [""])[0]
        target = os.path.relpath(program, build)
        if target not in inputs:
            if target.startswith(".."):  # a script
                inputs[target] = {os.path.relpath(program, ROOT)} & changed
            else:
                known = run("ninja", "-C", build, "-t", "inputs", target, check=False).split("\n")
                inputs[target] = objects & set(known) or \
                    changed & {os.path.relpath(os.path.join(build, name), ROOT) for name in known}
        if inputs[target]:
            yield test["name"]


def system_tests_of(changed):
    names = set()
    for path in changed:
        room = path.split("/")[0]
        names.update(SYSTEM.get(room, []) if path.endswith((".c", ".h", ".proto", ".py", ".sh", ".txt")) else [])
        m = re.match(r"tests/system/\w+/test_(\w+)\.py$", path)
        if m and os.path.exists(os.path.join(ROOT, path)):
            names.add(m.group(1))
        if path.startswith("tests/system/") and not m:
            names.update(SHORT)
    return names


def main(build, rev=None):
    build = os.path.abspath(build)
    changed = changed_files(rev)
    if any(EVERYTHING.match(path) for path in changed):
        units = [test["name"] for test in json.loads(
            run("ctest", "--test-dir", build, "--show-only=json-v1"))["tests"]]
        system = system_tests_of(changed) | set(SHORT)
    else:
        units, system = units_of(build, changed), system_tests_of(changed)
    for name in units:
        print("unit", name)
    for name in sorted(system):
        found = glob.glob(os.path.join(ROOT, "tests/system/*/test_%s.py" % name))
        print("system", os.path.relpath(*found, ROOT))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
