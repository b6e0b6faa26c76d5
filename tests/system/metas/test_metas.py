"""Three exportds that are a quorum: one leads, and another one takes over."""
import json
import os
import shutil
import signal
import subprocess

import pytest

from conftest import BIN, process_runs, rozo, wait_for

NAMES = ["exportd-1", "exportd-2", "exportd-3"]


def member(c, name):
    """Returns what `rozo meta status` says of a member."""
    return c.metas()["members"][NAMES.index(name)]


def others(name):
    return [n for n in NAMES if n != name]


def wait_for_another(c, name):
    """Waits until another member than this one serves; returns its name."""
    wait_for(lambda: c.metas()["serving"] not in (None, NAMES.index(name) + 1), "another than %s to serve" % name)
    return c.serving()


def have_the_same(c):
    """Tells whether all members have applied all entries."""
    m = c.metas()["members"]
    return all(x["answers"] for x in m) and len({x["last"] for x in m} | {x["applied"] for x in m}) == 1


def volumes(c):
    return {v["name"] for v in json.loads(c.admin("volume", "list", "--json").stdout)}


def test_one_of_three_leads(cluster):
    c = cluster(metas=3, mounts=0)
    assert c.names("exportd") == NAMES
    name = c.serving()
    wait_for(lambda: have_the_same(c), "all members to have the same")
    told = c.metas()
    assert told["silent"] == [] and told["address"] == "%s:%d" % c.addresses(name)[0]
    assert [m["role"] for m in told["members"]].count("leader") == 1
    assert [m["serves"] for m in told["members"]].count(True) == 1
    assert [m["id"] for m in told["members"]] == [1, 2, 3]
    for n, m in zip(NAMES, told["members"]):
        assert m["leader"] == told["serving"] and m["log_bytes"] > 0
        assert m["quorum_address"] == "%s:%d" % c.addresses(n)[1]
    text = c.admin("meta", "status").stdout
    assert text.count("follower") == 2 and text.count("leader") == 1
    assert all(len(line) <= 80 for line in text.splitlines())


def test_small_files_are_inline_where_metadata_are_replicated(cluster):
    c = cluster(metas=3, mounts=0)
    assert json.loads(c.admin("export", "create", "a", "--json").stdout)["inline_max"] == 16384
    assert json.loads(c.admin("export", "create", "b", "--inline", 0, "--json").stdout)["inline_max"] == 0
    assert json.loads(c.admin("export", "create", "c", "--inline", 4096, "--json").stdout)["inline_max"] == 4096
    assert "up to 16384 bytes" in c.admin("export", "create", "d").stdout
    c.kill(others(c.serving())[0])  # it counts, although it does not answer
    assert json.loads(c.admin("export", "create", "e", "--json").stdout)["inline_max"] == 16384


def test_leaders_are_killed_in_turn(cluster):
    """What was acknowledged is there whoever leads, and a member that was away gets it."""
    c = cluster(metas=3, mounts=0)
    cluster_id = c.status()["cluster_id"]
    made, led = {"default"}, []
    for i in range(2):
        name = c.serving()
        c.admin("volume", "create", "v%d" % i)
        made.add("v%d" % i)
        c.kill(name)
        led.append((name, wait_for_another(c, name)))
        assert volumes(c) == made and c.status()["cluster_id"] == cluster_id
        assert NAMES.index(name) + 1 in c.metas()["silent"]
        assert "has not answered" in c.admin("meta", "status").stdout
        c.restart(name)
        wait_for(lambda: have_the_same(c), "%s to catch up" % name)
    assert all(a != b for a, b in led)


def test_without_a_majority_nobody_serves(cluster):
    c = cluster(metas=3, mounts=0)
    name = c.serving()
    follower = c.metas()["members"][NAMES.index(others(name)[0])]
    told = json.loads(c.admin("meta", "status", "--exportd", follower["address"], "--json").stdout)
    assert told["serving"] == NAMES.index(name) + 1  # a follower says where the leader is
    for n in others(name):
        c.kill(n)
    wait_for(lambda: c.metas()["serving"] is None, "%s to give up" % name)
    assert "No member serves" in c.admin("meta", "status").stdout
    r = c.admin("meta", "transfer", check=False)
    assert r.returncode == 1 and "no member serves" in r.stderr
    c.restart(others(name)[0])
    c.serving()


def test_sigterm_hands_over(cluster):
    c = cluster(metas=3, mounts=0)
    name = c.serving()
    pid, term = c.pid(name), member(c, name)["term"]
    c.kill(name, signal.SIGTERM)
    wait_for(lambda: not process_runs(pid), "%s to end" % name)
    assert "leadership is handed over" in c.log(name) and "stopped, everything is stored" in c.log(name)
    new = wait_for_another(c, name)
    assert member(c, new)["term"] == term + 1  # asked to: nobody had to run out of patience


def test_leadership_is_handed_over_when_asked(cluster):
    c = cluster(metas=3, mounts=0)
    for to in (2, 3, 1):
        if c.serving() == NAMES[to - 1]:
            continue
        assert "member %d serves now" % to in c.admin("meta", "transfer", to).stdout
        assert c.serving() == NAMES[to - 1]
    name = c.serving()
    number, term = NAMES.index(name) + 1, member(c, name)["term"]
    assert json.loads(c.admin("meta", "transfer", number, "--json").stdout)["serving"] == number
    r = c.admin("meta", "transfer", 9, check=False)
    assert r.returncode == 1 and "9 is no voter" in r.stderr
    assert member(c, name)["serves"] and member(c, name)["term"] == term  # it led all the time
    c.admin("meta", "transfer")
    assert c.serving() != name


