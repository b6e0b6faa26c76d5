"""Storages die or hang, before and during reads and writes, and programs notice nothing.

For layouts 0, 1 and 2, up to n - k storages of the cluster are killed (SIGKILL) or stopped (SIGSTOP, which
keeps their sockets open) while a file of 16 MiB is read and another one is written. The bytes are right, no
call fails, and no single call takes longer than CALL_MAX_S. This limit is a promise to users (a pause under
two seconds), so the test asserts it although it is a time.
"""
import errno
import itertools
import os
import random
import signal
import threading
import time

import pytest

from conftest import K, N, STORAGES, all_up, pattern

MIB = 1 << 20
FILE_MIB = 16
# A sanitizer makes everything several times slower: set a higher limit there.
CALL_MAX_S = float(os.environ.get("ROZO_CALL_MAX_S", "2.0"))
STOPPED_S = 20.0


def combinations(layout, sizes):
    """Returns every combination of 1..n-k storages for layout 0; else a seeded one of each of these sizes."""
    ids = range(1, STORAGES[layout] + 1)
    if layout == 0:
        return list(itertools.combinations(ids, N[0] - K[0]))
    rng = random.Random(layout)
    assert max(sizes) == N[layout] - K[layout]
    return [tuple(sorted(rng.sample(ids, size))) for size in sizes]


def names_of(combo):
    return ["storaged-%d" % s for s in combo]


class Calls:
    """Times every call and keeps the longest."""

    def __init__(self):
        self.longest, self.what, self.lock = 0.0, "", threading.Lock()

    def time(self, what, fn, *args):
        start = time.monotonic()
        try:
            return fn(*args)
        finally:
            took = time.monotonic() - start
            with self.lock:
                if took > self.longest:
                    self.longest, self.what = took, what

    def check(self, names):
        assert self.longest < CALL_MAX_S, (names, self.what, self.longest)


