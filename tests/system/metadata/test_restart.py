"""exportd is killed under load, again and again: no acknowledged change is missing, none is made twice, no
lock is lost, and no call waits longer than necessary. And a mount that was away for too long reports it."""
import os
import select
import signal
import stat
import struct
import threading
import time

import pytest

from agents import two  # noqa: F401, a fixture
from conftest import cannot_mount, wait_for
from mounts import CutOff, Proxy, shut_down

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

LEASE_S = 20
SHORT_S = 10  # for tests that wait for its end


def restart(c):
    c.kill("exportd")
    c.restart("exportd")


def shorten_lease(c):
    c.configure(lease_s=SHORT_S)
    for mnt in c.mnts:  # each is connected
        os.close(os.open(os.path.join(mnt, "begun"), os.O_CREAT))


# ---- lost answers ----

class Deafener(Proxy):
    """A proxy: while its mount is deaf, it drops answers that end a change of names or attributes."""

    # A kind of frame, and ops: see docs/FORMATS.md and rozo.proto.
    ANSWER, CHANGES = 2, (105, 106, 107, 108, 109, 110, 118, 120)
    ENDS = (0, 40, 41, 52)  # OK, NOT_FOUND, EXISTS, NO_DATA; other requests are repeated

    def __init__(self, target):
        super().__init__(target)
        self.deaf, self.n_done = False, 0

    def break_links(self):
        with self.lock:
            shut_down(*self.socks[1:])

    def loses(self, kind, op, status):
        lost = self.deaf and kind == self.ANSWER and op in self.CHANGES and status in self.ENDS
        self.n_done += lost and status == 0
        return lost

    def pump(self, a, b):
        """Passes frame by frame, in both directions."""
        rest = b""
        try:
            while True:
                data = a.recv(1 << 16)
                self.open.wait()
                if not data:
                    break
                rest += data
                while len(rest) >= 48:
                    kind, op, status = struct.unpack_from("<HHH", rest, 6)
                    n = 48 + sum(struct.unpack_from("<II", rest, 32))
                    if len(rest) < n:
                        break
                    if not self.loses(kind, op, status):
                        b.sendall(rest[:n])
                    rest = rest[n:]
        except OSError:
            pass
        shut_down(a, b)


CALLS = {  # none of them may be executed twice
    "mkdir": lambda at: os.mkdir(at("made")),
    "symlink": lambda at: os.symlink("x", at("symlink")),
    "mknod": lambda at: os.mknod(at("fifo"), 0o600 | stat.S_IFIFO),
    "create": lambda at: write_anew(at("file")),
    "link": lambda at: os.link(at("a"), at("linked")),
    "unlink": lambda at: os.unlink(at("b")),
    "rmdir": lambda at: os.rmdir(at("d")),
    "rename": lambda at: os.rename(at("c"), at("renamed")),
    "setxattr": lambda at: os.setxattr(at("a"), "user.new", b"x", os.XATTR_CREATE),
    "removexattr": lambda at: os.removexattr(at("a"), "user.old"),
    "chmod": lambda at: os.chmod(at("a"), 0o600),
    "truncate": lambda at: os.truncate(at("a"), 5),
    "cut": lambda at: os.truncate(at("full"), 5),
}


def write_anew(path):
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    os.write(fd, b"new")
    assert os.pread(fd, 4, 0) == b"new"
    os.close(fd)


@pytest.fixture
def deaf(cluster):
    """A cluster with two mounts, and one that can be made deaf. Its calls end when exportd is down for long."""
    c = cluster(layout=0, mounts=2)
    last = CutOff(c, "deaf", Deafener)
    try:
        yield c, last
    finally:
        last.end()


class Caller(threading.Thread):
    def __init__(self, mnt, call):
        super().__init__(daemon=True)
        self.mnt, self.call, self.ended, self.failed = mnt, call, False, None

    def run(self):
        try:
            CALLS[self.call](lambda name: os.path.join(self.mnt, self.call, name))
        except Exception as e:
            self.failed = e
        self.ended = True


