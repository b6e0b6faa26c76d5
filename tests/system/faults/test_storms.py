"""Storages die and return all the time, under load: data acknowledged by fsync stays, and at the end all is healed.

Writers append to, overwrite and cut their own files and sync them, while storages (at most n - k at a time) are killed
at random and started again. Every file is read through another mount repeatedly: it holds exactly the synced data.
After the last restart the cluster heals until it reports so; then a scrub finds nothing, and the files are right
whichever n - k storages are down.

ROZO_STORM_S: seconds for each layout (12; tests/soak/run.sh sets hours).
"""
import itertools
import os
import random
import threading
import time

import pytest

from conftest import K, N, all_up
from pages import HOLE, PAGE, describe, page_of

STORM_S = float(os.environ.get("ROZO_STORM_S", "12"))
SEED = int(os.environ.get("ROZO_STORM_SEED", "0")) or random.randrange(1, 1 << 30)
HEALED_MAX_S = 120 + STORM_S / 4
WRITERS = 4
FILE_PAGES_MAX = 1024
CHANGED_PAGES_MAX = 24
AWAY_S = 0.1, 1.5


class Writer:
    """One file; `pages` is its expected contents."""

    def __init__(self, c, number, stop):
        self.name, self.stop = "f%d" % number, stop
        self.path, self.other = [os.path.join(mnt, self.name) for mnt in c.mnts]
        self.rng = random.Random(SEED * 100 + number)
        self.flags = os.O_DIRECT if number % 2 else 0
        self.pages, self.generation, self.n_synced = [], 0, 0
        self.error = None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            fd = os.open(self.path, os.O_CREAT | os.O_RDWR | self.flags, 0o644)
            try:
                while not self.stop.is_set():
                    until = time.monotonic() + self.rng.uniform(0.2, 3)
                    while time.monotonic() < until:
                        for _ in range(self.rng.randint(1, 6)):
                            self.rng.choice((self.append, self.overwrite, self.overwrite, self.cut))(fd)
                        os.fsync(fd)
                        self.n_synced += 1
                    self.check(self.other)
            finally:
                os.close(fd)
        except (OSError, AssertionError) as e:
            self.error = e
            self.stop.set()

    def put(self, fd, first, n):
        """Writes n pages from there on, by one write or one each."""
        self.generation += 1
        data = [page_of(number, self.generation) for number in range(first, first + n)]
        pieces = [(first, data)] if self.rng.random() < 0.5 else [(first + i, [p]) for i, p in enumerate(data)]
        for at, pages in pieces:
            assert os.pwrite(fd, b"".join(pages), at * PAGE) == len(pages) * PAGE
        self.pages += [HOLE] * (first - len(self.pages))
        self.pages[first:first + n] = data

    def append(self, fd):
        behind = len(self.pages) + self.rng.choice((0, 0, 0, 3))  # sometimes after a hole
        if behind + CHANGED_PAGES_MAX <= FILE_PAGES_MAX:
            self.put(fd, behind, self.rng.randint(1, CHANGED_PAGES_MAX))

    def overwrite(self, fd):
        if self.pages:
            first = self.rng.randrange(len(self.pages))
            self.put(fd, first, self.rng.randint(1, min(CHANGED_PAGES_MAX, len(self.pages) - first)))

    def cut(self, fd):
        if len(self.pages) > FILE_PAGES_MAX // 2 or self.rng.random() < 0.1:
            n = self.rng.randint(0, len(self.pages))
            os.ftruncate(fd, n * PAGE)
            del self.pages[n:]

    def check(self, path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            size, want = os.fstat(fd).st_size, len(self.pages) * PAGE
            assert size == want, "seed %d: %s is %d bytes long, not %d" % (SEED, self.name, size, want)
            got = b"".join(os.pread(fd, 1 << 20, at) for at in range(0, want, 1 << 20))
        finally:
            os.close(fd)
        for number, page in enumerate(self.pages):
            there = got[number * PAGE:(number + 1) * PAGE]
            assert there == page, "seed %d: page %d of %s holds %s, not %s" % (
                SEED, number, self.name, describe(there, number), describe(page, number))


def storm(c, stop, paths):
    """Until stop: kills some, waits, starts them, waits until both mounts reach them again. Returns the
    number of kills."""
    rng, n_killed = random.Random(SEED), 0
    storages = c.names("storaged")
    while not stop.is_set():
        away = rng.sample(storages, rng.randint(1, N[c.layout] - K[c.layout]))
        for name in away:
            c.kill(name)
            stop.wait(rng.choice((0, rng.uniform(0, 0.3))))
        stop.wait(rng.uniform(*AWAY_S))
        c.restart(*away)
        n_killed += len(away)
        for path in paths:
            c.wait_for(lambda: all_up(c, path), "all storages to be reached again", 60)
        stop.wait(rng.uniform(0, 0.5))
    return n_killed


@pytest.mark.parametrize("layout", [0, 1])
def test_synced_data_survives_a_storm_and_all_is_healed_after_it(cluster, layout):
    c = cluster(layout=layout, mounts=2)
    stop = threading.Event()
    writers = [Writer(c, number, stop) for number in range(WRITERS)]
    end = threading.Timer(STORM_S, stop.set)
    end.start()
    try:
        c.wait_for(lambda: stop.is_set() or all(w.n_synced for w in writers), "the first syncs")
        n_killed = storm(c, stop, [writers[0].path, writers[0].other])
    finally:
        stop.set()
        end.cancel()
        for w in writers:
            w.thread.join()
    print("layout %d: %d kills, %d syncs" % (layout, n_killed, sum(w.n_synced for w in writers)))
    errors = ["%s: %s" % (w.name, w.error) for w in writers if w.error is not None]
    assert not errors, "seed %d: %s" % (SEED, errors)

    c.wait_healed(HEALED_MAX_S)
    found = {number: r for number, r in c.scrub(HEALED_MAX_S).items() if r["found"] != 0}
    assert not found, "seed %d: scrub found %s" % (SEED, found)
    c.remount()
    for away in without(c):
        for name in away:
            c.kill(name)
        for w in writers:
            w.check(w.path)
            w.check(w.other)
        c.restart(*away)
        c.wait_for(lambda: all_up(c, writers[0].path), "all storages to be reached again")


def without(c):
    """Returns the sets of storages that are stopped together in the final check."""
    storages, n = c.names("storaged"), N[c.layout] - K[c.layout]
    every = list(itertools.combinations(storages, n))
    return random.Random(SEED).sample(every, min(len(every), 4))
