"""Results of stat on every mount: unusual times, and the space of a file on the storages."""
import ctypes
import mmap
import os
import random
import subprocess

import pytest

from calls import call, libc
from conftest import cannot_mount, wait_for

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

NS = 10 ** 9


def test_times_that_nanoseconds_do_not_hold(ab, two_mounts):
    """Seconds beyond 1677 and 2262 are kept: on the mount that set them, on others, and over restarts."""
    a, b = ab
    seconds = (-2 ** 63 + 1, -62135596800, -9223372037, -1, 0, 9223372036, 9223372037, 15032385535, 253402300799,
               2 ** 63 - 2)
    for i, s in enumerate(seconds):
        open(os.path.join(a, str(i)), "w").close()
        os.utime(os.path.join(a, str(i)), ns=(s * NS + 999999999, s * NS + 1))

    def check(top):
        for i, s in enumerate(seconds):
            st = os.stat(os.path.join(top, str(i)))
            assert (st.st_atime_ns, st.st_mtime_ns) == (s * NS + 999999999, s * NS + 1), "%s of %d" % (top, s)

    check(a)
    check(b)
    for entry in os.scandir(b):  # attributes from readdirplus
        assert entry.stat().st_mtime_ns == seconds[int(entry.name)] * NS + 1
    two_mounts.restart("exportd")
    two_mounts.remount()
    check(b)
    check(a)


def test_xattrs_come_with_names(ab, two_mounts):
    """A program that looks at files by name, and reads attributes of each, costs one request a file at most."""
    a, b = ab
    names = ["f%d" % i for i in range(1000)]
    for name in names:
        open(os.path.join(a, name), "w").close()
        for i in range(3):
            os.setxattr(os.path.join(a, name), "user.%d" % i, name.encode() * (i + 1))
    random.Random(1).shuffle(names)

    def asked():
        requests = two_mounts.status()["exportd"]["requests"]
        return {kind: requests.get(kind, 0) for kind in ("lookup", "getattr", "readdir", "getxattr", "listxattr")}

    def is_cheap():
        """For a while after mounts have changed something in turn, exportd gives no tokens unasked."""
        two_mounts.remount()
        os.getxattr(os.path.join(b, names[0]), "user.0")
        before = asked()
        for name in names[1:]:
            path = os.path.join(b, name)
            assert os.stat(path).st_size == 0
            assert os.getxattr(path, "user.1") == name.encode() * 2
            assert sorted(os.listxattr(path)) == ["user.0", "user.1", "user.2"]
        cost = {kind: n - before[kind] for kind, n in asked().items()}
        print(cost)
        return sum(cost.values()) <= 1100 and cost["getxattr"] <= 10 and cost["listxattr"] <= 10

    wait_for(is_cheap, "names that bring their xattrs", 60)
    for name in names[:20]:  # what came is dropped when another mount changes it
        os.setxattr(os.path.join(a, name), "user.1", b"changed")
        os.removexattr(os.path.join(a, name), "user.2")
        assert os.getxattr(os.path.join(b, name), "user.1") == b"changed"
        assert sorted(os.listxattr(os.path.join(b, name))) == ["user.0", "user.1"]


# ---- st_blocks ----

BLOCK = 8192
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE = 1, 2, 16


def blocks(path):
    """Returns the allocated blocks of 8 KB by stat."""
    n = os.stat(path).st_blocks
    assert n % 16 == 0, n
    return n // 16


def fallocate(path, mode, offset, length):
    fd = os.open(path, os.O_WRONLY)
    try:
        call(libc.fallocate, fd, mode, ctypes.c_long(offset), ctypes.c_long(length))
    finally:
        os.close(fd)


def both(ab, n):
    """Checks that this mount and the other one report so many blocks."""
    assert [blocks(path) for path in ab] == [n, n]


