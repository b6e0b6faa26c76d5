"""Advisory locks across mounts: fcntl ranges, OFD, flock; waiting, signals, deadlocks, death, restarts of exportd."""
import fcntl
import os
import select
import signal
import subprocess
import sys
import time

import pytest

from agents import Agent, two  # noqa: F401, a fixture
from conftest import all_up, cannot_mount, process_runs, wait_for

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())


def test_ranges_exclude_each_other_across_mounts(two):
    _, agent = two
    a, b = agent(0), agent(1)
    assert a("set", "w", 10, 10) == "ok"
    assert b("set", "r", 19, 1) == "EAGAIN"
    assert b("get", "r", 0, 0) == "w 10 10"
    assert b("set", "w", 20, 0) == "ok"
    assert a("get", "w", 0, 0) == "w 20 0"
    assert a("set", "u", 12, 2) == "ok"
    assert b("set", "w", 12, 2) == "ok"
    assert a("set", "r", 12, 1) == "EAGAIN"


def test_flock_across_mounts(two):
    _, agent = two
    a, b, c = agent(0), agent(1), agent(1)
    assert a("flock", "r") == "ok" and b("flock", "r") == "ok"
    assert c("flock", "wn") == "EAGAIN"
    assert a("set", "w", 0, 0) == "ok"  # the two kinds are independent
    assert a("flock", "u") == "ok"
    c.start("flock", "w")
    assert b("flock", "u") == "ok"
    assert c.answer() == "ok"
    assert a("flock", "rn") == "EAGAIN"
    c.kill()
    wait_for(lambda: a("flock", "rn") == "ok", "the lock of a dead process")


def test_waiter_gets_the_lock_when_it_is_released(two):
    """unit/exportd/tokens/test_locks.c tests the order in which exportd serves waiters."""
    _, agent = two
    a, b, c = agent(0), agent(1), agent(0)
    assert a("set", "w", 0, 0) == "ok"
    b.start("wait", "w", 0, 0)
    c.start("wait", "w", 0, 0)
    for waiter in (b, c):
        wait_for(waiter.is_waiting, "both to wait")
    assert a("close") == "ok"
    ready, _, _ = select.select([b.p.stdout, c.p.stdout], [], [], 60)
    assert len(ready) == 1
    first, second = (b, c) if ready == [b.p.stdout] else (c, b)
    assert first.answer() == "ok"
    first.kill()
    assert second.answer() == "ok"


def test_a_signal_ends_a_wait(two):
    _, agent = two
    a, b, c = agent(0), agent(1), agent(1)
    assert a("set", "w", 0, 0) == "ok"
    b.start("wait", "w", 0, 5)
    wait_for(b.is_waiting, "b to wait")
    b.p.send_signal(signal.SIGUSR1)
    assert b.answer() == "EINTR"
    c.start("wait", "w", 0, 5)
    wait_for(c.is_waiting, "c to wait")
    c.kill()  # a killed waiter neither hangs nor gets it
    assert a("set", "u", 0, 0) == "ok"
    assert b("set", "w", 0, 0) == "ok"


def test_deadlocks_are_refused(two):
    _, agent = two
    a, b = agent(0), agent(1)
    assert a("set", "w", 0, 1) == "ok" and b("set", "w", 1, 1) == "ok"
    a.start("wait", "w", 1, 1)
    b.start("wait", "w", 0, 1)
    ready, _, _ = select.select([a.p.stdout, b.p.stdout], [], [], 60)
    assert len(ready) == 1
    refused, waits = (a, b) if ready == [a.p.stdout] else (b, a)
    assert refused.answer() == "EDEADLOCK"  # Python's name
    assert refused("set", "u", 0, 2) == "ok"
    assert waits.answer() == "ok"


def test_locks_that_a_close_releases(two):
    _, agent = two
    a, b = agent(0), agent(1)
    assert a("set", "w", 0, 0) == "ok"
    assert a("reopen") == "ok"  # POSIX: any close of the file by the process releases its locks
    assert b("set", "w", 0, 0) == "ok"
    assert b("set", "u", 0, 0) == "ok"
    assert a("ofdset", "w", 0, 0) == "ok"
    assert a("reopen") == "ok"  # ... but not those of an open file description
    assert b("set", "w", 0, 0) == "EAGAIN"
    assert a("close") == "ok"
    wait_for(lambda: b("set", "w", 0, 0) == "ok", "the release of an OFD lock")


