"""A full disk: the writer gets ENOSPC, stored data is intact, and removing files frees space (I12).

All of a cluster, also exportd, is on one small ext4 in a file. This is the hardest case: storages that took
the last byte would keep exportd from recording a deletion.
"""
import errno
import hashlib
import json
import os
import random
import shutil

import pytest

from files import disk_of

MIB = 1 << 20
DISK_MIB = 512
REPLACEMENT_MIB = 36


@pytest.fixture
def small(cluster, scratch):
    """A cluster whose folder is on a file system of DISK_MIB."""
    c = cluster(start=False)
    c.dir = os.path.join(disk_of(scratch, DISK_MIB), "c")
    c.up()
    return c


def write_until_full(path):
    """Writes MiB after MiB; returns the errno that ended it, at the creation or later."""
    chunk = random.Random(1).randbytes(MIB)
    try:
        fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    except OSError as e:  # exportd knows that no storage has space
        return e.errno
    try:
        for i in range(2 * DISK_MIB):
            if os.write(fd, chunk) != MIB:
                break
            if i % 16 == 15:
                os.fsync(fd)
        os.fsync(fd)
    except OSError as e:
        return e.errno
    finally:
        try:
            os.close(fd)
        except OSError as e:
            assert e.errno == errno.ENOSPC
    return 0


def free_bytes(path):
    told = os.statvfs(path)
    return told.f_bavail * told.f_frsize


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def test_full_disk_gives_enospc_harms_nothing_and_frees_space(small):
    c = small
    kept = random.Random(2).randbytes(24 * MIB)
    free_before = free_bytes(c.mnt) - len(kept)
    write_some(c.mnt + "/kept", kept)
    assert write_until_full(c.mnt + "/big") == errno.ENOSPC
    assert write_until_full(c.mnt + "/big2") == errno.ENOSPC  # at its creation, or later
    c.remount()
    assert digest(c.mnt + "/kept") == hashlib.sha256(kept).hexdigest()

    # Operations without new space still work: an overwrite, a rename.
    changed = random.Random(3).randbytes(24 * MIB)
    fd = os.open(c.mnt + "/kept", os.O_WRONLY)
    try:
        assert os.pwrite(fd, changed, 0) == len(changed)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(c.mnt + "/kept", c.mnt + "/still-kept")
    c.remount()
    assert digest(c.mnt + "/still-kept") == hashlib.sha256(changed).hexdigest()

    # A removal needs no space, and frees space.
    for name in ("big", "big2"):
        if os.path.exists(c.mnt + "/" + name):
            os.unlink(c.mnt + "/" + name)
    c.wait_for(lambda: free_bytes(c.mnt) > free_before * 0.9, "the space to come back")
    c.wait_for(lambda: write_some(c.mnt + "/again", kept), "writing to work again")
    assert digest(c.mnt + "/again") == hashlib.sha256(kept).hexdigest()
    for name in c.daemons():
        c.restart(name)
    c.wait_all_up()
    assert digest(c.mnt + "/still-kept") == hashlib.sha256(changed).hexdigest()


def write_some(path, data):
    with open(path, "wb") as f:
        f.write(data)
        os.fsync(f.fileno())
    return True


def test_a_replacement_that_is_too_small_harms_nothing_and_is_filled_when_there_is_room(cluster, scratch):
    """The rebuild does not end, reports the reason, and users can read and write; after they have removed
    enough, it ends."""
    c = cluster()
    files = {c.mnt + "/f%d" % i: random.Random(i).randbytes(4 * MIB) for i in range(24)}
    for path, data in files.items():
        write_some(path, data)
    name = "storaged-1"
    number = c.number_of(name)
    c.kill(name)
    disk = disk_of(scratch, REPLACEMENT_MIB)
    shutil.rmtree(c.data(name))
    os.mkdir(disk + "/data")
    os.symlink(disk + "/data", c.data(name))
    config = os.path.join(c.dir, "etc", name + ".yaml")
    with open(config) as f:
        text = f.read()
    with open(config, "w") as f:
        f.write(text.replace("storaged:\n", "storaged:\n  journal_mb: 8\n"))
    c.restart(name)
    c.wait_for(lambda: "replace" in [s for s in c.status()["storages"] if s["id"] == number][0]["error"],
               "exportd to see another disk")
    c.admin("storage", "replace", number)
    c.wait_for(lambda: "NO_SPACE" in c.health_of(number)["problem"], "the rebuild to say that there is no room", 60)
    assert c.health_of(number)["rebuild"]["state"] == "running"
    assert "NO_SPACE" in c.admin("rebuild", "status").stdout
    more = random.Random(99).randbytes(3 * MIB)
    files[c.mnt + "/more"] = more
    write_some(c.mnt + "/more", more)
    c.remount()
    for path, data in files.items():
        assert digest(path) == hashlib.sha256(data).hexdigest(), path
    for path in sorted(files)[:18]:
        os.unlink(path)
        del files[path]
    c.wait_for(lambda: c.health_of(number)["rebuild"]["state"] == "done", "the rebuild to end", 120)
    c.wait_healed()
    assert json.loads(c.admin("fsck", "--json").stdout)["clean"]
    c.kill("storaged-2")
    c.remount()
    for path, data in files.items():
        assert digest(path) == hashlib.sha256(data).hexdigest(), path

