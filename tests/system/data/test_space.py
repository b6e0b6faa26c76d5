"""Free space: data promised by statfs can be written, and space granted by fallocate stays.

Each storage has a small file system of its own, so that they can have different sizes and fill one by one.
"""
import errno
import os
import random
import subprocess

import pytest

MIB = 1 << 20


class Disks:
    """File systems in files, mounted by loop devices."""

    def __init__(self, base):
        self.base = base
        self.mounted = []

    def make(self, mib):
        n = len(self.mounted)
        image, disk = os.path.join(self.base, "disk%d.img" % n), os.path.join(self.base, "disk%d" % n)
        os.mkdir(disk)
        with open(image, "wb") as f:
            f.truncate(mib * MIB)
        subprocess.run(["mkfs.ext4", "-q", "-m0", image], check=True)
        r = subprocess.run(["mount", "-o", "loop", image, disk], stderr=subprocess.PIPE, text=True)
        if r.returncode != 0:
            pytest.skip("a file cannot be mounted by a loop device here: " + r.stderr.strip())
        self.mounted.append(disk)
        return disk


@pytest.fixture
def on_disks(cluster, scratch):
    """Returns a cluster; argument: the MiB of each storage's disk."""
    disks = Disks(scratch)

    def make(*mibs, **options):
        c = cluster(start=False, storages=len(mibs), **options)
        for name in ("data", "etc"):
            os.makedirs(os.path.join(c.dir, name))
        with open(c.dir + "/etc/lock", "w"):
            pass  # `rozo dev up` takes that for an unfinished cluster
        for i, mib in enumerate(mibs):
            data = disks.make(mib) + "/data"
            os.mkdir(data)
            os.symlink(data, c.data("storaged-%d" % (i + 1)))
        c.up()
        return c

    return make


def available(c):
    told = os.statvfs(c.mnt)
    return told.f_bavail * told.f_frsize


def write_files_until_full(c, mib):
    """Writes files of so many MiB until one does not fit; returns the sum of the bytes written."""
    chunk = random.Random(1).randbytes(MIB)
    written = 0
    for i in range(100000):
        try:
            fd = os.open("%s/f%d" % (c.mnt, i), os.O_CREAT | os.O_WRONLY, 0o644)
        except OSError as e:
            assert e.errno == errno.ENOSPC
            return written
        try:
            for _ in range(mib):
                os.write(fd, chunk)
                os.fsync(fd)
                written += MIB
        except OSError as e:
            assert e.errno == errno.ENOSPC
            return written
        finally:
            try:
                os.close(fd)
            except OSError as e:
                assert e.errno == errno.ENOSPC
    raise AssertionError("it never gets full")


def test_free_space_in_df_can_be_written(on_disks):
    """Storages have different sizes: the extra space of the large one is not promised."""
    c = on_disks(200, 64, 64, 64)
    whole = os.statvfs(c.mnt)
    promised = available(c)
    assert promised > 110 * MIB
    written = write_files_until_full(c, 2)
    assert written >= 0.98 * promised, (written / MIB, promised / MIB)
    assert written <= 1.06 * promised, (written / MIB, promised / MIB)
    c.wait_for(lambda: available(c) < 0.03 * promised, "df to say that it is full")
    c.kill("storaged-1")
    c.wait_for(lambda: available(c) == 0, "df to know that nothing can be written")
    assert os.statvfs(c.mnt).f_blocks == whole.f_blocks


def fallocate(path, length, mode=0):
    """Calls fallocate(2) on a new or old file, from its start."""
    open(path, "ab").close()
    r = subprocess.run(["fallocate", "-l", str(length), *(["-n"] if mode else []), path], stderr=subprocess.PIPE,
                       text=True)
    assert r.returncode == 0, r.stderr


def test_space_of_fallocate_can_be_written_and_is_freed(on_disks):
    """On exactly as many equal storages as a file has candidates: nearly all of df's free space, also on
    spares."""
    c = on_disks(64, 64, 64, 64)
    free, small = available(c), 4 * MIB

    def is_back():
        return available(c) >= free - small

    # Nearly all of it, for one file; and more than all, which leaves nothing.
    fallocate(c.mnt + "/all", free - MIB)
    assert os.path.getsize(c.mnt + "/all") == free - MIB
    c.wait_for(lambda: available(c) < small, "df to count what is reserved")
    os.unlink(c.mnt + "/all")
    c.wait_for(is_back, "removing to give it back")
    with pytest.raises(AssertionError, match="No space left"):
        fallocate(c.mnt + "/more", free + 16 * MIB)
    c.wait_for(is_back, "what failed to leave nothing reserved")
    os.unlink(c.mnt + "/more")

    # Grant, fill, write; with a restart of the storages in between.
    length = 21 * MIB + 12345
    data = random.Random(3).randbytes(length)
    for mode in (0, 1):
        fallocate(c.mnt + "/granted%d" % mode, length, mode)
    chunk = random.Random(2).randbytes(MIB)
    fd = os.open(c.mnt + "/filler", os.O_CREAT | os.O_WRONLY)
    with pytest.raises(OSError) as e:
        while True:
            os.write(fd, chunk)
            os.fsync(fd)
    assert e.value.errno == errno.ENOSPC
    with pytest.raises(OSError):
        os.close(fd)
        raise OSError
    c.restart(*[n for n in c.daemons() if n.startswith("storaged")])
    c.wait_all_up()
    for mode in (0, 1):
        with open(c.mnt + "/granted%d" % mode, "r+b") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
    c.remount()
    for mode in (0, 1):
        with open(c.mnt + "/granted%d" % mode, "rb") as f:
            assert f.read() == data
    c.wait_for(lambda: available(c) < small, "df to know that it is full")
    for name in ("filler", "granted0", "granted1"):
        os.unlink(c.mnt + "/" + name)
    c.wait_for(is_back, "removing to give it back")

    # Truncates and a punch free the space, although nothing was written.
    cut, kept, punched = [c.mnt + "/" + name for name in ("cut", "kept", "punched")]
    for path, mode in ((cut, 0), (kept, 1), (punched, 0)):
        fallocate(path, free // 4, mode)
    c.wait_for(lambda: available(c) < free * 0.4, "df to count what is reserved")
    os.truncate(cut, 0)
    os.truncate(kept, 1)  # space after the end is freed when the file gets shorter
    os.truncate(kept, 0)
    subprocess.run(["fallocate", "-p", "-l", str(free // 4), punched], check=True)
    c.wait_for(is_back, "truncates and a punch to give it back")


def test_programs_find_blocks_of_4096_bytes(cluster):
    c = cluster()
    told = os.statvfs(c.mnt)
    assert (told.f_bsize, told.f_frsize) == (4096, 4096)
