"""Parts of POSIX that FUSE leaves to the file system: privileges, ACLs and umask, renameat2, links, long
paths, readers of growing files, inodes that the kernel forgot."""
import ctypes
import errno
import os
import stat
import threading

import pytest

from calls import (FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE, RENAME_EXCHANGE, RENAME_NOREPLACE,
                   RENAME_WHITEOUT, errno_of, fallocate, libc, renameat2)
from conftest import cannot_mount
from files import get, put
from users import (CAPABILITY, DEFAULT_ACLS, GROUP_OBJ, MASK, NOBODY, OTHER, USER, USER_OBJ, acl, as_nobody,
                   let_others_in)

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())


@pytest.fixture
def top(cluster_shared, request):
    """A folder of the test in the shared cluster's mount, open to others."""
    path = os.path.join(cluster_shared.mnt, request.node.name.replace("/", "_"))
    os.mkdir(path)
    let_others_in(path)
    return path


# ---- privileges ----

def ftruncate(path, size):
    fd = os.open(path, os.O_WRONLY)
    os.ftruncate(fd, size)
    os.close(fd)


def copy_into(path):
    with open(path, "rb+") as to, open(path + ".source", "rb") as source:
        assert os.copy_file_range(source.fileno(), to.fileno(), 1000) == 1000


CHANGES = {
    "truncate": lambda path: os.truncate(path, 10),
    "ftruncate to grow": lambda path: ftruncate(path, 100000),
    "fallocate": lambda path: fallocate(path, 0, 0, 200000),
    "fallocate, size kept": lambda path: fallocate(path, FALLOC_FL_KEEP_SIZE, 0, 300000),
    "punch": lambda path: fallocate(path, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096),
    "zero": lambda path: fallocate(path, FALLOC_FL_ZERO_RANGE, 0, 4096),
    "copy_file_range": copy_into,
}


@pytest.mark.parametrize("what", CHANGES)
def test_changes_by_others_take_privileges_away(cluster_shared, top, what):
    path = put(top + "/f", b"x" * 50000)
    put(path + ".source", b"y" * 1000)

    def give():
        os.chmod(path, 0o6777)
        os.setxattr(path, "security.capability", CAPABILITY)

    give()
    CHANGES[what](path)
    assert os.stat(path).st_mode & 0o6000 == 0o6000  # root may
    give()
    assert as_nobody(lambda: CHANGES[what](path)) == 0
    assert (os.stat(path).st_mode & 0o7777, os.listxattr(path)) == (0o777, [])


def write(path, flags=0):
    fd = os.open(path, os.O_WRONLY | flags)
    assert os.write(fd, b"z" * 100) == 100
    os.close(fd)


def write_pages(path):
    """Writes into a page that the kernel has cached."""
    fd = os.open(path, os.O_RDWR)
    os.pread(fd, 4096, 0)
    assert os.pwrite(fd, b"z" * 100, 50) == 100
    os.close(fd)


ITS_GROUP = 7
SET_GID_CHANGES = dict(CHANGES, **{
    "write": write,
    "append": lambda path: write(path, os.O_APPEND),
    "write into pages": write_pages,
    "O_TRUNC": lambda path: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC)),
    "chown": lambda path: os.chown(path, -1, ITS_GROUP + 1),
    "chown to the same": lambda path: os.chown(path, NOBODY, -1),
})
CALLERS = {  # primary group and others
    "outside": (NOBODY, [ITS_GROUP + 1]),
    "in it": (ITS_GROUP, [ITS_GROUP + 1]),
    "in it, too": (NOBODY, [ITS_GROUP + 2, ITS_GROUP, ITS_GROUP + 1]),
}


def set_gid_after(folder, what):
    """Returns the mode after a change by each caller: set-gid with and without group execute, set-uid, none."""
    left = {}
    for caller, (gid, groups) in CALLERS.items():
        for mode in (0o2666, 0o2766, 0o2676, 0o6666, 0o4676, 0o666):
            path = put("%s/%s-%o" % (folder, caller.replace(" ", "").replace(",", ""), mode), b"x" * 50000)
            put(path + ".source", b"y" * 1000)
            os.chown(path, NOBODY, ITS_GROUP)
            os.chmod(path, mode)
            assert as_nobody(lambda: SET_GID_CHANGES[what](path), gid, groups) == 0
            left[caller, oct(mode)] = oct(os.stat(path).st_mode & 0o7777)
    return left


