"""Mounts with a holder: rozomount is killed, and programs go on with their open files, locks and folders."""
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import signal
import sqlite3
import subprocess

import pytest

from callers import Changer, Inserter, RandomWriter, Writer, served_by
from calls import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, call, errno_of, libc
from conftest import cannot_mount, rozo, wait_for
from files import get, put
from mounts import end, let_go, mount

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())


def kill_server(mnt):
    """Kills the process that serves; returns when there is another one."""
    before = served_by(mnt)
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: served_by(mnt) != before, "a new process to serve")


@contextlib.contextmanager
def held(c, mnt, *options):
    """A mount with a holder; yields the holder, which has ended well at the end."""
    p = mount(c, mnt, "hold", *options)
    assert p.poll() is None, p.stderr.read()
    try:
        yield p
    finally:
        p.send_signal(signal.SIGTERM)
        status, err = end(p)
    assert status == 0, err
    assert not os.path.ismount(mnt)


def test_open_files_locks_and_folders_go_on(cluster, scratch):
    c = cluster(layout=0)
    mnt = scratch + "/m"
    data = os.urandom(3 << 20)
    with held(c, mnt):
        f = os.open(mnt + "/f", os.O_CREAT | os.O_RDWR)
        os.write(f, data)
        os.fsync(f)
        mapped = mmap.mmap(f, len(data), prot=mmap.PROT_READ)
        gone = os.open(mnt + "/gone", os.O_CREAT | os.O_RDWR)
        os.write(gone, b"no name")
        os.fsync(gone)
        os.unlink(mnt + "/gone")
        os.makedirs(mnt + "/d/e")
        folder = os.open(mnt + "/d", os.O_RDONLY)
        here = subprocess.Popen(["sh", "-c", "read x; pwd -P; ls; echo done >here"], cwd=mnt + "/d/e",
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        fcntl.lockf(f, fcntl.LOCK_EX, 100)
        fcntl.flock(folder, fcntl.LOCK_SH)
        for _ in range(3):
            kill_server(mnt)
            assert os.pread(f, len(data), 0) == data and mapped[-100:] == data[-100:]
            assert os.pread(gone, 100, 0) == b"no name" and os.fstat(gone).st_nlink == 0
            assert os.listdir(folder) == ["e"] and sorted(os.listdir(mnt)) == ["d", "f"]
            assert get(c.mnt + "/f") == data
            with open(c.mnt + "/f", "r+b") as other:  # locks of the other mount
                assert errno_of(fcntl.lockf, other, fcntl.LOCK_EX | fcntl.LOCK_NB, 100) == errno.EAGAIN
                fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 100)
        assert here.communicate("\n", timeout=30)[0] == mnt + "/d/e\n"
        assert get(c.mnt + "/d/e/here") == b"done\n"
        os.pwrite(f, b"new", 0)
        os.fsync(f)
        assert get(c.mnt + "/f")[:3] == b"new"
        mapped.close()
        for fd in (f, gone, folder):
            os.close(fd)
        with open(c.mnt + "/f", "r+b") as other:  # released by the close, although another process had taken it
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 100)
        # files without a name go with their last close, also those that a process before had opened
        wait_for(lambda: c.status()["exports"][0]["files"] == 5, "the file without a name to go")


def changes(old, new, source):
    """Yields (name, flags of open, change): change(fd) changes a file that holds `old`, and returns what it must hold
    then. None makes a call that stores data, as fsync and close do. source: path of a file that holds `new`."""
    def write(fd):
        assert os.pwrite(fd, new[:20001], 15001) == 20001
        return old[:15001] + new[:20001]

    def append(fd):
        for at in range(0, 3000, 100):
            assert os.write(fd, new[at:at + 100]) == 100
        return old + new[:3000]

    def copy(fd):
        with open(source, "rb") as f:
            assert os.copy_file_range(f.fileno(), fd, len(new), 0, 27000) == len(new)
        return old[:27000] + new

    def punch(fd):
        call(libc.fallocate, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, ctypes.c_long(5000), ctypes.c_long(20000))
        return old[:5000] + bytes(20000) + old[25000:]

    def allocate(fd):
        os.posix_fallocate(fd, 0, len(old) + 20000)
        return old + bytes(20000)

    def cut(fd):
        os.ftruncate(fd, 5000)
        assert os.pwrite(fd, b"x", 6000) == 1
        return old[:5000] + bytes(1000) + b"x"

    def change_map(fd):
        with mmap.mmap(fd, len(old)) as m:
            m[7000:7100] = new[:100]
        return old[:7000] + new[:100] + old[7100:]

    for change in (write, append, copy, punch, allocate, cut, change_map):
        yield change.__name__, os.O_WRONLY | os.O_APPEND if change == append else os.O_RDWR, change


