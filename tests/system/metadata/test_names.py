"""An export made with --names=fold: a name in another case or normalisation is found by an xattr of its directory, on
every mount, after restarts and from a dump; and names in mounts are bytes as on other exports."""
import errno
import json
import os
import shutil
import signal
import subprocess

import pytest

from conftest import BIN, cannot_mount, shared, wait_for
from mounts import end, mount

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

ASK = b"glusterfs.get_real_filename:"
EXPORT = "fold"


def found(folder, name):
    """Returns the name, or the errno."""
    name = name.encode() if isinstance(name, str) else name
    try:
        real = os.getxattr(folder, ASK + name)
    except OSError as e:
        return e.errno
    assert real.endswith(b"\0")
    return real[:-1].decode(errors="surrogateescape")


class Two:
    """Two mounts of an export made with --names=fold."""

    def __init__(self, c):
        self.c, self.processes = c, []
        made = json.loads(c.admin("export", "create", EXPORT, "--names", "fold", "--json").stdout)
        assert made["names"] == "fold"
        self.mnts = [os.path.join(c.base, "fold%d" % i) for i in range(2)]
        self.start()

    def start(self):
        self.processes = [mount(self.c, mnt, export=EXPORT) for mnt in self.mnts]
        for p in self.processes:
            assert p.poll() is None, end(p)

    def stop(self):
        for p in self.processes:
            p.send_signal(signal.SIGTERM)
        for p in self.processes:
            end(p)
        self.processes = []


@pytest.fixture(scope="module")
def two(request):
    with shared(request) as c:
        t = Two(c)
        try:
            yield t
        finally:
            t.stop()


def test_each_change_of_names_on_one_mount_is_found_on_the_other(two):
    a, b = two.mnts
    asked = ["CLIP.mov", "clip.MOV"]

    def on_both(expected, name):
        assert [found(m, name) for m in (b, a)] == [expected, expected], name

    on_both(errno.ENOENT, "clip.mov")
    with open(a + "/Clip.mov", "w") as f:
        f.write("x")
    for name in asked:
        on_both("Clip.mov", name)
    assert not os.path.exists(b + "/clip.mov")  # a mount is POSIX
    os.rename(b + "/Clip.mov", b + "/CLIP.mov")  # only the case
    on_both("CLIP.mov", "clip.mov")
    assert os.listdir(a) == ["CLIP.mov"]
    os.link(a + "/CLIP.mov", a + "/clip.MOV")
    on_both("clip.MOV", "clip.MOV")
    on_both("CLIP.mov", "clip.mov")
    os.unlink(b + "/CLIP.mov")
    on_both("clip.MOV", "clip.mov")
    os.unlink(a + "/clip.MOV")
    for name in asked:
        on_both(errno.ENOENT, name)
    os.mkdir(a + "/\u00c9t\u00e9")
    on_both("\u00c9t\u00e9", "e\u0301te\u0301")
    on_both(errno.ENOENT, "ete")
    os.symlink("nowhere", b + "/E\u0301TE\u0301")
    on_both("E\u0301TE\u0301", "E\u0301TE\u0301")
    os.unlink(b + "/E\u0301TE\u0301")
    os.rmdir(b + "/\u00c9t\u00e9")
    on_both(errno.ENOENT, "\u00e9t\u00e9")
    with open(os.fsencode(b) + b"/na\xefve", "w"):
        pass
    on_both("na\udcefve", b"NA\xefVE")
    on_both(errno.ENOENT, b"NA\xcfVE")
    os.unlink(os.fsencode(a) + b"/na\xefve")
    os.mknod(b + "/Made", 0o600)
    on_both("Made", "made")
    os.unlink(b + "/Made")


def test_wrong_questions_are_answered_with_errors(two):
    a = two.mnts[0]
    with open(a + "/f", "w"):
        pass
    assert found(a + "/f", "x") == errno.ENOTDIR
    assert found(a, "") == errno.EINVAL
    assert found(a, "x" * 227) == errno.ENOENT
    assert found(a, "x" * 228) == errno.ERANGE  # Linux asks nobody
    assert os.listxattr(a) == []
    with pytest.raises(OSError) as e:
        os.setxattr(a, ASK + b"f", b"")
    assert e.value.errno == errno.EOPNOTSUPP
    posix = two.c.mnt
    with open(posix + "/f", "w"):
        pass
    for name in ("f", "F"):
        assert found(posix, name) == errno.EOPNOTSUPP  # the export has no index


def test_the_option_shows_and_is_checked(two):
    c = two.c
    assert {e["name"]: e["names"] for e in c.status()["exports"]} == {"main": "posix", EXPORT: "fold"}
    out = c.admin("export", "list").stdout.splitlines()
    at = out[0].index("NAMES")
    assert sorted(line[at:].split()[0] for line in out[1:3]) == ["fold", "posix"]
    r = c.admin("export", "create", "wrong", "--names", "nonsense", check=False)
    assert r.returncode == 2 and "posix or fold" in r.stderr
    text = c.admin("export", "create", "said", "--names=fold").stdout
    assert "another case" in text
    text = c.admin("export", "create", "unsaid", "--names=posix").stdout
    assert "another case" not in text


def test_restarts_and_a_dump_keep_the_index(two):
    c, a, b = two.c, *two.mnts
    os.mkdir(a + "/Kept")
    for i in range(300):
        os.mknod("%s/Kept/Take_%03d.MOV" % (a, i), 0o600)
    for i in range(0, 300, 3):
        os.unlink("%s/Kept/Take_%03d.MOV" % (a, i))

    def check():
        assert found(b, "KEPT") == "Kept"
        for i in range(300):
            name = "Take_%03d.MOV" % i
            assert found(b + "/Kept", name.lower()) == (name if i % 3 != 0 else errno.ENOENT)

    check()
    c.kill("exportd")
    c.restart("exportd")
    check()
    dump = os.path.join(c.base, "dump")
    two.stop()
    c.admin("meta", "dump", dump)
    c.kill("exportd")
    shutil.move(c.data("exportd"), os.path.join(c.base, "aside"))
    r = subprocess.run([os.path.join(BIN, "exportd"), "--config", os.path.join(c.dir, "etc", "exportd.yaml"),
                        "--load", dump], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert r.returncode == 0, r.stdout
    c.restart("exportd")
    two.start()
    check()
    os.mknod(a + "/Kept/TAKE_000.mov", 0o600)
    assert found(b + "/Kept", "take_000.mov") == "TAKE_000.mov"


def test_a_quorum_keeps_the_index_when_another_leads(cluster):
    c = cluster(metas=3, mounts=0)
    c.mnts = []
    t = Two(c)
    try:
        a, b = t.mnts
        os.mknod(a + "/One.MOV", 0o600)
        os.mknod(a + "/Two.MOV", 0o600)
        os.unlink(a + "/Two.MOV")
        c.kill(c.serving())
        wait_for(lambda: found(b, "one.mov") == "One.MOV", "the others to serve")
        assert found(b, "two.mov") == errno.ENOENT
        os.rename(b + "/One.MOV", b + "/Two.MOV")
        assert [found(a, name) for name in ("two.mov", "one.mov")] == ["Two.MOV", errno.ENOENT]
    finally:
        t.stop()
