"""Ways to write and to read files; small disks."""
import errno
import mmap
import os
import subprocess

import pytest

PAGE = 4096
BLOCK = 8192


def disk_of(scratch, mib):
    """Returns the folder of a new file system of that size."""
    image, disk = os.path.join(scratch, "disk.img"), os.path.join(scratch, "disk")
    os.mkdir(disk)
    with open(image, "wb") as f:
        f.truncate(mib << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m0", image], check=True)
    r = subprocess.run(["mount", "-o", "loop", image, disk], stderr=subprocess.PIPE, text=True)
    if r.returncode != 0:
        pytest.skip("a file cannot be mounted by a loop device here: " + r.stderr.strip())
    return disk


def put(path, data=b""):
    with open(path, "wb") as f:
        f.write(data)
    return path


def get(path):
    with open(path, "rb") as f:
        return f.read()


class Open:
    """A descriptor, closed at the end of the block."""

    def __init__(self, path, flags=os.O_RDWR):
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def __enter__(self):
        return self.fd

    def __exit__(self, *exc):
        os.close(self.fd)


def aligned(length):
    """Returns memory for O_DIRECT."""
    return mmap.mmap(-1, length)


def store(path, data):
    """Overwrites all bytes in place, and syncs them."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        assert os.pwrite(fd, data, 0) == len(data)
        os.fsync(fd)
    except OSError:
        try:
            os.close(fd)
        except OSError as e:  # reports the same failure
            assert e.errno == errno.EIO
        raise
    os.close(fd)


def load(path, length, at=0):
    """Reads in one request, which the kernel does not repeat page by page if it fails."""
    data = mmap.mmap(-1, length)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return data[:os.preadv(fd, [data], at)]
    finally:
        os.close(fd)


def through_descriptor(path, fd, at, length):
    return os.pread(fd, length, at)


def through_new_descriptor(path, fd, at, length):
    with Open(path, os.O_RDONLY) as new:
        return os.pread(new, length, at)


def through_pages(path, fd, at, length):
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as m:
        return m[at:at + length]


def directly(path, fd, at, length):
    with Open(path, os.O_RDONLY | os.O_DIRECT) as direct:
        start, past = at // PAGE * PAGE, -(-(at + length) // PAGE) * PAGE
        memory = aligned(past - start)
        n = os.preadv(direct, [memory], start)
        return memory[at - start:min(n, at - start + length)]


READS = {"descriptor": through_descriptor, "opened-again": through_new_descriptor, "mapped": through_pages,
         "direct": directly}


def by_write(path, fd, at, data):
    assert os.pwrite(fd, data, at) == len(data)


def by_new_descriptor(path, fd, at, data):
    with Open(path, os.O_WRONLY) as new:
        assert os.pwrite(new, data, at) == len(data)


def by_direct_write(path, fd, at, data):
    with Open(path, os.O_WRONLY | os.O_DIRECT) as direct:
        start, past = at // PAGE * PAGE, -(-(at + len(data)) // PAGE) * PAGE
        memory = aligned(past - start)
        n = os.preadv(fd, [memory], start)
        memory[at - start:at - start + len(data)] = data
        os.pwritev(direct, [memory], start)
        if n < past - start:
            os.ftruncate(direct, max(start + n, at + len(data)))


def by_mapping(path, fd, at, data):
    with mmap.mmap(fd, 0) as m:
        m[at:at + len(data)] = data
        m.flush()


WRITES = {"write": by_write, "opened-again": by_new_descriptor, "direct": by_direct_write, "mapped": by_mapping}
