"""Features of Linux beyond POSIX that programs use: whiteouts and overlayfs, files without a name, chattr."""
import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import stat
import struct
import subprocess

import pytest

from calls import (RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT, call, errno_of, fallocate, libc, renameat2)
from conftest import cannot_mount, wait_for
from files import get, put
from users import DEFAULT_ACLS, NOBODY, as_nobody, let_others_in

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())


@pytest.fixture
def tops(two_mounts, request):
    """A folder of the test on both mounts."""
    name = request.node.name.replace("/", "_")
    os.mkdir(os.path.join(two_mounts.mnts[0], name))
    let_others_in(os.path.join(two_mounts.mnts[0], name))
    return [os.path.join(mnt, name) for mnt in two_mounts.mnts]


# ---- whiteouts ----

def is_whiteout(path):
    st = os.lstat(path)
    return stat.S_ISCHR(st.st_mode) and st.st_rdev == 0 and st.st_mode & 0o7777 == 0


def test_a_rename_leaves_a_whiteout_on_all_mounts(tops):
    a, b = tops
    put(a + "/f", b"moved")
    put(a + "/old", b"replaced")
    os.mkdir(a + "/d")
    os.mkdir(a + "/to")
    assert sorted(os.listdir(b)) == ["d", "f", "old", "to"] and get(b + "/f") == b"moved"
    renameat2(a + "/f", a + "/to/f", RENAME_WHITEOUT)
    for top in (b, a):
        assert is_whiteout(top + "/f") and get(top + "/to/f") == b"moved"
    renameat2(b + "/to/f", b + "/old", RENAME_WHITEOUT)  # replaced by the other mount
    for top in (a, b):
        assert is_whiteout(top + "/to/f") and get(top + "/old") == b"moved"
    renameat2(a + "/d", a + "/to/d", RENAME_WHITEOUT | RENAME_NOREPLACE)
    for top in (b, a):
        assert is_whiteout(top + "/d") and os.path.isdir(top + "/to/d")
        assert sorted(os.listdir(top)) == ["d", "f", "old", "to"] and sorted(os.listdir(top + "/to")) == ["d", "f"]
        assert (os.stat(top).st_nlink, os.stat(top + "/to").st_nlink) == (3, 3)
    assert errno_of(renameat2, a + "/old", a + "/to/d", RENAME_WHITEOUT | RENAME_NOREPLACE) == errno.EEXIST
    assert errno_of(renameat2, a + "/old", a + "/f", RENAME_WHITEOUT | RENAME_EXCHANGE) == errno.EINVAL
    assert errno_of(renameat2, a + "/none", a + "/new", RENAME_WHITEOUT) == errno.ENOENT
    assert not os.path.lexists(b + "/none") and errno_of(os.open, b + "/f", os.O_RDONLY) != 0


def test_a_whiteout_belongs_to_who_renames(tops):
    """A whiteout needs no capability, as on the local file system; a set-gid folder gives its group."""
    a, b = tops
    os.mkdir(a + "/d")
    os.chown(a + "/d", -1, 7)
    os.chmod(a + "/d", 0o2777)
    os.chmod(a, 0o777)
    put(a + "/d/f")
    put(a + "/f")
    assert as_nobody(lambda: renameat2(a + "/d/f", a + "/d/g", RENAME_WHITEOUT)) == 0
    assert as_nobody(lambda: renameat2(a + "/f", a + "/g", RENAME_WHITEOUT)) == 0
    st = os.lstat(b + "/d/f")
    assert is_whiteout(b + "/d/f") and (st.st_uid, st.st_gid) == (NOBODY, 7)
    st = os.lstat(b + "/f")
    assert is_whiteout(b + "/f") and (st.st_uid, st.st_gid) == (NOBODY, NOBODY)


