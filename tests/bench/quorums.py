"""quorums.py - private clusters of three exportds, names to fill them, and mounts that create files all the time.

In:     a folder with the programs of a build. Out: `rozo dev` clusters below a temporary folder.
Keeps:  what clients have been told: see missing().
"""
import contextlib
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "heal"), os.path.join(os.path.dirname(HERE), "tools")]
from private import Cluster, Processes, fail  # noqa: E402

BUSY = 20  # creates at each mount before an event, and after it
NAMES_PER_FOLDER = 2000
THREADS = 4  # at each mount, that fill a cluster
WAIT_S = 120


class Quorum(Cluster):
    """A cluster of three exportds."""

    def __init__(self, programs, place, n_mounts):
        self.rozo, self.dir = os.path.join(os.path.abspath(programs), "rozo"), os.path.join(place, "c")
        self.mnts = [os.path.join(place, "m%d" % i) for i in range(n_mounts)]
        self.addresses, self.processes = {}, None

    def up(self, *options):
        self.call("dev", "up", "--dir", self.dir, "--metas", 3, *options,
                  *[a for m in self.mnts for a in ("--mount", m)])
        self.addresses = {m["id"]: m["address"] for m in self.metas()["members"]}
        self.processes = Processes(self.dir)

    def metas(self, without=None):
        """Returns `rozo meta status --json`; asks all members but `without`, an id."""
        asked = ",".join(a for i, a in self.addresses.items() if i != without)
        return json.loads(self.call("meta", "status", "--json", "--config", os.path.join(self.dir, "etc", "rozo.yaml"),
                                    *(("--exportd", asked) if asked else ())))

    def is_whole(self):
        told = self.metas()
        m = told["members"]
        return (told["serving"] is not None and all(x["answers"] for x in m) and
                len({x["last"] for x in m} | {x["applied"] for x in m}) == 1)

    def down(self):
        for i in self.addresses:  # a stopped one would not end
            with contextlib.suppress(OSError, ValueError):
                os.kill(self.pid("exportd-%d" % i), signal.SIGCONT)
        super().down()
        for mnt in self.mnts:
            if mnt in (line.split()[4] for line in open("/proc/self/mountinfo")):
                subprocess.run(["umount", "-l", mnt], check=False)


class Creator(threading.Thread):
    """Creates files at one mount while `goes` is set. rest_s: after each one. Runs in the process of a Worker."""

    def __init__(self, mnt, number, rest_s=0):
        super().__init__(daemon=True)
        self.mnt, self.number, self.rest_s, self.folder = mnt, number, rest_s, None
        self.goes, self.rests = threading.Event(), threading.Event()
        self.begins, self.finishes = [], []  # of this trial's creates that succeeded
        self.error = None
        self.start()

    def go(self, trial):
        self.folder = "%s-%d" % (trial, self.number)
        os.mkdir(os.path.join(self.mnt, self.folder))
        self.begins, self.finishes = [], []
        self.rests.clear()
        self.goes.set()

    def run(self):
        while True:
            self.goes.wait()
            i, begins, finishes, at = 0, self.begins, self.finishes, os.path.join(self.mnt, self.folder)
            while self.goes.is_set():
                begin = time.monotonic()
                try:
                    os.close(os.open("%s/%d" % (at, i), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
                except OSError as e:
                    self.error = "%s/%d: %s" % (self.folder, i, e)
                    self.goes.clear()
                    break
                finish = time.monotonic()
                begins.append(begin)
                finishes.append(finish)
                i += 1
                if self.rest_s:
                    time.sleep(self.rest_s)
            self.rests.set()

    def has_begun_since(self, when):
        """Tells whether BUSY creates succeeded that began after that time, or one failed."""
        return self.error is not None or len(self.begins) >= BUSY and self.begins[-BUSY] > when

    def pause(self):
        """Returns the error of a create, or None; the folder, in which 0, 1, ... succeeded; when they began, and when
        they ended."""
        self.goes.clear()
        if not self.rests.wait(WAIT_S):
            return "one takes longer than %d s" % WAIT_S, self.folder, [], []
        return self.error, self.folder, self.begins, self.finishes


def serve(mnt, number, rest_s, pipe):
    creator = Creator(mnt, number, rest_s)
    while True:
        name, args = pipe.recv()
        pipe.send(getattr(creator, name)(*args))


class Worker:
    """A Creator in a process of its own: one that starts programs flushes its open files in the child, and waits for
    it, so without a leader it could not start one."""

    def __init__(self, mnt, number, rest_s=0):
        self.number, self.made = number, {}  # made: folder -> number of creates that succeeded in it
        self.pipe, far = multiprocessing.Pipe()
        fork = multiprocessing.get_context("fork")
        self.process = fork.Process(target=serve, args=(mnt, number, rest_s, far), daemon=True)
        self.process.start()
        far.close()

    def do(self, name, *args):
        self.pipe.send((name, args))
        try:
            return self.pipe.recv()
        except EOFError:
            fail("a worker ended")

    def pause(self):
        """Ends the creates. Returns [(begin, end)] of all since "go", which succeeded."""
        error, name, begins, finishes = self.do("pause")
        if error is not None:
            fail("a create failed: %s" % error)
        self.made[name] = len(finishes)
        return list(zip(begins, finishes))


def make_files(c, n, n_bytes=0, first=0):
    """Makes n files of so many random bytes, so that the store of the members is of some size. first: number of the
    first one. Returns the seconds."""
    begun, end, wrong = time.monotonic(), first + n, []
    left, lock = iter(range(first, end, NAMES_PER_FOLDER)), threading.Lock()

    def fill(mnt, number):
        at = os.path.join(mnt, "names-%d" % number)
        os.mkdir(at)
        for j in range(number, min(number + NAMES_PER_FOLDER, end)):
            if n_bytes == 0:
                os.mknod("%s/%d" % (at, j))
            else:
                with open("%s/%d" % (at, j), "xb", buffering=0) as f:
                    f.write(os.urandom(n_bytes))

    def work(mnt):
        try:
            while not wrong:
                with lock:
                    number = next(left, None)
                if number is None:
                    return
                fill(mnt, number)
        except OSError as e:
            wrong.append(e)

    threads = [threading.Thread(target=work, args=(mnt,), daemon=True) for mnt in c.mnts for _ in range(THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if wrong:
        fail("the cluster cannot be filled: %s" % wrong[0])
    return time.monotonic() - begun


def missing(c, creators):
    """Looks at each folder through another mount than the one that filled it. Returns the names that are not there."""
    lost = []
    for w in creators:
        mnt = c.mnts[(w.number + 1) % len(c.mnts)]
        for name, n in w.made.items():
            there = set(os.listdir(os.path.join(mnt, name)))
            lost += ["%s/%d" % (name, i) for i in range(n) if str(i) not in there]
    return lost


def percentile(figures, share):
    return sorted(figures)[max(0, math.ceil(len(figures) * share) - 1)]
