"""Histories: clients on several mounts, tests/tools/workload.py, whose operations tests/tools/linear.py judges."""
import json
import os
import subprocess
import sys
import threading
import time
import zlib

import workload
from conftest import TOOLS
from linear import Cas, Counter, Log, Name, Op, Register, check

KINDS = "register", "append", "counter", "names", "rename", "replace"
MODELS = {"register": Register(0), "counter": Counter(), "names": Name(), "rename": Cas(0), "replace": Register(0)}
PROGRESS_MAX_S = 240  # limit without any finished operation: something hangs


class Worker:
    """A client, and its output so far. log: file for its messages."""

    def __init__(self, log, kind, mnt, who, seed, n_ops, *options):
        cmd = [sys.executable, os.path.join(TOOLS, "workload.py"), kind, mnt, str(who), str(seed), str(n_ops), *options]
        self.kind, self.mnt = kind, mnt
        self.said = open(log, "w+")
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
    """Clients of some kinds on each mount. mnts: a folder, seen through each mount; logs: folder for their messages."""

    def __init__(self, mnts, logs):
        self.mnts, self.logs, self.workers, self.n_ops = mnts, logs, [], 0

    def end(self):
        for w in self.workers:
            w.kill()

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

    def prepare(self, kinds, n_ops, seed, *options):
        """Starts the clients, each with options of workload.py; they wait."""
        workload.prepare(os.path.join(self.mnts[0], "work"))
        for kind in kinds:
            for i, mnt in enumerate(self.mnts):
                log = os.path.join(self.logs, "client-%s-%d" % (kind, i + 1))
                self.workers.append(Worker(log, kind, mnt, i + 1, seed * 100 + i, n_ops, *options))
        self.n_ops = n_ops
        for w in self.workers:
            assert w.p.stdout.readline() == "ready\n", w.words()

    def run(self, faults=()):
        """Runs the operations of all clients. Faults come one after the other, at equal distances. Returns kind ->
        operations."""
        for w in self.workers:
            w.start()
        total = self.n_ops * len(self.workers)
        for i, fault in enumerate(faults):
            self.wait_for_progress(total * (i + 1) // (len(faults) + 1))
            fault()
        self.wait_for_progress(total)
        for w in self.workers:
            assert w.p.wait(60) == 0, w.words()
            w.thread.join()
            assert w.n_done == self.n_ops
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