def test_overlayfs_above_a_mount(tops, tmp_path):
    """Upper and work directory are on a mount: copy-up, removals, renames, and their state after a new mount."""
    top, lower, merged = tops[0], str(tmp_path / "lower"), str(tmp_path / "merged")
    for d in (lower, lower + "/tree", merged, top + "/upper", top + "/work"):
        os.mkdir(d)
    for name in ("/keep", "/gone", "/moved", "/changed", "/tree/inside"):
        put(lower + name, b"lower")

    def mount(at):
        return subprocess.run(["mount", "-t", "overlay", "overlay", "-o",
                               "lowerdir=%s,upperdir=%s/upper,workdir=%s/work" % (lower, at, at), merged],
                              stderr=subprocess.PIPE, text=True)

    for d in ("/upper", "/work"):
        os.mkdir(str(tmp_path) + d)
    local = mount(tmp_path)
    if local.returncode != 0:
        pytest.skip("no overlayfs here, above a local file system neither: " + local.stderr.strip())
    subprocess.run(["umount", merged], check=True)
    try:
        assert mount(top).returncode == 0
        os.unlink(merged + "/gone")
        os.rename(merged + "/moved", merged + "/there")
        put(merged + "/changed", b"upper")
        put(merged + "/new", b"upper")
        os.rename(merged + "/new", merged + "/newer")
        os.unlink(merged + "/tree/inside")
        os.rmdir(merged + "/tree")
        os.mkdir(merged + "/tree")  # opaque: the lower directory is hidden
        for _ in range(2):
            assert sorted(os.listdir(merged)) == ["changed", "keep", "newer", "there", "tree"]
            assert os.listdir(merged + "/tree") == []
            assert [get(merged + n) for n in ("/keep", "/there", "/changed", "/newer")] == [
                b"lower", b"lower", b"upper", b"upper"]
            assert is_whiteout(tops[1] + "/upper/gone") and is_whiteout(tops[1] + "/upper/moved")
            subprocess.run(["umount", merged], check=True)
            assert mount(top).returncode == 0
        assert sorted(os.listdir(lower)) == ["changed", "gone", "keep", "moved", "tree"]
    finally:
        subprocess.run(["umount", "-l", merged], check=False)


# ---- files without a name ----

AT_FDCWD, AT_EMPTY_PATH, AT_SYMLINK_FOLLOW = -100, 0x1000, 0x400
CAN_TMPFILE = tuple(int(n) for n in os.uname().release.split(".")[:2]) >= (6, 2)
needs_tmpfile = pytest.mark.skipif(not CAN_TMPFILE, reason="FUSE has no O_TMPFILE before Linux 6.2, here is "
                                   + os.uname().release)


def tmpfile(folder, data=b"", flags=0, mode=0o640):
    fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | flags, mode)
    assert os.write(fd, data) == len(data)
    return fd


def link_fd(fd, path):
    call(libc.linkat, AT_FDCWD, b"/proc/self/fd/%d" % fd, AT_FDCWD, path.encode(), AT_SYMLINK_FOLLOW)


def inodes(mnt):
    st = os.statvfs(mnt)
    return st.f_files - st.f_ffree


@needs_tmpfile
def test_a_file_without_a_name_gets_one(two_mounts, tops):
    a, b = tops
    fd = tmpfile(a, b"x" * 300000)
    assert (os.fstat(fd).st_nlink, os.listdir(a), os.listdir(b)) == (0, [], [])
    assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o640
    link_fd(fd, a + "/first")
    assert (os.fstat(fd).st_nlink, os.listdir(b)) == (1, ["first"])
    os.pwrite(fd, b"y" * 10, 299995)
    assert get(b + "/first") == b"x" * 299995 + b"y" * 10
    call(libc.linkat, fd, b"", AT_FDCWD, (a + "/second").encode(), AT_EMPTY_PATH)
    os.close(fd)
    assert os.stat(b + "/second").st_nlink == 2 and get(a + "/second") == get(b + "/first")
    os.unlink(b + "/first")
    fd = os.open(a + "/second", os.O_RDONLY)
    os.unlink(a + "/second")
    assert errno_of(link_fd, fd, a + "/third") == errno.ENOENT  # the last name is gone
    os.close(fd)
    assert os.listdir(a) == os.listdir(b) == []


