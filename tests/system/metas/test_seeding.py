"""A member that lost its vote or entries of its log copies the metadata of another one before it votes again."""
import json
import os
import re

import pytest

from conftest import wait_for

NAMES = ["exportd-1", "exportd-2", "exportd-3"]


def others(name):
    return [n for n in NAMES if n != name]


def volumes(c):
    return {v["name"] for v in json.loads(c.admin("volume", "list", "--json").stdout)}


def have_the_same(c):
    """Tells whether all members take part and have applied all entries."""
    m = c.metas()["members"]
    return (all(x["answers"] and not x["seeding"] for x in m) and
            len({x["last"] for x in m} | {x["applied"] for x in m}) == 1)


def files_of(c, name):
    """Returns the files of a member's vote and log, by name."""
    folder = os.path.join(c.data(name), "quorum")
    return {f: os.path.join(at, f) for at, _, found in os.walk(folder) for f in found if f != "identity"}


def lose_vote(c, name):
    os.unlink(files_of(c, name)["vote"])


def damage_vote(c, name):
    path = files_of(c, name)["vote"]
    with open(path, "r+b") as f:
        f.write(b"\xff" * os.path.getsize(path))


def damage_log(c, name):
    """Changes bytes of an entry that has others behind it."""
    paths = [p for f, p in files_of(c, name).items() if f != "vote"]
    for path in paths:
        with open(path, "r+b") as f:
            data = f.read()
            at = data.find(b"damaged-here")
            if at >= 0:
                f.seek(at)
                f.write(b"xxxxxxx")
                return
    raise AssertionError("no entry to damage in %s" % paths)


def lose_all(c, name):
    for path in files_of(c, name).values():
        os.unlink(path)


@pytest.mark.parametrize("lose", [lose_vote, damage_vote, damage_log, lose_all])
def test_a_member_copies_what_it_lost(cluster, lose):
    c = cluster(metas=3, mounts=0)
    name = others(c.serving())[0]
    number = NAMES.index(name) + 1
    c.admin("volume", "create", "damaged-here")
    for i in range(5):
        c.admin("volume", "create", "before-%d" % i)
    wait_for(lambda: have_the_same(c), "all members to have the same")
    c.kill(name)
    for i in range(5):
        c.admin("volume", "create", "away-%d" % i)
    lose(c, name)
    c.restart(name)
    wait_for(lambda: have_the_same(c), "%s to copy" % name)
    assert "the metadata store is complete up to entry" in c.log(name)
    made = volumes(c)
    assert len(made) == 12
    c.admin("meta", "transfer", number)
    assert c.serving() == name and volumes(c) == made
    c.admin("volume", "create", "after")
    c.restart(name)  # what it copied is on its disk
    wait_for(lambda: have_the_same(c), "all members to have the same")
    c.admin("meta", "transfer", number, check=False)
    assert volumes(c) == made | {"after"}


def test_a_member_that_lost_its_vote_waits_for_both_others(cluster):
    """It says so, serves nobody, and its process goes on; the others' leader admits it again."""
    c = cluster(metas=3, mounts=0)
    name = others(c.serving())[0]
    wait_for(lambda: have_the_same(c), "all members to have the same")
    for n in NAMES:
        c.kill(n)
    lose_all(c, name)
    alive = others(name)[0]
    # `restart` waits until a member answers, not until one leads.
    c.restart(name)
    c.restart(alive)
    pid = c.pid(name)

    number, away = NAMES.index(name) + 1, NAMES.index(others(name)[1]) + 1

    def it_copies():
        m = c.metas()["members"][number - 1]
        return m["answers"] and m["seeding"] and m["role"] == "copies" and m["waits_for"] == [away]

    wait_for(it_copies, "%s to say that it copies, and for whom it waits" % name)
    told = c.metas()
    assert told["serving"] is None and not told["members"][number - 1]["uncertain"]
    text = c.admin("meta", "status").stdout
    assert re.search(r"member %d at \S+ copies the metadata of member \d at \S+, .* so far" % number, text), text
    assert re.search(r"member %d at \S+ does not answer member %d" % (away, number), text), text
    c.restart(others(name)[1])
    wait_for(lambda: have_the_same(c), "%s to copy" % name)
    assert c.pid(name) == pid and c.serving() in NAMES