def write_file(path, data, calls, half=None):
    fd = calls.time("open for writing of " + path, os.open, path,
                    os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    try:
        for off in range(0, len(data), MIB):
            if half is not None and off == len(data) // 2:
                half()
            n = calls.time("write at %d of %s" % (off, path), os.pwrite, fd, data[off:off + MIB], off)
            assert n == MIB
        calls.time("fsync of " + path, os.fsync, fd)
    finally:
        calls.time("close of " + path, os.close, fd)


def read_file(path, data, calls, half=None):
    """Reads a file cold: the kernel's pages of the file are dropped first."""
    fd = calls.time("open for reading of " + path, os.open, path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        for off in range(0, len(data), MIB):
            if half is not None and off == len(data) // 2:
                half()
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            got = calls.time("read at %d of %s" % (off, path), os.pread, fd, MIB, off)
            assert got == data[off:off + MIB], "wrong bytes at %d of %s" % (off, path)
        assert os.pread(fd, MIB, len(data)) == b""
    finally:
        os.close(fd)


def rewrite_piece(path, data, at, new, calls):
    """Overwrites a piece, syncs it and reads it back cold; data (a bytearray) is the expected file."""
    fd = calls.time("open of " + path, os.open, path, os.O_RDWR)
    try:
        data[at:at + len(new)] = new
        assert calls.time("write at %d of %s" % (at, path), os.pwrite, fd, new, at) == len(new)
        calls.time("fsync of " + path, os.fsync, fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        got = calls.time("read at %d of %s" % (at, path), os.pread, fd, len(new), at)
        assert got == new, "wrong bytes at %d of %s" % (at, path)
    finally:
        calls.time("close of " + path, os.close, fd)


def in_parallel(*fns):
    """Runs all functions; raises the first exception of any."""
    errors = []

    def run(fn):
        try:
            fn()
        except BaseException as e:  # noqa: B036 - handed on below
            errors.append(e)

    threads = [threading.Thread(target=run, args=(fn,)) for fn in fns]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


def once(fn):
    """Returns a function that calls fn only once: when the reader or the writer first reaches its middle."""
    lock, done = threading.Lock(), []

    def call():
        with lock:
            if not done:
                done.append(1)
                fn()
    return call


def break_and_check(c, names, sig, old, new, rewritten, calls=None):
    """Tests one combination: faults in the middle of a read and a write, then both again with the faults."""
    mnt, calls = c.mnt, calls or Calls()
    hit = once(lambda: [c.kill(name, sig) for name in names])
    in_parallel(lambda: read_file(mnt + "/old", old, calls, half=hit),
                lambda: write_file(mnt + "/new", new, calls, half=hit))
    read_file(mnt + "/new", new, calls)
    write_file(mnt + "/rewritten", rewritten, calls)  # overwrites data on the lost storages
    read_file(mnt + "/rewritten", rewritten, calls)
    read_file(mnt + "/old", old, calls)
    return calls


@pytest.mark.parametrize("layout,sizes", [(0, None), (1, (2, 2, 2, 1)), (2, (4, 4, 3, 1))],
                         ids=("layout0", "layout1", "layout2"))
def test_reads_and_writes_go_on_when_storages_are_killed(cluster, layout, sizes):
    c = cluster(layout=layout)
    old = pattern(1, FILE_MIB * MIB)
    write_file(c.mnt + "/old", old, Calls())
    write_file(c.mnt + "/rewritten", pattern(2, FILE_MIB * MIB), Calls())
    for i, combo in enumerate(combinations(layout, sizes)):
        names = names_of(combo)
        new, rewritten = pattern(100 + i, FILE_MIB * MIB), pattern(200 + i, FILE_MIB * MIB)
        calls = break_and_check(c, names, signal.SIGKILL, old, new, rewritten)
        calls.check(names)
        c.restart(*names)
        c.wait_for(lambda: all_up(c, c.mnt + "/old"), "all storages up")
        read_file(c.mnt + "/rewritten", rewritten, Calls())
        read_file(c.mnt + "/new", new, Calls())


def hang_and_check(c, combo, busy, seed):
    """Stops storages for STOPPED_S while reads and writes go on. The owner of `busy` has the machine to
    itself."""
    names, path = names_of(combo), c.mnt + "/rewritten"
    old, new = pattern(1, FILE_MIB * MIB), pattern(seed, FILE_MIB * MIB)
    rewritten = bytearray(pattern(seed + 1, FILE_MIB * MIB))
    rng, calls = random.Random(seed), Calls()
    with busy:
        write_file(c.mnt + "/old", old, Calls())
        write_file(path, new, Calls())
        try:
            break_and_check(c, names, signal.SIGSTOP, old, new, bytes(rewritten), calls)
        except BaseException:
            resume(c, names)
            raise
        stopped = time.monotonic()  # slightly later than in fact
    try:
        while time.monotonic() - stopped < STOPPED_S:
            at = rng.randrange(2 * FILE_MIB - 1) * MIB // 2 + rng.randrange(8192)
            rewrite_piece(path, rewritten, at, rng.randbytes(MIB // 2), calls)
            time.sleep(0.5)
    finally:
        resume(c, names)
    # No stale data afterwards: data overwritten during the stop reads back new, at once and after the
    # storages have executed the requests in their sockets.
    with busy:
        read_file(path, rewritten, calls)
        c.wait_for(lambda: all_up(c, c.mnt + "/old"), "all storages up")
        for name, want in (("rewritten", rewritten), ("new", new), ("old", old)):
            read_file(c.mnt + "/" + name, want, calls)
    calls.check(names)


def resume(c, names):
    for name in names:
        c.kill(name, signal.SIGCONT)


def test_reads_and_writes_go_on_when_storages_hang(cluster):
    """A cluster for each combination of each layout, so that their waits of 20 s overlap."""
    busy = threading.Lock()
    made = [(cluster(layout=layout), combo) for layout, sizes in ((0, None), (1, (2, 2, 1)), (2, (4, 3)))
            for combo in combinations(layout, sizes)]
    in_parallel(*[lambda c=c, combo=combo, seed=300 + 10 * i: hang_and_check(c, combo, busy, seed)
                  for i, (c, combo) in enumerate(made)])


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP], ids=("killed", "hung"))
@pytest.mark.parametrize("layout", [0, 1, 2])
def test_storages_down_before_the_first_read_or_write(cluster, layout, sig):
    """A mount that has never reached the storages works, too."""
    c = cluster(layout=layout)
    old = pattern(5, 16 * MIB)
    write_file(c.mnt + "/old", old, Calls())
    most = N[layout] - K[layout]
    for i, combo in enumerate(combinations(layout, (most, most, 1) if most > 1 else None)):
        names, calls = names_of(combo), Calls()
        try:
            for name in names:
                c.kill(name, sig)
            if i % 2 == 0:
                c.remount()
            read_file(c.mnt + "/old", old, calls)
            new = pattern(500 + i, 16 * MIB)
            write_file(c.mnt + "/new", new, calls)
            read_file(c.mnt + "/new", new, calls)
            write_file(c.mnt + "/new%d" % i, new, calls)
            read_file(c.mnt + "/new%d" % i, new, calls)
        finally:
            if sig == signal.SIGSTOP:
                resume(c, names)
        calls.check(names)
        if sig == signal.SIGKILL:
            c.restart(*names)
        c.wait_for(lambda: all_up(c, c.mnt + "/old"), "all storages up")
        read_file(c.mnt + "/new", new, calls)


@pytest.mark.parametrize("layout", [0, 1, 2])
def test_storages_that_missed_overwrites_serve_nothing_stale(cluster, layout):
    """They return with old records of every block; whichever other storages are lost, reads give the new
    bytes."""
    c = cluster(layout=layout)
    ids, most = range(1, STORAGES[layout] + 1), N[layout] - K[layout]
    rng = random.Random(layout)
    write_file(c.mnt + "/f", pattern(7, 8 * MIB), Calls())
    for turn in range(4):
        away = (turn + 1,) if layout == 0 else tuple(rng.sample(ids, most))
        second = pattern(8 + turn, 8 * MIB)
        for name in names_of(away):
            c.kill(name, signal.SIGKILL)
        write_file(c.mnt + "/f", second, Calls())
        c.restart(*names_of(away))
        c.wait_for(lambda: all_up(c, c.mnt + "/f"), "all storages up")
        others = [s for s in ids if s not in away]
        for lost in itertools.combinations(others, 1) if layout == 0 else [rng.sample(others, most)]:
            for name in names_of(lost):
                c.kill(name, signal.SIGKILL)
            try:
                read_file(c.mnt + "/f", second, Calls())
            finally:
                c.restart(*names_of(lost))
                c.wait_for(lambda: all_up(c, c.mnt + "/f"), "all storages up")


def test_too_many_storages_down_is_an_error_until_they_are_up(cluster):
    """More than n - k down: a read waits or fails with EIO, and never returns wrong data; then everything is
    up again."""
    c = cluster(layout=0, mount_options="io_timeout=6")
    data, other = pattern(11, 8 * MIB), pattern(12, 8 * MIB)
    write_file(c.mnt + "/f", data, Calls())
    write_file(c.mnt + "/g", data, Calls())
    lost = names_of((1, 2, 3))
    for name in lost:
        c.kill(name, signal.SIGKILL)
    try:
        read_file(c.mnt + "/f", data, Calls())
        pytest.fail("read 8 MB with one storage of four")
    except OSError as e:
        assert e.errno == errno.EIO
    try:
        write_file(c.mnt + "/h", other, Calls())
        pytest.fail("fsync of 8 MB with one storage of four")
    except OSError as e:
        assert e.errno == errno.EIO
    # A read that waits when the storages return gets its bytes.
    got = []

    def reader():
        while not got:
            try:
                read_file(c.mnt + "/f", data, Calls())
                got.append(1)
            except OSError as e:
                assert e.errno == errno.EIO

    t = threading.Thread(target=reader)
    t.start()
    c.restart(*lost)
    t.join(60)
    assert got and not t.is_alive()
    read_file(c.mnt + "/f", data, Calls())
    read_file(c.mnt + "/g", data, Calls())
    for name in ("g", "h"):
        write_file(c.mnt + "/" + name, other, Calls())
        read_file(c.mnt + "/" + name, other, Calls())
