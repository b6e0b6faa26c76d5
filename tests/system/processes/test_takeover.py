"""Mounts with a holder: rozomount is killed, and programs go on with their open files, locks and folders."""
import contextlib
import errno
import fcntl
import mmap
import os
import signal
import subprocess

import pytest

from callers import Changer, SyncedWriter, Writer, served_by
from calls import errno_of
from conftest import cannot_mount, rozo, wait_for
from files import get
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


def test_the_next_fsync_tells_of_lost_data(cluster, scratch):
    c = cluster(layout=0)
    mnt = scratch + "/m"
    with held(c, mnt):
        synced, dirty, other = (os.open(mnt + "/" + name, os.O_CREAT | os.O_RDWR) for name in ("s", "d", "o"))
        also = os.open(mnt + "/d", os.O_RDWR)
        for fd in (synced, dirty):
            os.write(fd, b"x" * 10000)
        os.fsync(synced)
        kill_server(mnt)
        os.fsync(synced)
        os.fsync(other)
        assert errno_of(os.fsync, dirty) == errno.EIO
        os.fsync(dirty)
        assert errno_of(os.fsync, also) == errno.EIO  # each descriptor once, as on local file systems
        os.write(dirty, b"y" * 10000)
        os.fsync(dirty)
        kill_server(mnt)
        for fd in (synced, dirty, other, also):
            os.fsync(fd)
            os.close(fd)


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
        all_go_on(scratch + "/m", [SyncedWriter(scratch + "/m/f%d" % i, i) for i in range(3)], 8)


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
    os.write(fd, b"x" * 100000)
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
