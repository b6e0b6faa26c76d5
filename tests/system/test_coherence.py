"""Two mounts of one folder, `a` and `b`: what one has done, the other one sees; one small case for each promise."""
import mmap
import multiprocessing
import os
import subprocess
import tempfile
import threading
import time

import pytest

from conftest import cannot_mount, make_factory, mounts_below, wait_for

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

ROUNDS = 20
PAGE = 4096
BLOCK = 8192


@pytest.fixture(scope="module")
def mounts(request):
    """Two mounts of one cluster, for all tests of this file."""
    base = tempfile.mkdtemp(prefix="rozo-t-")
    make, end = make_factory(request.node, base, limited=False)
    try:
        yield make(layout=0, mounts=2).mnts
        end()
    finally:
        for point in mounts_below(base):
            subprocess.run(["umount", "-l", point], check=False)
        subprocess.run(["rm", "-rf", base], check=False)


@pytest.fixture
def ab(mounts, request):
    name = request.node.name.replace("/", "-")
    os.mkdir(os.path.join(mounts[0], name))
    wait_for(lambda: os.path.isdir(os.path.join(mounts[1], name)), "the folder of the test")
    return [os.path.join(m, name) for m in mounts]


def put(path, data=b""):
    with open(path, "wb") as f:
        f.write(data)


def get(path):
    with open(path, "rb") as f:
        return f.read()


def is_there(path):
    try:
        os.stat(path)
        return True
    except FileNotFoundError:
        return False


# ---- names ----

def test_a_name_that_was_not_there(ab):
    a, b = ab
    for i in range(ROUNDS):
        assert not is_there(b + "/new%d" % i)
        put(a + "/new%d" % i)
        assert is_there(b + "/new%d" % i)


def test_of_those_who_make_a_name_one_wins(ab):
    a, b = ab
    won = [[], []]

    def make(which):
        for i in range(200):
            try:
                os.close(os.open(ab[which] + "/%d" % i, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                won[which].append(i)
            except FileExistsError:
                pass

    in_threads([lambda w=w: make(w) for w in (0, 1)])
    assert sorted(won[0] + won[1]) == list(range(200))


def test_a_directory_that_is_read_while_it_changes(ab):
    """What is there throughout is told once."""
    a, b = ab
    stay = {"stays-%03d" % i for i in range(300)}
    for name in stay:
        put(a + "/" + name)
    stop = threading.Event()

    def churn():
        i = 0
        while not stop.is_set():
            put(a + "/comes-%d" % (i % 50))
            os.rename(a + "/comes-%d" % (i % 50), a + "/moved-%d" % (i % 50))
            os.unlink(a + "/moved-%d" % (i % 50))
            i += 1

    def read():
        try:
            for _ in range(40):
                names = os.listdir(b)
                assert sorted(n for n in names if n.startswith("stays")) == sorted(stay)
        finally:
            stop.set()

    in_threads([churn, read])


# ---- bytes ----

def test_many_readers_and_a_writer_end(ab):
    """More requests than the kernel lets through at once wait on one mount, while the other takes its pages away."""
    a, b = ab
    size, n_readers = 4 << 20, 40
    put(a + "/f", b"0" * size)
    stop = multiprocessing.Event()

    def write():
        fd = os.open(a + "/f", os.O_WRONLY)
        try:
            for i in range(1, 30):
                for at in range(0, size, 1 << 20):
                    os.pwrite(fd, b"%d" % (i % 10) * (1 << 20), at)
        finally:
            os.close(fd)

    def read(n):
        fd = os.open(b + "/f", os.O_RDONLY if n % 3 else os.O_RDWR)
        m = mmap.mmap(fd, size, prot=mmap.PROT_READ)
        i = 0
        while not stop.is_set():
            at = (n * 37 + i * 101) % (size // BLOCK) * BLOCK
            if n % 8 == 0:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            data = m[at:at + PAGE] if n % 2 else os.pread(fd, PAGE, at)
            # A mapped page may be taken away while it is copied; then the rest is newer.
            assert not data.strip(b"0123456789" if n % 2 else data[:1]), (at, data[:1], data[-1:])
            i += 1

    readers = [multiprocessing.Process(target=read, args=(n,), daemon=True) for n in range(n_readers)]
    for p in readers:
        p.start()
    try:
        in_threads([write])
    finally:
        stop.set()
        for p in readers:
            p.join(60)
        hang = [p for p in readers if p.exitcode is None]
        for p in hang:
            p.kill()
    assert not hang and [p.exitcode for p in readers] == [0] * n_readers
    assert get(b + "/f") == b"9" * size


def in_threads(functions, timeout=120):
    """Run all; raise the first exception of any. Who does not end, hangs."""
    errors = []

    def run(fn):
        try:
            fn()
        except BaseException as e:  # noqa: B036 - handed on below
            errors.append(e)

    threads = [threading.Thread(target=run, args=(fn,), daemon=True) for fn in functions]
    end = time.monotonic() + timeout
    for t in threads:
        t.start()
    for t in threads:
        t.join(max(0.1, end - time.monotonic()))
    if errors:
        raise errors[0]
    assert not any(t.is_alive() for t in threads), "%d calls hang" % sum(t.is_alive() for t in threads)