def test_a_sparse_file_takes_what_was_written(ab, two_mounts):
    a, b = ab = [os.path.join(top, "f") for top in ab]
    fd = os.open(a, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 300 << 20)
    both(ab, 0)
    os.pwrite(fd, b"x", 100 << 20)
    assert blocks(a) == 1  # while it waits in the mount's memory
    os.pwrite(fd, b"y", (100 << 20) + 5)
    assert blocks(a) == 1
    both(ab, 1)
    os.pwrite(fd, b"z" * (BLOCK + 2), (200 << 20) - 1)
    assert blocks(a) == 1 + 3
    both(ab, 4)
    os.close(fd)
    with open(b, "r+b") as f:  # other mount: an overwrite allocates nothing, a hole frees
        os.pwrite(f.fileno(), b"w" * 10, 100 << 20)
        os.pwrite(f.fileno(), b"w" * 10, 50 << 20)
        assert blocks(b) == 5
    both(ab, 5)
    two_mounts.restart("exportd")
    two_mounts.remount()
    both(ab, 5)
    with open(a, "r+b") as f:
        os.pwrite(f.fileno(), b"w" * 10, 200 << 20)
        os.pwrite(f.fileno(), b"w" * 10, 1 << 20)
        os.fsync(f.fileno())
        both(ab, 6)
        f.truncate((100 << 20) + 1)
        both(ab, 3)
        f.truncate(300 << 20)
        both(ab, 3)
        f.truncate(100 << 20)
        both(ab, 2)
    os.truncate(b, 1 << 20)
    both(ab, 0)


