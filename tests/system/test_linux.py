"""What Linux has beyond POSIX and programs rely on: whiteouts and overlayfs, files without a name, chattr."""
import ctypes
import errno
import os
import stat
import subprocess

import pytest

from conftest import cannot_mount
from test_left_to_us import (DEFAULT_ACLS, RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT, as_nobody, call, errno_of, libc, put, read,
                             renameat2)
from test_posix import NOBODY, let_others_in

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())


@pytest.fixture(scope="module")
def two(request):
    """One cluster with two mounts for all tests of this file."""
    from conftest import make_factory
    import shutil
    import tempfile
    base = tempfile.mkdtemp(prefix="rozo-t-")
    make, end = make_factory(request.node, base, limited=False)
    try:
        yield make(layout=0, mounts=2)
        end()
    finally:
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def tops(two, request):
    """A folder of the test on both mounts."""
    name = request.node.name.replace("/", "_")
    os.mkdir(os.path.join(two.mnts[0], name))
    let_others_in(os.path.join(two.mnts[0], name))
    return [os.path.join(mnt, name) for mnt in two.mnts]


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
    assert sorted(os.listdir(b)) == ["d", "f", "old", "to"] and read(b + "/f") == b"moved"
    renameat2(a + "/f", a + "/to/f", RENAME_WHITEOUT)
    for top in (b, a):
        assert is_whiteout(top + "/f") and read(top + "/to/f") == b"moved"
    renameat2(b + "/to/f", b + "/old", RENAME_WHITEOUT)  # replaces, the other mount
    for top in (a, b):
        assert is_whiteout(top + "/to/f") and read(top + "/old") == b"moved"
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
    """As on the local file system no capability is needed; a set-gid folder gives its group."""
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
    """Its upper directory and work directory lie on a mount: copies up, removals, renames, and what is seen after a new mount."""
    top, lower, merged = tops[0], str(tmp_path / "lower"), str(tmp_path / "merged")
    for d in (lower, lower + "/tree", merged, top + "/upper", top + "/work"):
        os.mkdir(d)
    for name in ("/keep", "/gone", "/moved", "/changed", "/tree/inside"):
        put(lower + name, b"lower")

    def mount(at):
        return subprocess.run(["mount", "-t", "overlay", "overlay", "-o", "lowerdir=%s,upperdir=%s/upper,workdir=%s/work"
                               % (lower, at, at), merged], stderr=subprocess.PIPE, text=True)

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
        os.mkdir(merged + "/tree")  # opaque: what lies below does not show
        for _ in range(2):
            assert sorted(os.listdir(merged)) == ["changed", "keep", "newer", "there", "tree"]
            assert os.listdir(merged + "/tree") == []
            assert [read(merged + n) for n in ("/keep", "/there", "/changed", "/newer")] == [b"lower", b"lower", b"upper",
                                                                                             b"upper"]
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
def test_a_file_without_a_name_gets_one(two, tops):
    a, b = tops
    fd = tmpfile(a, b"x" * 300000)
    assert (os.fstat(fd).st_nlink, os.listdir(a), os.listdir(b)) == (0, [], [])
    assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o640
    link_fd(fd, a + "/first")
    assert (os.fstat(fd).st_nlink, os.listdir(b)) == (1, ["first"])
    os.pwrite(fd, b"y" * 10, 299995)
    assert read(b + "/first") == b"x" * 299995 + b"y" * 10
    call(libc.linkat, fd, b"", AT_FDCWD, (a + "/second").encode(), AT_EMPTY_PATH)
    os.close(fd)
    assert os.stat(b + "/second").st_nlink == 2 and read(a + "/second") == read(b + "/first")
    os.unlink(b + "/first")
    fd = os.open(a + "/second", os.O_RDONLY)
    os.unlink(a + "/second")
    assert errno_of(link_fd, fd, a + "/third") == errno.ENOENT  # it has lost its last name
    os.close(fd)
    assert os.listdir(a) == os.listdir(b) == []


@needs_tmpfile
def test_a_file_without_a_name_that_gets_none_is_gone(two, tops):
    a, b = tops
    two.wait_for(lambda: inodes(a) == inodes(b), "closes to be told")
    before = inodes(a)
    fd = tmpfile(a, b"x" * 300000, os.O_EXCL)
    assert inodes(b) == before + 1
    assert errno_of(link_fd, fd, a + "/f") == errno.ENOENT
    os.fsync(fd)
    assert os.pread(fd, 300001, 0) == b"x" * 300000
    os.close(fd)
    two.wait_for(lambda: inodes(b) == before, "it to be gone")
    assert os.listdir(a) == []


@needs_tmpfile
def test_a_file_without_a_name_is_made_as_any(tops):
    """Owner, mode and ACLs are those of a file that is made with a name just there."""
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
    assert (one.st_mode, one.st_uid, one.st_gid) == (other.st_mode, NOBODY, 7) == (other.st_mode, other.st_uid, other.st_gid)
    assert os.getxattr(a + "/d/linked", "system.posix_acl_access") == os.getxattr(a + "/d/named", "system.posix_acl_access")
    assert errno_of(tmpfile, a + "/d/named") == errno.ENOTDIR
    os.chmod(a + "/d", 0o755)
    assert as_nobody(lambda: tmpfile(a + "/d")) == errno.EACCES


@needs_tmpfile
def test_files_without_a_name_over_restarts(cluster):
    """exportd is killed: who has one open keeps it, and can name it. The mount is killed: it is gone."""
    c = cluster(layout=0)
    before = inodes(c.mnt)
    fd, other = tmpfile(c.mnt, b"x" * 300000), tmpfile(c.mnt, b"y" * 300000)
    os.fsync(fd)  # or the child that restarts exportd waits for it, closing its copies of these
    os.fsync(other)
    c.kill("exportd")
    c.restart("exportd")
    os.pwrite(fd, b"z" * 10, 0)
    link_fd(fd, c.mnt + "/f")
    os.fsync(fd)
    os.close(fd)
    assert read(c.mnt + "/f") == b"z" * 10 + b"x" * 299990
    assert os.pread(other, 300001, 0) == b"y" * 300000 and inodes(c.mnt) == before + 2
    mount = c.names("mount")[0]
    c.kill(mount)
    assert errno_of(os.close, other) == errno.ENOTCONN
    c.restart(mount)
    assert os.listdir(c.mnt) == ["f"] and read(c.mnt + "/f") == b"z" * 10 + b"x" * 299990
    c.wait_for(lambda: inodes(c.mnt) == before + 1, "the file without a name to be gone")
