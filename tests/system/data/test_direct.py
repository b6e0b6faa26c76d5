"""O_DIRECT: concurrent writes to one file, as databases do."""
import contextlib
import mmap
import os
import random
import signal
import subprocess
import threading
import time

import pytest

from conftest import STORAGES, cannot_mount, wait_for

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

PAGE = 4096
BLOCK = 8192
WRITERS = 6


def aligned(data):
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory


def in_threads(work, n=WRITERS):
    """Runs work(number) in n threads; raises the first exception of any."""
    failed = []

    def run(number):
        try:
            work(number)
        except BaseException as e:
            failed.append(e)
    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        raise failed[0]


@contextlib.contextmanager
def requests(mnt, folder):
    """Returns a function that counts the unanswered requests to the mount."""
    number = os.minor(os.stat(mnt).st_dev)
    os.mkdir(folder)
    subprocess.run(["mount", "-t", "fusectl", "fusectl", folder], check=True)

    def waiting():
        with open("%s/%d/waiting" % (folder, number)) as f:
            return int(f.read())
    try:
        yield waiting
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("flags", (os.O_WRONLY, os.O_RDWR), ids=("write-only", "read-write"))
def test_writes_within_a_file_go_on_together(cluster, scratch, flags):
    """All storages are stopped: the mount receives all of the writes nevertheless."""
    c = cluster(layout=0)
    path = c.mnt + "/f"
    with open(path, "wb") as f:
        f.write(bytes(WRITERS * BLOCK))
    fd = os.open(path, flags | os.O_DIRECT)
    names = ["storaged-%d" % (i + 1) for i in range(STORAGES[0])]
    writing = [threading.Thread(target=os.pwritev, args=(fd, [aligned(bytes([i + 1]) * BLOCK)], i * BLOCK))
               for i in range(WRITERS)]
    with requests(c.mnt, scratch + "/fusectl") as waiting:
        try:
            for name in names:
                c.kill(name, signal.SIGSTOP)
            for t in writing:
                t.start()
            wait_for(lambda: waiting() >= WRITERS, "all writes to come to the mount", timeout=15)
        finally:
            for name in names:
                c.kill(name, signal.SIGCONT)
            for t in writing:
                t.join()
    os.close(fd)
    with open(path, "rb") as f:
        assert f.read() == b"".join(bytes([i + 1]) * BLOCK for i in range(WRITERS))


