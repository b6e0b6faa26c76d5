"""An upgrade as docs/OPERATIONS.md tells it: storages, members of the quorum and mounts, one after the other."""
import os
import shutil
import signal
import subprocess
import time

import pytest

from conftest import BIN, all_up, cannot_mount, process_runs, wait_for
from oracle import Appender, Holder, MountState, Names, Pages

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

STEPS = 3       # of each client after a restart
PAUSE_S = 0.02  # of a client between changes: the processor is for the restarts


def paced(step):
    """Returns step() with a pause behind it."""
    def step_and_pause():
        step()
        time.sleep(PAUSE_S)
    return step_and_pause


class Upgrade:
    """A cluster whose processes are restarted with programs in another place, while clients work on its mounts."""

    def __init__(self, c, folder):
        self.c, self.bin = c, folder
        shutil.copytree(BIN, folder)
        self.mounts = [MountState(mnt) for mnt in c.mnts]
        self.clients = [Names(self.mounts[0], "names", 1), Pages(self.mounts[1], "pages", 1)]
        self.clients += [Appender(m, "appender-%d" % i, 1, "log", i) for i, m in enumerate(self.mounts)]
        for w in self.clients:
            w.step = paced(w.step)
            w.start()
        self.holder = Holder(self.mounts[0], "held")

    def restart(self, name):
        pid = self.c.pid(name)
        self.c.kill(name, signal.SIGTERM)
        wait_for(lambda: not process_runs(pid), "%s to end" % name, 60)
        self.start(name)

    def start(self, *names):
        subprocess.run([os.path.join(self.bin, "rozo"), "dev", "restart", "--dir", self.c.dir, *names], check=True,
                       stdout=subprocess.DEVNULL, timeout=180)
        for name in names:
            assert os.readlink("/proc/%d/exe" % self.c.pid(name)).startswith(self.bin + "/")

    def goes_on(self):
        before = [w.n for w in self.clients]
        wait_for(lambda: any(w.error for w in self.clients) or
                 all(w.n >= n + STEPS for w, n in zip(self.clients, before)), "changes by all clients", 60)
        assert not [w.error for w in self.clients if w.error]
        self.holder.check(self.mounts[1])

    def stop(self):
        for w in self.clients:
            w.stop()
        assert not [f for f in (w.fault() for w in self.clients) if f]

    def check(self):
        for mnt in self.c.mnts:
            for w in self.clients:
                w.check(mnt)


def wait_caught_up(c):
    """Waits until all members have what was committed when the wait began."""
    commit = []

    def all_have_it():
        members = c.metas()["members"]
        assert all(m["answers"] for m in members)
        commit.append(max(m["commit"] for m in members))
        return min(m["applied"] for m in members) >= commit[0]

    wait_for(all_have_it, "all members to catch up", 60)


def test_everything_is_upgraded_one_after_the_other(cluster, scratch):
    c = cluster(metas=3, mounts=2)
    up = Upgrade(c, os.path.join(scratch, "new"))
    try:
        up.goes_on()
        for name in c.names("storaged"):
            up.restart(name)
            wait_for(lambda: all_up(c), "all storages to be up", 60)
            up.goes_on()
        leader = c.serving()
        for name in [n for n in c.names("exportd") if n != leader] + [leader]:
            up.restart(name)
            wait_caught_up(c)
            up.goes_on()
        assert c.serving() != leader
    finally:
        up.stop()
    up.check()
    os.close(up.holder.fd)
    up.start(*c.names("mount"))
    up.check()
    c.wait_healed()
