"""Histories of four mounts, each with its own client, are equal to one file system with one call at a time.

The clients are tests/tools/workload.py; tests/tools/linear.py judges them. Meanwhile mounts are killed and replaced,
exportd is killed and restarted, and a mount is cut off from exportd. A history ends after a number of operations,
however long they take; faults come at fixed parts of it.

ROZO_LINEAR_OPS: operations of each client (4000 at most with append: a log is read at once); ROZO_LINEAR_SEED: of the
first history; ROZO_LINEAR_KINDS and ROZO_LINEAR_FAULTS: subset of register, append, counter, names, rename, replace
and of none, deaths, cut (default: all).
"""
import os
import time

import pytest

from conftest import cannot_mount, wait_for
from histories import KINDS, PROGRESS_MAX_S, History
from mounts import CutOff

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

OPS = int(os.environ.get("ROZO_LINEAR_OPS", "250"))
SEED = int(os.environ.get("ROZO_LINEAR_SEED", "1"))
RUN_KINDS = os.environ.get("ROZO_LINEAR_KINDS", ",".join(KINDS)).split(",")
FAULTS = os.environ.get("ROZO_LINEAR_FAULTS", "none,deaths,cut").split(",")
# Workloads that wait for leases and evictions run two at a time.
RUNS = [((kind,), faults) for kind in RUN_KINDS for faults in FAULTS if faults != "cut"]
RUNS += [(tuple(RUN_KINDS[i:i + 2]), "cut") for i in range(0, len(RUN_KINDS), 2) if "cut" in FAULTS]
N_MOUNTS = 4
LEASE_S = 8
PACE_MS = 10  # keeps the load from ending during one fault


class FaultyHistory(History):
    """A cluster with N_MOUNTS mounts; the last one uses a proxy."""

    def __init__(self, cluster, layout=0):
        self.c = cluster(layout=layout, mounts=N_MOUNTS - 1)
        self.c.configure(lease_s=LEASE_S)
        self.last = CutOff(self.c)
        super().__init__(self.c.mnts + [self.last.mnt], self.c.base)

    def end(self):
        super().end()
        self.last.end()

    def kill_a_mount(self, i=0):
        name = self.c.names("mount")[i]
        self.c.kill(name)
        self.c.restart(name)

    def restart_exportd(self):
        self.c.kill("exportd")
        self.c.restart("exportd")

    def cut_off(self, at_least_s=0):
        """Cuts the link until the others have gone on for a while: if they need its tokens, the mount is
        evicted by then."""
        others = [[w for w in group if w.mnt != self.last.mnt] for group in self.by_kind().values()]
        wants = [sum(w.n_done for w in group) + 30 for group in others]
        self.last.proxy.open.clear()
        try:
            wait_for(lambda: all(sum(w.n_done for w in group) >= want or all(w.p.poll() is not None for w in group)
                                 for group, want in zip(others, wants)),
                     "the others to go on without the mount that is cut off", timeout=PROGRESS_MAX_S)
            time.sleep(at_least_s)
        finally:
            self.last.proxy.open.set()

    def cut_off_beyond_the_lease(self):
        self.cut_off(LEASE_S + 2)


@pytest.fixture
def history(cluster, request):
    made = []

    def make(**options):
        made.append(FaultyHistory(cluster, **options))
        return made[-1]

    yield make
    for h in made:
        h.end()


@pytest.mark.parametrize("kinds,faults", RUNS, ids=["+".join(kinds) + "-" + faults for kinds, faults in RUNS])
def test_four_mounts_are_as_one(history, kinds, faults):
    h = history()
    # A mount that dies or is cut off for long loses unsynced data.
    h.prepare(kinds, OPS, SEED, *([] if faults == "none" else ["--sync", "--pace", str(PACE_MS)]))
    ops = h.run({"none": [], "deaths": [h.restart_exportd, h.kill_a_mount, h.restart_exportd],
                 "cut": [h.cut_off, h.cut_off_beyond_the_lease]}[faults])
    assert faults != "none" or all(w.words() == "" for w in h.workers), [w.words() for w in h.workers]
    for kind in kinds:
        h.judge(kind, ops[kind])
