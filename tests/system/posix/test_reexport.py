"""Export by NFS and SMB: file handles and directory cookies keep their meaning forever.

A server of NFS keeps a file handle for its clients: it must open the same file after the kernel has forgotten it,
after another rozomount has taken over, and after a restart of every daemon.
"""
import ctypes
import errno
import os
import struct
import subprocess

import pytest

from conftest import BIN, cannot_mount

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
MAX_HANDLE = 128


class FileHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * MAX_HANDLE)]


def handle_of(path):
    """Returns (type, bytes) of name_to_handle_at(2)."""
    h, mount_id = FileHandle(bytes=MAX_HANDLE), ctypes.c_int()
    if libc.name_to_handle_at(AT_FDCWD, path.encode(), ctypes.byref(h), ctypes.byref(mount_id), 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return h.type, bytes(h.data[:h.bytes])


def open_handle(mnt, handle, flags=os.O_RDONLY):
    h = FileHandle(bytes=len(handle[1]), type=handle[0])
    h.data[:len(handle[1])] = handle[1]
    at = os.open(mnt, os.O_RDONLY)
    try:
        fd = libc.open_by_handle_at(at, ctypes.byref(h), flags)
    finally:
        os.close(at)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


def read_handle(mnt, handle):
    fd = open_handle(mnt, handle)
    try:
        return os.pread(fd, 1 << 20, 0)
    finally:
        os.close(fd)


def is_stale(mnt, handle):
    try:
        os.close(open_handle(mnt, handle))
    except OSError as e:
        return e.errno == errno.ESTALE
    return False


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def test_file_handles_outlive_everything(cluster):
    c = cluster(layout=0, mounts=2)
    deep = "/a/b/c/d/e"
    os.makedirs(c.mnt + deep)
    handles = {}
    for i in range(50):
        name = "%s/f%d" % (deep, i)
        write(c.mnt + name, b"contents of %d" % i)
        handles[name] = handle_of(c.mnt + name)
    top, directory = handle_of(c.mnt), handle_of(c.mnt + deep)
    inode = os.stat(c.mnt + deep + "/f0").st_ino

    def check(mnt):
        for name, handle in handles.items():
            assert read_handle(mnt, handle) == b"contents of " + name.split("/f")[1].encode()
            assert handle_of(mnt + name) == handle
        fd = open_handle(mnt, directory, os.O_RDONLY | os.O_DIRECTORY)
        assert len(os.listdir(fd)) == 50
        # The path up from a directory without a lookup.
        assert os.path.samestat(os.stat("../../../../..", dir_fd=fd), os.stat(mnt))
        assert os.readlink("/proc/self/fd/%d" % fd) == mnt + deep
        os.close(fd)
        fd = open_handle(mnt, top)
        assert os.listdir(fd) == ["a"]
        os.close(fd)
        assert os.stat(mnt + deep + "/f0").st_ino == inode

    check(c.mnt)
    c.drop_caches()
    check(c.mnt)
    check(c.mnts[1])  # never looked up there; the handles are equal, because numbers are permanent
    c.remount()
    check(c.mnt)
    for name in c.daemons():
        c.restart(name)
    c.wait_all_up()
    c.remount()
    check(c.mnt)
    # A write through a handle, to a file that this process never saw.
    c.remount()
    fd = open_handle(c.mnt, handles[deep + "/f7"], os.O_RDWR)
    os.pwrite(fd, b"CONTENTS", 0)
    os.fsync(fd)
    os.close(fd)
    c.remount()
    assert read_handle(c.mnt, handles[deep + "/f7"]) == b"CONTENTS of 7"


def test_handles_follow_renames_and_end_with_the_file(cluster):
    c = cluster(layout=0)
    os.makedirs(c.mnt + "/x/y")
    write(c.mnt + "/x/f", b"1")
    write(c.mnt + "/x/g", b"2")
    f, g, y = handle_of(c.mnt + "/x/f"), handle_of(c.mnt + "/x/g"), handle_of(c.mnt + "/x/y")
    os.rename(c.mnt + "/x/f", c.mnt + "/x/y/moved")
    os.link(c.mnt + "/x/g", c.mnt + "/x/g2")
    os.unlink(c.mnt + "/x/g")
    os.rename(c.mnt + "/x/y", c.mnt + "/z")
    for _ in range(2):
        assert read_handle(c.mnt, f) == b"1" and read_handle(c.mnt, g) == b"2"
        fd = open_handle(c.mnt, y, os.O_RDONLY | os.O_DIRECTORY)
        assert os.listdir(fd) == ["moved"]
        assert os.path.samestat(os.stat("..", dir_fd=fd), os.stat(c.mnt))
        os.close(fd)
        c.remount()
    os.unlink(c.mnt + "/z/moved")
    os.unlink(c.mnt + "/x/g2")
    os.rmdir(c.mnt + "/z")
    for _ in range(2):
        assert is_stale(c.mnt, f) and is_stale(c.mnt, g) and is_stale(c.mnt, y)
        c.remount()
    # A number is never used again: new files do not match old handles.
    for i in range(200):
        write(c.mnt + "/x/new%d" % i, b"3")
    assert is_stale(c.mnt, f) and is_stale(c.mnt, g)
    # Numbers and generations that never existed do not work either.
    kind, raw = handle_of(c.mnt + "/x/new0")
    for at in range(0, len(raw), 4):
        other = bytearray(raw)
        struct.pack_into("<I", other, at, struct.unpack_from("<I", raw, at)[0] ^ 0x5a5a)
        assert is_stale(c.mnt, (kind, bytes(other))) or other == raw


def test_generation_of_the_root_is_0(cluster):
    """The kernel uses 0 when it makes handles of the root."""
    c = cluster(layout=0, mounts=2)
    assert handle_of(c.mnt) == handle_of(c.mnts[1])
    fd = open_handle(c.mnt, handle_of(c.mnts[1]), os.O_RDONLY | os.O_DIRECTORY)
    assert os.path.samestat(os.fstat(fd), os.stat(c.mnt))
    os.close(fd)


# ---- the identity of the file system ----

PRELOAD = os.path.join(os.path.dirname(BIN), "lib", "rozo", "rozo_fsid.so")


def fsid_by_preload(path):
    """Returns f_fsid of statfs(2) as a program with the preloaded library sees it."""
    r = subprocess.run(["stat", "-f", "-c", "%i", path], env=dict(os.environ, LD_PRELOAD=PRELOAD),
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    assert r.returncode == 0 and r.stderr == "", r.stderr
    return int(r.stdout, 16)


def test_the_export_has_one_fsid_on_every_mount(cluster):
    c = cluster(layout=0, mounts=2)
    c.admin("export", "create", "other")
    write(c.mnt + "/f", b"1")
    uuid = os.getxattr(c.mnt, "rozo.fsid").decode()
    assert len(uuid) == 36 and [len(p) for p in uuid.split("-")] == [8, 4, 4, 4, 12]
    raw = bytes.fromhex(uuid.replace("-", ""))
    # As the kernel folds the UUID of a file system; `stat` prints the first of the two words in front.
    low, high = struct.unpack("<II", bytes(a ^ b for a, b in zip(raw[:8], raw[8:])))
    assert os.getxattr(c.mnt, "rozo.export_id") == b"1"

    def check():
        for mnt in c.mnts:
            for path in (mnt, mnt + "/f"):
                assert os.getxattr(path, "rozo.fsid").decode() == uuid
                assert fsid_by_preload(path) == low << 32 | high

    check()
    assert "rozo.fsid" not in os.listxattr(c.mnt)
    for change in (lambda: os.setxattr(c.mnt, "rozo.fsid", b"x"), lambda: os.removexattr(c.mnt, "rozo.fsid")):
        with pytest.raises(PermissionError):
            change()
    c.restart("exportd")
    c.remount()
    check()
    # Another export of the cluster, and other file systems.
    other = os.path.join(c.base, "other")
    os.mkdir(other)
    c.admin("mount", "other", other)
    try:
        theirs = os.getxattr(other, "rozo.fsid").decode()
        assert theirs[:28] == uuid[:28] and int(theirs[28:], 16) ^ int(uuid[28:], 16) == 1 ^ 2
        assert os.getxattr(other, "rozo.export_id") == b"2"
        assert fsid_by_preload(other) not in (0, low << 32 | high)
    finally:
        subprocess.run(["umount", other], check=True)
    for path in ("/proc", "/"):
        plain = subprocess.run(["stat", "-f", "-c", "%i", path], stdout=subprocess.PIPE, text=True, check=True).stdout
        assert fsid_by_preload(path) == int(plain, 16)


# ---- directory cookies ----

def entries_from(mnt_dir, cookie, limit=None):
    """Returns [(name, cookie)] by getdents64(2) from a cookie on, as an NFS server does for READDIR."""
    fd = os.open(mnt_dir, os.O_RDONLY | os.O_DIRECTORY)
    out, buf = [], ctypes.create_string_buffer(2048)
    try:
        assert os.lseek(fd, cookie, os.SEEK_SET) == cookie
        while limit is None or len(out) < limit:
            n = libc.syscall(217, fd, buf, len(buf))  # getdents64, x86-64
            assert n >= 0, os.strerror(ctypes.get_errno())
            if n == 0:
                break
            at = 0
            while at < n:
                _, off, length = struct.unpack_from("<QqH", buf, at)
                out.append((buf.raw[at + 19:at + length].split(b"\0")[0].decode(), off))
                at += length
    finally:
        os.close(fd)
    return out if limit is None else out[:limit]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of getdents64")
def test_directory_cookies_are_stable(cluster):
    c = cluster(layout=0, mounts=2)
    d = "/dir"
    os.mkdir(c.mnt + d)
    for i in range(3000):
        os.mknod("%s%s/entry-%d" % (c.mnt, d, i))
    whole = entries_from(c.mnt + d, 0)
    assert len(whole) == 3002 and len({n for n, _ in whole}) == 3002
    cookies = [o for _, o in whole]
    assert all(0 < o < 1 << 63 for o in cookies) and len(set(cookies)) == len(cookies)
    middle = 1234
    cookie = whole[middle][1]
    rest = whole[middle + 1:]
    assert entries_from(c.mnt + d, cookie) == rest
    c.drop_caches()
    assert entries_from(c.mnts[1] + d, cookie) == rest       # another client
    c.restart("exportd")
    c.remount()
    assert entries_from(c.mnt + d, cookie) == rest           # and after restarts
    assert entries_from(c.mnt + d, 0) == whole
    # The entry of the cookie itself is removed, others are added and removed: none is missed or seen twice.
    for name in (whole[middle][0], rest[0][0], rest[500][0]):
        os.unlink("%s%s/%s" % (c.mnt, d, name))
    for i in range(100):
        os.mknod("%s%s/late-%d" % (c.mnt, d, i))
    seen = [n for n, _ in entries_from(c.mnt + d, cookie)]
    assert len(seen) == len(set(seen))
    assert [n for n in seen if not n.startswith("late")] == \
        [n for i, (n, _) in enumerate(rest) if i not in (0, 500)]
