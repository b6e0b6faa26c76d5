"""-o writeback_cache: the kernel caches writes and owns size and times of files, for one writing mount."""
import contextlib
import errno
import fcntl
import mmap
import os
import random
import signal
import subprocess
import sys
import threading

import pytest

from conftest import cannot_mount, tool, wait_for
from files import get
from mounts import end, let_go, mount, put_open
from users import CAPABILITY, let_others_in, write_as_nobody

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())


@contextlib.contextmanager
def writeback(c, mnt, *options):
    p = mount(c, mnt, "writeback_cache", *options)
    assert p.poll() is None, end(p)
    try:
        yield p
    finally:
        if p.poll() is None:
            p.send_signal(signal.SIGTERM)
        status, err = end(p)
    assert status == 0, err


# In a process of its own: a write that asks the mount would wait forever.
WRITES_SMALL = r"""
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
os.write(fd, b"first\n")
print("begun", flush=True)
sys.stdin.readline()
for i in range(2000):
    os.write(fd, b"line %d\n" % i)
print("written", flush=True)
sys.stdin.readline()
os.fsync(fd)
print("synced", flush=True)
sys.stdin.readline()
"""


def test_small_writes_are_gathered(cluster, scratch):
    """2,000 writes end while the mount is stopped: none is a request of its own."""
    c = cluster(layout=0)
    mnt = scratch + "/m"
    with writeback(c, mnt, "attr_timeout=1000") as p:
        os.close(put_open(mnt + "/f", b""))
        writer = subprocess.Popen([sys.executable, "-c", WRITES_SMALL, mnt + "/f"], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, bufsize=0)
        assert writer.stdout.readline() == b"begun\n"
        p.send_signal(signal.SIGSTOP)
        killer = threading.Timer(60, lambda: (writer.kill(), p.send_signal(signal.SIGCONT)))
        killer.start()
        writer.stdin.write(b"\n")
        said = writer.stdout.readline()
        p.send_signal(signal.SIGCONT)
        killer.cancel()
        assert said == b"written\n"
        writer.stdin.write(b"\n")
        assert writer.stdout.readline() == b"synced\n"
        expected = b"first\n" + b"".join(b"line %d\n" % i for i in range(2000))
        assert get(c.mnt + "/f") == expected  # the other mount, while the file is open
        writer.communicate(b"\n")
        assert writer.returncode == 0


@pytest.mark.parametrize("how", ["umount", "SIGTERM", "fsync and SIGKILL", "close and SIGKILL"])
def test_data_survive(cluster, scratch, how):
    c = cluster(layout=0)
    c.configure(lease_s=3)  # files that a dead mount had open are readable when its session is over
    mnt = scratch + "/m"
    p = mount(c, mnt, "writeback_cache")
    data = os.urandom(3 << 20)
    fd = put_open(mnt + "/a", b"")
    for at in range(0, len(data), 100000):
        os.pwrite(fd, data[at:at + 100000], at)
    m = mmap.mmap(fd, len(data))
    m[5000:5004] = b"here"
    data = data[:5000] + b"here" + data[5004:]
    if how == "umount":
        m.close()
        os.close(fd)
        subprocess.run(["umount", mnt], check=True)
        assert end(p)[0] == 0
    elif how == "SIGTERM":
        p.send_signal(signal.SIGTERM)
        status, err = end(p)
        assert status == 0 and "in use" in err, err
    else:
        os.fsync(fd)
        if how == "close and SIGKILL":
            os.pwrite(fd, b"late", 7)
            data = data[:7] + b"late" + data[11:]
            m.close()
            os.close(fd)
        p.kill()
        end(p)
    assert get(c.mnt + "/a") == data
    if how in ("SIGTERM", "fsync and SIGKILL"):
        let_go(fd)


def test_appends_of_several_descriptors(cluster, scratch):
    c = cluster(layout=0)
    mnt = scratch + "/m"
    with writeback(c, mnt):
        os.close(put_open(mnt + "/log", b"head\n"))

        def append(n):
            fd = os.open(mnt + "/log", os.O_WRONLY | os.O_APPEND | (os.O_DSYNC if n == 0 else 0))
            for i in range(100):
                assert os.write(fd, b"%d-%d\n" % (n, i)) > 0
            os.close(fd)

        workers = [threading.Thread(target=append, args=(n,)) for n in range(4)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        for of in (mnt, c.mnt):
            lines = get(of + "/log").split()
            assert lines[0] == b"head"
            assert sorted(lines[1:]) == sorted(b"%d-%d" % (n, i) for n in range(4) for i in range(100))
        # O_DIRECT bypasses the kernel's pages, up to the end that the kernel knows.
        fd = os.open(mnt + "/log", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"." * (8192 - os.fstat(fd).st_size % 4096))
        at = os.fstat(fd).st_size
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND | os.O_DIRECT)
        page = mmap.mmap(-1, 4096)
        page.write(b"d" * 4096)
        assert at % 4096 == 0 and os.write(fd, page) == 4096
        os.close(fd)
        assert get(mnt + "/log")[at:] == b"d" * 4096 == get(c.mnt + "/log")[at:]


