"""`rozo meta init`: an exportd that has data becomes the first member of a quorum, and mounts go on."""
import json
import os
import shutil
import socket
import subprocess

import pytest

from conftest import cannot_mount, process_runs, wait_for
from daemons import free_port
from oracle import Holder, MountState, Names, Pages

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

STEPS = 3  # of each client after a change of the cluster
LOSS = "the machine went down"


def with_quorum_section(c):
    """Gives exportd a section `quorum` and restarts it. Returns the address for other members."""
    address = "127.0.0.1:%d" % free_port()
    with open(os.path.join(c.dir, "etc", "exportd.yaml"), "a") as f:
        f.write("quorum:\n  listen: ['%s']\n" % address)
    c.restart("exportd")
    return address


def init(c, *args):
    return c.admin("meta", "init", *args, check=False)


def is_member(c):
    return c.admin("meta", "status", check=False).returncode == 0


def go_on(clients):
    """Waits until each client has made some changes."""
    before = [w.n for w in clients]
    wait_for(lambda: any(w.error for w in clients) or all(w.n >= n + STEPS for w, n in zip(clients, before)),
             "changes by all clients", 60)
    assert not [w.error for w in clients if w.error]


def test_a_running_exportd_becomes_the_first_member(cluster):
    """Mounts write, hold a lock, an unlinked file and unwritten data all the time."""
    c = cluster(mounts=2)
    mounts = [MountState(mnt) for mnt in c.mnts]
    r = init(c)
    assert r.returncode == 1 and "no section `quorum`" in r.stderr and "restart exportd" in r.stderr
    clients = [kind(m, "%s-%d" % (kind.__name__, i), 1) for i, m in enumerate(mounts) for kind in (Names, Pages)]
    for w in clients:
        w.start()
    holder, orphan = Holder(mounts[0], "held"), open(os.path.join(c.mnt, "orphan"), "w+b", buffering=0)
    orphan.write(b"still here")
    os.unlink(orphan.name)
    address, before = with_quorum_section(c), c.status()
    assert "`rozo meta init` makes it the first member" in c.log("exportd")
    assert "is alone" in c.admin("meta", "status", check=False).stderr
    r = init(c)
    assert r.returncode == 1 and "no other machine reaches " + address in r.stderr
    with socket.create_server(("127.0.0.1", int(address.rsplit(":", 1)[1]))):
        r = init(c, "--address", address)
        assert r.returncode == 1 and "Address already in use" in r.stderr
    in_the_way = os.path.join(c.data("exportd"), "quorum", "identity.new")
    os.makedirs(in_the_way)  # found out when its core has stopped
    r = init(c, "--address", address)
    assert r.returncode == 1 and "identity: Is a directory" in r.stderr
    assert "it goes on alone" in c.log("exportd") and not is_member(c)
    os.rmdir(in_the_way)
    go_on(clients)
    dirty = open(os.path.join(c.mnt, "dirty"), "w+b", buffering=0)
    dirty.write(b"not synced")

    made = json.loads(init(c, "--address", address, "--json").stdout)
    assert made == {"id": 1, "address": "%s:%d" % c.addresses("exportd")[0], "quorum_address": address}
    told = c.metas()
    assert told["serving"] == 1 and told["silent"] == [] and told["members"][0]["role"] == "leader"
    os.fsync(dirty.fileno())
    go_on(clients)
    holder.check(mounts[1])
    assert c.status()["cluster_id"] == before["cluster_id"]
    r = init(c)
    assert r.returncode == 1 and "is member 1 of a quorum already" in r.stderr

    c.restart("exportd")  # as a member
    go_on(clients)
    dirty.write(b", nor this")
    os.fsync(dirty.fileno())
    holder.check(mounts[1])
    assert os.pread(orphan.fileno(), 100, 0) == b"still here"
    for w in clients:
        w.stop()
    assert not [f for f in (w.fault() for w in clients) if f]
    orphan.close()
    dirty.close()
    os.close(holder.fd)

    c.kill("exportd")
    c.restart("exportd")
    for mnt in c.mnts:
        for w in clients:
            w.check(mnt)
    with open(os.path.join(c.mnts[1], "dirty"), "rb") as f:
        assert f.read() == b"not synced, nor this"
    assert LOSS not in c.log("exportd")


LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The process dies before it gives a file the name DIE_BEFORE, or after DIE_AFTER. */
static void die_at(const char *when, const char *name)
{
    const char *wanted = getenv(when);

    if (wanted != NULL && strcmp(wanted, name) == 0)
        kill(getpid(), SIGKILL);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    int (*real)(int, const char *, int, const char *) =
        (int (*)(int, const char *, int, const char *))dlsym(RTLD_NEXT, "renameat");
    int rc;

    die_at("DIE_BEFORE", to);
    rc = real(from_fd, from, to_fd, to);
    die_at("DIE_AFTER", to);
    return rc;
}
"""


def test_exportd_is_killed_while_it_becomes_a_member(cluster, scratch, monkeypatch):
    """The next start runs alone as before, or is the member; a mount notices neither."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    with open(scratch + "/die.c", "w") as f:
        f.write(LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", scratch + "/die.so", scratch + "/die.c", "-ldl"], check=True)
    c = cluster(mounts=1)
    monkeypatch.setenv("ASAN_OPTIONS", os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0")
    monkeypatch.setenv("LD_PRELOAD", scratch + "/die.so")
    monkeypatch.setenv("DIE_BEFORE", "identity")
    address, made = with_quorum_section(c), []
    for following in (("DIE_BEFORE", "format"), ("DIE_AFTER", "format"), None):
        made.append("folder-%d" % len(made))
        os.mkdir(os.path.join(c.mnt, made[-1]))
        assert not is_member(c)
        pid = c.pid("exportd")
        assert init(c, "--address", address).returncode == 1
        wait_for(lambda p=pid: not process_runs(p), "exportd to be killed")
        monkeypatch.delenv("DIE_BEFORE", raising=False)
        monkeypatch.delenv("DIE_AFTER", raising=False)
        if following is not None:
            monkeypatch.setenv(*following)
        c.restart("exportd")
        assert sorted(os.listdir(c.mnt)) == made
        with open(os.path.join(c.mnt, made[-1], "file"), "w") as f:
            f.write("x")
            f.flush()
            os.fsync(f.fileno())
    assert c.metas()["serving"] == 1
    assert "already" in init(c, "--address", address).stderr
    assert LOSS not in c.log("exportd")