@pytest.mark.parametrize("what", SET_GID_CHANGES)
def test_set_gid_goes_as_on_the_local_file_system(cluster_shared, top, tmp_path, what):
    """A caller outside of a file's group clears its set-gid bit, also without group execute; a caller in the
    group keeps that one."""
    let_others_in(str(tmp_path))
    wanted = set_gid_after(str(tmp_path), what)
    assert set_gid_after(top, what) == wanted
    if what != "chown to the same":
        assert wanted["outside", "0o2666"] == "0o666" and wanted["in it, too", "0o2666"] == "0o2666"


def test_fallocate_refuses_unsupported_modes(cluster_shared, top):
    path = put(top + "/f", b"x" * 20000)
    for mode in (8, 32, 64):  # collapse, insert, unshare
        assert errno_of(fallocate, path, mode, 0, 8192) == errno.EOPNOTSUPP  # docs/POSIX.md
    assert get(path) == b"x" * 20000


# ---- ACLs, umask ----

def what_is_created(where, default, umask):
    """Returns name -> (mode, ACLs) of all kinds of files made in a folder with that default ACL."""
    os.mkdir(where)
    if default is not None:
        os.setxattr(where, "system.posix_acl_default", default)
    old = os.umask(umask)
    try:
        os.close(os.open(where + "/open", os.O_CREAT | os.O_WRONLY, 0o666))
        os.close(os.open(where + "/exclusive", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o4751))
        os.mknod(where + "/node", 0o622 | stat.S_IFREG)
        os.mkfifo(where + "/fifo", 0o666)
        os.mkdir(where + "/dir", 0o777)
        os.mkdir(where + "/sticky", 0o1735)
        os.symlink("target", where + "/link")
    finally:
        os.umask(old)
    out = {}
    for name in os.listdir(where):
        path = os.path.join(where, name)
        acls = {x: os.getxattr(path, x, follow_symlinks=False)
                for x in os.listxattr(path, follow_symlinks=False) if "acl" in x}
        out[name] = os.lstat(path).st_mode, acls
    return out


@pytest.mark.parametrize("umask", [0, 0o027, 0o777])
@pytest.mark.parametrize("default", DEFAULT_ACLS)
def test_default_acls_are_inherited_as_on_the_local_file_system(cluster_shared, top, tmp_path, default, umask):
    try:
        local = what_is_created(str(tmp_path / "d"), DEFAULT_ACLS[default], umask)
    except OSError as e:
        assert e.errno == errno.EOPNOTSUPP
        pytest.skip("the local file system has no ACLs")
    assert what_is_created(top + "/d", DEFAULT_ACLS[default], umask) == local


def test_an_acl_decides_who_may(cluster_shared, top):
    path = put(top + "/f", b"x")
    os.chmod(path, 0o600)

    def may(flags):
        return as_nobody(lambda: os.close(os.open(path, flags)))

    assert may(os.O_RDONLY) == errno.EACCES
    os.setxattr(path, "system.posix_acl_access",
                acl((USER_OBJ, 6), (USER, 6, NOBODY), (GROUP_OBJ, 0), (MASK, 4), (OTHER, 0)))
    assert os.stat(path).st_mode & 0o777 == 0o640  # the mask
    assert (may(os.O_RDONLY), may(os.O_WRONLY)) == (0, errno.EACCES)
    os.chmod(path, 0o660)
    assert (may(os.O_RDONLY), may(os.O_WRONLY)) == (0, 0)
    os.removexattr(path, "system.posix_acl_access")
    assert may(os.O_RDONLY) == errno.EACCES


def test_trusted_attributes_are_for_root(cluster_shared, top):
    """Other users do not even see their names."""
    path = put(top + "/f")
    for name in ("user.a", "trusted.b", "user.c", "trusted.d"):
        os.setxattr(path, name, b"x")

    def looks():
        assert sorted(os.listxattr(path)) == ["user.a", "user.c"]
        os.getxattr(path, "trusted.b")

    assert sorted(os.listxattr(path)) == ["trusted.b", "trusted.d", "user.a", "user.c"]
    assert as_nobody(looks) == errno.ENODATA


# ---- names ----

