"""A client that dies during overwrites leaves the old or the new version of every page: nothing is torn.

Threads overwrite pages of 4 KB at random in a file of 256 MB, some with O_DIRECT, some cached by the client and
synced now and then, until their rozomount is killed (SIGKILL). Then another mount reads the whole file. Each page
holds the old data or data that was being written, none gives an error, none is a mixture, and none goes back: not
synced data, not acknowledged O_DIRECT data, not data that was read once.
"""
import os
import random
import threading
import time

import pytest

from conftest import K, Q, all_up
from pages import MIB, PAGE, PAGES_OF_MIB, PageFile

FILE_MIB = int(os.environ.get("ROZO_TORN_MIB", "256"))
KILLS = int(os.environ.get("ROZO_TORN_KILLS", "8"))
LEASE_S = 3  # writes of a dead mount are readable when its session is over
FEW_MIB = 32
KILLS_OF_SEVERAL = 4
DIRECT_WRITERS, GATHERING_WRITERS = 2, 4
KILLED_AFTER_S = 0.05, 0.4
SYNCED_PAGES_MAX = 300


class Overwriter:
    """The threads of one life of a mount."""

    def __init__(self, path, model, seed):
        self.path, self.model = path, model
        self.killed, self.errors, self.n_written = False, [], 0
        n = DIRECT_WRITERS + GATHERING_WRITERS
        self.threads = [threading.Thread(target=self.run, args=(i, n, seed * n + i)) for i in range(n)]
        for thread in self.threads:
            thread.start()

    def run(self, i, n, seed):
        direct = i < DIRECT_WRITERS
        try:
            fd = os.open(self.path, os.O_WRONLY | (os.O_DIRECT if direct else 0))
            try:
                self.overwrite(fd, direct, range(i, len(self.model.last), n), random.Random(seed))
            finally:
                os.close(fd)
        except OSError as e:
            if not self.killed:
                self.errors.append(e)

    def overwrite(self, fd, direct, mine, rng):
        """Overwrites its own pages: a page has one writer at a time. Ends with the mount, by an error."""
        until_sync = rng.randint(1, SYNCED_PAGES_MAX)
        while True:
            number = rng.choice(mine)
            page = self.model.start(number)
            n = os.pwrite(fd, page, number * PAGE)
            assert n == PAGE
            self.model.written(number, page, through=direct)
            self.n_written += 1
            until_sync -= 1
            if not direct and until_sync == 0:
                covered = self.model.unsynced()
                os.fsync(fd)
                self.model.synced(covered)
                until_sync = rng.randint(1, SYNCED_PAGES_MAX)

    def join(self):
        for thread in self.threads:
            thread.join()
        assert not self.errors, self.errors


def create(path, model):
    """Writes every page once, and syncs."""
    with open(path, "wb", buffering=0) as f:
        for first in range(0, len(model.last), PAGES_OF_MIB):
            pages = [model.start(number) for number in range(first, first + PAGES_OF_MIB)]
            assert f.write(b"".join(pages)) == MIB
            for number, page in enumerate(pages, first):
                model.written(number, page, through=True)
        os.fsync(f.fileno())


def check(path, model, settled=True):
    """Reads without any cache, through a mount that is not the writer's."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return model.check(fd, settled)
    finally:
        os.close(fd)


def overwrite_until_killed(c, path, model, rng, seed, *more):
    """Runs a life of mount-1 that ends during overwrites, with the processes of `more` at about the same
    time."""
    overwriter = Overwriter(path, model, seed)
    time.sleep(rng.uniform(*KILLED_AFTER_S))
    overwriter.killed = True
    for name in rng.sample(["mount-1", *more], 1 + len(more)):
        c.kill(name)
    overwriter.join()
    model.crashed()
    return overwriter.n_written


def nothing_wrong(wrong, when):
    assert not wrong, "%s:\n%s" % (when, "\n".join(wrong[:20]))


@pytest.mark.parametrize("layout", [0, 1])
def test_a_killed_client_leaves_old_or_new(cluster, layout):
    c = cluster(layout=layout, mounts=2)
    c.configure(lease_s=LEASE_S)
    writer, reader = [mnt + "/f" for mnt in c.mnts]
    model, rng = PageFile(FILE_MIB * PAGES_OF_MIB), random.Random(layout)
    create(writer, model)
    n_written = 0
    for kill in range(1, KILLS + 1):
        n_written += overwrite_until_killed(c, writer, model, rng, kill)
        if kill > 1:  # the next mount reports the death; without it, a reader waits for the lease of the dead one
            c.restart("mount-1")
        nothing_wrong(check(reader, model), "after kill %d, %d overwrites" % (kill, n_written))
        if kill == 1:
            c.restart("mount-1")
    assert n_written > 50 * KILLS
    nothing_wrong(check(writer, model), "in the end, by a fresh mount")


@pytest.mark.parametrize("layout,n_away", [(0, 1), (1, 1), (1, 2)])
def test_client_and_storages_killed_together_leave_old_or_new(cluster, layout, n_away):
    """Up to n - k storages die with the client.

    A version on k - 1 of the remaining storages is unreadable, but may have been acknowledged if the quorum q could
    have it: with at most q - k storages down (one, in each layout) that is impossible, and old or new is read at
    once. With more down a reader waits until they are back. A read before the outcome is decided may use few
    storages, so it does not bind later reads here.
    """
    c = cluster(layout=layout, mounts=2)
    c.configure(lease_s=LEASE_S)
    writer, reader = [mnt + "/f" for mnt in c.mnts]
    model, rng = PageFile(FEW_MIB * PAGES_OF_MIB), random.Random(layout)
    create(writer, model)
    storages = c.names("storaged")
    for kill in range(1, KILLS_OF_SEVERAL + 1):
        away = rng.sample(storages, n_away)
        overwrite_until_killed(c, writer, model, rng, kill, *away)
        c.restart("mount-1")
        if n_away <= Q[layout] - K[layout]:
            nothing_wrong(check(reader, model, settled=False), "after kill %d, without %s" % (kill, away))
        c.restart(*away)
        c.wait_for(lambda: all_up(c, reader), "all storages up")
        nothing_wrong(check(reader, model, settled=False), "after kill %d, all storages back" % kill)
