"""Mounts of several exportds whose leader is killed, stopped or ended: no acknowledged change is missing, none is
made twice, no call fails, and what a mount holds stays its own."""
import fcntl
import json
import os
import signal
import subprocess
import threading

import pytest

from conftest import BIN, cannot_mount, pattern, process_runs, rozo, wait_for

pytestmark = [
    pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount()),
    pytest.mark.skipif("--metas" not in rozo("dev", "up", "--help").stdout, reason="rozo dev up has no --metas")]

ENDS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "ended": signal.SIGTERM}
FILE_BYTES = 50000


def serving(c):
    """Returns the name of the member that leads and serves; an AssertionError (wait_for(): false) if none does."""
    members = json.loads(c.admin("meta", "status", "--json").stdout)["members"]
    names = [n for n, m in zip(c.names("exportd"), members) if m.get("serves")]
    assert len(names) == 1
    return names[0]


def leader(c):
    found = []
    wait_for(lambda: found.append(serving(c)) or True, "a leader")
    return found[-1]


def revive(c, name, how):
    if how == "stopped":
        c.kill(name, signal.SIGCONT)
    else:
        c.restart(name)


class Worker(threading.Thread):
    """Makes, renames and removes directories and writes files, one change after the other."""

    def __init__(self, mnt, name):
        super().__init__()
        self.folder = os.path.join(mnt, name)
        os.mkdir(self.folder)
        self.n, self.ends, self.error, self.left = 0, False, None, set()
        self.start()

    def step(self, i):
        made, there = os.path.join(self.folder, "%d" % i), os.path.join(self.folder, "%d-moved" % i)
        os.mkdir(made)
        os.rename(made, there)
        if i % 2:
            os.rmdir(there)
        else:
            self.left.add(os.path.basename(there))
            with open(os.path.join(there, "data"), "wb") as f:
                f.write(pattern(i, FILE_BYTES))
                f.flush()
                os.fsync(f.fileno())

    def run(self):
        try:
            while not self.ends:
                self.step(self.n)
                self.n += 1
        except OSError as e:
            self.error = e

    def stop(self):
        self.ends = True
        self.join(120)
        assert not self.is_alive() and self.error is None, self.error
        return self.n


@pytest.mark.parametrize("how", ENDS)
def test_the_leader_goes_under_load(cluster, how):
    c = cluster(metas=3, mounts=2)
    path = os.path.join(c.mnt, "held")
    held, orphan = open(path, "w"), open(os.path.join(c.mnt, "orphan"), "w+")
    orphan.write("still here")
    orphan.flush()
    os.unlink(orphan.name)
    fcntl.lockf(held, fcntl.LOCK_EX)
    workers = [Worker(c.mnts[i % 2], str(i)) for i in range(4)]
    try:
        for _ in range(2):
            name = leader(c)
            c.kill(name, ENDS[how])
            before = [w.n for w in workers]
            wait_for(lambda b=before: all(w.n > n + 5 or w.error for w, n in zip(workers, b)),
                     "changes at the next leader")
            revive(c, name, how)
            assert leader(c) != name
    finally:
        n = [w.stop() for w in workers]
    assert min(n) > 10
    for w in workers:
        for mnt in c.mnts:
            assert set(os.listdir(os.path.join(mnt, os.path.basename(w.folder)))) == w.left
        for name in w.left:
            with open(os.path.join(c.mnts[1], os.path.basename(w.folder), name, "data"), "rb") as f:
                assert f.read() == pattern(int(name.split("-")[0]), FILE_BYTES)
    with open(os.path.join(c.mnts[1], "held"), "w") as other, pytest.raises(BlockingIOError):
        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    orphan.seek(0)
    assert orphan.read() == "still here"
    held.write("x")
    held.close()
    assert open(os.path.join(c.mnts[1], "held")).read() == "x"
    orphan.close()


def mount_by(c, name):
    """Mounts by the address of one member alone."""
    address = "%s:%d" % c.addresses(name)[0]
    mnt = os.path.join(c.base, "mnt-by-one")
    os.makedirs(mnt, exist_ok=True)
    p = subprocess.run([os.path.join(BIN, "rozomount"), address + "/main", mnt, "-o",
                        "mount_timeout=5,key=%s/etc/client.key" % c.dir], capture_output=True, text=True, timeout=60)
    return mnt, p


def test_any_member_is_enough(cluster):
    """It tells where the others are; the mount goes on when it is gone."""
    c = cluster(metas=3, mounts=0)
    name, other = [n for n in c.names("exportd") if n != leader(c)]
    mnt, p = mount_by(c, name)
    assert p.returncode == 0, p.stderr
    try:
        os.mkdir(os.path.join(mnt, "made"))
        c.kill(name)
        os.mkdir(os.path.join(mnt, "more"))
        c.restart(name)
        c.kill(leader(c))
        os.mkdir(os.path.join(mnt, "most"))
        assert {"made", "more", "most"} <= set(os.listdir(mnt))
    finally:
        subprocess.run(["fusermount3", "-u", mnt], check=True)
    c.kill(leader(c))  # no majority is left
    mnt, p = mount_by(c, [n for n in c.names("exportd") if process_runs(c.pid(n))][0])
    assert p.returncode == 1
    assert "none of these leads" in p.stderr