def test_renameat2(cluster_shared, top):
    a, b, d = put(top + "/a", b"a"), put(top + "/b", b"b"), top + "/d"
    os.mkdir(d)
    put(d + "/inside")
    assert errno_of(renameat2, a, b, RENAME_NOREPLACE) == errno.EEXIST
    assert (get(a), get(b)) == (b"a", b"b")
    renameat2(a, top + "/free", RENAME_NOREPLACE)
    assert get(top + "/free") == b"a" and errno_of(os.stat, a) == errno.ENOENT
    renameat2(top + "/free", b, RENAME_EXCHANGE)
    assert (get(top + "/free"), get(b)) == (b"b", b"a")
    renameat2(b, d, RENAME_EXCHANGE)  # a file and a folder that is not empty
    assert get(d) == b"a" and os.listdir(b) == ["inside"]
    assert errno_of(renameat2, d, top + "/nothing", RENAME_EXCHANGE) == errno.ENOENT
    assert errno_of(renameat2, b, b + "/inside", RENAME_EXCHANGE) == errno.EINVAL
    assert errno_of(renameat2, d, b, RENAME_NOREPLACE | RENAME_EXCHANGE) == errno.EINVAL
    assert errno_of(renameat2, d, top + "/white", RENAME_WHITEOUT | RENAME_EXCHANGE) == errno.EINVAL
    assert sorted(os.listdir(top)) == ["b", "d", "free"]


LINKS_MAX = 65000


def test_65000_links(cluster):
    top = cluster(layout=0).mnt
    path = put(top + "/f", b"shared")
    for d in range(8):
        os.mkdir("%s/%d" % (top, d))
    wrong = []

    def link(d):
        try:
            for i in range(d, LINKS_MAX - 1, 8):
                os.link(path, "%s/%d/%d" % (top, d, i))
        except OSError as e:
            wrong.append(e)

    workers = [threading.Thread(target=link, args=(d,)) for d in range(8)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong
    assert os.stat(path).st_nlink == LINKS_MAX
    assert errno_of(os.link, path, top + "/more") == errno.EMLINK
    os.unlink(top + "/0/0")
    os.link(path, top + "/more")
    assert os.stat(top + "/7/7").st_nlink == LINKS_MAX and get(top + "/7/7") == b"shared"


@pytest.mark.parametrize("looks", [False, True])
def test_a_listing_ends_while_its_names_are_renamed(cluster_shared, top, looks):
    """A listing has each name that existed at its start once, and the next listing has the new ones. With
    `looks` the program calls stat for each entry, so that Linux asks for names and attributes together."""
    names = {"name-%04d" % i for i in range(3000)}
    for name in names:
        os.mknod(os.path.join(top, name))
    for prefix in ("", "again-"):
        seen = []
        with os.scandir(top) as entries:
            for e in entries:
                seen.append(e.name)
                assert len(seen) <= len(names), "it does not end"
                if looks:
                    os.lstat(e.path)
                os.rename(e.path, os.path.join(top, "new-" + e.name))
        assert len(seen) == len(names) and set(seen) == names
        names = {"new-" + name for name in names}
    assert set(os.listdir(top)) == names


def test_a_listing_that_is_rewound_has_what_was_added(cluster_shared, top):
    """rewinddir() begins a new listing: without removed names, and with a replaced name once."""
    for i in range(100):
        put(os.path.join(top, "a%d" % i))
    libc.opendir.restype = ctypes.c_void_p
    libc.readdir.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.opendir(top.encode()))

    def rest():
        found = []
        while True:
            entry = libc.readdir(stream)
            if not entry:
                return found
            found.append(ctypes.string_at(entry + 19).decode())  # struct dirent: d_name

    try:
        assert sorted(rest()) == sorted([".", ".."] + ["a%d" % i for i in range(100)])
        put(os.path.join(top, "added"))
        os.unlink(os.path.join(top, "a0"))
        os.rename(os.path.join(top, "a1"), os.path.join(top, "a2"))
        libc.rewinddir(stream)
        assert sorted(rest()) == sorted([".", "..", "added"] + ["a%d" % i for i in range(2, 100)])
    finally:
        libc.closedir(stream)


