"""Access times: relatime by default, without a request for a read, and without a recall of other mounts' tokens."""
import os
import time

import pytest


def atime(path):
    return os.stat(path, follow_symlinks=False).st_atime_ns


def read(path, flags=0):
    fd = os.open(path, os.O_RDONLY | flags)
    while os.read(fd, 1 << 20):
        pass
    os.close(fd)


def make(path, data=b"some bytes\n" * 1000):
    with open(path, "wb") as f:
        f.write(data)
        os.fsync(f.fileno())


def past(path, days=2):
    """Accessed long ago, changed after that."""
    t = time.time() - days * 86400
    os.utime(path, (t, t + 60))
    return atime(path)


def moves(path, do):
    """Does that move the access time? To a time that is right, and seen at once."""
    before, old = time.time_ns(), atime(path)
    do()
    new = atime(path)
    assert new == old or new - before < 60 * 10 ** 9
    return new > old


def requests(c):
    """{name: how many exportd has been asked}"""
    return c.status()["exportd"]["requests"]


def test_relatime(cluster):
    c = cluster()
    path = os.path.join(c.mnt, "f")
    make(path)
    past(path)
    before = requests(c)
    read(path)
    assert requests(c).get("getattr") == before.get("getattr")
    past(path)
    assert not moves(path, lambda: read(path, os.O_NOATIME))
    assert moves(path, lambda: read(path))
    assert not moves(path, lambda: read(path))
    with open(path, "ab") as f:
        f.write(b"more")
    assert not moves(path, lambda: os.chmod(path, 0o600))
    assert moves(path, lambda: read(path))
    # what a program sets stays until the next read
    os.utime(path, ns=(1000 * 10 ** 9, 1001 * 10 ** 9))
    assert atime(path) == 1000 * 10 ** 9 and moves(path, lambda: read(path))
    # changes one right after the other, read from the kernel's pages
    for i in range(200):
        os.chmod(path, 0o600 + i % 2)
        assert moves(path, lambda: read(path)), i
    # a change here does not take back a read that exportd has not heard of, nor does a new mount
    with open(path, "ab") as f:
        f.write(b"more")
    assert not moves(path, lambda: os.chmod(path, 0o640))
    last = atime(path)
    c.remount()
    assert atime(path) == last


def test_reads_of_files_directories_and_symlinks_change_atime(cluster):
    c = cluster()
    top, path, link = (os.path.join(c.mnt, name) for name in ("d", "d/f", "d/l"))
    os.mkdir(top)
    make(path)
    os.symlink("somewhere", link)
    past(top)
    assert not moves(top, lambda: os.close(os.open(top, os.O_RDONLY | os.O_DIRECTORY)))
    assert moves(top, lambda: os.listdir(top))
    assert not moves(top, lambda: os.listdir(top))
    make(path + "2")
    assert moves(top, lambda: os.listdir(top))
    assert moves(link, lambda: os.readlink(link))
    with open(path, "rb") as src, open(path + "3", "wb") as dst:
        past(path)
        assert moves(path, lambda: os.copy_file_range(src.fileno(), dst.fileno(), 1000))
    # tar --atime-preserve
    old = past(path)
    read(path)
    os.utime(path, ns=(old, os.stat(path).st_mtime_ns))
    seen = {name: atime(name) for name in (top, path, link)}
    assert seen[path] == old
    c.remount()
    assert {name: atime(name) for name in seen} == seen


@pytest.mark.parametrize("mode, files, directories",
                         [("strictatime", True, True), ("noatime", False, False), ("strictatime,ro", False, False)])
def test_mount_options_of_atimes(cluster, mode, files, directories):
    c = cluster(mount_options=None if "ro" in mode else mode)
    top, path = os.path.join(c.mnt, "d"), os.path.join(c.mnt, "d", "f")
    os.mkdir(top)
    make(path)
    past(path)
    past(top)
    if "ro" in mode:
        c.down()
        c.mount_options = mode
        c.up()
    for _ in range(3):
        assert moves(path, lambda: read(path)) == files
        assert moves(top, lambda: os.listdir(top)) == directories
    before = requests(c)
    for _ in range(10):  # the kernel has it all, or the mount
        assert moves(path, lambda: read(path)) == files
        assert moves(top, lambda: os.listdir(top)) == directories
    after = requests(c)
    assert all(after.get(op) == before.get(op) for op in ("readdir", "open", "getattr", "setattr", "give_back"))


def test_atimes_are_stored_without_recalls_or_a_request_for_each(cluster):
    c = cluster(mounts=2)
    names = ["f%d" % i for i in range(50)]
    paths = [[os.path.join(mnt, name) for name in names] for mnt in c.mnts]
    for path in paths[0]:
        make(path)
        past(path)
    old = [atime(path) for path in paths[0]]
    for path in paths[1] + paths[0]:  # both have all of them in their caches
        read(path)
    os.utime(paths[1][0], ns=(10 ** 9, 10 ** 9))  # the reads before that do not count
    c.wait_for(lambda: requests(c).get("atimes", 0) >= 2, "both mounts to report")
    assert atime(paths[0][0]) == atime(paths[1][0]) == 10 ** 9
    before = requests(c)
    for mnt in (0, 1):
        for _ in range(3):
            for path in paths[mnt][1:]:
                read(path)
    after = requests(c)
    asked = {op: n - before.get(op, 0) for op, n in after.items() if n != before.get(op, 0)}
    # 294 reads: no recall, no question for each of them
    assert sum(asked.values()) < 100 and "give_back" not in asked, asked
    new = [atime(path) for path in paths[0]]
    assert all(b > a for a, b in zip(old[1:], new[1:]))
    c.remount()
    for mnt in (0, 1):
        assert [atime(path) for path in paths[mnt]] == new