class History:
    """Writes by page and time: the contents that are allowed at the end."""

    def __init__(self):
        self.lock = threading.Lock()
        # (first page, page after the last, begun, ended); a page begins with the number of its write.
        self.writes = [None]

    def write(self, fd, first, end):
        with self.lock:
            number = len(self.writes)
            self.writes.append(None)
        memory = aligned(number.to_bytes(8, "big") * (PAGE // 8 * (end - first)))
        begun = time.monotonic_ns()
        assert os.pwritev(fd, [memory], first * PAGE) == len(memory)
        self.writes[number] = (first, end, begun, time.monotonic_ns())

    def may_be_last(self, page):
        """Returns the writes that no other write of the page followed completely; 0: none."""
        here = [(n, w) for n, w in enumerate(self.writes) if w is not None and w[0] <= page < w[1]]
        newest = max((w[2] for _, w in here), default=0)
        return {n for n, w in here if w[3] >= newest} or {0}

    def check(self, data):
        for page in range(len(data) // PAGE):
            piece = data[page * PAGE:(page + 1) * PAGE]
            number = int.from_bytes(piece[:8], "big")
            assert piece == number.to_bytes(8, "big") * (PAGE // 8), "page %d is of several writes" % page
            assert number in self.may_be_last(page), "page %d: not what was written last" % page


@pytest.mark.parametrize("mounts", (1, 2))
def test_writes_that_overlap(cluster, mounts):
    """Concurrent writes, also in halves of blocks: each page is one of those written last, and the rest of
    its block is not changed."""
    c = cluster(layout=0, mounts=mounts)
    pages, history = 48, History()
    with open(c.mnt + "/f", "wb") as f:
        f.write(bytes(pages * PAGE))
    fds = [os.open(mnt + "/f", os.O_RDWR | os.O_DIRECT) for mnt in c.mnts]

    def work(number):
        chance = random.Random(number)
        for _ in range(150):
            first = chance.randrange(pages)
            history.write(fds[number % mounts], first, min(pages, first + chance.choice((1, 1, 2, 3, 16))))
    in_threads(work)
    for mnt, fd in zip(c.mnts, fds):
        memory = aligned(bytes(pages * PAGE))
        assert os.preadv(fd, [memory], 0) == len(memory)
        history.check(memory[:])
        os.close(fd)
        with open(mnt + "/f", "rb") as f:
            history.check(f.read())


def test_writes_that_make_a_file_longer(cluster):
    """Writes beyond the end, concurrent with writes inside and with truncates: all data and the size are
    right."""
    c = cluster(layout=0)
    fd = os.open(c.mnt + "/f", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    rounds, history = 40, History()

    def work(number):
        chance = random.Random(number)
        for i in range(rounds):
            page = 3 * (i * WRITERS + number)
            history.write(fd, page, page + 3)
            within = chance.randrange(page + 1)
            history.write(fd, within, within + 1)
    in_threads(work)
    size = 3 * rounds * WRITERS * PAGE
    assert os.fstat(fd).st_size == size
    with open(c.mnt + "/f", "rb") as f:
        history.check(f.read())

    def cut_or_write(number):
        for i in range(rounds):
            if number == 0:
                os.ftruncate(fd, size // 2)
            else:
                os.pwritev(fd, [aligned(bytes([number]) * BLOCK)], size // 2 - BLOCK)
                os.pwritev(fd, [aligned(bytes([number]) * BLOCK)], size - BLOCK)
    in_threads(cut_or_write)
    length = os.fstat(fd).st_size
    assert length in (size // 2, size)
    with open(c.mnt + "/f", "rb") as f:
        data = f.read()
    assert len(data) == length
    assert data[size // 2 - BLOCK:size // 2] in [bytes([n]) * BLOCK for n in range(1, WRITERS)]
    assert length == size // 2 or data[size - BLOCK:] in [bytes([n]) * BLOCK for n in range(1, WRITERS)]
    assert not any(data[size // 2:size - BLOCK])  # cut before the write after it
    os.close(fd)


def test_appends(cluster):
    c = cluster(layout=0)
    records = 60

    def work(number):
        fd = os.open(c.mnt + "/f", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_DIRECT, 0o644)
        for i in range(records):
            assert os.writev(fd, [aligned((number * records + i).to_bytes(8, "big") * (PAGE // 8))]) == PAGE
        os.close(fd)
    in_threads(work)
    with open(c.mnt + "/f", "rb") as f:
        data = f.read()
    found = [data[at:at + PAGE] for at in range(0, len(data), PAGE)]
    assert sorted(found) == [n.to_bytes(8, "big") * (PAGE // 8) for n in range(WRITERS * records)]


def test_pages_beside_direct_writes(cluster):
    """Mappings and cached reads see direct writes, and vice versa."""
    c = cluster(layout=0)
    pages, history = 32, History()
    with open(c.mnt + "/f", "wb") as f:
        f.write(bytes(pages * PAGE))
    fd = os.open(c.mnt + "/f", os.O_RDWR | os.O_DIRECT)

    def work(number):
        chance = random.Random(number)
        for i in range(80):
            page = chance.randrange(pages)
            if number < WRITERS // 2:
                history.write(fd, page, min(pages, page + 2))
            elif number == WRITERS - 1:
                with mmap.mmap(fd, 0) as m:
                    assert len(m[page * PAGE:(page + 1) * PAGE]) == PAGE
            else:
                with open(c.mnt + "/f", "rb") as f:
                    f.seek(page * PAGE)
                    assert len(f.read(PAGE)) == PAGE
    in_threads(work)
    with open(c.mnt + "/f", "rb") as f:
        history.check(f.read())
    with mmap.mmap(fd, 0) as m:
        history.check(m[:])
        m[:PAGE] = (7 << 32).to_bytes(8, "big") * (PAGE // 8)
        m.flush()
    memory = aligned(bytes(PAGE))
    os.preadv(fd, [memory], 0)
    assert memory[:8] == (7 << 32).to_bytes(8, "big")
    os.close(fd)