def test_long_names_and_paths(cluster_shared, top):
    assert errno_of(put, top + "/" + "n" * 256) == errno.ENAMETOOLONG
    name = "ü" * 127 + "x"  # 255 bytes
    assert os.listdir(top) == [] and put(top + "/" + name) and os.listdir(top) == [name]
    # A path of 4,095 bytes is the longest one that the kernel accepts.
    path = top
    while len(path) + 201 < 4095 - 1:
        path += "/" + "d" * 200
        os.mkdir(path)
    path += "/" + "f" * (4095 - len(path) - 1)
    put(path, b"deep")
    assert len(path) == 4095 and get(path) == b"deep"
    assert errno_of(os.stat, path + "f") == errno.ENAMETOOLONG
    # Folders can be deeper than paths.
    at = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(30):
        os.mkdir("e" * 250, dir_fd=at)
        below = os.open("e" * 250, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    assert os.listdir(at) == ["bottom"]
    os.close(at)
    os.symlink("t" * 4095, top + "/link")
    assert os.readlink(top + "/link") == "t" * 4095
    assert errno_of(os.symlink, "t" * 4096, top + "/link2") == errno.ENAMETOOLONG


# ---- growing files, forgotten inodes ----

def grow(path, pieces, append):
    fd = os.open(path, os.O_WRONLY | (os.O_APPEND if append else 0))
    at = 0
    for i in range(pieces):
        piece = bytes([1 + i % 255]) * (1 + i * 7919 % 9000)
        assert os.pwrite(fd, piece, at) == len(piece) if not append else os.write(fd, piece) == len(piece)
        at += len(piece)
    os.close(fd)


def grown(pieces):
    return b"".join(bytes([1 + i % 255]) * (1 + i * 7919 % 9000) for i in range(pieces))


@pytest.mark.parametrize("append", [False, True])
def test_reader_of_a_growing_file_sees_no_zeros(cluster_shared, top, append):
    path, pieces = put(top + "/log"), 1500
    expected, seen = grown(pieces), 0
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            grow(path, pieces, append)
            status = 0
        finally:
            os._exit(status)
    fd = os.open(path, os.O_RDONLY)
    looks = 0
    while seen < len(expected):
        size = os.fstat(fd).st_size
        data = os.pread(fd, 1 << 20, seen)
        assert data == expected[seen:seen + len(data)], "at %d of %d bytes" % (seen, size)
        before = max(0, seen - 3000)  # the kernel has a page of it, from the time when the file ended there
        assert os.pread(fd, seen - before, before) == expected[before:seen]
        assert seen + len(data) >= size or len(data) == 1 << 20
        seen += len(data)
        looks += 1
        if len(data) == 0 and os.waitpid(pid, os.WNOHANG)[0] == pid:
            pid = 0
            assert os.fstat(fd).st_size == len(expected)
    assert looks > 1 and (pid == 0 or os.waitpid(pid, 0)[1] == 0)
    os.close(fd)


def test_open_files_work_after_the_kernel_drops_its_caches(cluster_shared, top):
    """The kernel drops names, attributes and pages; descriptors of files with and without a name and of
    folders go on."""
    c = cluster_shared
    os.mkdir(top + "/d")
    named = os.open(top + "/d/named", os.O_CREAT | os.O_RDWR)
    unnamed = os.open(top + "/unnamed", os.O_CREAT | os.O_RDWR)
    folder = os.open(top + "/d", os.O_RDONLY | os.O_DIRECTORY)
    os.write(named, b"named")
    os.write(unnamed, b"unnamed")
    os.unlink(top + "/unnamed")
    os.rename(top + "/d", top + "/e")
    c.drop_caches()
    assert os.pread(named, 10, 0) == b"named" and os.pread(unnamed, 10, 0) == b"unnamed"
    assert os.fstat(unnamed).st_nlink == 0 and os.fstat(named).st_nlink == 1
    assert os.listdir(folder) == ["named"] and os.stat("named", dir_fd=folder).st_size == 5
    os.pwrite(unnamed, b"more", 7)
    c.drop_caches()
    assert os.pread(unnamed, 20, 0) == b"unnamedmore"
    assert os.path.samestat(os.fstat(named), os.stat(top + "/e/named"))
    for fd in (named, unnamed, folder):
        os.close(fd)


def test_a_removed_directory_stays_for_who_has_it_open(cluster_shared, top):
    """No other mount uses the export: exportd forgets the directory at once."""
    os.makedirs(top + "/d/sub")
    os.chmod(top + "/d", 0o751)
    folder = os.open(top + "/d", os.O_RDONLY | os.O_DIRECTORY)
    before = os.fstat(folder)
    os.rmdir(top + "/d/sub")
    os.rmdir(top + "/d")
    for _ in range(2):
        st = os.fstat(folder)
        assert (st.st_ino, st.st_mode, st.st_uid, st.st_nlink) == (before.st_ino, before.st_mode, before.st_uid, 0)
        assert os.listdir(folder) == []
        assert errno_of(lambda: os.stat("sub", dir_fd=folder)) == errno.ENOENT
        assert errno_of(lambda: os.mkdir("new", dir_fd=folder)) == errno.ENOENT
        cluster_shared.drop_caches()
    assert os.stat("..", dir_fd=folder).st_ino == os.stat(top).st_ino
    os.close(folder)