@needs_tmpfile
def test_a_file_without_a_name_that_gets_none_is_gone(two_mounts, tops):
    a, b = tops
    two_mounts.wait_for(lambda: inodes(a) == inodes(b), "closes to be told")
    before = inodes(a)
    fd = tmpfile(a, b"x" * 300000, os.O_EXCL)
    assert inodes(b) == before + 1
    assert errno_of(link_fd, fd, a + "/f") == errno.ENOENT
    os.fsync(fd)
    assert os.pread(fd, 300001, 0) == b"x" * 300000
    os.close(fd)
    two_mounts.wait_for(lambda: inodes(b) == before, "it to be gone")
    assert os.listdir(a) == []


@needs_tmpfile
def test_a_file_without_a_name_is_made_as_any(tops):
    """Owner, mode and ACLs are those of a file created with a name in that place."""
    a = tops[0]
    os.mkdir(a + "/d")
    os.chown(a + "/d", -1, 7)
    os.chmod(a + "/d", 0o2777)
    os.setxattr(a + "/d", "system.posix_acl_default", DEFAULT_ACLS["a user"])
    let_others_in(a)

    def make():
        old = os.umask(0o027)
        fd = tmpfile(a + "/d", mode=0o666)
        link_fd(fd, a + "/d/linked")
        os.close(fd)
        os.close(os.open(a + "/d/named", os.O_CREAT | os.O_RDWR, 0o666))
        os.umask(old)

    assert as_nobody(make) == 0
    one, other = os.stat(a + "/d/linked"), os.stat(a + "/d/named")
    assert (one.st_mode, one.st_uid, one.st_gid) == (other.st_mode, NOBODY, 7)
    assert (other.st_uid, other.st_gid) == (NOBODY, 7)
    assert (os.getxattr(a + "/d/linked", "system.posix_acl_access") ==
            os.getxattr(a + "/d/named", "system.posix_acl_access"))
    assert errno_of(tmpfile, a + "/d/named") == errno.ENOTDIR
    os.chmod(a + "/d", 0o755)
    assert as_nobody(lambda: tmpfile(a + "/d")) == errno.EACCES


@needs_tmpfile
def test_files_without_a_name_over_restarts(cluster):
    """After a kill of exportd, programs keep such an open file and can name it. After a kill of the mount it
    is gone."""
    c = cluster(layout=0)
    before = inodes(c.mnt)
    fd, other = tmpfile(c.mnt, b"x" * 300000), tmpfile(c.mnt, b"y" * 300000)
    os.fsync(fd)  # otherwise the child that restarts exportd waits for it when it closes its copies of these
    os.fsync(other)
    c.kill("exportd")
    c.restart("exportd")
    os.pwrite(fd, b"z" * 10, 0)
    link_fd(fd, c.mnt + "/f")
    os.fsync(fd)
    os.close(fd)
    assert get(c.mnt + "/f") == b"z" * 10 + b"x" * 299990
    assert os.pread(other, 300001, 0) == b"y" * 300000 and inodes(c.mnt) == before + 2
    mount = c.names("mount")[0]
    c.kill(mount)
    assert errno_of(os.close, other) == errno.ENOTCONN
    c.restart(mount)
    assert os.listdir(c.mnt) == ["f"] and get(c.mnt + "/f") == b"z" * 10 + b"x" * 299990
    c.wait_for(lambda: inodes(c.mnt) == before + 1, "the file without a name to be gone")


# ---- chattr ----

FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR = 0x80086601, 0x40086602, 0x801c581f, 0x401c5820
IMMUTABLE, APPEND, NODUMP = 0x10, 0x20, 0x40
XFLAG_IMMUTABLE, XFLAG_APPEND = 0x8, 0x10


def get_flags(path):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return struct.unpack("i", fcntl.ioctl(fd, FS_IOC_GETFLAGS, b"\0" * 8)[:4])[0]
    finally:
        os.close(fd)


def set_flags(path, flags):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("q", flags))
    finally:
        os.close(fd)