def test_times(cluster, scratch):
    """The mtime in stat after a write stays; a write-back does not overwrite an explicitly set one."""
    c = cluster(layout=0)
    mnt = scratch + "/m"
    with writeback(c, mnt):
        fd = put_open(mnt + "/f", b"x")
        os.utime(fd, ns=(10 ** 18, 10 ** 18))
        assert os.stat(mnt + "/f").st_mtime_ns == 10 ** 18
        os.write(fd, b"y" * 10000)
        written = os.fstat(fd).st_mtime_ns
        assert written > 10 ** 18
        os.fsync(fd)
        assert os.fstat(fd).st_mtime_ns == written
        put_back = put_open(mnt + "/g", os.urandom(100000))
        os.utime(put_back, ns=(5 * 10 ** 17 + 1, 5 * 10 ** 17 + 2))
        os.close(put_back)
        os.close(fd)
        assert os.stat(mnt + "/f").st_mtime_ns == written
    with writeback(c, mnt):  # nothing is left in the kernel
        for of in (mnt, c.mnt):
            assert os.stat(of + "/f").st_mtime_ns == written
            assert os.stat(of + "/g").st_mtime_ns == 5 * 10 ** 17 + 2 and os.stat(of + "/g").st_size == 100000


def test_parts_of_pages_through_a_write_only_descriptor(cluster, scratch):
    """The kernel reads the rest of such a page through the writing descriptor."""
    c = cluster(layout=0)
    expected = bytearray(os.urandom(1 << 20))
    os.close(put_open(c.mnt + "/f", expected))
    mnt, rng = scratch + "/m", random.Random(1)
    with writeback(c, mnt):
        fd = os.open(mnt + "/f", os.O_WRONLY)
        for _ in range(300):
            at, data = rng.randrange(len(expected) - 3000), os.urandom(rng.randrange(1, 3000))
            os.pwrite(fd, data, at)
            expected[at:at + len(data)] = data
        os.pwrite(fd, b"far", 3 << 20)
        expected += bytes((3 << 20) - len(expected)) + b"far"
        assert get(mnt + "/f") == expected
        os.ftruncate(fd, 2 << 20)
        os.ftruncate(fd, (2 << 20) + 5000)
        del expected[2 << 20:]
        expected += bytes(5000)
        assert get(mnt + "/f") == expected
        os.close(fd)
        assert get(c.mnt + "/f") == expected
        c.drop_caches()
        assert get(mnt + "/f") == expected


def test_dirty_page_of_the_kernel_is_no_hole(cluster, scratch):
    c = cluster(layout=0)
    mnt = scratch + "/m"
    with writeback(c, mnt):
        fd = put_open(mnt + "/f", b"")
        os.ftruncate(fd, 1 << 20)
        os.pwrite(fd, b"data", 500000)
        assert os.lseek(fd, 0, os.SEEK_DATA) <= 500000 and os.lseek(fd, 500000, os.SEEK_HOLE) >= 500004
        assert os.fstat(fd).st_blocks > 0
        subprocess.run(["cp", "--sparse=auto", mnt + "/f", mnt + "/g"], check=True)
        os.close(fd)
        assert get(mnt + "/g") == get(c.mnt + "/f") == bytes(500000) + b"data" + bytes((1 << 20) - 500004)


def test_fsync_returns_the_error_and_the_data_is_stored_later(cluster, scratch):
    c = cluster(layout=0)
    mnt = scratch + "/m"
    p = mount(c, mnt, "writeback_cache", "io_timeout=2")
    fd = put_open(mnt + "/f", b"kept")
    os.fsync(fd)
    stopped = c.names("storaged")
    for name in stopped:
        c.kill(name, signal.SIGSTOP)
    try:
        os.pwrite(fd, b"x" * 50000, 4)  # only the kernel has it
        with pytest.raises(OSError) as e:
            os.fsync(fd)
        assert e.value.errno == errno.EIO
    finally:
        for name in stopped:
            c.kill(name, signal.SIGCONT)
    wait_for(lambda: os.fsync(fd) is None, "the data to be stored")  # the mount had kept the data
    os.close(fd)
    assert get(c.mnt + "/f") == b"kept" + b"x" * 50000
    p.send_signal(signal.SIGTERM)
    assert end(p)[0] == 0


