"""Two exportds and a witness: each of the three may be killed, and what was acknowledged is there. The witness never
serves, has no metadata, and is never taken for a member that has them."""
import json
import os
import re
import signal
import subprocess

import pytest

from conftest import BIN, cannot_mount, rozo, wait_for
from oracle import MountState, Names

FULL = ["exportd-1", "exportd-2"]


def member(c, name):
    """Returns what `rozo meta status` says of a member."""
    return c.metas()["members"][c.names("exportd").index(name)]


def other(name):
    return next(n for n in FULL if n != name)


def have_the_same(c):
    m = c.metas()["members"]
    return all(x["answers"] for x in m) and len({x["last"] for x in m} | {x["applied"] for x in m}) == 1


def exportd(c, name, *args):
    """Runs exportd with the config of a member, which does not run."""
    return subprocess.run([os.path.join(BIN, "exportd"), "--config", os.path.join(c.dir, "etc", name + ".yaml"), *args],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)


def edit(c, name, was, now):
    path = os.path.join(c.dir, "etc", name + ".yaml")
    with open(path) as f:
        text = f.read()
    assert was in text
    with open(path, "w") as f:
        f.write(text.replace(was, now))


@pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())
def test_each_of_the_three_is_lost_under_load(cluster):
    c = cluster(metas=2, witness=True, mounts=1)
    assert c.names("exportd") == FULL + ["witness"]
    clients = [Names(MountState(c.mnt), str(i), i) for i in range(2)]
    for x in clients:
        x.start()

    def go_on():
        """Changes are acknowledged again, by a member with metadata."""
        before = [x.n for x in clients]
        wait_for(lambda: all(x.n > n + 5 or x.error for x, n in zip(clients, before)), "changes", 60)
        assert not any(x.error for x in clients), [x.error for x in clients]
        return c.serving()

    try:
        first = go_on()
        c.kill(first)
        assert go_on() == other(first)
        c.restart(first)
        wait_for(lambda: member(c, first)["answers"], "the first one to be back")
        c.kill("witness")
        go_on()
        c.restart("witness")
        # One is away, changes go on, and then the other one is lost for good: the witness feeds the first.
        leader = go_on()
        wait_for(lambda: member(c, "witness")["applied"] > 0 and member(c, other(leader))["answers"], "all three")
        c.kill(other(leader))
        assert go_on() == leader
        c.kill(leader)
        assert c.metas()["serving"] is None
        c.restart(other(leader))
        assert go_on() == other(leader)
    finally:
        for x in clients:
            x.stop()
    assert [x.fault() for x in clients] == [None, None]
    for x in clients:
        x.check(c.mnt)
    assert member(c, "witness")["serves"] is False
    c.restart(leader)


def test_a_witness_has_no_metadata_and_gives_none(cluster, scratch):
    c = cluster(metas=2, witness=True, mounts=0)
    leader = c.serving()
    wait_for(lambda: have_the_same(c), "all members to have the same")
    told = member(c, "witness")
    assert told["role"] == "witness" and told["witness"] is True and told["serves"] is False
    wait_for(lambda: 0 < member(c, "witness")["covered"] <= member(c, "witness")["last"], "the witness to be told")
    text = c.admin("meta", "status").stdout
    assert text.count("witness") == 1 and text.count("leader") == 1 and text.count("follower") == 1
    # Names are on two machines only.
    assert json.loads(c.admin("export", "create", "a", "--json").stdout)["inline_max"] == 0
    # It is never made leader; a dump comes from the other one, or from the leader.
    assert c.admin("meta", "transfer", "3", check=False).returncode == 1
    assert json.loads(c.admin("meta", "transfer", "--json").stdout)["serving"] == FULL.index(other(leader)) + 1
    c.kill(leader)
    wait_for(lambda: c.serving() == other(leader), "the other one to serve")
    c.admin("meta", "dump", os.path.join(scratch, "dump"))
    c.restart(leader)
    # Its directory is not that of a member with metadata, nor the other way round.
    c.kill("witness", signal.SIGTERM)
    wait_for(lambda: not member(c, "witness")["answers"], "the witness to end")
    assert "belongs to a witness" in exportd(c, "witness", "--force-alone", "--yes").stdout
    listed = "    - {id: 3, address: "
    edit(c, "witness", "  witness: true\n", "")
    edit(c, "witness", ", witness: true}", "}")
    r = exportd(c, "witness")
    assert r.returncode == 1 and "belongs to a witness" in r.stdout, r.stdout
    edit(c, "witness", listed, "    - {witness: true, id: 3, address: ")
    edit(c, "witness", "  members:\n", "  witness: true\n  members:\n")
    c.restart("witness")
    wait_for(lambda: member(c, "witness")["answers"], "the witness to be back")
    kv = os.path.join(c.dir, "data", "witness", "kv")
    assert sum(os.path.getsize(os.path.join(kv, f)) for f in os.listdir(kv)) < 1 << 20
    with open(os.path.join(c.dir, "data", "witness", "quorum", "identity")) as f:
        assert re.fullmatch(r"rozo quorum format 3\ncluster [0-9a-f]{32}\nmember 3\ngroup 0{8}\nwitness\n", f.read())


def test_options_of_dev_up(scratch):
    def refused(*args):
        return rozo("dev", "up", "--dir", os.path.join(scratch, "c"), *args, check=False).stderr

    assert "--metas 2 or 4" in refused("--metas", 3, "--witness")
    assert "--metas 2 or 4" in refused("--witness")
    assert "2 --witness" in refused("--metas", 2)