def test_blocks_of_files_without_holes(ab):
    a, b = ab = [os.path.join(top, "f") for top in ab]
    with open(a, "wb") as f:
        for i in range(100):
            f.write(b"d" * 1000)
    both(ab, -(-100000 // BLOCK))
    with open(b, "ab") as f:
        f.write(b"d" * 100000)
    both(ab, -(-200000 // BLOCK))
    with open(a, "r+b", 0) as f:
        f.write(b"e" * 50000)
        both(ab, -(-200000 // BLOCK))
        f.truncate(BLOCK)
    both(ab, 1)
    with open(a, "wb"):
        both(ab, 0)
    os.unlink(a)
    fd = os.open(a, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_SYNC, 0o600)
    buf = mmap.mmap(-1, 1 << 20)
    os.pwritev(fd, [buf], 1 << 20)
    both(ab, (1 << 20) // BLOCK)
    os.close(fd)


def test_blocks_that_are_reserved_or_punched(ab):
    a, b = ab = [os.path.join(top, "f") for top in ab]
    open(a, "w").close()
    fallocate(a, FALLOC_FL_KEEP_SIZE, 0, 8 * BLOCK)
    assert os.stat(b).st_size == 0
    both(ab, 8)
    with open(b, "r+b") as f:  # into reserved blocks, and after them
        f.write(b"x" * 9 * BLOCK)
    both(ab, 9)
    fallocate(a, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, BLOCK - 1, 3 * BLOCK)
    both(ab, 9 - 2)
    fallocate(b, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, BLOCK, BLOCK)
    both(ab, 7)
    fallocate(b, 0, 2 * BLOCK, 1)
    both(ab, 8)
    fallocate(a, 0, 20 * BLOCK, 2 * BLOCK)
    assert os.stat(b).st_size == 22 * BLOCK
    both(ab, 10)
    fallocate(a, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 22 * BLOCK)
    both(ab, 0)


def test_blocks_of_writers_in_two_halves(ab):
    """Two mounts that write in halves of a file both report their allocations, and the sum is right."""
    a, b = ab = [os.path.join(top, "f") for top in ab]
    with open(a, "wb") as f:
        f.truncate(100 << 20)
    with open(a, "r+b", 0) as f, open(b, "r+b", 0) as g:
        for i in range(20):
            os.pwrite(f.fileno(), b"a", 2 * i * BLOCK)
            os.pwrite(g.fileno(), b"b", (60 << 20) + 2 * i * BLOCK)
    both(ab, 40)
    with open(b, "r+b", 0) as g:
        for i in range(20):
            os.pwrite(g.fileno(), b"b", (2 * i + 1) * BLOCK)
    both(ab, 60)


def test_programs_keep_holes(ab, scratch):
    """cp, tar -S, du and find use st_blocks."""
    a, b = ab
    f = os.path.join(a, "f")
    with open(f, "wb") as out:
        out.truncate(300 << 20)
        out.seek(123 << 20)
        out.write(b"here")
    copy, f = os.path.join(b, "copy"), os.path.join(b, "f")
    subprocess.run(["cp", "--sparse=auto", f, copy], check=True)
    assert blocks(copy) < 100 and os.stat(copy).st_size == 300 << 20
    tar = os.path.join(scratch, "t.tar")
    subprocess.run(["tar", "-C", b, "-cSf", tar, "f"], check=True)
    assert os.stat(tar).st_size < 1 << 20
    os.mkdir(os.path.join(b, "d"))
    subprocess.run(["tar", "-C", os.path.join(b, "d"), "-xSf", tar], check=True)
    out = os.path.join(b, "d", "f")
    assert blocks(out) < 100
    with open(out, "rb") as back:
        back.seek(123 << 20)
        assert back.read(4) == b"here"
    du = subprocess.run(["du", "-k", f], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert int(du.split()[0]) == 8
    sparseness = subprocess.run(["find", f, "-printf", "%S"], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert float(sparseness) < 0.001


def test_blocks_of_inline_files(cluster):
    c = cluster(inline=65536)
    f = os.path.join(c.mnt, "f")
    with open(f, "wb") as out:
        out.write(b"x" * 100)
        out.flush()
        assert blocks(f) == 1
        os.fsync(out.fileno())
        assert blocks(f) == 1
        out.truncate(1 << 20)
        assert blocks(f) == 1
        out.seek(3 * BLOCK)
        out.write(b"y")
        out.flush()
        os.fsync(out.fileno())
        assert blocks(f) == 4  # data at exportd has no holes
        out.seek(512 << 10)
        out.write(b"z")
        out.flush()
        assert blocks(f) == 5  # on storages now
    c.remount()
    assert blocks(f) == 5
    os.truncate(f, 10)
    assert blocks(f) == 1


def test_blocks_with_writeback_cache(cluster):
    c = cluster(mount_options="writeback_cache")
    f = os.path.join(c.mnt, "f")
    with open(f, "wb", 0) as out:
        out.truncate(300 << 20)
        os.pwrite(out.fileno(), b"x" * 100, 1 << 20)
        assert os.stat(f).st_blocks > 0  # the kernel may still cache it
        os.fsync(out.fileno())
        assert blocks(f) == 1
        os.pwrite(out.fileno(), b"x" * BLOCK, 1 << 20)
        os.pwrite(out.fileno(), b"x" * BLOCK, 2 << 20)
    c.remount()
    assert blocks(f) == 2


def test_blocks_that_a_dead_mount_did_not_report_are_counted(cluster):
    """Blocks of a killed mount count when a client opens the file for writing."""
    c = cluster()
    f = os.path.join(c.mnt, "f")
    fd = os.open(f, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    os.ftruncate(fd, 100 << 20)
    buf = mmap.mmap(-1, BLOCK)
    os.pwritev(fd, [buf], 10 << 20)
    os.fsync(fd)
    os.pwritev(fd, [buf], 20 << 20)
    os.pwritev(fd, [buf], 30 << 20)
    c.kill("mount-1")
    try:
        os.close(fd)
    except OSError:
        pass
    c.restart("mount-1")

    def counted():
        with open(f, "r+b"):  # the dead mount's session ends at some time
            pass
        return blocks(f) == 3

    c.wait_for(counted, "the blocks to be counted")
    c.remount()
    assert blocks(f) == 3
