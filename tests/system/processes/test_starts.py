"""Daemons and mounts that get SIGTERM while they start, and starts that fail late: nothing is left behind.

A library loaded before libc makes short moments hit: it sends SIGTERM, or fails, inside a call of the program.
"""
import contextlib
import os
import shutil
import signal
import socket
import subprocess

import pytest

from conftest import BIN, cannot_mount, rozo, wait_for
from daemons import Daemon

LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

int listen(int fd, int backlog)
{
    int (*real)(int, int) = (int (*)(int, int))dlsym(RTLD_NEXT, "listen");
    int rc = real(fd, backlog);

    if (getenv("TERM_AT_LISTEN") != NULL)
        kill(getpid(), SIGTERM);
    return rc;
}

int mount(const char *from, const char *to, const char *type, unsigned long flags, const void *data)
{
    int (*real)(const char *, const char *, const char *, unsigned long, const void *) =
        (int (*)(const char *, const char *, const char *, unsigned long, const void *))dlsym(RTLD_NEXT, "mount");
    int rc;

    if (getenv("FAIL_AT_MOUNT") != NULL) {
        errno = ENODEV; /* libfuse asks fusermount3 when it is EPERM */
        return -1;
    }
    rc = real(from, to, type, flags, data);
    if (getenv("TERM_AT_MOUNT") != NULL)
        kill(getpid(), SIGTERM);
    return rc;
}
"""


@pytest.fixture
def wicked(scratch):
    """wicked(what): returns the environment in which that happens."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source, library = scratch + "/wicked.c", scratch + "/wicked.so"
    with open(source, "w") as f:
        f.write(LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    asan = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    return lambda what: dict(os.environ, LD_PRELOAD=library, ASAN_OPTIONS=asan, **{what: "1"})


@pytest.mark.parametrize("kind", ["exportd", "storaged"])
def test_sigterm_while_it_begins_to_listen(scratch, kind, wicked):
    """A program that sees a daemon listen may stop it: that is a clean stop."""
    d = Daemon(scratch, kind)
    path = os.path.join(scratch, kind + ".yaml")
    with open(path, "w") as f:
        f.write(d.config())
    r = subprocess.run([os.path.join(BIN, kind), "--config", path], env=wicked("TERM_AT_LISTEN"), timeout=60,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert r.returncode == 0, (r.returncode, r.stdout)
    assert "listening on" in r.stdout and "stopped" in r.stdout, r.stdout
    with d.running():  # the data directory is good for a start
        pass


def rozomount(c, mnt, *more, foreground=True, loops=2, env=None):
    os.makedirs(mnt, exist_ok=True)
    r = subprocess.run([os.path.join(BIN, "rozomount"), c.dev_status()["exportd"] + "/main", mnt,
                        *(["-f"] if foreground else []), "-o", "key=%s/etc/client.key,loops=%d" % (c.dir, loops),
                        *more], env=env, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert "Sanitizer" not in r.stdout, r.stdout
    return r


@pytest.mark.skipif(cannot_mount() is not None, reason="cannot mount")
def test_sigterm_while_it_mounts(cluster, scratch, wicked):
    """The mount exists and is not served yet: it is removed again, not left dead."""
    c = cluster(layout=0, mounts=0)
    r = rozomount(c, scratch + "/m", env=wicked("TERM_AT_MOUNT"))
    assert r.returncode == 0, (r.returncode, r.stdout)
    assert not os.path.ismount(scratch + "/m")
    assert os.listdir(scratch + "/m") == []
    assert c.status()["exports"][0]["clients"] == 0


@pytest.mark.skipif(cannot_mount() is not None, reason="cannot mount")
@pytest.mark.parametrize("foreground", [True, False], ids=["foreground", "daemon"])
@pytest.mark.parametrize("loops", [1, 3])
def test_a_mount_that_fails_late_leaves_nothing(cluster, scratch, wicked, foreground, loops):
    """The kernel refuses it, or the pid file cannot be written: no mount, no session at exportd."""
    c = cluster(layout=0, mounts=0)
    mnt = scratch + "/m"
    for more, env, wanted in (([], wicked("FAIL_AT_MOUNT"), mnt),
                              (["--pid-file", "/nowhere/pid"], None, "/nowhere/pid")):
        r = rozomount(c, mnt, *more, foreground=foreground, loops=loops, env=env)
        assert r.returncode == 1 and wanted in r.stdout, (r.returncode, r.stdout)
        assert not os.path.ismount(mnt)
        wait_for(lambda: c.status()["exports"][0]["clients"] == 0, "the session to be closed", timeout=5)


@contextlib.contextmanager
def mount_waits(scratch, *more):
    """Yields (process, mount point) of a mount that has sent exportd a request, and gets no answer."""
    mnt = scratch + "/m"
    rozo("key", "new", scratch + "/client.key")
    os.mkdir(mnt)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        s.settimeout(30)
        p = subprocess.Popen([os.path.join(BIN, "rozomount"), "127.0.0.1:%d/main" % s.getsockname()[1], mnt, *more,
                              "-o", "key=%s/client.key,mount_timeout=60" % scratch], stderr=subprocess.DEVNULL)
        with s.accept()[0]:
            yield p, mnt


@pytest.mark.skipif(cannot_mount() is not None, reason="cannot mount")
@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_mount_that_waits_for_exportd_can_be_ended(scratch, sig):
    """Nothing is mounted yet: the program just ends."""
    with mount_waits(scratch, "-f") as (p, mnt):
        p.send_signal(sig)
        assert p.wait(timeout=60) == -sig
    assert not os.path.ismount(mnt)


def processes_with(text):
    """Returns the pids of processes with that text in their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open("/proc/%s/cmdline" % pid) as f:
            if text in f.read() and int(pid) != os.getpid():
                found.append(int(pid))
    return found


@pytest.mark.skipif(cannot_mount() is not None, reason="cannot mount")
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGKILL])
def test_a_mount_ends_with_the_command_that_waits_for_it(scratch, sig):
    """A ^C reaches only the command. Nothing is mounted behind its back when exportd answers later."""
    with mount_waits(scratch) as (p, mnt):
        p.send_signal(sig)
        assert p.wait(timeout=60) == -sig
        wait_for(lambda: not processes_with(scratch), "the process in the background to end", timeout=20)
    assert not os.path.ismount(mnt)