def test_transfer_goes_to_a_member_that_is_up(cluster):
    """Two followers have the same log, and one of them has just died."""
    c = cluster(metas=3, mounts=0)
    name = c.serving()
    for dead, alive in (others(name), others(name)[::-1]):
        if c.serving() != name:
            c.admin("meta", "transfer", NAMES.index(name) + 1)
        wait_for(lambda: have_the_same(c), "all members to have the same")
        c.kill(dead)
        c.admin("meta", "transfer", NAMES.index(alive) + 1)
        assert c.serving() == alive
        c.restart(dead)


def test_a_stopped_leader_is_replaced_and_then_follows(cluster):
    c = cluster(metas=3, mounts=0)
    name = c.serving()
    c.kill(name, signal.SIGSTOP)
    # Questions to it take their time: only the others are asked.
    alive = ",".join("%s:%d" % c.addresses(n)[0] for n in others(name))
    key = os.path.join(c.dir, "etc", "node.key")

    def serves():
        told = json.loads(rozo("meta", "status", "--json", "--exportd", alive, "--key", key).stdout)
        return told["serving"] is not None and told["silent"] == [NAMES.index(name) + 1]

    wait_for(serves, "another to serve")
    c.kill(name, signal.SIGCONT)
    wait_for(lambda: member(c, name)["role"] == "follower", "%s to follow" % name)
    wait_for(lambda: have_the_same(c), "%s to catch up" % name)


def test_status_does_not_wait_long_for_a_member_that_hangs(cluster):
    """It waits longer if nobody answers. So a question to all of them ends before an earlier one to this one alone."""
    c = cluster(metas=3, mounts=0)
    name = others(c.serving())[0]
    hung, alive = ("%s:%d" % c.addresses(n)[0] for n in (name, c.serving()))
    key = os.path.join(c.dir, "etc", "node.key")
    told = []

    def ends_first():
        alone = subprocess.Popen([os.path.join(BIN, "rozo"), "meta", "status", "--exportd", hung, "--key", key],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        c.metas(alive)  # so that the other question is under way
        told[:] = [c.admin("meta", "status").stdout]
        is_first = alone.poll() is None
        alone.kill()
        alone.wait()
        return is_first

    c.kill(name, signal.SIGSTOP)
    try:
        wait_for(ends_first, "a status that does not wait")
        assert "%s: it does not answer" % hung in told[0]
        assert "member %d (" % (NAMES.index(name) + 1) in told[0]
    finally:
        c.kill(name, signal.SIGCONT)


def test_a_restart_of_all_loses_nothing(cluster):
    c = cluster(metas=3, mounts=0)
    c.admin("volume", "create", "kept")
    before = c.status()
    term = member(c, c.serving())["term"]
    c.down()
    c.up()
    after = c.status()
    assert after["cluster_id"] == before["cluster_id"] and [e["name"] for e in after["exports"]] == ["main"]
    assert "kept" in volumes(c)
    assert member(c, c.serving())["term"] > term
    for name in NAMES:
        c.kill(name)
    c.up()
    assert "kept" in volumes(c)


def test_a_follower_that_was_away_catches_up(cluster):
    c = cluster(metas=3, mounts=0)
    away = others(c.serving())[0]
    c.kill(away)
    for i in range(20):
        c.admin("volume", "create", "v%d" % i)
    c.restart(away)
    wait_for(lambda: have_the_same(c), "%s to catch up" % away)
    c.admin("meta", "transfer", NAMES.index(away) + 1)
    assert len(volumes(c)) == 21


LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

/* The main thread hangs while there is a file of its pid. */
int epoll_pwait(int fd, struct epoll_event *events, int n, int timeout, const sigset_t *mask)
{
    int (*real)(int, struct epoll_event *, int, int, const sigset_t *) =
        (int (*)(int, struct epoll_event *, int, int, const sigset_t *))dlsym(RTLD_NEXT, "epoll_pwait");
    char path[256];

    snprintf(path, sizeof(path), "%s/%d", getenv("HANG_IN"), (int)getpid());
    while (gettid() == getpid() && access(path, F_OK) == 0)
        usleep(10000);
    return real(fd, events, n, timeout, mask);
}

int epoll_wait(int fd, struct epoll_event *events, int n, int timeout)
{
    return epoll_pwait(fd, events, n, timeout, NULL);
}
"""


def test_a_leader_whose_core_hangs_hands_over(cluster, scratch, monkeypatch):
    """Its member goes on sending heartbeats, so the others would wait for ever."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    with open(scratch + "/hang.c", "w") as f:
        f.write(LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", scratch + "/hang.so", scratch + "/hang.c", "-ldl"], check=True)
    monkeypatch.setenv("HANG_IN", scratch)
    monkeypatch.setenv("ASAN_OPTIONS", os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0")
    monkeypatch.setenv("LD_PRELOAD", scratch + "/hang.so")
    c = cluster(metas=3, mounts=0)
    name = c.serving()
    hang = os.path.join(scratch, str(c.pid(name)))
    open(hang, "w").close()
    wait_for(lambda: "another member takes over" in c.log(name), "%s to hand over" % name)
    wait_for_another(c, name)  # one whose core went on could be elected again
    os.unlink(hang)
    wait_for(lambda: member(c, name)["role"] == "follower", "%s to follow" % name)
