"""Daemons told to end while they start.

What is too short to be hit by chance is made to happen by a library loaded before libc: it sends SIGTERM
from inside a call of the program's.
"""
import os
import shutil
import subprocess

import pytest

from conftest import BIN
from test_bad_input import Daemon

LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
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
"""


@pytest.fixture
def wicked(scratch):
    """wicked(what): the environment in which that happens."""
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
    """Who sees a daemon listen may tell it to stop: that is a clean stop."""
    d = Daemon(scratch, kind)
    path = os.path.join(scratch, kind + ".yaml")
    with open(path, "w") as f:
        f.write(d.config())
    r = subprocess.run([os.path.join(BIN, kind), "--config", path], env=wicked("TERM_AT_LISTEN"), timeout=60,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert r.returncode == 0, (r.returncode, r.stdout)
    assert "listening on" in r.stdout and "stopped" in r.stdout, r.stdout
    with d.running():  # the data directory is fit for a start
        pass