def test_locks_of_a_dead_mount_go_with_its_session(two):
    c, agent = two
    a, b = agent(0), agent(1)
    assert a("set", "w", 0, 0) == "ok"
    c.kill(c.names("mount")[0])
    wait_for(lambda: b("set", "w", 0, 0) == "ok", "the lease of the dead mount to end", timeout=60)


def test_a_mount_ends_although_somebody_waits(two):
    c, agent = two
    a, b = agent(0), agent(1)
    assert a("set", "w", 0, 0) == "ok"
    b.start("wait", "w", 0, 0)
    wait_for(b.is_waiting, "b to wait")
    name = c.names("mount")[1]
    pid = c.pid(name)
    c.kill(name, signal.SIGTERM)
    assert b.answer() == "EIO"
    b.kill()
    wait_for(lambda: not process_runs(pid), "the end of the mount")
    assert a("set", "r", 0, 0) == "ok"


@pytest.mark.parametrize("how", ["set", "ofdset", "flock"])
def test_unlock_returns_the_error_of_writes_that_were_not_stored(cluster, how):
    """The lock is free for others nevertheless; fsync reports the error, too."""
    c = cluster(layout=0, mounts=2, mount_options="io_timeout=2")
    a, b = [Agent(os.path.join(mnt, "file")) for mnt in c.mnts]
    whole = () if how == "flock" else (0, 0)
    assert a("put", "old") == "ok" and a("fsync") == "ok"
    for name in c.names("storaged"):
        c.kill(name)
    assert a(how, "w", *whole) == "ok"
    assert a("put", "new") == "ok"
    assert a(how, "u", *whole) == "EIO"
    c.restart(*c.names("storaged"))
    wait_for(lambda: all_up(c, os.path.join(c.mnts[0], "file")), "the mount to reach all storages")
    assert a("fsync") == "ok"  # no other mount used the file: the data was kept and stored again
    assert a(how, "w", *whole) == "ok" and a(how, "u", *whole) == "ok"

    for name in c.names("storaged"):
        c.kill(name)
    assert a(how, "w", *whole) == "ok"
    assert a("put", "lost") == "ok"
    b.start(how.replace("set", "wait"), "w", *whole)
    wait_for(b.is_waiting, "b to wait")
    assert a(how, "u", *whole) == "EIO"
    assert b.answer() == "ok"
    assert a("fsync") == "EIO"
    a.kill()
    b.kill()


def test_unlock_returns_the_error_of_writes_that_were_dropped_before(cluster):
    """Another mount asked for the size of the file, and data written under the lock could not be stored."""
    c = cluster(layout=0, mounts=2, mount_options="io_timeout=2")
    a, b = [Agent(os.path.join(mnt, "file")) for mnt in c.mnts]
    assert a("put", "old") == "ok" and a("fsync") == "ok"
    for name in c.names("storaged"):
        c.kill(name)
    assert a("set", "w", 0, 0) == "ok"
    assert a("put", "lost") == "ok"
    assert b("look") == "3"
    assert a("set", "u", 0, 0) == "EIO"
    assert a("set", "w", 0, 0) == "ok" and a("set", "u", 0, 0) == "ok"  # reported once
    assert b("set", "w", 0, 0) == "ok" and b("set", "u", 0, 0) == "ok"
    assert a("fsync") == "EIO"
    assert a("set", "w", 0, 0) == "ok" and a("set", "u", 0, 0) == "ok"
    a.kill()
    b.kill()


def test_a_counter_under_lock(two):
    """Data written under the lock is visible to the next holder, on any mount."""
    c, agent = two
    agents = [agent(i % 2) for i in range(4)]
    for _ in range(50):
        for a in agents:
            a.start("count")
    assert max(int(a.answer()) for _ in range(50) for a in agents) == 200


