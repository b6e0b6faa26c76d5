"""Histories of four mounts, each with its own client, are equal to one file system with one call at a time.

The clients are tests/tools/workload.py; tests/tools/linear.py judges them. Meanwhile mounts are killed and replaced,
exportd is killed and restarted, and a mount is cut off from exportd. A history ends after a number of operations,
however long they take; faults come at fixed parts of it.

ROZO_LINEAR_OPS: operations of each client (4000 at most with append: a log is read at once); ROZO_LINEAR_SEED: of the
first history; ROZO_LINEAR_KINDS and ROZO_LINEAR_FAULTS: subset of register, append, counter, names, rename, replace
and of none, deaths, cut (default: all).
"""
import json
import os
import subprocess
import sys
import threading
import time
import zlib

import pytest

import workload
from conftest import TOOLS, cannot_mount, wait_for
from linear import Cas, Counter, Log, Name, Op, Register, check
from mounts import CutOff

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

OPS = int(os.environ.get("ROZO_LINEAR_OPS", "250"))
SEED = int(os.environ.get("ROZO_LINEAR_SEED", "1"))
KINDS = os.environ.get("ROZO_LINEAR_KINDS", "register,append,counter,names,rename,replace").split(",")
FAULTS = os.environ.get("ROZO_LINEAR_FAULTS", "none,deaths,cut").split(",")
# Workloads that wait for leases and evictions run two at a time.
RUNS = [((kind,), faults) for kind in KINDS for faults in FAULTS if faults != "cut"]
RUNS += [(tuple(KINDS[i:i + 2]), "cut") for i in range(0, len(KINDS), 2) if "cut" in FAULTS]
N_MOUNTS = 4
LEASE_S = 20
PACE_MS = 10  # keeps the load from ending during one fault
MODELS = {"register": Register(0), "counter": Counter(), "names": Name(), "rename": Cas(0), "replace": Register(0)}
PROGRESS_MAX_S = 240  # limit without any finished operation: something hangs


class Worker:
    """A client, and its output so far."""

    def __init__(self, kind, mnt, who, seed, n_ops, *options):
        cmd = [sys.executable, os.path.join(TOOLS, "workload.py"), kind, mnt, str(who), str(seed), str(n_ops), *options]
        self.kind, self.mnt = kind, mnt
        self.said = open(os.path.join(os.path.dirname(mnt), "client-%s-%d" % (kind, who)), "w+")
        self.p = subprocess.Popen(cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True)
        self.ops, self.n_done = [], 0
        self.thread = threading.Thread(target=self.listen, daemon=True)

    def start(self):
        self.p.stdin.write("go\n")
        self.p.stdin.close()
        self.thread.start()

    def listen(self):
        for line in self.p.stdout:
            self.ops += [Op(who, call, tuple(args), *rest) for who, call, args, *rest in json.loads(line)]
            self.n_done += 1

    def words(self):
        self.said.seek(0)
        return self.said.read()[-3000:]

    def kill(self):
        self.p.kill()
        self.p.wait()
        if self.thread.is_alive():
            self.thread.join()
        self.said.close()


class History:
    """A cluster with N_MOUNTS mounts; the last one uses a proxy."""

    def __init__(self, cluster, layout=0):
        self.c = cluster(layout=layout, mounts=N_MOUNTS - 1)
        self.last = CutOff(self.c)
        self.mnts = self.c.mnts + [self.last.mnt]
        self.workers = []

    def end(self):
        for w in self.workers:
            w.kill()
        self.last.end()

    # ---- faults ----

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
        self.cut_off(LEASE_S + 5)

    # ---- a run ----

    def by_kind(self):
        groups = {}
        for w in self.workers:
            groups.setdefault(w.kind, []).append(w)
        return groups

    def done(self):
        return sum(w.n_done for w in self.workers)

    def ended(self):
        return all(w.p.poll() is not None for w in self.workers)

    def wait_for_progress(self, n):
        """Waits until n operations are done, or all that remain."""
        last, since = -1, time.monotonic()
        while self.done() < n and not self.ended():
            if self.done() != last:
                last, since = self.done(), time.monotonic()
            assert time.monotonic() - since < PROGRESS_MAX_S, "no operation ended for %d s; %d of %d" % (
                PROGRESS_MAX_S, last, n)
            time.sleep(0.02)

    def run(self, kinds, faults=(), n_ops=OPS, seed=SEED):
        """Runs the operations of all clients by kind. Faults come one after the other, at equal distances."""
        workload.prepare(os.path.join(self.mnts[0], "work"))
        # A mount that dies or is cut off for long loses unsynced data.
        options = ["--sync", "--pace", str(PACE_MS)] if faults else []
        for kind in kinds:
            for i, mnt in enumerate(self.mnts):
                self.workers.append(Worker(kind, mnt, i + 1, seed * 100 + i, n_ops, *options))
        for w in self.workers:
            assert w.p.stdout.readline() == "ready\n", w.words()
        for w in self.workers:
            w.start()
        total = n_ops * len(self.workers)
        for i, fault in enumerate(faults):
            self.wait_for_progress(total * (i + 1) // (len(faults) + 1))
            fault()
        self.wait_for_progress(total)
        for w in self.workers:
            assert w.p.wait(60) == 0, w.words()
            w.thread.join()
            assert w.n_done == n_ops
        return {kind: [op for w in group for op in w.ops] for kind, group in self.by_kind().items()}

    def judge(self, kind, ops):
        if kind == "append":
            self.judge_log(ops)
            return
        if kind == "counter":
            ops = ops + [self.final_count(i, mnt) for i, mnt in enumerate(self.mnts)]
        check(ops, MODELS[kind], key=lambda op: op.args[0])

    def final_count(self, i, mnt):
        begin = time.monotonic_ns()
        with open(os.path.join(mnt, "work", "counter")) as f:
            return Op("final-%d" % i, "read", ("counter",), int(f.read()), begin, time.monotonic_ns())

    def judge_log(self, ops):
        logs = []
        for mnt in self.mnts:
            with open(os.path.join(mnt, "work", "log"), "rb") as f:
                logs.append(f.read())
        assert logs.count(logs[0]) == len(logs), [len(log) for log in logs]
        order = [line.decode().strip() for line in logs[0].split(b"\n")[:-1]]
        assert len(set(order)) == len(order)
        assert not set(order) - {workload.FIRST_LINE, *(op.args[0] for op in ops if op.call == "append")}, \
            "lines that nobody wrote"
        for op in ops:
            if op.call == "length" and op.end is not None:
                assert zlib.crc32(logs[0][:op.result * workload.LINE]) == op.args[0], \
                    "not what the log begins with: %s" % op
        check([Op("first", "append", (workload.FIRST_LINE,), None, 0, 0)] + ops, Log(order))


@pytest.fixture
def history(cluster, request):
    made = []

    def make(**options):
        made.append(History(cluster, **options))
        return made[-1]

    yield make
    for h in made:
        h.end()


@pytest.mark.parametrize("kinds,faults", RUNS, ids=["+".join(kinds) + "-" + faults for kinds, faults in RUNS])
def test_four_mounts_are_as_one(history, kinds, faults):
    h = history()
    ops = h.run(kinds, {"none": [], "deaths": [h.restart_exportd, h.kill_a_mount, h.restart_exportd],
                        "cut": [h.cut_off, h.cut_off_beyond_the_lease]}[faults])
    assert faults != "none" or all(w.words() == "" for w in h.workers), [w.words() for w in h.workers]
    for kind in kinds:
        h.judge(kind, ops[kind])
