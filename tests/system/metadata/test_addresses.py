"""Mounts and verbs that were given several addresses: of one exportd here, so each leads."""
import fcntl
import json
import os
import subprocess
import threading

import pytest

from conftest import ROZO, cannot_mount, wait_for
from mounts import CutOff, Proxy, shut_down
from ports import free_port

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())


class OneWay(Proxy):
    """A relay that, while it is deaf, drops what exportd sends."""

    deaf = False

    def passes(self, a):
        return not (self.deaf and a.getpeername() == self.target)

    def break_links(self):
        with self.lock:
            shut_down(*self.socks[1:])


class Pair:
    """Two relays to one exportd, as two addresses of it."""

    def __init__(self, target):
        self.both = [OneWay(target), OneWay(target)]
        self.address = ",".join(p.address for p in self.both)
        self.open = self.both[0].open

    def end(self):
        for p in self.both:
            p.end()


class Dead:
    """An address at which nobody listens, and then the real one."""

    def __init__(self, target):
        self.address = "127.0.0.1:%d,%s:%d" % (free_port(), *target)
        self.open = threading.Event()

    def end(self):
        pass


def test_the_first_address_is_dead(cluster):
    c = cluster()
    m = CutOff(c, proxy=Dead)
    try:
        with open(os.path.join(m.mnt, "f"), "w") as f:
            f.write("data")
        assert open(os.path.join(c.mnt, "f")).read() == "data"
        c.kill("exportd")
        c.restart("exportd")
        os.rename(os.path.join(m.mnt, "f"), os.path.join(m.mnt, "g"))
        assert os.listdir(c.mnt) == ["g"]
        key = os.path.join(c.dir, "etc", "node.key")
        done = subprocess.run([ROZO, "status", "--json", "--exportd", m.proxy.address, "--key", key],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["storages"]) == 4
    finally:
        m.end()


def test_no_address_works(cluster):
    c = cluster()
    addresses = "127.0.0.1:%d,127.0.0.1:%d" % (free_port(), free_port())
    key = os.path.join(c.dir, "etc", "node.key")
    done = subprocess.run([ROZO, "status", "--exportd", addresses, "--key", key], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 1
    assert "refused" in done.stderr
    for a in addresses.split(","):
        assert done.stderr.count(a) == 2  # where it was asked, and why that failed


def test_changes_go_by_the_other_address_once(cluster):
    """The answers to some changes are lost, and then one address: the changes are repeated by the other one."""
    c = cluster()
    m = CutOff(c, proxy=Pair)
    rc = {}

    def make(i):
        try:
            os.mkdir(os.path.join(m.mnt, str(i), "made"))
            rc[i] = 0
        except OSError as e:
            rc[i] = e.errno

    try:
        first, second = m.proxy.both
        for i in range(8):
            os.mkdir(os.path.join(m.mnt, str(i)))
        held = open(os.path.join(m.mnt, "held"), "w")
        fcntl.lockf(held, fcntl.LOCK_EX)
        first.deaf = second.deaf = True
        threads = [threading.Thread(target=make, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        wait_for(lambda: all(os.path.exists(os.path.join(c.mnt, str(i), "made")) for i in range(8)),
                 "the changes, as another mount sees them")
        assert rc == {}
        second.deaf = False
        second.break_links()
        first.end()
        for t in threads:
            t.join(60)
        assert rc == {i: 0 for i in range(8)}
        c.kill("exportd")
        c.restart("exportd")
        os.mkdir(os.path.join(m.mnt, "after"))
        assert os.path.isdir(os.path.join(c.mnt, "after"))
        with open(os.path.join(c.mnt, "held"), "w") as other, pytest.raises(BlockingIOError):
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.close()
    finally:
        m.end()
