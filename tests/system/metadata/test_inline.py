"""An export whose small files are kept by exportd: the same contents as elsewhere, through kills, full disks
and all ways to write."""
import contextlib
import errno
import json
import os
import random
import subprocess

import pytest

import fsx2
from calls import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, fallocate
from conftest import cannot_mount, rozo, wait_for
from files import PAGE, READS, WRITES, Open, get, put

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

INLINE = 16384


@pytest.fixture
def two(cluster):
    return cluster(layout=0, mounts=2, inline=INLINE)


def is_inline(c, path):
    return c.locate(path)["inline"]


def test_every_byte_is_right(two, monkeypatch):
    """Two mounts use a file that is small, grows and shrinks."""
    monkeypatch.setattr(fsx2, "OPS", min(fsx2.OPS, 2000))
    monkeypatch.setattr(fsx2, "N_SEEDS", min(fsx2.N_SEEDS, 4))
    fsx2.run_seeds(two, two.mnts, "--size", str(INLINE + 2000))


@pytest.mark.parametrize("size", [INLINE - 100, INLINE + 5000])
def test_all_ways_to_write_and_read(two, size):
    """Each mount in turn writes a range in some way; both read the result in some other way."""
    chance = random.Random(size)
    model = bytearray(chance.randbytes(4000))
    put(two.mnt + "/f", model)
    paths = [m + "/f" for m in two.mnts]
    with Open(paths[0]) as fd_a, Open(paths[1]) as fd_b:
        fds = (fd_a, fd_b)
        for i, (write, read) in enumerate([(w, r) for w in WRITES for r in READS] * 2):
            me, other = i % 2, 1 - i % 2
            if write == "mapped":
                length, at = 100, chance.randrange(len(model) - 100)
            else:
                length = chance.choice((1, 100, PAGE))
                at = min(chance.randrange(len(model) + 1), size - length)
            assert READS[read](paths[other], fds[other], 0, len(model)) == model
            model[at:at + length] = chance.randbytes(length)
            WRITES[write](paths[me], fds[me], at, model[at:at + length])
            for who in (other, me):
                assert READS[read](paths[who], fds[who], 0, len(model)) == model, (i, write, read, at, length, who)
    two.remount()
    assert get(paths[1]) == model
    assert is_inline(two, paths[0]) or len(model) > INLINE


def kill_all(c):
    """Kills exportd and the mounts, as in a crash, and starts them again."""
    for name in ["exportd"] + c.names("mount"):
        c.kill(name)
    c.restart("exportd", *c.names("mount"))


def test_synced_inline_data_survives_a_kill(two):
    """fsync, O_SYNC, O_SYNC with O_DIRECT; small, moved to the storages, cut to nothing and written again."""
    expected = {}

    def keep(name, data, flags=0):
        fd = os.open(two.mnt + "/" + name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | flags, 0o644)
        assert os.write(fd, data) == len(data)
        if flags == 0:
            os.fsync(fd)
        expected[name] = data
        return fd

    fds = [keep("fsync", b"f" * 5000), keep("sync", b"s" * 700, os.O_SYNC), keep("dsync", b"d" * INLINE, os.O_DSYNC),
           keep("moved", b"a" * 3000)]
    os.pwrite(fds[3], b"b" * 20000, 3000)
    os.fsync(fds[3])
    expected["moved"] = b"a" * 3000 + b"b" * 20000
    keep("again", b"o" * 9000)
    fds.append(keep("again", b"new", os.O_SYNC))
    kill_all(two)
    for fd in fds:
        with contextlib.suppress(OSError):  # its mount is dead
            os.close(fd)
    for mnt in two.mnts:
        assert {name: get(mnt + "/" + name) for name in expected} == expected
    assert {name: is_inline(two, two.mnt + "/" + name) for name in expected} == \
        {"fsync": True, "sync": True, "dsync": True, "moved": False, "again": True}


def test_exportd_is_killed_while_an_inline_file_is_written(two):
    """The mount goes on, and no data is lost."""
    with Open(two.mnt + "/f", os.O_RDWR | os.O_CREAT) as fd:
        for i in range(4):
            os.pwrite(fd, b"%d" % i * 1000, 1000 * i)
            os.fsync(fd)
            two.kill("exportd")
            two.restart("exportd")
    assert get(two.mnts[1] + "/f") == b"".join(b"%d" % i * 1000 for i in range(4))


def test_a_hole_in_what_a_dead_mount_left(two):
    """Old data of such a file on storages is cut off before its data moves there; the hole is made
    nevertheless."""
    data = bytearray(os.urandom(15000))
    path, name = two.mnts[1] + "/f", two.names("mount")[0]
    fd = os.open(two.mnts[0] + "/f", os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, data)
    os.fsync(fd)
    two.kill(name)
    with contextlib.suppress(OSError):
        os.close(fd)
    two.restart(name)
    assert is_inline(two, path)
    fallocate(path, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 1000, 12000)
    data[1000:13000] = bytes(12000)
    assert get(path) == data
    two.remount()
    assert get(path) == data and get(two.mnt + "/f") == data


def test_locate_and_fsck_of_inline_files(two):
    small, large = two.mnt + "/small", two.mnt + "/large"
    put(small, b"s" * 1000)
    put(large, b"l" * 100000)
    assert is_inline(two, small) and not is_inline(two, large)
    assert [s["projections"] for s in two.locate(small)["storages"]] == [[], [], [], []]
    assert "exportd keeps its data" in rozo("locate", small).stdout
    assert "exportd keeps its data" not in rozo("locate", large).stdout

    def fsck():
        r = two.admin("fsck", "--json", check=False)
        return r.returncode, json.loads(r.stdout)

    assert fsck()[0] == 0, fsck()
    with Open(small) as fd:  # the data moves
        os.pwrite(fd, b"s" * 50000, 1000)
        os.fsync(fd)
    assert not is_inline(two, small)
    assert fsck()[0] == 0, fsck()
    for path in (small, large):
        os.unlink(path)
    wait_for(lambda: fsck()[0] == 0, "fsck to be content")


def test_full_disk_of_exportd_gives_enospc(cluster):
    """Writers get ENOSPC; older data is intact, and files can be removed."""
    c = cluster(layout=0, inline=INLINE, start=False)
    os.makedirs(c.dir)
    # Without the ballast there is room, also if exportd's store has all of its tables twice.
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=320m", "tmpfs", c.dir], check=True)
    try:
        c.up()
        put(c.mnt + "/kept", b"k" * INLINE)
        st = os.statvfs(c.dir)
        with open(c.dir + "/ballast", "wb") as f:
            os.posix_fallocate(f.fileno(), 0, max(1, st.f_bavail * st.f_bsize - (84 << 20)))
        told = 0
        for i in range(4000):
            try:
                fd = os.open(c.mnt + "/f%d" % i, os.O_CREAT | os.O_WRONLY)
                try:
                    os.write(fd, os.urandom(INLINE))
                    if i % 50 == 0:
                        os.fsync(fd)
                finally:
                    os.close(fd)
            except OSError as e:
                assert e.errno == errno.ENOSPC, e
                told += 1
                break
        assert told, "62 MiB went into 20"
        assert get(c.mnt + "/kept") == b"k" * INLINE
        os.unlink(c.dir + "/ballast")
        wait_for(lambda: put(c.mnt + "/again", b"a" * INLINE), "room again", timeout=60)
        c.remount()
        assert get(c.mnt + "/again") == b"a" * INLINE and get(c.mnt + "/kept") == b"k" * INLINE
    finally:
        c.down()
        subprocess.run(["umount", "-l", c.dir], check=False)