def test_writes_take_privileges_away(cluster, scratch):
    c = cluster(layout=0)
    mnt = scratch + "/m"
    with writeback(c, mnt):
        let_others_in(mnt)
        path = mnt + "/privileged"

        def give():
            os.chmod(path, 0o6777)
            os.setxattr(path, "security.capability", CAPABILITY)

        def privileges():
            return os.stat(path).st_mode & 0o6000, os.listxattr(path)

        os.close(put_open(path, b""))
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
            give()
            write_as_nobody(path, flags)
            assert privileges() == (0, [])
            write_as_nobody(path, flags, give)
            assert privileges() == (0, [])
    assert os.stat(c.mnt + "/privileged").st_mode & 0o6000 == 0


# ---- others ----

def errno_of(function, *args):
    try:
        function(*args)
    except OSError as e:
        return e.errno
    return 0


def append(path, data):
    with open(path, "ab") as f:
        f.write(data)


def cut(path, _):
    os.truncate(path, 1000)


@pytest.mark.parametrize("change", [append, cut])
@pytest.mark.parametrize("seen", ["written", "read", "looked at"])
def test_a_size_that_another_mount_changed_is_an_error(cluster, scratch, seen, change):
    """The kernel would use its own size: too little data, or zeros. After it has forgotten the file, all is
    right."""
    c = cluster(layout=0)
    mnt = scratch + "/m"
    with writeback(c, mnt):
        os.close(put_open((mnt if seen == "written" else c.mnt) + "/f", b"x" * 10000))
        if seen == "looked at":
            assert os.listdir(mnt) == ["f"] and os.stat(mnt + "/f").st_size == 10000
        else:
            assert get(mnt + "/f") == b"x" * 10000
        change(c.mnt + "/f", b"y" * 10000)
        assert errno_of(get, mnt + "/f") == errno.ESTALE
        assert errno_of(append, mnt + "/f", b"z") == errno.ESTALE

        def can_be_read():
            c.drop_caches()
            return get(mnt + "/f") == get(c.mnt + "/f")

        wait_for(can_be_read, "the kernel to forget the file")
        append(mnt + "/f", b"z")
        assert get(c.mnt + "/f").endswith(b"z") and len(get(c.mnt + "/f")) % 1000 == 1


def test_a_size_that_changes_under_an_open_file_is_an_error(cluster, scratch):
    c = cluster(layout=0)
    mnt = scratch + "/m"
    p = mount(c, mnt, "writeback_cache", "attr_timeout=0")
    fd, other = put_open(mnt + "/f", b"x" * 10000), put_open(mnt + "/g", b"fine")
    os.fsync(fd)
    append(c.mnt + "/f", b"y" * 10000)
    os.stat(mnt + "/f")
    c.drop_caches()  # pages; the open file stays in the kernel's memory
    assert errno_of(os.pread, fd, 10, 0) == errno.EIO
    written = errno_of(os.pwrite, fd, b"over", 10000)
    assert errno.EIO in (written, errno_of(os.fsync, fd))
    assert os.pread(other, 10, 0) == b"fine"
    let_go(fd)
    os.close(other)
    assert get(c.mnt + "/f") == b"x" * 10000 + b"y" * 10000
    p.send_signal(signal.SIGTERM)
    end(p)


def test_bytes_that_another_mount_changed_are_seen_at_open(cluster, scratch):
    c = cluster(layout=0)
    mnt = scratch + "/m"
    with writeback(c, mnt):
        os.close(put_open(mnt + "/f", b"x" * 10000))
        with open(c.mnt + "/f", "rb+") as f:
            f.write(b"y" * 5000)
        os.chmod(c.mnt + "/f", 0o600)
        os.rename(mnt + "/f", mnt + "/g")
        assert get(mnt + "/g") == b"y" * 5000 + b"x" * 5000


@pytest.mark.parametrize("seed", [1, 2])
def test_fsx(cluster, scratch, seed):
    fsx = tool("fsx")
    c = cluster(layout=0)
    mnt = scratch + "/m"
    with writeback(c, mnt):
        r = subprocess.run([fsx, "-N", "3000", "-S", str(seed), "-P", scratch, mnt + "/fsx"], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=300)
        assert r.returncode == 0, r.stdout[-4000:]
        ours = get(mnt + "/fsx")
    assert get(c.mnt + "/fsx") == ours