def test_changes_whose_answers_were_lost_are_done_once(deaf):
    c, last = deaf
    for call in CALLS:
        base = os.path.join(last.mnt, call)
        os.makedirs(os.path.join(base, "d"))
        for name in "abc":
            open(os.path.join(base, name), "w").close()
        os.setxattr(os.path.join(base, "a"), "user.old", b"x")
    with open(os.path.join(last.mnt, "cut", "full"), "w") as f:
        f.write("x" * 20000)
    callers = [Caller(last.mnt, call) for call in CALLS]
    last.proxy.deaf = True
    for caller in callers:
        caller.start()
    wait_for(lambda: last.proxy.n_done == len(CALLS), "all to be done")
    assert not any(caller.ended for caller in callers)
    c.kill("exportd")
    last.proxy.deaf = False
    c.restart("exportd")
    wait_for(lambda: all(caller.ended for caller in callers), "all to hear of it")
    assert [caller.failed for caller in callers] == [None] * len(CALLS)
    for mnt in [last.mnt] + c.mnts:
        at = lambda *names, mnt=mnt: os.path.join(mnt, *names)
        assert os.listdir(at("mkdir", "made")) == []
        assert os.readlink(at("symlink", "symlink")) == "x"
        assert stat.S_ISFIFO(os.stat(at("mknod", "fifo")).st_mode)
        with open(at("create", "file"), "rb") as f:
            assert f.read() == b"new"
        assert os.path.samefile(at("link", "linked"), at("link", "a")) and os.stat(at("link", "a")).st_nlink == 2
        assert not os.path.exists(at("unlink", "b")) and not os.path.exists(at("rmdir", "d"))
        assert not os.path.exists(at("rename", "c")) and os.path.exists(at("rename", "renamed"))
        assert os.getxattr(at("setxattr", "a"), "user.new") == b"x"
        assert os.listxattr(at("removexattr", "a")) == []
        assert stat.S_IMODE(os.stat(at("chmod", "a")).st_mode) == 0o600
        with open(at("truncate", "a"), "rb") as f:
            assert f.read() == bytes(5)
        with open(at("cut", "full"), "rb") as f:
            assert f.read() == b"xxxxx"
    os.truncate(os.path.join(c.mnts[0], "cut", "full"), 20000)  # the cut bytes are gone
    with open(os.path.join(c.mnts[0], "cut", "full"), "rb") as f:
        assert f.read() == b"xxxxx" + bytes(19995)


def test_a_truncate_that_is_sent_again_leaves_what_others_wrote_since(deaf):
    """exportd has executed it, but could not answer before it ended the client's session."""
    c, last = deaf
    c.configure(evict_s=3)
    os.mkdir(os.path.join(last.mnt, "cut"))
    name = os.path.join("cut", "full")
    with open(os.path.join(last.mnt, name), "w") as f:
        f.write("x" * 20000)
    caller = Caller(last.mnt, "cut")
    last.proxy.deaf = True
    caller.start()
    wait_for(lambda: last.proxy.n_done == 1, "it to be done")
    last.proxy.open.clear()
    with open(os.path.join(c.mnts[0], name), "ab") as f:  # waits for the eviction of a session
        assert f.tell() == 5
        f.write(b"y" * 20000)
        f.flush()
        os.fsync(f.fileno())
    last.proxy.deaf = False
    last.proxy.break_links()
    last.proxy.open.set()
    wait_for(lambda: caller.ended, "the truncate to end")
    for mnt in [last.mnt] + c.mnts:
        with open(os.path.join(mnt, name), "rb") as f:
            assert f.read() == b"x" * 5 + b"y" * 20000


# ---- names ----

