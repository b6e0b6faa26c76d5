"""Members, storages and mounts are killed under load: what was acknowledged is there, once, and locks stay exclusive.

Clients with an oracle (tests/system/oracle.py) work on three mounts. Victims are killed at random: the leader, a
follower, a storage, a mount, or two members of the quorum inside one election. After each kill all clients of mounts
that live go on before the next one. At the end the cluster heals, everything is compared through every mount, and
`rozo fsck` is clean.

ROZO_META_KILLS: number of kills (6; tests/soak/run.sh sets 200); ROZO_META_SEED: its seed.
"""
import json
import multiprocessing
import os
import random
import time

import pytest

from conftest import all_up, cannot_mount, wait_for
from oracle import Appender, Counter, Holder, MountState, Names, Pages

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

KILLS = int(os.environ.get("ROZO_META_KILLS", "6"))
SEED = int(os.environ.get("ROZO_META_SEED", "0")) or random.randrange(1, 1 << 30)
ELECTION_S = 0, 1.5   # from the end of a leader to that of another member
GOES_ON_S = 60
HEALED_S = 120 + KILLS
STEPS = 3             # of each client after a kill


class Load:
    """Three mounts with their clients. Runs in the process of Loaded."""

    def __init__(self, mnts):
        self.mounts = [MountState(mnt) for mnt in mnts]
        with open(os.path.join(mnts[0], "count"), "w") as f:
            f.write("%016d" % 0)
            f.flush()
            os.fsync(f.fileno())
        self.counters = [Counter(m, "counter-%d" % i, SEED, "count") for i, m in enumerate(self.mounts)]
        self.clients = self.counters + [Appender(m, "appender-%d" % i, SEED, "log", i)
                                        for i, m in enumerate(self.mounts)]
        self.clients += [kind(m, "%s-%d" % (kind.__name__, i), SEED)
                         for i, m in enumerate(self.mounts) for kind in (Names, Pages)]
        self.holders = [Holder(m, "held-%d" % i) for i, m in enumerate(self.mounts)]
        for w in self.clients:
            w.start()

    def goes_on(self):
        """Waits until each client of the mounts that live has made STEPS changes, or has failed."""
        before = [(w, w.n) for w in self.clients if w.mount.alive()]
        wait_for(lambda: any(w.error for w in self.clients) or all(w.n >= n + STEPS for w, n in before),
                 "changes after a kill by all clients", GOES_ON_S)
        wrong = ["%s: %s" % (w.name, w.error) for w in self.clients if w.error]
        assert not wrong, wrong
        for i, h in enumerate(self.holders):
            other = self.mounts[(i + 1) % len(self.mounts)]
            if h.mount.alive() and other.alive():
                h.check(other)

    def dies(self, i):
        self.mounts[i].deaths += 1

    def lives(self, i):
        self.holders[i].take()
        self.mounts[i].deaths += 1

    def steps(self):
        return sum(w.n for w in self.clients)

    def stop(self):
        for w in self.clients:
            w.stop()
        wrong = [f for f in (w.fault() for w in self.clients) if f]
        assert not wrong, wrong

    def check(self):
        for mount in self.mounts:
            for w in self.clients:
                w.check(mount.mnt)
            with open(os.path.join(mount.mnt, "count")) as f:
                value = int(f.read())
            sure, doubts = sum(w.sure for w in self.counters), sum(w.doubts for w in self.counters)
            assert sure <= value <= sure + doubts, "counted %d, acknowledged %d, in doubt %d" % (
                value, sure, doubts)


def serve(mnts, pipe):
    """Runs methods of a Load for another process, which gets what they raise as text."""
    load = None
    while True:
        name, args = pipe.recv()
        try:
            load = load or Load(mnts)
            pipe.send((None, getattr(load, name)(*args)))
        except BaseException as e:  # pylint: disable=broad-except
            pipe.send(("%s: %s" % (type(e).__name__, e), None))


class Loaded:
    """A Load in a process of its own: one that starts programs flushes its open files in the child, and waits for it,
    so without a leader it could not start one."""

    def __init__(self, mnts):
        self.pipe, far = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(target=serve, args=(mnts, far), daemon=True)
        self.process.start()
        far.close()

    def do(self, name, *args):
        self.pipe.send((name, args))
        wrong, result = self.pipe.recv()
        assert wrong is None, "seed %d: %s" % (SEED, wrong)
        return result


def kill_members(c, load, rng, names):
    """Kills them with pauses; the last ones come back before clients go on if the others are no majority."""
    for i, name in enumerate(names):
        time.sleep(rng.uniform(*ELECTION_S) if i else 0)
        c.kill(name)
    names = list(names)
    rng.shuffle(names)
    if len(names) > 1 or rng.random() < 0.3:
        c.restart(names.pop())
    load.do("goes_on")
    if names:
        c.restart(*names)
    wait_for(c.quorum_is_whole, "seed %d: all members to be back" % SEED, GOES_ON_S)


def kill_leader(c, load, rng):
    kill_members(c, load, rng, [c.serving()])
    return 1


def kill_follower(c, load, rng):
    leader = c.serving()
    kill_members(c, load, rng, [rng.choice([n for n in c.names("exportd") if n != leader])])
    return 1


def kill_two(c, load, rng):
    """The second one dies while the others elect, or have just elected, the successor of the first one."""
    leader = c.serving()
    kill_members(c, load, rng, [leader, rng.choice([n for n in c.names("exportd") if n != leader])])
    return 2


def kill_storage(c, load, rng):
    name = rng.choice(c.names("storaged"))
    c.kill(name)
    load.do("goes_on")
    c.restart(name)
    for mnt in c.mnts:
        wait_for(lambda m=mnt: all_up(c, os.path.join(m, "count")), "all storages to be reached", GOES_ON_S)
    return 1


def kill_mount(c, load, rng):
    i = rng.randrange(len(c.mnts))
    name = "mount-%d" % (i + 1)
    load.do("dies", i)
    c.kill(name)
    if rng.random() < 0.5:
        load.do("goes_on")
    c.restart(name)
    load.do("lives", i)
    load.do("goes_on")
    return 1


ACTS = kill_leader, kill_two, kill_mount, kill_storage, kill_follower


def test_acknowledged_changes_survive_kills(cluster):
    c, rng, n = cluster(metas=3, mounts=3), random.Random(SEED), 0
    print("seed %d" % SEED)
    load = Loaded(c.mnts)
    try:
        load.do("goes_on")
        while n < KILLS:
            for act in rng.sample(ACTS, len(ACTS)):
                n += act(c, load, rng)
        load.do("stop")
        print("%d kills, %d changes" % (n, load.do("steps")))
        load.do("check")
        c.wait_healed(HEALED_S)
        c.remount()
        load.do("check")
    finally:
        load.process.kill()
        c.tear()  # or a client that waits keeps its process
        load.process.join()
    c.remount()
    assert json.loads(c.admin("fsck", "--json").stdout)["clean"], "seed %d" % SEED
