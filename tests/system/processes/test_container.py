"""A mount in a container, by the line of docs/CONTAINERS.md: what the host and other containers see, and its end."""
import errno
import fcntl
import os
import re
import signal
import subprocess

import pytest

from conftest import BIN, ROOT, cannot_mount, mounts_below, wait_for
from containers import Container, cannot_run, configure, make_shared
from files import get
from mounts import let_go, put_open

pytestmark = [pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount()),
              pytest.mark.skipif(cannot_run() is not None, reason="containers: %s" % cannot_run())]
SERVES = "mounted on /rozo/main"


class Host:
    """The folders of a host: /etc/rozo with the client key, and /srv/rozo, whose mounts propagate."""

    def __init__(self, c, base):
        self.base, self.srv, self.etc, self.run = base, base + "/srv", base + "/etc", base + "/run"
        make_shared(self.srv)
        self.mnt = self.srv + "/main"
        for d in (self.mnt, self.run):
            os.mkdir(d)
        configure(c, self.etc)
        self.containers = []

    def container(self, *argv, **options):
        """The line of the documentation, started."""
        volumes = [(self.srv, "/rozo", "rshared", "rw"), (self.etc, "/etc/rozo", "rprivate", "ro"),
                   (self.run, "/run/rozo", "rprivate", "rw"),
                   ("/sys/devices/virtual/bdi", "/sys/devices/virtual/bdi", "rprivate", "rw")]
        return self.begin(argv or ("rozo", "mount", "--foreground", "main", "/rozo/main"), volumes, **options)

    def mounted(self, **options):
        a = self.container(**options)
        a.wait_for_log(SERVES)
        return a

    def reader(self, way):
        """A container of another program, which sees the host's folder as /data."""
        return self.begin(("sleep", "1000"), [(self.srv, "/data", way, "rw")], device=False, admin=False)

    def begin(self, argv, volumes, **options):
        self.containers.append(Container(self.base, argv, volumes, **options))
        return self.containers[-1].start()

    def is_mounted(self):
        return mounts_below(self.mnt).count(self.mnt)  # stat() of a dead mount fails


@pytest.fixture
def host(cluster_shared, scratch):
    h = Host(cluster_shared, scratch)
    yield h
    for a in h.containers:
        a.end()


def test_host_and_other_containers_see_the_mount_until_sigterm(cluster_shared, host):
    c, reader = cluster_shared, host.reader("rslave")
    a = host.mounted()
    assert host.is_mounted() == 1
    os.close(put_open(host.mnt + "/seen", b"by the host"))
    assert get(c.mnt + "/seen") == b"by the host"
    assert reader.exec("cat", "/data/main/seen") == "by the host"
    reader.exec("sh", "-c", "echo written there >/data/main/back")
    assert get(c.mnt + "/back") == b"written there\n"
    with open("/sys/class/bdi/%d:%d/read_ahead_kb" % (0, os.minor(os.stat(host.mnt).st_dev))) as f:
        assert int(f.read()) == 4096
    assert "warn" not in a.log(), a.log()
    assert a.stop() == 0
    assert "all data are written out" in a.log()
    assert not host.is_mounted() and os.listdir(host.mnt) == []
    assert reader.exec("ls", "/data/main") == ""


def test_sigkill_and_a_new_start(cluster_shared, host):
    """The host and other containers see an error, no old bytes and no empty folder, until the next start, which clears
    it by itself. Its first act is to report the dead mount, so that locks of that one are free at once."""
    c, reader = cluster_shared, host.reader("rslave")
    a = host.mounted(granted=[])  # --cap-drop ALL
    held = put_open(host.mnt + "/locked", b"synced")
    fcntl.lockf(held, fcntl.LOCK_EX)
    os.fsync(held)
    a.stop(signal.SIGKILL)
    let_go(held)
    with pytest.raises(OSError) as e:
        os.listdir(host.mnt)
    assert e.value.errno == errno.ENOTCONN
    assert "not connected" in reader.runc("exec", reader.name, "ls", "/data/main", check=False).stdout
    assert len(os.listdir(host.run)) == 1
    b = host.mounted(granted=[])
    assert host.is_mounted() == 1
    assert get(host.mnt + "/locked") == b"synced" == get(c.mnt + "/locked")
    assert reader.exec("cat", "/data/main/locked") == "synced"
    assert "reporting sessions of dead mounts of this machine: 1" in b.log()
    with open(c.mnt + "/locked", "r+") as f:
        fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert b.stop() == 0
    assert not host.is_mounted() and os.listdir(host.run) == []