def opens(path, flags):
    os.close(os.open(path, flags))


def write_to(path, flags=0, at=None):
    fd = os.open(path, os.O_WRONLY | flags)
    try:
        os.write(fd, b"w" * 10) if at is None else os.pwrite(fd, b"w" * 10, at)
    finally:
        os.close(fd)


def acl_of(path):
    os.setxattr(path, "system.posix_acl_access", DEFAULT_ACLS["a user"])


# Operations on a file f in a folder: refused if the file is +i, if it is +a.
FILE_CALLS = {
    "open to write": (lambda d: opens(d + "/f", os.O_WRONLY), True, True),
    "open to read and write": (lambda d: opens(d + "/f", os.O_RDWR), True, True),
    "open to truncate": (lambda d: opens(d + "/f", os.O_WRONLY | os.O_APPEND | os.O_TRUNC), True, True),
    "append": (lambda d: write_to(d + "/f", os.O_APPEND), True, False),
    "read": (lambda d: get(d + "/f"), False, False),
    "truncate": (lambda d: os.truncate(d + "/f", 5), True, True),
    "grow": (lambda d: os.truncate(d + "/f", 500000), True, True),
    "chmod": (lambda d: os.chmod(d + "/f", 0o600), True, True),
    "chown": (lambda d: os.chown(d + "/f", 1, 1), True, True),
    "utimes": (lambda d: os.utime(d + "/f", (1, 2)), True, True),
    "touch": (lambda d: os.utime(d + "/f"), True, False),
    "setxattr": (lambda d: os.setxattr(d + "/f", "user.b", b"1"), True, True),
    "removexattr": (lambda d: os.removexattr(d + "/f", "user.a"), True, True),
    "ACL": (lambda d: acl_of(d + "/f"), True, True),
    "link": (lambda d: os.link(d + "/f", d + "/g"), True, True),
    "rename": (lambda d: os.rename(d + "/f", d + "/g"), True, True),
    "rename over": (lambda d: os.rename(put(d + "/o"), d + "/f"), True, True),
    "exchange": (lambda d: renameat2(put(d + "/o"), d + "/f", RENAME_EXCHANGE), True, True),
    "unlink": (lambda d: os.unlink(d + "/f"), True, True),
    "fallocate": (lambda d: fallocate(d + "/f", 0, 0, 500000), True, True),  # opens without O_APPEND
}
# Operations in a folder d, with a file f and a folder e in it, beside a file o.
FOLDER_CALLS = {
    "create": (lambda d: put(d + "/d/g"), True, False),
    "open to write": (lambda d: write_to(d + "/d/f"), False, False),
    "O_CREAT of what is there": (lambda d: opens(d + "/d/f", os.O_CREAT | os.O_RDWR), False, False),
    "mkdir": (lambda d: os.mkdir(d + "/d/g"), True, False),
    "symlink": (lambda d: os.symlink("x", d + "/d/g"), True, False),
    "link": (lambda d: os.link(d + "/o", d + "/d/g"), True, False),
    "rename into": (lambda d: os.rename(d + "/o", d + "/d/g"), True, False),
    "rename over": (lambda d: os.rename(d + "/o", d + "/d/f"), True, True),
    "rename out": (lambda d: os.rename(d + "/d/f", d + "/g"), True, True),
    "rename within": (lambda d: os.rename(d + "/d/f", d + "/d/g"), True, True),
    "unlink": (lambda d: os.unlink(d + "/d/f"), True, True),
    "rmdir in it": (lambda d: os.rmdir(d + "/d/e"), True, True),
    "rename it": (lambda d: os.rename(d + "/d", d + "/g"), True, True),
    "chmod": (lambda d: os.chmod(d + "/d", 0o700), True, True),
    "touch": (lambda d: os.utime(d + "/d"), True, False),
    "setxattr": (lambda d: os.setxattr(d + "/d", "user.b", b"1"), True, True),
    "O_TMPFILE": (lambda d: opens(d + "/d", os.O_TMPFILE | os.O_RDWR), True, False),
    "list": (lambda d: os.listdir(d + "/d"), False, False),
}


