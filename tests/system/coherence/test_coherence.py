"""Two mounts of one folder, `a` and `b`: each sees the other's changes at once, by name, by inode number and
through open files; one small case per promise. A test waits only for events that take time: a restart, an
eviction."""
import contextlib
import ctypes
import errno
import mmap
import multiprocessing
import os
import random
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import threading
import time

import pytest

from calls import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, RENAME_EXCHANGE, call, fallocate, libc, renameat2
from conftest import cannot_mount
from files import BLOCK, PAGE, READS, WRITES, Open, get, put
from mounts import end, mount
from users import CAPABILITY, let_others_in

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

ROUNDS = 20
SIZE = 3 * BLOCK + 100


def is_there(path):
    try:
        os.stat(path)
        return True
    except FileNotFoundError:
        return False


def told(st):
    """Returns all fields of stat but access time and space."""
    return {k: getattr(st, k)
            for k in ("st_ino", "st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_ctime_ns")}


# ---- attributes ----

def acl(mode_of_group):
    """Returns a POSIX ACL for an xattr, with an entry for user 1, so that there is a mask."""
    entries = [(1, 6, 0xffffffff), (2, 6, 1), (4, mode_of_group, 0xffffffff), (16, 6, 0xffffffff), (32, 4, 0xffffffff)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries)


def open_and(function):
    def change(path, i):
        with Open(path) as fd:
            function(fd, i)
    return change


def one_link_less(path, i):
    if not os.path.exists(path + "-other"):
        os.link(path, path + "-other")
    else:
        os.unlink(path + "-other")