def test_a_dead_mount_is_cleared_on_the_host(host):
    """As the documentation says: umount -l."""
    host.mounted().stop(signal.SIGKILL)
    subprocess.run(["umount", "-l", host.mnt], check=True)
    assert not host.is_mounted() and os.listdir(host.mnt) == []


def catches_sigterm(pid):
    with open("/proc/%d/status" % pid) as f:
        caught = [int(line.split()[1], 16) for line in f if line.startswith("SigCgt:")][0]
    return caught >> signal.SIGTERM - 1 & 1


def test_sigterm_before_it_serves(cluster_shared, host):
    """The kernel drops signals to the first process of a container that has no handler for them."""
    c = cluster_shared
    c.kill("exportd", signal.SIGSTOP)
    try:
        a = host.container()
        wait_for(lambda: b"rozomount" in get("/proc/%d/cmdline" % a.inner())[:9] and catches_sigterm(a.inner()),
                 "rozomount to catch signals")
        assert a.stop(timeout=5) == 128 + signal.SIGTERM
    finally:
        c.kill("exportd", signal.SIGCONT)
    assert not host.is_mounted()


@pytest.mark.parametrize("options, words", [
    ({"device": False}, ["there is no /dev/fuse. On a machine: modprobe fuse. A container gets it by --device"]),
    ({"admin": False}, ["CAP_SYS_ADMIN, and this process has it not. A container gets it by --cap-add SYS_ADMIN"]),
    ({"forbid": [("mount", errno.EACCES)]}, ["mount failed: Permission denied", "mount on /rozo/main failed; the"]),
    ({"forbid": [("mount", errno.EPERM)]}, ["Operation not permitted", "mount on /rozo/main failed; the line above"]),
], ids=["device", "capability", "apparmor", "seccomp"])
def test_a_missing_device_or_capability_is_named(cluster_shared, host, options, words):
    status, log = host.container(**options).wait_end()
    assert status == 1 and all(w in log for w in words), log
    assert not host.is_mounted()


def test_a_device_that_may_not_be_opened(cluster_shared, host):
    """`-v /dev/fuse:/dev/fuse` without --device: it is there, and the list of devices forbids it."""
    a = host.begin(("rozo", "mount", "--foreground", "main", "/rozo/main"),
                   [(host.srv, "/rozo", "rshared", "rw"), (host.etc, "/etc/rozo", "rprivate", "ro"),
                    ("/dev/fuse", "/dev/fuse", "rprivate", "rw")], device=False)
    status, log = a.wait_end()
    assert status == 1 and "cannot open /dev/fuse: Operation not permitted. A container gets it by --device" in log, log


def test_the_image_has_the_libraries_of_its_programs():
    """The Dockerfile installs the packages of all libraries that its programs name, and else only fuse3."""
    with open(os.path.join(ROOT, "deploy", "container", "Dockerfile")) as f:
        text = f.read()
    wanted = set(re.findall(r"^ {8}(\S+) \\$", text, re.M))
    needed = {"fuse3"}
    for program in re.findall(r"usr/bin/(\w+) ", text):
        path = os.path.join(BIN, program)
        direct = re.findall(r"NEEDED\s+(\S+)", subprocess.check_output(["objdump", "-p", path], text=True))
        where = dict(re.findall(r"(\S+) => (\S+)", subprocess.check_output(["ldd", path], text=True)))
        for library in direct:
            if not re.match("libc[.]|libm[.]|ld-|libasan|libubsan|libgcc_s|libtsan", library):
                file = os.path.realpath(where[library])
                said = [subprocess.run(["dpkg-query", "-S", p], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                       text=True).stdout for p in (file, file.replace("/usr/lib", "/lib", 1))]
                needed.add("".join(said).split(":")[0])
    assert wanted == needed