def make_folder(folder):
    os.mkdir(folder)
    for name in ("/d", "/d/e"):
        os.mkdir(folder + name)
    for name in ("/f", "/o", "/d/f"):
        put(folder + name, b"x" * 100000)
    os.setxattr(folder + "/f", "user.a", b"1")


@pytest.mark.parametrize("at", ["this mount", "the other mount"])
@pytest.mark.parametrize("flag", [IMMUTABLE, APPEND], ids=["i", "a"])
@pytest.mark.parametrize("what", ["file", "folder"])
def test_flags_forbid(tops, what, flag, at):
    """Each call runs on the mount that set the flag, or on the other one, which knew the file without it."""
    calls, target = (FILE_CALLS, "/f") if what == "file" else (FOLDER_CALLS, "/d")
    wrong = []
    for n, (name, (fn, by_i, by_a)) in enumerate(calls.items()):
        if name == "O_TMPFILE" and not CAN_TMPFILE:
            continue
        setter, caller = ["%s/%d" % (tops[i], n) for i in ((0, 0) if at == "this mount" else (0, 1))]
        make_folder(setter)
        with open(caller + target if what == "file" else caller + "/d/f", "rb+") as f:
            f.write(b"y")
        os.stat(caller + target)
        set_flags(setter + target, flag)
        refused = by_i if flag == IMMUTABLE else by_a
        got = errno_of(fn, caller)
        if got != (errno.EPERM if refused else 0):
            wrong.append((name, got))
        if name not in ("rename it",) or refused:
            set_flags(setter + target, 0)
        if refused and errno_of(fn, caller) != 0:
            wrong.append((name, "still"))
    assert wrong == []


def test_flags_need_permission_and_must_be_supported(tops):
    a, b = tops
    path = put(a + "/f")
    os.chown(path, NOBODY, -1)
    before = os.stat(path).st_ctime_ns
    assert get_flags(path) == 0 and os.stat(b + "/f").st_ctime_ns == before
    assert as_nobody(lambda: set_flags(path, IMMUTABLE)) == errno.EPERM
    assert as_nobody(lambda: set_flags(path, 0)) == 0
    for flag in (NODUMP, NODUMP | APPEND, 0x80):
        assert errno_of(set_flags, path, flag) == errno.EOPNOTSUPP
    set_flags(path, APPEND | IMMUTABLE)
    assert get_flags(b + "/f") == get_flags(path) == APPEND | IMMUTABLE
    assert os.stat(path).st_ctime_ns == os.stat(b + "/f").st_ctime_ns > before
    assert as_nobody(lambda: set_flags(path, 0)) == errno.EPERM
    fd = os.open(b + "/f", os.O_RDONLY)
    x = fcntl.ioctl(fd, FS_IOC_FSGETXATTR, b"\0" * 28)
    assert struct.unpack("I", x[:4])[0] == XFLAG_IMMUTABLE | XFLAG_APPEND and x[4:] == b"\0" * 24
    fcntl.ioctl(fd, FS_IOC_FSSETXATTR, struct.pack("I24x", XFLAG_APPEND))
    assert get_flags(path) == APPEND
    assert errno_of(fcntl.ioctl, fd, 0x80086699, b"\0" * 8) == errno.ENOTTY
    os.close(fd)
    if shutil.which("chattr"):
        subprocess.run(["chattr", "+i", path], check=True)
        flags = subprocess.run(["lsattr", b + "/f"], stdout=subprocess.PIPE, text=True).stdout.split()[0]
        assert flags.strip("-") == "ia"