@pytest.mark.parametrize("inline", [None, 65536])
def test_written_data_outlives_the_process(cluster, scratch, inline):
    c = cluster(layout=0, inline=inline)
    mnt = scratch + "/m"
    old, new = os.urandom(30000), os.urandom(30000)
    with held(c, mnt):
        put(mnt + "/source", new)
        for name, flags, change in changes(old, new, mnt + "/source"):
            fd = os.open(put(mnt + "/" + name, old), flags)
            whole = change(fd)
            kill_server(mnt)
            assert get(mnt + "/" + name) == whole, name
            assert get(c.mnt + "/" + name) == whole, name
            os.fsync(fd)  # there is no loss to report
            os.close(fd)


def test_a_transaction_outlives_the_process(cluster, scratch):
    """sqlite rolls a failed transaction back from its journal. Where the bytes of that are gone after an fsync that
    failed, it keeps what it has in memory, and damages the database with the next transaction."""
    c = cluster(layout=0)
    mnt = scratch + "/m"
    with held(c, mnt):
        db = sqlite3.connect(mnt + "/db", isolation_level=None)
        db.execute("create table t (n integer primary key, v int, filler text)")
        db.execute("create index v on t (v)")
        with db:
            db.execute("begin")
            db.executemany("insert into t values (?, ?, ?)", [(n, 1000 + n, "x" * 200) for n in range(400)])
        for i in range(3):
            db.execute("begin")
            db.execute("update t set v = v + 1 where n in (10, 390)")
            kill_server(mnt)  # the journal is written, and not synced yet
            db.execute("commit")
            db.execute("update t set filler = ? where n = 391", (str(i),))
            for path in mnt + "/db", c.mnt + "/db":
                other = sqlite3.connect(path)
                assert other.execute("select v from t where n in (10, 390)").fetchall() == [(1011 + i,), (1391 + i,)]
                assert other.execute("pragma integrity_check").fetchone() == ("ok",)
                other.close()
        db.close()


def test_a_mount_never_shows_what_another_has_changed_meanwhile(cluster, scratch):
    """The kernel has names, attributes and bytes of the process before; the next one does not know which."""
    c = cluster(layout=0)
    mnt = scratch + "/m"
    with held(c, mnt):
        os.mkdir(mnt + "/d")
        for i in range(50):
            with open(mnt + "/d/%d" % i, "wb") as f:
                f.write(b"old %d" % i)
        for round_no in range(3):
            for i in range(50):
                os.stat(mnt + "/d/%d" % i)
                get(mnt + "/d/%d" % i)
            assert errno_of(os.stat, mnt + "/d/new%d" % round_no) == errno.ENOENT
            kill_server(mnt)
            for i in range(50):
                os.rename(c.mnt + "/d/%d" % i, c.mnt + "/d/other")
                with open(c.mnt + "/d/%d" % i, "wb") as f:
                    f.write(b"new %d of round %d" % (i, round_no))
            with open(c.mnt + "/d/new%d" % round_no, "wb"):
                pass
            for i in range(50):
                assert get(mnt + "/d/%d" % i) == b"new %d of round %d" % (i, round_no)
                assert os.stat(mnt + "/d/%d" % i).st_size == os.stat(c.mnt + "/d/%d" % i).st_size
            os.stat(mnt + "/d/new%d" % round_no)


def all_go_on(mnt, callers, n_kills):
    """Kills the process of the mount again and again while they call; all must be right at the end."""
    for caller in callers:
        caller.start()
    for _ in range(n_kills):
        before = [caller.n for caller in callers]
        wait_for(lambda: all(x.error or x.n > n + 2 for x, n in zip(callers, before)), "calls")
        kill_server(mnt)
    wrong = [caller.end() for caller in callers]
    assert wrong == [None] * len(callers), wrong


def test_each_change_is_done_once(cluster, scratch):
    c = cluster(layout=0)
    with held(c, scratch + "/m"):
        all_go_on(scratch + "/m", [Changer(scratch + "/m/c%d" % i) for i in range(4)], 10)


def test_synced_writes_go_on(cluster, scratch):
    c = cluster(layout=0)
    with held(c, scratch + "/m"):
        all_go_on(scratch + "/m", [RandomWriter(scratch + "/m/f%d" % i, i, os.O_SYNC) for i in range(3)], 8)