class Worker(threading.Thread):
    """Changes its own names, one after the other, and knows the expected state."""

    def __init__(self, mnt, name):
        super().__init__()
        self.dir = os.path.join(mnt, name)
        self.name, self.n, self.stop = name, 0, False
        self.expected = {}  # name -> number of links of a file; 0: a directory
        self.failed = None
        os.mkdir(self.dir)

    def step(self):
        at, n = lambda name: os.path.join(self.dir, name), self.n
        os.mkdir(at("d%d" % n))  # EEXIST could only be its own
        self.expected["d%d" % n] = 0
        os.close(os.open(at("f%d" % n), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        self.expected["f%d" % n] = 1
        os.link(at("f%d" % n), at("l%d" % n))
        self.expected["f%d" % n] = self.expected["l%d" % n] = 2
        os.rename(at("l%d" % n), at("r%d" % n))  # ENOENT could only be its own
        del self.expected["l%d" % n]
        self.expected["r%d" % n] = 2
        if n % 2:
            os.unlink(at("f%d" % n))
            del self.expected["f%d" % n]
            self.expected["r%d" % n] = 1
            os.rmdir(at("d%d" % n))
            del self.expected["d%d" % n]
        self.n += 1

    def run(self):
        try:
            while not self.stop:
                self.step()
        except OSError as e:
            self.failed = e

    def check(self, mnt):
        d = os.path.join(mnt, self.name)
        found = {}
        for e in os.scandir(d):
            st = os.stat(e.path)
            found[e.name] = 0 if e.is_dir() else st.st_nlink
        assert found == self.expected


def test_names_over_restarts(two):
    """Acknowledged changes exist, on the other mount too; repeated requests are executed once."""
    c, _ = two
    workers = [Worker(c.mnts[i % 2], "w%d" % i) for i in range(6)]
    for w in workers:
        w.start()
    try:
        for _ in range(4):
            before = [w.n for w in workers]
            restart(c)
            wait_for(lambda: all(w.failed or w.n > n + 3 for w, n in zip(workers, before)),
                     "all to go on", timeout=60)
    finally:
        for w in workers:
            w.stop = True
        for w in workers:
            w.join(60)
    for w in workers:
        assert w.failed is None, "%s, step %d: %r" % (w.name, w.n, w.failed)
        w.check(c.mnts[0])
        w.check(c.mnts[1])


# ---- locks ----

def test_a_counter_under_lock_over_restarts(two):
    c, agent = two
    agents = [agent(i % 2) for i in range(4)]
    n = 0
    for _ in range(3):
        for a in agents:
            for _ in range(10):
                a.start("count")
                n += 1
        restart(c)
        for a in agents:
            answers = [a.answer() for _ in range(10)]
            assert all(x.isdigit() for x in answers), answers
    with open(os.path.join(c.mnts[0], "file"), "rb") as f:
        assert int(f.read()) == n


def test_locks_are_kept_and_nobody_waits_for_a_lease(two):
    """The mounts return within moments: then the grace period ends."""
    c, agent = two
    a, b, w = agent(0), agent(1), agent(1)
    assert a("set", "w", 0, 10) == "ok"
    w.start("wait", "w", 5, 1)
    wait_for(w.is_waiting, "w to wait")
    b.start("set", "w", 9, 1)
    assert b.answer() == "EAGAIN"
    restart(c)
    begun = time.monotonic()
    assert b("set", "w", 9, 1) == "EAGAIN"  # still a's
    assert a("set", "u", 0, 0) == "ok"
    assert w.answer() == "ok"
    assert time.monotonic() - begun < LEASE_S / 2
    assert "the grace is over" in c.log("exportd")


def test_locks_of_a_mount_that_does_not_return_are_free_after_its_lease(two):
    """A mount that does not come back may only be slow: its locks are free one lease after the restart, for
    all others. It is stopped here, because a killed one is reported by the other mount."""
    c, agent = two
    shorten_lease(c)
    a, b = agent(0), agent(1)
    assert a("set", "w", 0, 10) == "ok"
    c.kill("exportd")
    mount = c.names("mount")[0]
    c.kill(mount, signal.SIGSTOP)
    try:
        c.restart("exportd")
        begun = time.monotonic()
        b.start("wait", "w", 0, 10)
        assert b.answer() == "ok"
        assert time.monotonic() - begun > SHORT_S / 2
        assert "did not reconnect" in c.log("exportd")
    finally:
        c.kill(mount, signal.SIGCONT)


def test_mount_stopped_for_longer_than_its_lease_has_lost_its_locks(two):
    """A mount was stopped for longer than its lease: a process with a lock there gets EIO until it releases
    the lock."""
    c, agent = two
    shorten_lease(c)
    a, other, b = agent(0), agent(0, "other"), agent(1)
    assert a("write", "before") == "ok"
    assert a("set", "w", 0, 10) == "ok"
    assert a("write", "mine") == "ok"
    name = c.names("mount")[0]
    c.kill(name, signal.SIGSTOP)
    try:
        b.start("wait", "w", 0, 10)
        assert b.answer() == "ok"
        assert b("write", "yours") == "ok"
    finally:
        c.kill(name, signal.SIGCONT)
    assert a("write", "mine again") == "EIO"
    assert a("read") == "EIO"
    assert a("set", "r", 50, 1) == "EIO"
    assert a("fsync") == "EIO"
    assert other("write", "no lock") == "ok"  # no other process is affected
    assert a("set", "u", 0, 0) == "EIO"  # reports the lost lock
    wait_for(lambda: a("read") == "yours", "a to see what b wrote")
    assert a("set", "w", 0, 10) == "EAGAIN"
    assert b("set", "u", 0, 0) == "ok"
    assert a("set", "w", 0, 10) == "ok"
    assert a("write", "mine") == "ok"
    assert a("set", "u", 0, 0) == "ok"
    assert b("set", "r", 0, 10) == "ok"
    assert b("read") == "mine"
    assert "a lock on inode" in c.log(name)


def test_a_write_that_waited_for_its_turn_has_lost_its_lock_meanwhile(two):
    """The write began under the lock, and needs a token of another mount; when it gets that, another process
    has the lock."""
    c, agent = two
    shorten_lease(c)
    changes = {"cut": "write", "overwritten": "put"}  # one of them truncates
    mine, others, theirs = ({name: agent(i, name) for name in changes} for i in (0, 1, 1))
    for name in changes:
        assert mine[name]("set", "w", 0, 10) == "ok" and mine[name]("write", "mine") == "ok"
        assert others[name]("write", "no lock") == "ok"
    mount = c.names("mount")[0]
    c.kill("exportd", signal.SIGSTOP)
    try:
        for name, change in changes.items():
            mine[name].start(change, "late")
        wait_for(lambda: all(a.is_waiting() for a in mine.values()), "both to wait for what others hold")
        c.kill(mount, signal.SIGSTOP)
        restart(c)
        for b in theirs.values():
            b.start("wait", "w", 0, 10)
        for b in theirs.values():
            assert b.answer() == "ok"
            assert b("write", "yours") == "ok"
    finally:
        c.kill(mount, signal.SIGCONT)
    assert [a.answer() for a in mine.values()] == ["EIO", "EIO"]
    assert [b("read") for b in theirs.values()] == ["yours", "yours"]


def test_copy_that_loses_its_lock_returns_the_bytes_done(two):
    """A copy returns the bytes done before the lock was lost, like a partly done write; the next one gets EIO."""
    c, agent = two
    shorten_lease(c)
    mib = 1 << 20
    with open(os.path.join(c.mnts[0], "source"), "wb") as f:
        f.write(b"s" * 2 * mib)
    a, looks, other, b = agent(0), agent(0), agent(1), agent(1)
    assert a("fill", "a", 0, 4 * mib) == "ok"
    for i in range(40):  # until each has a part of its own and no request is needed
        assert a("fill", "a", i % 128 * 8192, 8192) == "ok"
        assert other("fill", "b", mib + i % 4 * 8192, 8192) == "ok"
    assert a("source", os.path.join(c.mnts[0], "source")) == str(2 * mib)
    assert a("set", "w", 0, 10) == "ok" and looks("direct", 0) == "a"
    mount = c.names("mount")[0]
    c.kill("exportd", signal.SIGSTOP)
    try:
        a.start("copy", 2 * mib)
        wait_for(lambda: looks("direct", mib - 4096) == "s", "the first part to be copied")
        c.kill(mount, signal.SIGSTOP)
        restart(c)
        b.start("wait", "w", 0, 10)
        assert b.answer() == "ok"
    finally:
        c.kill(mount, signal.SIGCONT)
    assert a.answer() == str(mib)
    assert a("copy", 2 * mib) == "EIO"


def test_writes_of_a_session_that_is_over_are_refused_by_storages(two):
    """A mount was stopped with unstored data: its session is over, and storages do not accept the data any
    more. exportd is stopped, so that only storages can refuse it."""
    c, agent = two
    shorten_lease(c)
    a, held, other, b = agent(0), agent(0, "other"), agent(1, "other"), agent(1)
    assert a("write", "before") == "ok" and a("fsync") == "ok"
    assert held("set", "w", 0, 10) == "ok"
    name = c.names("mount")[0]
    assert a("put", "late") == "ok"
    c.kill(name, signal.SIGSTOP)
    try:
        assert other("wait", "w", 0, 10) == "ok"  # now its session is over
        c.kill("exportd", signal.SIGSTOP)
        c.kill(name, signal.SIGCONT)
        assert a("fsync") == "EIO"
        c.kill(name, signal.SIGSTOP)
        c.kill("exportd", signal.SIGCONT)
        assert other("set", "u", 0, 0) == "ok"  # exportd runs again
        wait_for(lambda: b("read") != "", "b to hear of the size")
        assert b("read") == "before"
    finally:
        c.kill("exportd", signal.SIGCONT)
        c.kill(name, signal.SIGCONT)


def test_an_empty_file_under_a_lost_lock(two):
    """Linux ends reads of a file by itself if it believes the file empty: it must not believe that here."""
    c, agent = two
    shorten_lease(c)
    a, other, b = agent(0), agent(0), agent(1)
    assert a("set", "w", 0, 10) == "ok" and a("look") == "0" and a("read") == ""
    name = c.names("mount")[0]
    c.kill(name, signal.SIGSTOP)
    try:
        b.start("wait", "w", 0, 10)
        assert b.answer() == "ok"
    finally:
        c.kill(name, signal.SIGCONT)
    wait_for(lambda: a("read") == "EIO", "a read to fail")
    for _ in range(2):  # also after reads by others, which are allowed
        assert a("read") == a("end") == a("hole") == "EIO"
        assert a("look") == other("look") == other("end") == "0" and other("read") == ""
    assert a("append", "mine") == "EIO"
    assert other("append", "no lock") == "ok" and b("read") == "no lock"
    assert a("set", "u", 0, 0) == "EIO"
    assert a("read") == "no lock" and a("end") == "7"


def test_close_ends_the_error_of_a_lost_lock(two):
    c, agent = two
    shorten_lease(c)
    a, b = agent(0), agent(1)
    assert a("flock", "w") == "ok"
    assert a("write", "mine") == "ok"
    name = c.names("mount")[0]
    c.kill(name, signal.SIGSTOP)
    try:
        b.start("flock", "w")
        assert b.answer() == "ok"
    finally:
        c.kill(name, signal.SIGCONT)
    assert a("read") == "EIO"
    a("close")
    again = agent(0)
    assert again("flock", "wn") == "EAGAIN"
    assert again("write", "without a lock") == "ok"


def test_io_under_a_lock_waits_while_exportd_is_hung(two):
    """exportd is silent for longer than the lease: the mount must assume that its locks are taken. So I/O
    under a lock waits, like all that needs a token; exportd was only stopped, and all goes on."""
    c, agent = two
    shorten_lease(c)
    a, other, reader, b = agent(0), agent(0, "other"), agent(0, "third"), agent(1)
    assert a("set", "w", 0, 10) == "ok" and reader("set", "w", 0, 10) == "ok"
    for x in (a, other, reader):
        assert x("put", "one") == "ok" and x("read") == "one"

    def waits(who, *what):
        who.start(*what)
        return not select.select([who.p.stdout], [], [], 2)[0] or who.answer() not in ("ok", "one")

    c.kill("exportd", signal.SIGSTOP)
    try:
        wait_for(lambda: waits(a, "put", "two"), "writes under a lock to wait", timeout=60)
        wait_for(lambda: waits(reader, "read"), "reads under a lock to wait, also of pages in memory", timeout=60)
        # Also without a lock: another mount may have got the file.
        wait_for(lambda: waits(other, "put", "two"), "writes to wait", timeout=60)
    finally:
        c.kill("exportd", signal.SIGCONT)
    assert a.answer() == "ok" and other.answer() == "ok" and reader.answer() in ("one", "two")
    assert b("set", "w", 0, 10) == "EAGAIN"
    assert a("set", "u", 0, 0) == "ok"
    assert b("set", "r", 0, 10) == "ok"
    assert b("read") == "two"