@pytest.mark.parametrize("at", ["this mount", "the other mount"])
def test_flags_hold_for_what_is_open_already(tops, at):
    a, b = tops[0], tops[0 if at == "this mount" else 1]
    path = put(a + "/f", b"x" * 100000)
    fd, appends = os.open(b + "/f", os.O_RDWR), os.open(b + "/f", os.O_WRONLY | os.O_APPEND)
    source = os.open(put(b + "/source", b"s" * 4096), os.O_RDONLY)
    m = mmap.mmap(fd, 100000)
    m[50000] = ord("m")  # not written out yet
    os.pwrite(fd, b"1", 0)
    changes = {
        "write": lambda: os.pwrite(fd, b"2", 0),
        "truncate": lambda: os.ftruncate(fd, 10),
        "fallocate": lambda: call(libc.fallocate, fd, 0, ctypes.c_long(0), ctypes.c_long(300000)),
        "punch": lambda: call(libc.fallocate, fd, 3, ctypes.c_long(0), ctypes.c_long(8192)),
        "copy": lambda: os.copy_file_range(source, fd, 4096, 0, 0),
        "fchmod": lambda: os.fchmod(fd, 0o600),
        "append": lambda: os.write(appends, b"3"),
    }
    set_flags(path, IMMUTABLE)
    assert {name: errno_of(fn) for name, fn in changes.items()} == dict.fromkeys(changes, errno.EPERM)
    wanted = b"1" + b"x" * 49999 + b"m" + b"x" * 49999
    assert get(a + "/f") == get(b + "/f") == wanted
    m[60000] = ord("n")
    assert errno_of(m.flush) in (errno.EPERM, errno.EIO)  # docs/POSIX.md
    # The kernel drops the refused page after the answer to its write: a page cannot be dropped while it is written.
    wait_for(lambda: get(a + "/f") == wanted, "the refused page to be dropped")
    set_flags(path, APPEND)
    left = {name: errno_of(fn) for name, fn in changes.items()}
    assert left == dict(dict.fromkeys(changes, errno.EPERM), append=0, fallocate=0)
    fcntl.fcntl(appends, fcntl.F_SETFL, 0)
    assert errno_of(os.write, appends, b"4") == errno.EPERM
    fcntl.fcntl(appends, fcntl.F_SETFL, os.O_APPEND)
    assert os.write(appends, b"5") == 1
    size = os.stat(path).st_size
    assert get(a + "/f")[:100000] == wanted and size == 300002
    set_flags(path, 0)
    assert [errno_of(changes[name]) for name in ("write", "copy", "punch", "truncate")] == [0] * 4
    m.close()
    for f in (fd, appends, source):
        os.close(f)


def test_flags_outlive_restarts(cluster):
    c = cluster(layout=0)
    put(c.mnt + "/i", b"x")
    put(c.mnt + "/a", b"x")
    set_flags(c.mnt + "/i", IMMUTABLE)
    set_flags(c.mnt + "/a", APPEND)
    c.kill("exportd")
    c.restart("exportd")
    c.remount()
    assert (get_flags(c.mnt + "/i"), get_flags(c.mnt + "/a")) == (IMMUTABLE, APPEND)
    assert errno_of(os.unlink, c.mnt + "/i") == errno_of(os.truncate, c.mnt + "/a", 0) == errno.EPERM


def test_flags_with_writeback_cache(cluster):
    """Appends and their times reach the file; a file open before +i reports the error at fsync, and nothing
    changes."""
    c = cluster(layout=0, mount_options="writeback_cache")
    path = put(c.mnt + "/f", b"x" * 100000)
    set_flags(path, APPEND)
    for n in range(3):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"y" * 10)
        if n != 1:
            os.fsync(fd)
        os.close(fd)
    assert errno_of(opens, path, os.O_WRONLY) == errno_of(os.utime, path, (1, 2)) == errno.EPERM
    set_flags(path, 0)
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, b"z" * 10, 5)
    set_flags(path, IMMUTABLE)
    assert (errno_of(os.pwrite, fd, b"q", 0), errno_of(os.fsync, fd)) == (0, errno.EPERM)  # docs/POSIX.md
    os.close(fd)
    # The kernel drops the refused page soon after the answer to its write.
    wait_for(lambda: get(path) == b"x" * 5 + b"z" * 10 + b"x" * 99985 + b"y" * 30, "the refused page to be dropped")