def test_transactions_go_on(cluster, scratch):
    c = cluster(layout=0)
    with held(c, scratch + "/m"):
        all_go_on(scratch + "/m", [Inserter(scratch + "/m/db%d" % i) for i in range(3)], 8)


def test_unsynced_writes_go_on(cluster, scratch):
    c = cluster(layout=0)
    with held(c, scratch + "/m"):
        all_go_on(scratch + "/m", [RandomWriter(scratch + "/m/f%d" % i, i) for i in range(3)], 8)


def test_an_upgrade_loses_nothing(cluster, scratch):
    c = cluster(layout=0)
    mnt = scratch + "/m"
    with held(c, mnt):
        writers = [Writer(mnt + "/w%d" % i) for i in range(3)]
        dirty = os.open(mnt + "/dirty", os.O_CREAT | os.O_RDWR)
        for t in writers:
            t.start()
        for i in range(5):
            before = [t.n for t in writers]
            wait_for(lambda: all(t.error or t.n > n + 3 for t, n in zip(writers, before)), "writes")
            os.pwrite(dirty, b"%d" % i, i)
            served = served_by(mnt)
            told = rozo("mount", "--upgrade", mnt).stdout
            assert told == "%s: process %d has taken over from %d\n" % (mnt, served_by(mnt), served)
            os.fsync(dirty)  # was stored before, so there is nothing to tell
        for t in writers:
            wrong = t.end()
            assert wrong is None, wrong
            assert all(get(name) == whole for name, whole in t.files.items())
        assert os.pread(dirty, 10, 0) == b"01234"
        os.close(dirty)


def test_an_upgrade_is_refused_while_data_cannot_be_stored(cluster, scratch):
    c = cluster(layout=0)
    mnt = scratch + "/m"
    p = mount(c, mnt, "hold", "io_timeout=1")
    served = served_by(mnt)
    fd = os.open(mnt + "/f", os.O_CREAT | os.O_RDWR)
    for name in c.names("storaged"):
        c.kill(name)
    assert errno_of(os.write, fd, b"x" * 100000) == errno.EIO  # it is tried again meanwhile
    r = rozo("mount", "--upgrade", mnt, check=False)
    assert r.returncode == 1 and "process %d still serves" % served in r.stderr, r.stderr
    c.restart(*c.names("storaged"))
    wait_for(lambda: errno_of(os.fsync, fd) == 0, "the mount to reach the storages; a call tries for 1 s")
    assert os.pread(fd, 100000, 0) == b"x" * 100000 and served_by(mnt) == served
    os.close(fd)
    p.send_signal(signal.SIGTERM)
    status, err = end(p)
    assert "not handed over" in err and get(c.mnt + "/f") == b"x" * 100000


def test_an_upgrade_wants_a_holder(cluster):
    c = cluster(layout=0)
    r = rozo("mount", "--upgrade", c.mnt, check=False)
    assert r.returncode == 1 and "without -o hold" in r.stderr
    r = rozo("mount", "--upgrade", "/", check=False)
    assert r.returncode == 1 and "no rozo mount" in r.stderr


def test_a_holder_that_is_told_to_end_starts_nothing_more(cluster, scratch):
    c = cluster(layout=0)
    mnt = scratch + "/m"
    p = mount(c, mnt, "hold")
    fd = os.open(mnt + "/f", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"x" * 100000)
    p.send_signal(signal.SIGTERM)
    status, err = end(p)
    assert status == 0, err
    let_go(fd)
    assert not os.path.ismount(mnt) and get(c.mnt + "/f") == b"x" * 100000


def test_an_unmount_ends_both_processes(cluster, scratch):
    c = cluster(layout=0)
    mnt = scratch + "/m"
    p = mount(c, mnt, "hold")
    kill_server(mnt)
    os.mkdir(mnt + "/d")
    subprocess.run(["umount", mnt], check=True)
    status, err = end(p)
    assert status == 0 and "taken over" in err, err
    assert os.listdir(c.mnt) == ["d"]


def test_a_mount_whose_session_ended_is_given_up(cluster, scratch):
    """exportd was restarted, too: nobody knows what the mount held. Programs get errors, never old bytes."""
    c = cluster(layout=0)
    mnt = scratch + "/m"
    p = mount(c, mnt, "hold")
    with open(mnt + "/f", "wb") as f:
        f.write(b"x")
    c.kill("exportd")
    os.kill(served_by(mnt), signal.SIGKILL)
    c.restart("exportd")
    status, err = end(p)
    assert status == 1 and "no process can take the mount over" in err, err
    assert errno_of(os.stat, mnt + "/f") == errno.ENOTCONN
    subprocess.run(["umount", mnt], check=True)
