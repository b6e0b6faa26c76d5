"""Daemons that run out of descriptors close idle files, refuse in time, and recover.

The limit of running daemons is lowered so that no file can be opened, and raised again.
"""
import errno
import os
import resource
import socket
import time

import pytest

from conftest import all_up, pattern

MANY = 4096
PIECE = 40000


def fds_of(pid):
    return [int(fd) for fd in os.listdir("/proc/%d/fd" % pid)]


def lowest_free(pid):
    """Returns the number of the descriptor that the process opens next."""
    used = set(fds_of(pid))
    return next(fd for fd in range(MANY) if fd not in used)


def limit(pids, most=None):
    """Sets the limit of each process; None: as many as it has open now."""
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most or lowest_free(pid), MANY))


def cpu_s(pid):
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def listening(pid):
    """Returns the port on which a daemon listens."""
    inodes = set()
    for fd in fds_of(pid):
        inodes.add(os.readlink("/proc/%d/fd/%d" % (pid, fd)))
    with open("/proc/net/tcp") as f:
        for fields in (line.split() for line in f):
            if fields[3] == "0A" and "socket:[%s]" % fields[9] in inodes:
                return int(fields[1].rsplit(":", 1)[1], 16)
    raise AssertionError("%d does not listen" % pid)


def write_synced(path, data, flags=os.O_CREAT):
    fd = os.open(path, os.O_WRONLY | flags, 0o644)
    try:
        assert os.pwrite(fd, data, 0) == len(data)
        os.fsync(fd)
    finally:
        os.close(fd)


def read_cold(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.pread(fd, 1 << 20, 0)
    finally:
        os.close(fd)


def homes_of(c, path):
    return [s["id"] for s in c.locate(path)["storages"]][:3]


def noted(c):
    """Returns a map from storage id to the number of ranges in its hints."""
    return {number: h["missed_ranges"] for number, h in c.health().items() if h is not None}


def text_of(c, log):
    with open(os.path.join(c.dir, "log", log)) as f:
        return f.read()


def lines_of(c):
    """Returns a map from the name of a log to its number of lines."""
    return {log: text_of(c, log).count("\n") for log in os.listdir(os.path.join(c.dir, "log"))}


def test_idle_files_make_room(cluster):
    """Storages with dozens of idle open files, and no descriptor left, serve new files."""
    c = cluster(layout=0)
    pids = [c.pid(name) for name in c.names("storaged")]
    for i in range(60):
        write_synced(c.mnt + "/old%d" % i, pattern(i, PIECE))
    limit(pids)
    start = time.monotonic()
    for i in range(30):
        write_synced(c.mnt + "/new%d" % i, pattern(100 + i, PIECE))
    assert time.monotonic() - start < 10  # without that, the first write waits 20 s
    c.remount()  # makes new connections
    for i in range(60):
        assert read_cold(c.mnt + "/old%d" % i) == pattern(i, PIECE)
    assert all_up(c)
    assert max(len(fds_of(pid)) for pid in pids) < 100


def test_all_storages_without_descriptors(cluster):
    """No daemon can open a file: errors come in time, logs and CPU use stay small."""
    c = cluster(layout=0, mount_options="io_timeout=1")
    names = c.daemons()
    pids = [c.pid(name) for name in names]
    for i in range(8):
        write_synced(c.mnt + "/f%d" % i, pattern(i, PIECE))
    ports = [listening(pid) for pid in pids]
    said = lines_of(c)
    limit(pids, 4)
    waiting = [socket.create_connection(("127.0.0.1", port)) for port in ports]
    used, start = [cpu_s(pid) for pid in pids], time.monotonic()
    fd = os.open(c.mnt + "/new", os.O_CREAT | os.O_RDWR, 0o644)
    os.write(fd, pattern(99, PIECE))
    for _ in range(2):
        with pytest.raises(OSError) as e:
            os.fsync(fd)
        assert e.value.errno == errno.EIO
    took = time.monotonic() - start
    assert took < 15, took
    for pid, name, before in zip(pids, names, used):
        assert cpu_s(pid) - before < took / 4, (name, cpu_s(pid) - before, took)
    for name, n in lines_of(c).items():
        assert n - said[name] < 20, (name, n - said[name])
        assert text_of(c, name).count("accept: Too many open files") == (not name.startswith("mount")), name
    limit(pids, MANY)
    c.wait_for(lambda: os.fsync(fd) is None, "what failed to be stored")  # the client kept the bytes
    os.close(fd)
    for s in waiting:
        s.close()
    c.remount()
    assert read_cold(c.mnt + "/new") == pattern(99, PIECE)
    for i in range(8):
        assert read_cold(c.mnt + "/f%d" % i) == pattern(i, PIECE)
    c.wait_for(lambda: c.not_healed() == {}, "all to be healed")


def test_hints_are_kept_without_descriptors(cluster):
    """A storage without descriptors keeps hints for one that is down."""
    c = cluster(layout=0)
    for i in range(12):
        write_synced(c.mnt + "/f%d" % i, pattern(i, PIECE))
    gone, short = 1, 2
    files = [i for i in range(12) if {gone, short} <= set(homes_of(c, c.mnt + "/f%d" % i))]
    assert files
    c.kill("storaged-%d" % gone)
    pid = c.pid("storaged-%d" % short)
    limit([pid], 4)
    start = time.monotonic()
    for i in files:
        write_synced(c.mnt + "/f%d" % i, pattern(50 + i, PIECE), 0)
    assert time.monotonic() - start < 10
    limit([pid], MANY)
    c.wait_for(lambda: len(set(noted(c).values())) == 1 and noted(c)[short] >= len(files),
               "all three to have noted the same")
    c.restart("storaged-%d" % gone)
    c.wait_for(lambda: c.not_healed() == {}, "all to be healed")
    c.kill("storaged-3")
    c.remount()
    for i in files:
        assert read_cold(c.mnt + "/f%d" % i) == pattern(50 + i, PIECE)