def test_locks_are_kept_over_a_restart_of_exportd(two):
    c, agent = two
    a, b, w = agent(0), agent(1), agent(1)
    assert a("set", "w", 0, 10) == "ok" and a("flock", "w") == "ok"
    w.start("wait", "w", 5, 1)
    wait_for(w.is_waiting, "w to wait")
    c.kill("exportd")
    c.restart("exportd")
    wait_for(lambda: b("set", "w", 20, 1) == "ok", "the grace to end", timeout=60)
    assert b("set", "w", 9, 1) == "EAGAIN"
    assert b("flock", "rn") == "EAGAIN"
    assert a("set", "u", 5, 1) == "ok"
    assert w.answer() == "ok"
    assert b("set", "r", 5, 1) == "EAGAIN"
    assert b("set", "w", 4, 1) == "EAGAIN"


def n_tests(c):
    """Returns how many tests for a lock exportd was asked."""
    return c.status()["exportd"]["requests"].get("lock_test", 0)


def test_tests_of_a_file_without_locks_ask_exportd_once(two):
    c, agent = two
    a, b = agent(0), agent(1)
    assert b("get", "w", 0, 0) == "free"
    before = n_tests(c)
    for _ in range(50):
        assert b("get", "w", 0, 0) == "free" and b("get", "r", 5, 1) == "free"
    assert n_tests(c) == before
    assert a("set", "w", 10, 10) == "ok"
    assert b("get", "r", 0, 0) == "w 10 10"
    assert a("set", "u", 0, 0) == "ok"
    assert b("get", "r", 0, 0) == "free"

    def asks_nobody():
        n = n_tests(c)
        return all(b("get", "w", 0, 0) == "free" for _ in range(10)) and n_tests(c) == n

    wait_for(asks_nobody, "the answers to be known again")
    other = agent(1)  # another process on the same mount
    assert b("set", "w", 0, 5) == "ok"
    assert other("get", "w", 0, 0) == "w 0 5" and b("get", "w", 0, 0) == "free"
    b.kill()
    wait_for(lambda: other("get", "w", 0, 0) == "free", "the locks of a dead process to go")


WATCH = r"""
import fcntl, os, struct, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
print("ready", flush=True)
ask = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
while True:
    start = time.monotonic()
    kind = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, ask))[0]
    print(start, time.monotonic(), kind != fcntl.F_UNLCK, flush=True)
"""


class Watcher:
    """A process that tests for a lock all the time, and says what it saw."""

    def __init__(self, path):
        self.p = subprocess.Popen([sys.executable, "-c", WATCH, path], stdout=subprocess.PIPE, text=True)
        assert self.p.stdout.readline() == "ready\n"
        self.seen = []

    def see(self, n=20):
        """Waits for n tests that begin from now on."""
        now, found = time.monotonic(), 0
        while found < n:
            start, end, locked = self.p.stdout.readline().split()
            self.seen.append((float(start), float(end), locked == "True"))
            found += float(start) > now

    def end(self):
        self.p.kill()
        self.p.communicate()


def agree(c, name, way, restart=False):
    """Locks a file on one mount while a process tests for that on the other one; returns the number of tests."""
    here, there = (os.path.join(mnt, name) for mnt in c.mnts[::way])
    with open(here, "wb") as f:
        w = Watcher(there)
        try:
            w.see()
            begun = time.monotonic()
            fcntl.lockf(f, fcntl.LOCK_EX)
            locked = time.monotonic()
            w.see()
            if restart:
                c.kill("exportd")
                c.restart("exportd")
                w.see()
            released = time.monotonic()
            fcntl.lockf(f, fcntl.LOCK_UN)
            free = time.monotonic()
            w.see()
        finally:
            w.end()
    for start, end, found in w.seen:
        if start > locked and end < released:
            assert found, "the lock on %s was not seen" % name
        elif end < begun or start > free:
            assert not found, "a lock on %s was seen that was released, or not taken yet" % name
    return len(w.seen)


def test_two_mounts_agree_on_locks_at_each_moment(two):
    """A test on one mount that begins after a lock was taken on the other one, and ends before it is released, finds
    it; one that begins after the release finds none. exportd restarts while the last file is locked."""
    c, _ = two
    before = n_tests(c)
    n_seen = sum(agree(c, "f%d" % i, (1, -1)[i % 2]) for i in range(20))
    assert n_tests(c) - before < n_seen - 20 * 10, "exportd was asked nearly each time"
    agree(c, "last", 1, restart=True)
