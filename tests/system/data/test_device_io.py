"""storaged's `device_io` for long writes, and the space reserved after the end of growing files."""
import ctypes
import mmap
import os
import random
import signal
import subprocess

import pytest

from conftest import BIN, pattern, process_runs, wait_for

MIB = 1 << 20


def configure_storages(c, line):
    for name in c.names("storaged"):
        path = os.path.join(c.dir, "etc", name + ".yaml")
        with open(path) as f:
            text = f.read()
        with open(path, "w") as f:
            f.write(text.replace("storaged:\n", "storaged:\n  %s\n" % line))
    c.restart(*c.names("storaged"))
    c.wait_all_up()


def projections(c):
    """Returns the paths of all projection files longer than a few blocks."""
    for name in c.names("storaged"):
        for folder, _, files in os.walk(os.path.join(c.data(name), "objects")):
            for file in files:
                path = os.path.join(folder, file)
                if os.path.getsize(path) > MIB:
                    yield path


def share_in_pages(path):
    """Returns the share of a file in the kernel's page cache."""
    size = os.path.getsize(path)
    n = (size + 4095) // 4096
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "r+b") as f, mmap.mmap(f.fileno(), size) as m:
        there = (ctypes.c_ubyte * n)()
        at = ctypes.addressof(ctypes.c_char.from_buffer(m))
        assert libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), there) == 0
        return sum(x & 1 for x in there) / n


def flags_of_files(pid):
    flags = []
    for fd in os.listdir("/proc/%d/fdinfo" % pid):
        with open("/proc/%d/fdinfo/%s" % (pid, fd)) as f:
            flags += [int(line.split()[1], 8) for line in f if line.startswith("flags:")]
    return flags


def write_stream(path, data):
    with open(path, "wb", buffering=0) as f:
        for at in range(0, len(data), MIB):
            f.write(data[at:at + MIB])
        os.fsync(f.fileno())


@pytest.mark.parametrize("io", ["auto", "cached", "uncached", "direct"])
def test_data_is_read_back_with_each_device_io(cluster, io):
    """Streams, an overwrite, odd lengths; read through a fresh mount, from storages that were killed."""
    c = cluster()
    configure_storages(c, "device_io: " + io)
    data = bytearray(pattern(1, 24 * MIB + 12345))
    write_stream(c.mnt + "/a", data)
    if io == "direct":
        assert any(flags & os.O_DIRECT for name in c.names("storaged") for flags in flags_of_files(c.pid(name)))
    if io == "uncached" and tuple(int(x) for x in os.uname().release.split(".")[:2]) >= (6, 14):
        c.wait_for(lambda: max(share_in_pages(p) for p in projections(c)) < 0.3, "the pages to go")
    if io in ("auto", "cached"):
        assert min(share_in_pages(p) for p in projections(c)) > 0.9
    with open(c.mnt + "/a", "r+b", buffering=0) as f:
        for at in (0, 5 * MIB + 77, 20 * MIB):
            new = random.Random(at).randbytes(3 * MIB + 5)
            os.pwrite(f.fileno(), new, at)
            data[at:at + len(new)] = new
        os.fsync(f.fileno())
    for name in c.names("storaged"):
        c.kill(name, signal.SIGKILL)
        c.restart(name)
    c.wait_all_up()
    c.remount()
    with open(c.mnt + "/a", "rb") as f:
        assert f.read() == data


def test_unknown_device_io_is_refused(cluster):
    c = cluster()
    path = os.path.join(c.dir, "etc", "storaged-1.yaml")
    with open(path) as f:
        text = f.read()
    with open(path, "w") as f:
        f.write(text.replace("storaged:\n", "storaged:\n  device_io: fast\n"))
    c.kill("storaged-1")
    p = subprocess.run([os.path.join(BIN, "storaged"), "--config", path], stderr=subprocess.PIPE, text=True, timeout=20)
    assert p.returncode == 1
    assert "device_io" in p.stderr and "uncached" in p.stderr


def test_space_ahead_of_streams_goes_when_storages_end(cluster):
    """Reserved blocks after the end of projection files exist while files grow, and not after the storages
    have stopped."""
    c = cluster()
    write_stream(c.mnt + "/grows", pattern(2, 20 * MIB))

    def more_than_it_is_long(path):
        st = os.stat(path)
        return st.st_blocks * 512 - st.st_size

    long_ones = list(projections(c))
    if subprocess.check_output(["stat", "-f", "-c", "%T", c.dir], text=True).strip() != "ext2/ext3":
        pytest.skip("other file systems do it themselves, or not at all")
    st = os.statvfs(c.dir)
    if st.f_bavail * st.f_frsize < 3 << 30:
        pytest.skip("nothing is reserved when there is so little space")
    assert max(more_than_it_is_long(path) for path in long_ones) > MIB
    pids = [c.pid(name) for name in c.names("storaged")]
    for name in c.names("storaged"):
        c.kill(name, signal.SIGTERM)
    wait_for(lambda: not any(map(process_runs, pids)), "the end of all storages")
    for path in long_ones:  # before the restart, because healing may make a file grow, too
        assert more_than_it_is_long(path) < 256 << 10, path
    for name in c.names("storaged"):
        c.restart(name)
    c.wait_all_up()
    with open(c.mnt + "/grows", "rb") as f:
        assert f.read() == pattern(2, 20 * MIB)
