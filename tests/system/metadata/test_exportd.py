"""exportd is killed, hangs, stops, and finds its store damaged, under a load of metadata operations."""
import errno
import glob
import os
import random
import signal
import threading
import time

import pytest

from conftest import rozo

LEASE_S = 20


class Tree:
    """Random operations below a directory of its own, with the state expected after each."""

    def __init__(self, mnt, name, seed):
        self.mnt = mnt
        self.name = name
        self.random = random.Random(seed)
        self.nodes = {"": "dir"}   # path below the directory -> dir, file, or the target of a symlink
        self.ops = 0
        self.slowest = 0.0
        self.errors = []
        os.mkdir(os.path.join(mnt, name))

    def path(self, p):
        return os.path.join(self.mnt, self.name, p)

    def pick(self, kind=None):
        return self.random.choice([p for p, k in self.nodes.items() if kind in (None, k)])

    def new_name(self):
        name = "n%d" % self.random.randrange(12)
        d = self.pick("dir")
        return d + "/" + name if d else name

    def below(self, p):
        return [q for q in self.nodes if q == p or q.startswith(p + "/")]

    def step(self):
        """Runs one operation; the model changes after its return."""
        what = self.random.randrange(12)
        p = self.new_name()
        if what < 3:
            self.expect(errno.EEXIST if p in self.nodes else 0, os.mkdir, self.path(p))
            self.nodes.setdefault(p, "dir")
        elif what < 6:
            there = p in self.nodes
            fd = self.expect(errno.EEXIST if there else 0, os.open, self.path(p),
                             os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            if not there:
                os.close(fd)
                self.nodes[p] = "file"
        elif what == 6:
            self.expect(errno.EEXIST if p in self.nodes else 0, os.symlink, "to", self.path(p))
            self.nodes.setdefault(p, "link")
        elif what < 9:
            self.step_remove()
        else:
            self.step_rename(p)

    def step_remove(self):
        p = self.pick()
        if p == "":
            return
        if self.nodes[p] == "dir":
            self.expect(errno.ENOTEMPTY if len(self.below(p)) > 1 else 0, os.rmdir, self.path(p))
            if len(self.below(p)) > 1:
                return
        else:
            self.expect(0, os.unlink, self.path(p))
        del self.nodes[p]

    def step_rename(self, to):
        p = self.pick()
        if p == "" or to == p or to.startswith(p + "/") or to in self.nodes:
            return
        self.expect(0, os.rename, self.path(p), self.path(to))
        for q in self.below(p):
            self.nodes[to + q[len(p):]] = self.nodes.pop(q)

    def expect(self, error, call, *args):
        start = time.monotonic()
        result = got = None
        try:
            result = call(*args)
        except OSError as e:
            got = e.errno
        self.slowest = max(self.slowest, time.monotonic() - start)
        self.ops += 1
        assert (got or 0) == error, "%s%r: %s, not %s" % (
            call.__name__, args, errno.errorcode.get(got, "fine"), errno.errorcode.get(error, "fine"))
        return result

    def run(self, stop):
        try:
            while not stop.is_set():
                self.step()
        except (OSError, AssertionError) as e:
            self.errors.append(repr(e))

    def check(self, mnt=None):
        top = os.path.join(mnt or self.mnt, self.name)
        found = {"": "dir"}
        for folder, dirs, files in os.walk(top):
            for name in dirs + files:
                p = os.path.join(folder, name)
                kind = "link" if os.path.islink(p) else "dir" if os.path.isdir(p) else "file"
                found[os.path.relpath(p, top)] = kind
        assert found == self.nodes
        for p, kind in self.nodes.items():
            if kind == "dir":
                subdirs = [q for q, k in self.nodes.items()
                           if k == "dir" and q != "" and os.path.dirname(q) == p]
                assert os.stat(os.path.join(top, p)).st_nlink == 2 + len(subdirs), p


@pytest.fixture
def busy(cluster):
    """make(): a cluster with two mounts and a tree at work on each, until end()."""
    ends = []

    def make(seed):
        c = cluster(mounts=2)
        stop = threading.Event()
        trees = [Tree(c.mnts[i % 2], "t%d" % i, seed * 100 + i) for i in range(4)]
        threads = [threading.Thread(target=t.run, args=(stop,)) for t in trees]

        def end():
            stop.set()
            for t in threads:
                t.join()

        ends.append(end)
        for t in threads:
            t.start()
        return c, trees, end

    yield make
    for end in ends:
        end()


def let_them_work(c, trees, n):
    """Waits until each tree has made n more operations."""
    goals = [t.ops + n for t in trees]
    c.wait_for(lambda: any(t.errors for t in trees) or all(t.ops >= g for t, g in zip(trees, goals)),
               "operations to go on", timeout=60)
    assert not any(t.errors for t in trees), [t.errors for t in trees]


def check_trees(c, trees):
    assert not any(t.errors for t in trees), [t.errors for t in trees]
    for i, t in enumerate(trees):          # also through the other mount
        t.check()
        t.check(c.mnts[(i + 1) % 2])
    c.drop_caches()
    for t in trees:
        t.check()


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
def test_no_acknowledged_operation_is_missing_after_exportd_dies(busy, sig):
    c, trees, end = busy(1 if sig == signal.SIGKILL else 2)
    for _ in range(4):
        let_them_work(c, trees, 100)
        c.kill("exportd", sig)
        c.restart("exportd")
    let_them_work(c, trees, 100)
    end()
    check_trees(c, trees)
    c.restart("exportd")
    check_trees(c, trees)


def test_a_stop_longer_than_a_lease_ends_no_session(busy):
    c, trees, end = busy(3)
    held = open(os.path.join(c.mnt, "held"), "w+b")
    held.write(b"x" * 100000)
    held.flush()
    os.fsync(held.fileno())
    os.unlink(os.path.join(c.mnt, "held"))
    let_them_work(c, trees, 50)
    c.kill("exportd", signal.SIGSTOP)
    time.sleep(LEASE_S + 5)                # the lease itself is tested
    c.kill("exportd", signal.SIGCONT)
    let_them_work(c, trees, 50)
    end()
    check_trees(c, trees)
    assert "silent" not in c.log("exportd")
    c.drop_caches()
    assert os.pread(held.fileno(), 200000, 0) == b"x" * 100000
    held.close()


def test_damaged_store_is_reported_and_not_changed(cluster):
    c = cluster()
    for i in range(200):
        os.mkdir(os.path.join(c.mnt, "d%d" % i))
    os.sync()
    c.kill("exportd")
    store = os.path.join(c.data("exportd"), "kv")
    log = max(glob.glob(store + "/*.log"), key=os.path.getsize)
    with open(log, "r+b") as f:
        f.seek(os.path.getsize(log) // 2)
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 1]))
    r = rozo("dev", "restart", "--dir", c.dir, "exportd", check=False)
    assert r.returncode == 1
    assert "%s is damaged" % store in c.log("exportd")
    with open(log, "r+b") as f:
        f.seek(os.path.getsize(log) // 2)
        f.write(byte)
    os.rename(store + "/CURRENT", store + "/CURRENT.away")
    r = rozo("dev", "restart", "--dir", c.dir, "exportd", check=False)
    assert r.returncode == 1
    assert "is its disk mounted" in c.log("exportd")
    os.rename(store + "/CURRENT.away", store + "/CURRENT")
    c.restart("exportd")
    assert sorted(os.listdir(c.mnt)) == sorted("d%d" % i for i in range(200))