CHANGES = {
    "mode": lambda path, i: os.chmod(path, 0o600 + i % 64),
    "owner": lambda path, i: os.chown(path, 1 + i, 2 + i),
    "times": lambda path, i: os.utime(path, ns=(10**18 + i, 10**18 + 7 * i)),
    "shorter": lambda path, i: os.truncate(path, SIZE - 100 * i - 1),
    "longer": lambda path, i: os.truncate(path, SIZE + 100 * i + 1),
    "size-of-open": open_and(lambda fd, i: os.ftruncate(fd, SIZE + (-1) ** i * 77 * i)),
    "nlink": one_link_less,
    "rename": lambda path, i: os.rename(path, path + "-moved") or os.rename(path + "-moved", path),
    "write": open_and(lambda fd, i: os.pwrite(fd, b"%d" % i, 10 * i)),
    "append": open_and(lambda fd, i: os.pwrite(fd, b"%d" % i, os.fstat(fd).st_size)),
    "allocate": open_and(lambda fd, i: os.posix_fallocate(fd, 0, SIZE + 1000 * i + 1)),
    "xattr": lambda path, i: os.setxattr(path, "user.name", b"%d" % i),
    "acl": lambda path, i: os.setxattr(path, "system.posix_acl_access", acl(i % 8)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_attributes(ab, change):
    """Both mounts change attributes in turn: every stat and fstat on both shows the result."""
    put(ab[0] + "/f", b"0" * SIZE)
    with Open(ab[0] + "/f") as fd_a, Open(ab[1] + "/f") as fd_b:
        for i in range(ROUNDS):
            me, other = i % 2, 1 - i % 2
            before = told(os.stat(ab[other] + "/f"))
            assert told(os.fstat((fd_a, fd_b)[other])) == before
            CHANGES[change](ab[me] + "/f", i)
            at_the_other = told(os.fstat((fd_a, fd_b)[other]))
            assert at_the_other == told(os.stat(ab[me] + "/f")) == told(os.stat(ab[other] + "/f"))
            assert at_the_other != before, change


def change_names_in(path, i):
    """Adds a name to a directory, or removes one."""
    name = path + "/in"
    if is_there(name):
        os.unlink(name)
    else:
        put(name)


# Changes of an inode, by name, with the affected files. `i` counts.
ANY, FILES, DIRECTORIES = ("file", "open file", "directory", "symlink"), ("file", "open file"), ("directory",)
NOT_LINKS = FILES + DIRECTORIES
CTIME_CHANGES = {
    "chmod": (NOT_LINKS, lambda path, i: os.chmod(path, 0o700 + i)),
    "chown": (ANY, lambda path, i: os.chown(path, 1 + i, 2 + i, follow_symlinks=False)),
    "utime": (ANY, lambda path, i: os.utime(path, ns=(10**18 + i, 10**18 + 7 * i), follow_symlinks=False)),
    "link": (FILES + ("symlink",), lambda path, i: os.link(path, path + "-other", follow_symlinks=False)),
    "unlink": (FILES + ("symlink",), lambda path, i: os.unlink(path + "-other")),
    "rename": (ANY, lambda path, i: os.rename(path, path + "-moved") or os.rename(path + "-moved", path)),
    "write": (FILES, open_and(lambda fd, i: os.pwrite(fd, b"%d" % i, 10 * i))),
    "truncate": (FILES, lambda path, i: os.truncate(path, SIZE - 100 * i - 1)),
    "allocate": (FILES, open_and(lambda fd, i: os.posix_fallocate(fd, 0, SIZE + 1000 * i))),
    "setxattr": (ANY, lambda path, i: os.setxattr(path, "trusted.name", b"one", follow_symlinks=False)),
    "setxattr again": (ANY, lambda path, i: os.setxattr(path, "trusted.name", b"other", follow_symlinks=False)),
    "removexattr": (ANY, lambda path, i: os.removexattr(path, "trusted.name", follow_symlinks=False)),
    "an ACL": (NOT_LINKS, lambda path, i: os.setxattr(path, "system.posix_acl_access", acl(i % 8))),
    "no ACL": (NOT_LINKS, lambda path, i: os.removexattr(path, "system.posix_acl_access")),
    "a default ACL": (DIRECTORIES, lambda path, i: os.setxattr(path, "system.posix_acl_default", acl(7))),
    "no default ACL": (DIRECTORIES, lambda path, i: os.removexattr(path, "system.posix_acl_default")),
    "a name": (DIRECTORIES, change_names_in),
    "no name": (DIRECTORIES, change_names_in),
}


@pytest.mark.parametrize("kind", ANY)
def test_each_change_moves_ctime(ab, kind):
    """ctime moves for a program that makes the change and stats at once, and for one on the other mount."""
    path = ab[0] + "/x"
    if kind == "directory":
        os.mkdir(path)
    elif kind == "symlink":
        os.symlink("to", path)
    else:
        put(path, b"0" * SIZE)
    stuck = []
    for who in (0, 1):
        with contextlib.ExitStack() as stack:
            if kind == "open file":  # its mount has it exclusively, and knows the attributes
                os.write(stack.enter_context(Open(ab[who] + "/x")), b"mine")
            for i, (name, (kinds, change)) in enumerate(CTIME_CHANGES.items()):
                if kind not in kinds:
                    continue
                others = os.lstat(ab[1 - who] + "/x").st_ctime_ns
                before = os.lstat(ab[who] + "/x").st_ctime_ns
                if others != before:
                    stuck.append(("before " + name, who, before - others))
                change(ab[who] + "/x", i)
                after = [os.lstat(ab[k] + "/x").st_ctime_ns for k in (who, 1 - who)]
                if not before < after[0] == after[1]:
                    stuck.append((name, who, [t - before for t in after]))
    assert stuck == []


def test_size_of_what_is_being_written(ab):
    """Each unsynced write to an open file is visible in the next stat."""
    a, b = ab
    put(a + "/f")
    with Open(a + "/f") as fd_a, Open(b + "/f", os.O_RDONLY) as fd_b:
        for i in range(1, 5 * ROUNDS):
            os.pwrite(fd_a, b"x" * 777, 777 * (i - 1))
            if i % 3:
                assert os.stat(b + "/f").st_size == 777 * i
            assert os.fstat(fd_b).st_size == 777 * i
            assert told(os.stat(b + "/f")) == told(os.fstat(fd_a))


def test_extended_attributes(ab):
    put(ab[0] + "/f")
    names = ["user.%d" % i for i in range(5)]
    model = {}
    for i in range(3 * ROUNDS):
        me, other, name = ab[i % 2] + "/f", ab[1 - i % 2] + "/f", names[i % 5]
        if name in model and i % 3 == 0:
            os.removexattr(me, name)
            del model[name]
        else:
            model[name] = b"%d" % i * (i + 1)
            os.setxattr(me, name, model[name])
        for path in (other, me):
            assert {n: os.getxattr(path, n) for n in os.listxattr(path)} == model


def as_user_1(function):
    """Calls a function in a process of user 1; returns its result, or the errno of an OSError."""
    near, far = multiprocessing.Pipe(False)
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(1)
            os.setuid(1)
            far.send(function())
        except OSError as e:
            far.send(e.errno)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert near.poll(0)
    return near.recv()


def test_changed_permission_counts_on_the_other_mount_at_once(ab):
    """Permission granted or revoked on one mount counts on the other at once: modes, ACLs, parent
    directories."""
    a, b = ab
    for path in ab:
        let_others_in(path)
    os.mkdir(a + "/d", 0o755)
    put(a + "/d/f", b"secret")
    os.chmod(a + "/d/f", 0o644)

    def read():
        return as_user_1(lambda: get(b + "/d/f"))

    for _ in range(ROUNDS // 4):
        assert read() == b"secret"
        os.chmod(a + "/d/f", 0o600)
        assert read() == errno.EACCES
        os.setxattr(a + "/d/f", "system.posix_acl_access", acl(0))
        assert read() == b"secret"
        os.removexattr(a + "/d/f", "system.posix_acl_access")
        os.chmod(a + "/d/f", 0o644)
        assert read() == b"secret"
        os.chmod(a + "/d", 0o700)
        assert read() == errno.EACCES
        os.chmod(a + "/d", 0o755)


# ---- names ----

UNIVERSE = ["f", "g", "h", "link", "symlink", "d", "e", "d/in", "e/in", "e/g"]


def picture(folder):
    """Returns the state of every name, also of absent ones, and the listing."""
    seen = {}
    for name in UNIVERSE:
        try:
            st = os.lstat(os.path.join(folder, name))
            seen[name] = (st.st_ino, stat.S_IFMT(st.st_mode), st.st_nlink)
        except (FileNotFoundError, NotADirectoryError):
            seen[name] = None
    seen["listed"] = sorted(os.listdir(folder))
    if os.path.islink(folder + "/symlink"):
        seen["target"] = os.readlink(folder + "/symlink")
    return seen


NAME_STEPS = [
    ("create", lambda d: put(d + "/f")),
    ("link", lambda d: os.link(d + "/f", d + "/link")),
    ("rename", lambda d: os.rename(d + "/f", d + "/g")),
    ("symlink", lambda d: os.symlink("g", d + "/symlink")),
    ("another symlink", lambda d: os.unlink(d + "/symlink") or os.symlink("h", d + "/symlink")),
    ("mkdir", lambda d: os.mkdir(d + "/d")),
    ("create below", lambda d: put(d + "/d/in")),
    ("rename of a directory", lambda d: os.rename(d + "/d", d + "/e")),
    ("mkdir again", lambda d: os.mkdir(d + "/d")),
    ("rename over an empty directory", lambda d: os.unlink(d + "/e/in") or os.rename(d + "/d", d + "/e")),
    ("mkdir for the third time", lambda d: os.mkdir(d + "/d")),
    ("exchange", lambda d: renameat2(d + "/g", d + "/d", RENAME_EXCHANGE)),
    ("exchange back", lambda d: renameat2(d + "/g", d + "/d", RENAME_EXCHANGE)),
    ("create h", lambda d: put(d + "/h")),
    ("rename over a file", lambda d: os.rename(d + "/h", d + "/g")),
    ("rename into a directory", lambda d: os.rename(d + "/g", d + "/e/g")),
    ("rename out of it", lambda d: os.rename(d + "/e/g", d + "/g")),
    ("unlink", lambda d: os.unlink(d + "/g")),
    ("unlink of the symlink", lambda d: os.unlink(d + "/symlink")),
    ("unlink of the other link", lambda d: os.unlink(d + "/link")),
    ("rmdir", lambda d: os.rmdir(d + "/d")),
    ("rmdir of the other", lambda d: os.rmdir(d + "/e")),
]


@pytest.mark.parametrize("who", ["one", "in-turn"])
def test_names(ab, who):
    """After each change both mounts agree on existing and absent names, listings and links."""
    n = 0
    for _ in range(ROUNDS // 4):
        for what, step in NAME_STEPS:
            assert picture(ab[0]) == picture(ab[1])
            step(ab[n % 2 if who == "in-turn" else 0])
            n += 1
            assert picture(ab[1 - n % 2]) == picture(ab[n % 2]), what
    assert picture(ab[1])["listed"] == []


def test_listings(ab):
    """Each change of a directory is in its next listing, by name and through a descriptor, right after
    another one."""
    a, b = ab
    names = {"n%03d" % i for i in range(300)}
    for name in names:
        put(a + "/" + name)
    with Open(b, os.O_RDONLY) as fd:
        for i in range(3 * ROUNDS):
            me = ab[i % 2]
            if i % 3 == 2:
                gone = names.pop()
                os.unlink(me + "/" + gone)
            else:
                put(me + "/x%d" % i)
                names.add("x%d" % i)
            assert set(os.listdir(ab[1 - i % 2])) == set(os.listdir(fd)) == set(os.listdir(me)) == names


def test_rename_over_an_open_file(ab):
    """A program with the old file open keeps it; a new open gets the new file."""
    for i in range(ROUNDS):
        me, other = ab[i % 2], ab[1 - i % 2]
        put(other + "/f", b"old %d" % i)
        with Open(other + "/f") as fd:
            put(me + "/new", b"new %d" % i)
            os.rename(me + "/new", me + "/f")
            assert get(other + "/f") == b"new %d" % i
            assert os.pread(fd, 100, 0) == b"old %d" % i and os.fstat(fd).st_nlink == 0
            os.pwrite(fd, b"OLD", 0)
            assert os.pread(fd, 100, 0) == b"OLD %d" % i
            assert get(me + "/f") == b"new %d" % i


def test_open_directory_is_moved_by_the_other_mount(ab):
    a, b = ab
    os.makedirs(a + "/to")
    for i in range(ROUNDS):
        me, other = ab[i % 2], ab[1 - i % 2]
        os.makedirs(me + "/d/sub")
        put(me + "/d/sub/f", b"%d" % i)
        with Open(other + "/d/sub", os.O_RDONLY) as fd:
            os.rename(me + "/d", me + "/to/e")
            assert not is_there(other + "/d/sub/f") and get(other + "/to/e/sub/f") == b"%d" % i
            assert os.stat("../..", dir_fd=fd).st_ino == os.stat(me + "/to").st_ino
            os.unlink(me + "/to/e/sub/f")
            assert os.listdir(fd) == []
            os.rmdir(me + "/to/e/sub")
            with pytest.raises(OSError) as e:
                os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
            assert e.value.errno in (errno.ENOENT, errno.ESTALE)  # docs/POSIX.md
            os.rmdir(me + "/to/e")
        assert os.listdir(other + "/to") == []


def test_inode_removed_between_lookup_and_open_can_be_opened(ab):
    """Linux looks up a name first and then opens the inode; the other mount may remove the name in between."""
    n_fast = 0
    while n_fast < ROUNDS:
        me, other = ab[n_fast % 2], ab[1 - n_fast % 2]
        put(me + "/f", b"abc")
        os.mkdir(me + "/d")
        with Open(other + "/f", os.O_PATH) as found, Open(other + "/d", os.O_PATH) as inside:
            began = time.monotonic()
            os.unlink(me + "/f")
            os.rmdir(me + "/d")
            try:
                with Open("/proc/self/fd/%d" % found) as fd:
                    assert os.pread(fd, 10, 0) == b"abc" and os.fstat(fd).st_nlink == 0
                    os.pwrite(fd, b"x", 0)
                    assert os.pread(fd, 10, 0) == b"xbc"
                assert os.stat(inside).st_nlink == 0 and os.listdir("/proc/self/fd/%d" % inside) == []
                with pytest.raises(FileNotFoundError):
                    os.mkdir("new", dir_fd=inside)
            except OSError as e:
                if e.errno != errno.ESTALE or time.monotonic() - began < 1:
                    raise
                continue
        n_fast += 1


def test_an_open_file_that_the_other_removes(ab):
    for i in range(ROUNDS):
        me, other = ab[i % 2], ab[1 - i % 2]
        put(me + "/f", b"a" * SIZE)
        with Open(other + "/f") as fd, Open(me + "/f") as mine:
            os.pread(fd, 100, 0)
            os.unlink(me + "/f")
            assert os.fstat(fd).st_nlink == os.fstat(mine).st_nlink == 0 and not is_there(other + "/f")
            assert os.pread(fd, SIZE, 0) == b"a" * SIZE
            os.pwrite(fd, b"b" * 10, 5)
            assert os.pread(mine, 20, 0) == b"aaaaa" + b"b" * 10 + b"aaaaa"
            os.ftruncate(mine, 7)
            assert os.pread(fd, 20, 0) == b"aaaaabb" and os.fstat(fd).st_size == 7


def test_an_open_directory_that_is_removed(two_mounts, ab):
    """The directory stays for programs that have it open, empty and without a name, also after exportd has
    forgotten it."""
    def n_files():
        return sum(e["files"] for e in two_mounts.status()["exports"])

    def look(fd):
        st = os.fstat(fd)
        return st.st_ino, st.st_mode, st.st_uid, st.st_nlink, os.listdir(fd)

    for i, (owner, remover) in enumerate([(0, 0), (0, 1), (1, 0)]):
        os.mkdir(ab[owner] + "/d", 0o751)
        with Open(ab[owner] + "/d", os.O_RDONLY) as fd:
            before = look(fd)
            os.rmdir(ab[remover] + "/d")
            n = n_files()
            assert look(fd) == before[:3] + (0, [])
            two_mounts.wait_for(lambda: n_files() < n, "exportd to forget it")
            assert look(fd) == before[:3] + (0, [])
            with pytest.raises(FileNotFoundError):
                os.mkdir("new", dir_fd=fd)


def test_a_name_that_was_not_there(ab):
    a, b = ab
    for i in range(ROUNDS):
        assert not is_there(b + "/new%d" % i)
        put(a + "/new%d" % i)
        assert is_there(b + "/new%d" % i)


def test_exclusive_create_on_two_mounts_succeeds_once(ab):
    a, b = ab
    won = [[], []]

    def make(which):
        for i in range(200):
            try:
                os.close(os.open(ab[which] + "/%d" % i, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                won[which].append(i)
            except FileExistsError:
                pass

    in_threads([lambda w=w: make(w) for w in (0, 1)])
    assert sorted(won[0] + won[1]) == list(range(200))


def test_a_directory_that_is_read_while_it_changes(ab):
    """A name that exists all the time is listed once."""
    a, b = ab
    stay = {"stays-%03d" % i for i in range(300)}
    for name in stay:
        put(a + "/" + name)
    stop = threading.Event()

    def churn():
        i = 0
        while not stop.is_set():
            put(a + "/comes-%d" % (i % 50))
            os.rename(a + "/comes-%d" % (i % 50), a + "/moved-%d" % (i % 50))
            os.unlink(a + "/moved-%d" % (i % 50))
            i += 1

    def read():
        try:
            for _ in range(40):
                names = os.listdir(b)
                assert sorted(n for n in names if n.startswith("stays")) == sorted(stay)
        finally:
            stop.set()

    in_threads([churn, read])


# ---- bytes ----

@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("write", WRITES)
def test_bytes(ab, write, read):
    """Each mount in turn writes a range of any length, anywhere; the other one, which has just read it, reads
    the new bytes."""
    chance = random.Random(write + read)
    size = 64 << 10
    model = bytearray(chance.randbytes(size))
    put(ab[0] + "/f", model)
    with Open(ab[0] + "/f") as fd_a, Open(ab[1] + "/f") as fd_b:
        for i in range(3 * ROUNDS):
            fds, me, other = (fd_a, fd_b), i % 2, 1 - i % 2
            length = chance.choice((1, 100, PAGE, BLOCK, 3 * BLOCK + 5))
            at = chance.choice((0, chance.randrange(size - length), chance.randrange((size - length) // PAGE) * PAGE))
            first, n = max(0, at - 50), length + 100
            assert READS[read](ab[other] + "/f", fds[other], first, n) == model[first:first + n]
            model[at:at + length] = chance.randbytes(length)
            WRITES[write](ab[me] + "/f", fds[me], at, model[at:at + length])
            for who in (other, me):
                assert READS[read](ab[who] + "/f", fds[who], first, n) == model[first:first + n], (i, at, length, who)
    assert get(ab[0] + "/f") == get(ab[1] + "/f") == model


def test_holes(ab):
    """Ranges are punched, zeroed, cut and grown again: no mount sees the old bytes."""
    for i in range(ROUNDS):
        me, other = ab[i % 2], ab[1 - i % 2]
        put(me + "/f", b"x" * SIZE)
        with Open(me + "/f") as mine, Open(other + "/f") as theirs:
            assert os.pread(theirs, 2 * SIZE, 0) == b"x" * SIZE
            fallocate(me + "/f", FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 100, BLOCK)
            assert os.pread(theirs, 2 * SIZE, 0) == b"x" * 100 + bytes(BLOCK) + b"x" * (SIZE - BLOCK - 100)
            os.ftruncate(theirs, 50)
            assert os.pread(mine, 2 * SIZE, 0) == b"x" * 50 and os.fstat(mine).st_size == 50
            os.ftruncate(mine, SIZE)
            assert os.pread(theirs, 2 * SIZE, 0) == b"x" * 50 + bytes(SIZE - 50)
            os.truncate(other + "/f", 0)
            assert os.pread(mine, 2 * SIZE, 0) == b"" == get(me + "/f")


def test_neighbours_in_one_block(ab):
    """Four writers on two mounts, each with its own slots of an odd length: no write destroys another one."""
    n_slots, length, n_turns = 400, 37, 6
    put(ab[0] + "/f", bytes(n_slots * length))

    def word(who, turn, slot):
        return (b"%d.%d.%d/" % (who, turn, slot) * length)[:length]

    def write(who):
        with Open(ab[who % 2] + "/f") as fd:
            for turn in range(n_turns):
                for slot in range(who, n_slots, 4):
                    os.pwrite(fd, word(who, turn, slot), slot * length)
                    assert os.pread(fd, length, slot * length) == word(who, turn, slot)

    in_threads([lambda who=who: write(who) for who in range(4)])
    want = b"".join(word(slot % 4, n_turns - 1, slot) for slot in range(n_slots))
    assert get(ab[0] + "/f") == want == get(ab[1] + "/f")


def test_writers_in_two_halves(two_mounts, ab):
    """Each mount writes blocks of its own half, in turn, in any order: soon no write needs a request to
    exportd. Writes across the border are right, too."""
    n_blocks, chance = 64, random.Random(7)
    half = n_blocks // 2
    model = bytearray(chance.randbytes(n_blocks * BLOCK))
    put(ab[0] + "/f", model)

    def write(fd, at, length):
        model[at:at + length] = chance.randbytes(length)
        assert os.pwrite(fd, model[at:at + length], at) == length

    def asked():
        return two_mounts.status()["exportd"]["requests"]["token"]

    with Open(ab[0] + "/f") as fd_a, Open(ab[1] + "/f") as fd_b:
        for turn in range(40):
            write(fd_a, chance.randrange(half) * BLOCK, BLOCK)
            write(fd_b, (half + chance.randrange(half)) * BLOCK, BLOCK)
        before = asked()
        for turn in range(300):
            write(fd_a, chance.randrange(half) * BLOCK, BLOCK)
            write(fd_b, (half + chance.randrange(half)) * BLOCK, BLOCK)
        assert asked() - before < 30
        assert os.pread(fd_a, len(model), 0) == model == os.pread(fd_b, len(model), 0)
        for turn in range(ROUNDS):
            fd, other = (fd_a, fd_b) if turn % 2 == 0 else (fd_b, fd_a)
            write(fd, half * BLOCK - chance.randrange(1, BLOCK), BLOCK)
            write(other, (half - 5 + chance.randrange(10)) * BLOCK, 100)
            assert os.pread(other, len(model), 0) == model == os.pread(fd, len(model), 0)
            st = os.stat(ab[turn % 2] + "/f")
            assert st.st_size == len(model) and told(st) == told(os.fstat(other))
    assert get(ab[0] + "/f") == model == get(ab[1] + "/f")


def test_holes_and_copies_in_two_halves(two_mounts, ab):
    """The same holds for punched holes, and for copies within a half; a copy across the border is right, too."""
    n_blocks, chance = 64, random.Random(8)
    half = n_blocks // 2
    model = bytearray(chance.randbytes(n_blocks * BLOCK))
    put(ab[0] + "/f", model)

    def punch(fd, at):
        model[at:at + BLOCK] = bytes(BLOCK)
        call(libc.fallocate, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, ctypes.c_long(at), ctypes.c_long(BLOCK))

    def copy(fd, to, at):
        model[to:to + BLOCK] = model[at:at + BLOCK]
        assert os.copy_file_range(fd, fd, BLOCK, at, to) == BLOCK

    def asked():
        return two_mounts.status()["exportd"]["requests"]["token"]

    def turn(fds):
        for first, fd in zip((0, half), fds):
            punch(fd, (first + chance.randrange(half)) * BLOCK)
            to, at = chance.sample(range(first, first + half), 2)
            copy(fd, to * BLOCK, at * BLOCK)

    with Open(ab[0] + "/f") as fd_a, Open(ab[1] + "/f") as fd_b:
        for _ in range(40):
            turn((fd_a, fd_b))
        before = asked()
        for _ in range(100):
            turn((fd_a, fd_b))
        assert asked() - before < 30
        for i in range(ROUNDS // 4):
            fd, other = (fd_a, fd_b) if i % 2 == 0 else (fd_b, fd_a)
            copy(fd, chance.randrange(half) * BLOCK + 7, (half + chance.randrange(half - 1)) * BLOCK + 100)
            assert os.pread(other, len(model), 0) == model == os.pread(fd, len(model), 0)
    assert get(ab[0] + "/f") == model == get(ab[1] + "/f")


@pytest.mark.parametrize("start", [0, 2413, 12000])
def test_reads_across_the_new_end(ab, start):
    """Linux asks for the data around a partly cached page concurrently, and for that page last."""
    paths = [os.path.join(folder, "cut") for folder in ab]
    put(paths[0], b"x" * 107285)
    mine, others = [os.open(path, os.O_RDWR) for path in paths]
    for _ in range(60):
        os.pwrite(mine, b"x" * 107285, 0)
        os.ftruncate(others, 7118)
        os.pwrite(mine, b"y" * 276, 5036)
        os.fstat(others)
        want = b"x" * 5036 + b"y" * 276 + b"x" * (7118 - 5312)
        assert os.pread(mine, 58840, start) == want[start:]
    os.close(mine)
    os.close(others)


@pytest.mark.parametrize("length", [64, 1000, 5000])
def test_appends_of_both(ab, length):
    """With O_APPEND every record exists once, whole, and those of each writer are in order."""
    put(ab[0] + "/log")
    n_each = 150

    def append(who):
        with Open(ab[who % 2] + "/log", os.O_WRONLY | os.O_APPEND) as fd:
            for i in range(n_each):
                assert os.write(fd, (b"%d %06d " % (who, i)).ljust(length - 1, b".") + b"\n") == length

    in_threads([lambda who=who: append(who) for who in range(4)])
    for mnt in ab:
        log = get(mnt + "/log")
        assert len(log) == 4 * n_each * length
        records = [log[at:at + length] for at in range(0, len(log), length)]
        assert all(r.endswith(b"\n") and set(r[9:-1]) <= {ord(".")} for r in records)
        for who in range(4):
            assert [int(r.split()[1]) for r in records if r.startswith(b"%d " % who)] == list(range(n_each))


def test_appends_in_turn(ab):
    """Each append goes after the other mount's last one."""
    put(ab[0] + "/log")
    with Open(ab[0] + "/log", os.O_RDWR | os.O_APPEND) as fd_a, Open(ab[1] + "/log", os.O_RDWR | os.O_APPEND) as fd_b:
        want = b""
        for i in range(5 * ROUNDS):
            os.write((fd_a, fd_b)[i % 2], b"%d, " % i)
            want += b"%d, " % i
            assert os.pread((fd_b, fd_a)[i % 2], 10000, 0) == want


# A mount with this library delays its invalidations: until just before an answer with attributes, or a
# twentieth of a second.
LATE_NOTICES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned n_notices, n_answers;

static int wait_ms(unsigned ms)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += ms * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return pthread_cond_timedwait(&changed, &lock, &until);
}

int fuse_lowlevel_notify_inval_inode(void *se, uint64_t ino, off_t off, off_t len)
{
    int (*real)(void *, uint64_t, off_t, off_t) =
        (int (*)(void *, uint64_t, off_t, off_t))dlsym(RTLD_NEXT, "fuse_lowlevel_notify_inval_inode");
    unsigned before;
    int rc;

    pthread_mutex_lock(&lock);
    n_notices++;
    before = n_answers;
    while (n_answers == before && wait_ms(50) == 0)
        ;
    pthread_mutex_unlock(&lock);
    rc = real(se, ino, off, len);
    pthread_mutex_lock(&lock);
    n_notices--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return rc;
}

int fuse_reply_attr(void *req, const struct stat *st, double timeout)
{
    int (*real)(void *, const struct stat *, double) =
        (int (*)(void *, const struct stat *, double))dlsym(RTLD_NEXT, "fuse_reply_attr");

    pthread_mutex_lock(&lock);
    n_answers++;
    pthread_cond_broadcast(&changed);
    while (n_notices > 0 && wait_ms(500) == 0) /* they may have to wait for something else that we answer */
        ;
    pthread_mutex_unlock(&lock);
    return real(req, st, timeout);
}
"""


@pytest.fixture
def late(two_mounts, ab, scratch, monkeypatch):
    """The folder of the test through the first mount, and through one with delayed invalidations."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source, library, mnt = scratch + "/late.c", scratch + "/late.so", scratch + "/m"
    with open(source, "w") as f:
        f.write(LATE_NOTICES)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread"], check=True)
    with monkeypatch.context() as env:
        env.setenv("LD_PRELOAD", library)
        env.setenv("ASAN_OPTIONS", os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0")
        p = mount(two_mounts, mnt)
    yield ab[0], os.path.join(mnt, os.path.basename(ab[0]))
    p.terminate()
    status, err = end(p)
    assert status == 0, err


def test_appended_bytes_can_be_mapped_at_once(late):
    """The kernel accepts the size in the answer to an append, also right after an invalidation."""
    a, b = late
    put(a + "/log")
    os.truncate(a + "/log", 1 << 20)
    with Open(a + "/log", os.O_WRONLY | os.O_APPEND) as fd_a, Open(b + "/log", os.O_WRONLY | os.O_APPEND) as fd_b, \
            Open(b + "/log") as fd:
        shared, size = mmap.mmap(fd, 1 << 20, mmap.MAP_SHARED), 5
        os.truncate(a + "/log", size)
        for i in range(ROUNDS):
            size += os.write(fd_a, b"a" * 9000)
            size += os.write(fd_b, b"b" * 5000)
            assert os.fstat(fd).st_size == size
            with Open(a + "/log") as source:  # EFAULT, where a program with a mapping got SIGBUS
                assert os.preadv(source, [memoryview(shared)[size - 1:size]], size - 1) == 1
            assert shared[size - 1:size] == b"b"


@pytest.mark.parametrize("how", [os.O_RDWR, os.O_WRONLY])
def test_append_goes_after_the_bytes_of_the_other_mount(late, how):
    """An append goes to the end even if the kernel does not know yet that the file has grown."""
    a, b = late
    want = b"0" * 3 * PAGE
    put(a + "/log", want)
    with Open(a + "/log", os.O_WRONLY | os.O_APPEND) as fd_a, Open(b + "/log", how | os.O_APPEND) as fd_b, \
            Open(b + "/log", os.O_RDONLY) as fd:
        for i in range(ROUNDS):
            end_before = len(want)
            os.write(fd_a, b"a" * 2 * PAGE)
            os.write(fd_b, b"b" * PAGE)
            want += b"a" * 2 * PAGE + b"b" * PAGE
            assert os.pread(fd, PAGE, end_before) == b"a" * PAGE
            assert os.pread(fd, len(want) + 1, 0) == want
            if how == os.O_RDWR:
                assert os.pread(fd_b, len(want) + 1, 0) == want


def test_reader_of_a_growing_file_gets_all_bytes_in_order(ab):
    """A reader like tail -f gets all bytes in order, none that do not exist yet, and each at once."""
    a, b = ab
    put(a + "/log")
    records = [b"%d:" % i + b"r" * (i * 131 % 9000) + b"\n" for i in range(5 * ROUNDS)]
    with Open(a + "/log", os.O_WRONLY) as fd_a, Open(b + "/log", os.O_RDONLY) as fd_b:
        for r in records:
            assert os.read(fd_b, 1 << 20) == b""
            os.write(fd_a, r)
            assert os.read(fd_b, 1 << 20) == r
        got, want = [], b"".join(records)

        def follow():
            with Open(b + "/log", os.O_RDONLY) as fd:
                os.lseek(fd, len(want), os.SEEK_SET)
                while sum(map(len, got)) < len(want):
                    got.append(os.read(fd, 5000))

        def grow():
            for r in records:
                os.write(fd_a, r)

        in_threads([follow, grow])
        assert b"".join(got) == want


def test_a_message_and_its_answer(ab):
    """Order is kept: a file is written, then its name is created; a program that sees the name sees the data."""
    def play(me):
        other = 1 - me
        for i in range(5 * ROUNDS):
            if i % 2 == me:
                put(ab[me] + "/new-%d" % me, b"%d" % i * 1000)
                os.rename(ab[me] + "/new-%d" % me, ab[me] + "/turn-%d" % i)
            else:
                while not is_there(ab[me] + "/turn-%d" % i):
                    pass
                assert get(ab[me] + "/turn-%d" % i) == b"%d" % i * 1000, other

    in_threads([lambda me=me: play(me) for me in (0, 1)])


def test_many_readers_and_a_writer_end(ab):
    """More requests than the kernel allows at once wait on one mount, while the other one takes its pages
    away."""
    a, b = ab
    size, n_readers = 4 << 20, 40
    put(a + "/f", b"0" * size)
    stop = multiprocessing.Event()

    def write():
        fd = os.open(a + "/f", os.O_WRONLY)
        try:
            for i in range(1, 30):
                for at in range(0, size, 1 << 20):
                    os.pwrite(fd, b"%d" % (i % 10) * (1 << 20), at)
        finally:
            os.close(fd)

    def read(n):
        fd = os.open(b + "/f", os.O_RDONLY if n % 3 else os.O_RDWR)
        m = mmap.mmap(fd, size, prot=mmap.PROT_READ)
        i = 0
        while not stop.is_set():
            at = (n * 37 + i * 101) % (size // BLOCK) * BLOCK
            if n % 8 == 0:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            data = m[at:at + PAGE] if n % 2 else os.pread(fd, PAGE, at)
            # A mapped page may be invalidated while it is copied; then its rest is newer.
            assert not data.strip(b"0123456789" if n % 2 else data[:1]), (at, data[:1], data[-1:])
            i += 1

    readers = [multiprocessing.Process(target=read, args=(n,), daemon=True) for n in range(n_readers)]
    for p in readers:
        p.start()
    try:
        in_threads([write])
    finally:
        stop.set()
        for p in readers:
            p.join(60)
        hang = [p for p in readers if p.exitcode is None]
        for p in hang:
            p.kill()
    assert not hang and [p.exitcode for p in readers] == [0] * n_readers
    assert get(b + "/f") == b"9" * size


STORM = r"""
import errno, os, random, sys, threading
top, n_threads, n_ops, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
bad = []
NAMES = ["%s/d%d/n%d" % (top, i % 3, i % 7) for i in range(21)]
# ESTALE: docs/POSIX.md
ALLOWED = {errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR, errno.EINVAL, errno.EPERM,
           errno.ESTALE}
def use(path, flags, function):
    fd = os.open(path, flags, 0o644)
    try:
        function(fd)
    finally:
        os.close(fd)
def one(r):
    p, q = r.choice(NAMES), r.choice(NAMES)
    at = r.randrange(5) * 4096
    r.choice((
        lambda: os.stat(p), lambda: os.listdir(os.path.dirname(p)), lambda: os.unlink(p),
        lambda: os.rename(p, q), lambda: os.link(p, q), lambda: os.mkdir(p), lambda: os.rmdir(p),
        lambda: os.truncate(p, at), lambda: os.chmod(p, r.choice((0o600, 0o644))),
        lambda: use(p, os.O_RDONLY, lambda fd: os.read(fd, 100000)),
        lambda: use(p, os.O_RDWR | os.O_CREAT, lambda fd: os.pwrite(fd, b"w" * 5000, at)),
        lambda: use(p, os.O_WRONLY | os.O_APPEND, lambda fd: os.write(fd, b"a" * 100)),
        lambda: use(p, os.O_RDWR, lambda fd: os.pread(fd, 4096, at) and os.fsync(fd)),
    ))()
def run(i):
    r = random.Random(seed * 1000 + i)
    for _ in range(n_ops):
        try:
            one(r)
        except OSError as e:
            if e.errno not in ALLOWED:
                bad.append(repr(e))
threads = [threading.Thread(target=run, args=(i,)) for i in range(n_threads)]
for t in threads: t.start()
for t in threads: t.join()
print("\n".join(bad[:20]))
sys.exit(len(bad) > 0)
"""


def storm(top, n_threads, n_ops, seed):
    return subprocess.Popen([sys.executable, "-c", STORM, top, str(n_threads), str(n_ops), str(seed)],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("others", [1, 100])
def test_more_calls_than_the_kernel_lets_through(ab, others):
    """300 callers on one mount, one or 100 on the other, few names: recalls come while all requests are in
    use. All calls end, with errors of docs/POSIX.md only."""
    for i in range(3):
        os.mkdir(ab[0] + "/d%d" % i)
    running = [storm(ab[0], 300, 2, 1), storm(ab[1], others, 600 // others, 2)]
    try:
        said = [p.communicate(timeout=240)[0] for p in running]
    finally:
        for p in running:
            p.kill()
    assert [p.returncode for p in running] == [0, 0], said
    for i in range(3):
        assert sorted(os.listdir(ab[0] + "/d%d" % i)) == sorted(os.listdir(ab[1] + "/d%d" % i))


COMES_AND_GOES = r"""
import os, sys
path, what = sys.argv[1:]
for _ in range(500):
    try:
        if what == "remove":
            os.unlink(path)
        else:
            fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
            os.write(fd, b"x")
            assert os.fstat(fd).st_size >= 1
            os.close(fd)
    except OSError as e:
        if what == "create":
            raise
"""


def test_a_name_that_comes_and_goes_can_always_be_created(ab):
    """open() with O_CREAT but without O_EXCL always succeeds, also while another mount creates or removes the
    name."""
    running = [subprocess.Popen([sys.executable, "-c", COMES_AND_GOES, top + "/f", what], stderr=subprocess.PIPE,
                                text=True)
               for what in ("create", "create", "create", "remove", "remove") for top in ab]
    try:
        said = [p.communicate(timeout=240)[1] for p in running]
    finally:
        for p in running:
            p.kill()
    assert [p.returncode for p in running] == [0] * 10, said


def in_threads(functions, timeout=120):
    """Runs all functions; raises the first exception of any. A function that does not end counts as hung."""
    errors = []

    def run(fn):
        try:
            fn()
        except BaseException as e:  # noqa: B036 - handed on below
            errors.append(e)

    threads = [threading.Thread(target=run, args=(fn,), daemon=True) for fn in functions]
    end = time.monotonic() + timeout
    for t in threads:
        t.start()
    for t in threads:
        t.join(max(0.1, end - time.monotonic()))
    if errors:
        raise errors[0]
    assert not any(t.is_alive() for t in threads), "%d calls hang" % sum(t.is_alive() for t in threads)


# ---- failures ----

def test_mount_that_gives_back_no_token_is_evicted(cluster):
    """A mount is stopped while it holds all tokens. Others wait until its eviction, not forever; it notices
    that when it goes on."""
    c = cluster(layout=0, mounts=2)
    c.configure(evict_s=4)
    a, b = c.mnts
    os.mkdir(a + "/d")
    put(a + "/d/f", b"before")
    put(a + "/h", b"")
    first = c.names("mount")[0]
    fd = os.open(a + "/d/f", os.O_RDWR)
    os.pwrite(fd, b"B", 0)  # stays in the mount's memory
    os.listdir(a + "/d")
    c.kill(first, signal.SIGSTOP)
    try:
        in_threads([lambda: get(b + "/d/f"), lambda: put(b + "/g", b"by b"), lambda: os.rename(b + "/h", b + "/i"),
                    lambda: os.listdir(b)], timeout=60)
        os.rename(b + "/d", b + "/e")
        put(b + "/e/f", b"after")
        os.unlink(b + "/g")
    finally:
        c.kill(first, signal.SIGCONT)
    assert get(a + "/e/f") == b"after" and not is_there(a + "/d") and os.listdir(a + "/e") == ["f"]
    assert get(b + "/e/f") == b"after"
    with pytest.raises(OSError) as e:
        os.close(fd)
    assert e.value.errno == errno.EIO  # data in its memory is lost
    for i in range(ROUNDS):
        mine, theirs = c.mnts[i % 2] + "/e/f", c.mnts[1 - i % 2] + "/e/f"
        put(mine, b"%d" % i)
        assert get(theirs) == b"%d" % i


def test_the_successor_of_a_killed_mount_frees_what_it_held(cluster):
    """A new mount in the place of a killed one frees the killed one's tokens at once, without waiting for its
    lease."""
    c = cluster(layout=0, mounts=2)
    c.configure(evict_s=3600, lease_s=3600)
    a, b = c.mnts
    first = c.names("mount")[0]

    def use():
        os.rename(b + "/d", b + "/e")
        os.rmdir(b + "/e")
        assert get(b + "/f") in (b"before", b"Before")
        put(b + "/f", b"after")

    for _ in range(3):
        put(a + "/f", b"before")
        os.mkdir(a + "/d")
        os.listdir(a + "/d")
        fd = os.open(a + "/f", os.O_RDWR)
        os.pwrite(fd, b"B", 0)  # stays in the mount's memory
        c.kill(first)
        with contextlib.suppress(OSError):
            os.close(fd)
        c.restart(first)
        in_threads([use], timeout=60)
        assert get(a + "/f") == b"after"
    assert c.log("exportd").count("is dead, as a later mount on its machine reports") == 3


def test_exportd_is_killed_while_both_work(cluster):
    """Bytes and names are changed in turn and checked by the other mount, over restarts of exportd."""
    c = cluster(layout=0, mounts=2)
    for i in range(5):
        put(c.mnts[0] + "/f%d" % i, bytes(SIZE))
    stop = multiprocessing.Event()

    def work(which):
        chance, model = random.Random(which), bytearray(SIZE)
        n = 0
        with Open(c.mnts[0] + "/f%d" % which) as fd_a, Open(c.mnts[1] + "/f%d" % which) as fd_b:
            while not stop.is_set() or n < ROUNDS:
                me, at = n % 2, chance.randrange(SIZE - 1000)
                model[at:at + 1000] = chance.randbytes(1000)
                os.pwrite((fd_a, fd_b)[me], model[at:at + 1000], at)
                assert os.pread((fd_b, fd_a)[me], SIZE, 0) == model
                name = "/n%d-%d" % (which, n // 2 % 3)
                if me == 0:
                    put(c.mnts[0] + name, b"%d" % n)
                    assert get(c.mnts[1] + name) == b"%d" % n
                else:
                    os.unlink(c.mnts[1] + name)
                    assert not is_there(c.mnts[0] + name)
                n += 1

    # Processes, because a child that restarts exportd must not inherit files of a mount: their close waits
    # for exportd.
    workers = [multiprocessing.Process(target=work, args=(i,), daemon=True) for i in range(5)]
    for p in workers:
        p.start()
    try:
        for _ in range(3):
            time.sleep(1)  # gives time for a kill
            c.kill("exportd")
            c.restart("exportd")
        stop.set()
        for p in workers:
            p.join(timeout=120)
        assert [p.exitcode for p in workers] == [0] * 5
    finally:
        for p in workers:
            p.kill()


# ---- read-only opens are kept ----

def requests(c):
    return {kind: n
            for kind, n in c.status()["exportd"]["requests"].items() if kind in ("open", "close", "lookup", "getattr")}


def test_reopen_needs_no_request(two_mounts, ab):
    put(ab[0] + "/f", b"one")

    def costs_nothing():
        before = requests(two_mounts)
        for _ in range(50):
            assert get(ab[1] + "/f") == b"one"
        return requests(two_mounts) == before

    two_mounts.wait_for(costs_nothing, "openings that ask nobody")  # opens of other tests may still be in the queue
    with Open(ab[1] + "/f", os.O_RDONLY) as fd:
        assert os.read(fd, 10) == b"one"
        put(ab[0] + "/f", b"other")
        assert os.pread(fd, 10, 0) == b"other"
    assert get(ab[1] + "/f") == b"other"


def test_answer_to_a_change_of_names_has_the_attributes_of_its_directory(two_mounts, ab):
    """After a change of names the next question of the kernel about the directory needs no request, and its
    answer agrees with the other mount's."""
    steps = [lambda i: put(ab[0] + "/d/f%d" % i, b""), lambda i: os.mkdir(ab[0] + "/d/d%d" % i),
             lambda i: os.symlink("to", ab[0] + "/d/s%d" % i),
             lambda i: os.link(ab[0] + "/d/f%d" % i, ab[0] + "/d/l%d" % i),
             lambda i: os.rename(ab[0] + "/d/f%d" % i, ab[0] + "/d/r%d" % i),
             lambda i: os.rename(ab[0] + "/d/d%d" % i, ab[0] + "/e/d%d" % i),
             lambda i: os.unlink(ab[0] + "/d/l%d" % i), lambda i: os.rmdir(ab[0] + "/e/d%d" % i)]
    for name in "de":
        os.mkdir(ab[0] + "/" + name)

    def same(name):
        of = [os.stat(mnt + "/" + name) for mnt in ab]
        return ([(st.st_nlink, st.st_mtime_ns, st.st_ctime_ns) for st in of[:1]] ==
                [(st.st_nlink, st.st_mtime_ns, st.st_ctime_ns) for st in of[1:]])

    for i, step in enumerate(steps):
        step(0)
        assert same("d") and same("e"), "after step %d" % i

    def costs_no_question():
        for _ in range(3):
            os.listdir(ab[0] + "/d")
        before = requests(two_mounts)["getattr"]
        costs_no_question.i += 1
        for step in steps:
            step(costs_no_question.i)
            os.stat(ab[0] + "/d")
            os.stat(ab[0] + "/e")
        return requests(two_mounts)["getattr"] == before

    costs_no_question.i = 0
    two_mounts.wait_for(costs_no_question, "changes that nobody is asked after")  # the other mount had read both


def test_attributes_of_open_files_need_no_request(two_mounts, ab):
    """Attributes of open files need no request, and are right whichever mount wrote."""
    with Open(ab[0] + "/f", os.O_CREAT | os.O_RDWR) as fd:
        for i in range(1, 4):
            os.write(fd, b"x" * 100)
            assert os.fstat(fd).st_size == os.stat(ab[0] + "/f").st_size == os.stat(ab[1] + "/f").st_size == 100 * i
            assert os.fstat(fd).st_mtime_ns == os.stat(ab[1] + "/f").st_mtime_ns
        put(ab[1] + "/f", b"other")
        assert os.fstat(fd).st_size == 5 and os.fstat(fd).st_mtime_ns == os.stat(ab[1] + "/f").st_mtime_ns
        os.fchmod(fd, 0o640)
        assert os.fstat(fd).st_mode == os.stat(ab[1] + "/f").st_mode
        os.ftruncate(fd, 3)
        assert os.fstat(fd).st_size == os.stat(ab[1] + "/f").st_size == 3

    def costs_no_question():
        before = requests(two_mounts)["getattr"]
        costs_no_question.i += 1
        with Open(ab[0] + "/g%d" % costs_no_question.i, os.O_CREAT | os.O_EXCL | os.O_RDWR) as fd:
            os.write(fd, b"x" * 100)
            assert os.fstat(fd).st_size == 100
        return requests(two_mounts)["getattr"] == before

    costs_no_question.i = 0
    two_mounts.wait_for(costs_no_question, "a file that is made without a question for its attributes")


# ---- extended attributes are cached, also absent ones ----

BACKGROUND = ("keep_alive", "events", "status", "close", "give_back", "wait_leader")  # delayed requests of other tests


def asked(c, work):
    """Returns the requests to exportd while work() runs, by kind."""
    before = c.status()["exportd"]["requests"]
    work()
    after = c.status()["exportd"]["requests"]
    return {kind: n - before.get(kind, 0) for kind, n in after.items()
            if n != before.get(kind, 0) and kind not in BACKGROUND}


def xattr_or_none(path, name):
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError as e:
        assert e.errno == errno.ENODATA
        return None


def look_closely(folder):
    """Lists like `ls -l`, Samba, rsync -A -X and backups: attributes, ACLs and all xattrs of each name."""
    found = {}
    for entry in os.scandir(folder):
        names = ["security.selinux", "security.capability", "user.DOSATTRIB", "trusted.overlay.opaque"]
        if not entry.is_symlink():
            names += ["system.posix_acl_access"] + (["system.posix_acl_default"] if entry.is_dir() else [])
        found[entry.name] = (os.lstat(entry.path).st_mode, {name: xattr_or_none(entry.path, name) for name in names},
                             os.listxattr(entry.path, follow_symlinks=False))
    return found


@contextlib.contextmanager
def inside(folder):
    """Returns a path into the folder without lookups: another test may have just changed its parents."""
    with Open(folder, os.O_RDONLY | os.O_DIRECTORY) as fd:
        yield "/proc/%d/fd/%d" % (os.getpid(), fd)


def test_detailed_listing_needs_only_readdir_requests(two_mounts, ab):
    """A detailed listing needs only one request, and no request the second time: a mount knows which classes
    of xattrs each inode has."""
    n = 1000
    os.mkdir(ab[0] + "/d")
    for i in range(n):
        path = ab[0] + "/d/%d" % i
        if i % 10 == 0:
            os.mkdir(path)
        elif i % 10 == 1:
            os.symlink("to", path)
        else:
            os.mknod(path)  # open() would give its mount the file exclusively
    with inside(ab[1] + "/d") as d:
        def list_long():
            subprocess.run(["ls", "-l"], cwd=d, check=True, stdout=subprocess.DEVNULL)

        first = asked(two_mounts, list_long)
        assert first.pop("readdir") > 0 and first.pop("readlink") == n // 10 and sum(first.values()) < 10, first
        assert "getxattr" not in first and "listxattr" not in first
        for look in (list_long, lambda: look_closely(d)):
            two_mounts.wait_for(lambda: asked(two_mounts, look) == {}, "a second look that asks for nothing")
        assert all(set(xattrs.values()) == {None} and names == [] for _, xattrs, names in look_closely(d).values())


def test_small_extended_attributes_are_read_once(two_mounts, ab):
    """Each mount reads small xattrs once, until one changes: then all mounts see it at once. Large ones are
    read each time."""
    a, b = ab
    n = 40
    os.mkdir(a + "/d")
    for i in range(n):
        put(a + "/d/%d" % i)
        os.setxattr(a + "/d/%d" % i, "user.DOSATTRIB", b"0x%d" % i * 10)
    os.setxattr(a + "/d", "system.posix_acl_default", acl(7))
    expected = look_closely(a + "/d")
    assert expected["7"][1]["user.DOSATTRIB"] == b"0x7" * 10 and expected["7"][2] == ["user.DOSATTRIB"]

    def costs_nothing():
        with inside(b + "/d") as d:
            assert look_closely(d) == expected
            return asked(two_mounts, lambda: look_closely(d)) == {}

    two_mounts.wait_for(costs_nothing, "a second look that asks for nothing")
    for who in (0, 1):
        for path, name, value in (("/d/3", "user.DOSATTRIB", b"other%d" % who), ("/d/4", "user.new", b"%d" % who),
                                  ("/d/5", "security.capability", CAPABILITY),
                                  ("/d/6", "system.posix_acl_access", acl(who)),
                                  ("/d", "system.posix_acl_default", acl(who)),
                                  ("/d/8", "trusted.large", b"%d" % who * 5000)):
            os.setxattr(ab[who] + path, name, value)
            for mnt in (ab[1 - who], ab[who]):
                assert xattr_or_none(mnt + path, name) == value and name in os.listxattr(mnt + path)
        os.chmod(ab[who] + "/d/6", 0o710)  # changes its ACL as well
        assert (xattr_or_none(a + "/d/6", "system.posix_acl_access") ==
                xattr_or_none(b + "/d/6", "system.posix_acl_access") != acl(who))
        for path, name in (("/d/4", "user.new"), ("/d/6", "system.posix_acl_access")):
            os.removexattr(ab[who] + path, name)
            for mnt in (ab[1 - who], ab[who]):
                assert xattr_or_none(mnt + path, name) is None and name not in os.listxattr(mnt + path)
    expected = look_closely(a + "/d")
    two_mounts.wait_for(costs_nothing, "a look that asks for nothing")
    for path in (a, b, a + "/d", b + "/d"):
        let_others_in(path)
    for mnt in ab:
        assert sorted(os.listxattr(mnt + "/d/8")) == ["trusted.large", "user.DOSATTRIB"]
        assert as_user_1(lambda: os.listxattr(mnt + "/d/8")) == ["user.DOSATTRIB"]


def test_a_listing_brings_small_extended_attributes(two_mounts, ab):
    """Once a program has read an extended attribute, listings bring those of all entries: a folder of clips
    that a Mac has made is looked at through Samba without a request for each of them."""
    a, b = ab
    n = 300
    for folder in ("/first", "/clips"):
        os.mkdir(a + folder)
        for i in range(n):
            os.mknod(a + "%s/%d" % (folder, i))  # open() would give its mount the file exclusively
            for name, value in (("user.DOSATTRIB", b"0x20"), ("user.org.netatalk.Metadata", b"%d" % i * 100)):
                os.setxattr(a + "%s/%d" % (folder, i), name, value)
    expected = look_closely(a + "/clips")
    assert expected["17"][1]["user.DOSATTRIB"] == b"0x20" and len(expected["17"][2]) == 2
    look_closely(b + "/first")
    with inside(b + "/clips") as d:
        found = {}
        first = asked(two_mounts, lambda: found.update(look_closely(d)))
        assert found == expected
        assert first.get("getxattr", 0) + first.get("listxattr", 0) == 0 and sum(first.values()) < 10, first
        for who in (0, 1):
            os.setxattr(ab[who] + "/clips/17", "user.DOSATTRIB", b"new%d" % who)
            os.setxattr(ab[who] + "/clips/18", "user.more", b"%d" % who)
            os.removexattr(ab[who] + "/clips/%d" % (19 + who), "user.DOSATTRIB")
            for mnt in ab:
                assert xattr_or_none(mnt + "/clips/17", "user.DOSATTRIB") == b"new%d" % who
                assert xattr_or_none(mnt + "/clips/18", "user.more") == b"%d" % who
                assert xattr_or_none(mnt + "/clips/%d" % (19 + who), "user.DOSATTRIB") is None
        assert look_closely(a + "/clips") == look_closely(d)


def missing(path):
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    return False


@pytest.mark.parametrize("how", ["made", "listed"])
def test_lookups_of_absent_names_need_no_request(two_mounts, ab, how):
    """Lookups of absent names in a directory that the mount created or listed need no request, until another
    mount creates one."""
    os.mkdir(ab[0] + "/d")
    put(ab[0] + "/d/mine", b"")
    if how == "listed":
        put(ab[1] + "/d/other", b"")

    def costs_no_question():
        costs_no_question.i += 1
        if how == "listed":
            os.listdir(ab[0] + "/d")
        before = requests(two_mounts)["lookup"]
        for k in range(20):
            name = ab[0] + "/d/%d-%d" % (costs_no_question.i, k)
            assert missing(name)
            put(name, b"x")
            os.rename(name, name + "r")
            os.link(name + "r", name + "l")
            os.unlink(name + "r")
            assert missing(name + "r") and get(name + "l") == b"x"
        return requests(two_mounts)["lookup"] == before

    costs_no_question.i = 0
    two_mounts.wait_for(costs_no_question, "names that nobody is asked for")
    assert missing(ab[0] + "/d/1-0") and not missing(ab[0] + "/d/1-0l")
    for k in range(20):
        assert missing(ab[0] + "/d/new%d" % k)
        put(ab[1] + "/d/new%d" % k, b"new")
        assert get(ab[0] + "/d/new%d" % k) == b"new"
        os.unlink(ab[0] + "/d/new%d" % k)
        assert missing(ab[1] + "/d/new%d" % k)
    assert sorted(os.listdir(ab[0] + "/d")) == sorted(os.listdir(ab[1] + "/d"))


def test_lookups_in_order_are_prefetched_in_batches(two_mounts, ab):
    """Files looked up in order come in batches; the results are right also during changes by other mounts."""
    n, dirs = 300, list(range(8))
    for d in dirs:
        os.mkdir(ab[0] + "/d%d" % d)
        for i in range(n):
            os.mknod(ab[0] + "/d%d/%03d" % (d, i))  # open() for writing could know more than exportd

    def one_by_one(mnt, d):
        return [os.stat(mnt + "/d%d/%03d" % (d, i)).st_size for i in range(n)]

    def is_believed(name):  # false in a directory that others have just changed, and before the next lease
        os.stat(name)
        before = requests(two_mounts)["lookup"]
        os.stat(name)
        return requests(two_mounts)["lookup"] == before

    def few_are_asked_for():
        if not is_believed(ab[1] + "/d%d/000" % dirs[0]):
            return False
        before = requests(two_mounts)
        assert one_by_one(ab[1], dirs.pop(0)) == [0] * n
        after = requests(two_mounts)
        return after["lookup"] - before["lookup"] < n / 4 and after["getattr"] - before["getattr"] < n / 4

    two_mounts.wait_for(few_are_asked_for, "names that come together")
    d = dirs.pop(0)
    assert one_by_one(ab[1], d)[:n // 2] == [0] * (n // 2)
    for i in range(0, n, 3):
        a, b, c = ["/d%d/%03d" % (d, i + k) for k in range(3)]
        put(ab[0] + a, b"y" * (i + 1000))
        put(ab[0] + b, b"renamed")
        os.rename(ab[0] + b, ab[0] + c)
        put(ab[0] + b, b"")
        if i % 4 == 0:
            assert [os.stat(ab[1] + name).st_size for name in (a, b, c)] == [i + 1000, 0, 7]
    for mnt in ab:
        assert one_by_one(mnt, d) == [(i + 1000, 0, 7)[i % 3] for i in range(n)]


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("how", ["unlinked", "renamed over", "unlinked while it is read"])
def test_removed_file_that_a_mount_keeps_open_is_deleted(two_mounts, ab, who, how):
    """When its name is removed, a file that a mount keeps open is deleted, and its storages free the space."""
    def is_gone():
        named = {os.lstat(os.path.join(folder, name)).st_ino
                 for folder, folders, files in os.walk(two_mounts.mnts[0]) for name in folders + files}
        status = two_mounts.status()
        return sum(e["files"] for e in status["exports"]) == len(named) + 1 and status["trash"] == 0

    put(ab[0] + "/f", b"x" * SIZE)
    put(ab[0] + "/g", b"y")
    reader = Open(ab[1] + "/f", os.O_RDONLY)
    with reader as fd:
        assert os.read(fd, 1) == b"x"
        if how == "unlinked while it is read":
            os.unlink(ab[who] + "/f")
            assert os.pread(fd, 2, 1) == b"xx"
    if how != "unlinked while it is read":
        assert get(ab[1] + "/f") == b"x" * SIZE
    if how == "unlinked":
        os.unlink(ab[who] + "/f")
    elif how == "renamed over":
        os.rename(ab[who] + "/g", ab[who] + "/f")
        assert [get(m + "/f") for m in ab] == [b"y", b"y"]
    two_mounts.wait_for(is_gone, "the removed file to go")


# ---- names that all mounts change ----

# As a local file system may.
TOLD = {errno.EPERM, errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR, errno.EINVAL}


def churn(base, seed, stop):
    """Random operations with a few names in two directories; returns their number. Directories keep their
    names: Linux itself returns ESTALE when a directory moves during another rename."""
    chance = random.Random(seed)

    def name(of="abc"):
        return os.path.join(base, chance.choice("de"), chance.choice(of))

    calls = [lambda: os.close(os.open(name(), os.O_CREAT | os.O_WRONLY, 0o644)),
             lambda: os.close(os.open(name(), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)),
             lambda: os.unlink(name()), lambda: os.rename(name(), name()), lambda: os.link(name(), name()),
             lambda: os.mkdir(name("xyz")), lambda: os.rmdir(name("xyz")), lambda: os.stat(name()),
             lambda: os.listdir(base + "/d"),
             lambda: renameat2(name(), name(), RENAME_EXCHANGE)]
    n = 0
    while not stop.is_set():
        call = chance.randrange(len(calls))
        try:
            calls[call]()
        except OSError as e:
            assert e.errno in TOLD, (call, e)
        n += 1
    return n


def churn_process(base, seed, stop, counts):
    counts.put(churn(base, seed, stop))


@pytest.mark.skipif(tuple(int(n) for n in re.findall(r"\d+", os.uname().release)[:2]) < (6, 16),
                    reason="before Linux 6.16 such calls may fail with ESTALE (docs/POSIX.md)")
def test_both_mounts_change_the_same_names_while_exportd_is_killed(cluster):
    """Calls of each kind on two mounts while exportd is killed: all end, with errors of a local file system
    only."""
    c = cluster(layout=0, mounts=2)
    for name in "de":
        os.mkdir(os.path.join(c.mnts[0], name))
    stop, counts = multiprocessing.Event(), multiprocessing.Queue()
    workers = [multiprocessing.Process(target=churn_process, args=(c.mnts[i % 2], i, stop, counts), daemon=True)
               for i in range(8)]
    for p in workers:
        p.start()
    for _ in range(2):
        time.sleep(2)  # gives time for a kill
        c.kill("exportd")
        c.restart("exportd")
    time.sleep(2)
    stop.set()
    for p in workers:
        p.join(timeout=120)
    assert [p.exitcode for p in workers] == [0] * 8
    assert sum(counts.get(timeout=10) for _ in workers) > 100
    for name in "de":
        there = [sorted(os.listdir(os.path.join(m, name))) for m in c.mnts]
        assert there[0] == there[1]
        for m in c.mnts:
            assert [n for n in "abcxyz" if is_there(os.path.join(m, name, n))] == there[0]


# ---- moved directories ----

def look_around(top):
    """Fills the kernel's caches below a directory: files, absent names, more directories."""
    for folder, _, names in os.walk(top):
        assert not is_there(os.path.join(folder, "nothing"))
        for name in names:
            get(os.path.join(folder, name))


needs_prune = pytest.mark.skipif(tuple(int(n) for n in re.findall(r"\d+", os.uname().release)[:2]) < (6, 18),
                                 reason="FUSE_NOTIFY_PRUNE is of Linux 6.18: before, docs/POSIX.md tells what happens")


@needs_prune
@pytest.mark.parametrize("what", ("empty", "full"))
@pytest.mark.parametrize("how", ("it", "over-it"))
def test_a_directory_that_the_other_moved_is_moved_on(ab, what, how):
    a, b = ab
    for name in ("z", "q", "w", "z/c"):
        os.mkdir(os.path.join(a, name))
    if what == "full":
        os.makedirs(os.path.join(a, "z/c/d/e/f"))
        for name in ("z/c/1", "z/c/d/2", "z/c/d/e/f/3"):
            put(os.path.join(a, name), b"x")
    look_around(os.path.join(b, "z"))
    os.rename(os.path.join(a, "z/c"), os.path.join(a, "q/c"))
    if how == "it":
        os.rename(os.path.join(b, "q/c"), os.path.join(b, "w/c"))
        assert sorted(os.listdir(os.path.join(a, "w/c"))) == (["1", "d"] if what == "full" else [])
    else:
        os.mkdir(os.path.join(b, "w/n"))
        if what == "full":
            with pytest.raises(OSError) as e:
                os.rename(os.path.join(b, "w/n"), os.path.join(b, "q/c"))
            assert e.value.errno == errno.ENOTEMPTY
            shutil.rmtree(os.path.join(a, "q/c/d"))
            os.unlink(os.path.join(a, "q/c/1"))
        os.rename(os.path.join(b, "w/n"), os.path.join(b, "q/c"))
        assert os.listdir(os.path.join(a, "w")) == []


def pass_on_moved(a, b, rc):
    os.rename(os.path.join(a, "z/c"), os.path.join(a, "q/c"))
    if rc == 0:
        os.rename(os.path.join(b, "q/c"), os.path.join(b, "w/c"))
        return
    with pytest.raises(OSError) as e:
        os.rename(os.path.join(b, "q/c"), os.path.join(b, "w/c"))
    assert e.value.errno == rc
    assert is_there(os.path.join(b, "q/c"))  # looked up: works from here on
    os.rename(os.path.join(b, "q/c"), os.path.join(b, "w/c"))


@pytest.mark.parametrize("used", ("is-open", "is-mounted-on"))
def test_a_directory_in_use_that_the_other_moved_stays(ab, used):
    """docs/POSIX.md: ESTALE until the new name is looked up; open files keep their path, and mounts below
    stay."""
    a, b = ab
    for name in ("z/c/d", "q", "w"):
        os.makedirs(os.path.join(a, name))
    put(os.path.join(a, "z/c/d/f"), b"x")
    look_around(os.path.join(b, "z"))
    inside = os.path.join(b, "z/c/d")
    if used == "is-open":
        with Open(inside, os.O_PATH) as fd:
            pass_on_moved(a, b, errno.ESTALE)
            assert os.readlink("/proc/self/fd/%d" % fd) == os.path.join(b, "w/c/d")
            assert os.listdir("/proc/self/fd/%d" % fd) == ["f"]
    else:
        subprocess.run(["mount", "-t", "tmpfs", "none", inside], check=True)
        try:
            put(os.path.join(inside, "mounted"))
            pass_on_moved(a, b, errno.ESTALE)
            inside = os.path.join(b, "w/c/d")
            assert os.listdir(inside) == ["mounted"]
        finally:
            subprocess.run(["umount", inside], check=True)


@needs_prune
def test_a_directory_whose_names_just_changed_is_moved_on(ab):
    """The kernel caches names that it must not keep."""
    a, b = ab
    for name in ("z/c", "q", "w"):
        os.makedirs(os.path.join(a, name))
    look_around(b)
    for i in range(3):
        put(os.path.join(a, "z/c/%d" % i), b"x")
        assert is_there(os.path.join(b, "z/c/%d" % i)) and not is_there(os.path.join(b, "z/c/%d-not" % i))
    pass_on_moved(a, b, 0)


# ---- more inodes than tokens of a mount ----

TOKENS_LIMIT = 128


def asked_for(c, function):
    """Returns the number of requests to exportd, without those that no caller waits for."""
    def count():
        return c.status()["exportd"]["requests"]

    before = count()
    function()
    return {op: n - before.get(op, 0) for op, n in count().items()
            if n != before.get(op, 0)
            and op in ("lookup", "getattr", "readdir", "create", "open", "token", "setattr", "wrote")}


# tests/soak/run.sh sets this to 1000000 with exportd's own limit: making the files takes some minutes.
TOKEN_FILES = int(os.environ.get("ROZO_TOKEN_FILES", "0"))
MAKE_FILES = ("import os, sys\nfor i in range(int(sys.argv[2])):\n"
              "    i % 1000 or os.makedirs('%s/%d' % (sys.argv[1], i // 1000))\n"
              "    os.mknod('%s/%d/%d' % (sys.argv[1], i // 1000, i))")


def test_more_files_than_tokens(cluster):
    """The most recently used files stay cached, however many files were read before."""
    c = cluster(layout=0)
    if not TOKEN_FILES:
        c.configure(session_tokens_max=TOKENS_LIMIT)
    top, new = os.path.join(c.mnt, "many"), os.path.join(c.mnt, "new")

    def find(folder):
        return sum(1 for path, _, names in os.walk(folder) for name in names if os.stat(os.path.join(path, name)))

    makers = [subprocess.Popen([sys.executable, "-c", MAKE_FILES, "%s/%d" % (top, i), str((TOKEN_FILES or 300) // 4)])
              for i in range(4)]
    assert [p.wait(timeout=7200) for p in makers] == [0] * 4
    os.mkdir(new)
    for k in range(30):
        put("%s/%d" % (new, k))
    c.remount()
    assert find(top) == (TOKEN_FILES or 300) and find(new) == 30
    c.wait_for(lambda: asked_for(c, lambda: find(new)) == {}, "a directory that was looked at is known")
    put(new + "/first")
    assert asked_for(c, lambda: os.close(os.open(new + "/one", os.O_CREAT | os.O_EXCL | os.O_WRONLY))) == {"create": 1}
    c.wait_for(lambda: asked_for(c, lambda: find(new)) == {}, "nor was it forgotten for that")


def test_attributes_are_not_used_after_their_token_was_given_back(cluster):
    """The mount gives back the tokens of the files in x and keeps that of the directory: the kernel still
    knows their names."""
    c = cluster(layout=0, mounts=2)
    c.configure(session_tokens_max=TOKENS_LIMIT)
    a, b = c.mnts
    for folder, n in (("x", 40), ("y", 80)):
        os.mkdir(os.path.join(a, folder))
        for k in range(n):
            put("%s/%s/%d" % (a, folder, k), b"old")
    c.remount()
    for k in range(40):
        assert os.stat("%s/x/%d" % (b, k)).st_size == 3
        if k % 4 == 0:
            assert get("%s/x/%d" % (b, k)) == b"old"
    for k in range(80):
        assert os.stat("%s/y/%d" % (b, k)).st_size == 3
        if k % 2 == 0:
            assert not is_there("%s/x/none-%d" % (b, k))
    for k in range(40):
        put("%s/x/%d" % (a, k), b"newer")
    for k in range(40):
        assert os.stat("%s/x/%d" % (b, k)).st_size == 5 and get("%s/x/%d" % (b, k)) == b"newer"
