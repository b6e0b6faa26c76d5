"""Dumps of the metadata of a busy cluster, data directories made from them, and a member that goes on alone."""
import contextlib
import json
import multiprocessing
import os
import pty
import shutil
import subprocess
import tempfile

import pytest

from conftest import BIN, cannot_mount, pattern, process_runs, wait_for

NAMES = ["exportd-1", "exportd-2", "exportd-3"]
FILE_BYTES = 60000

needs_mounts = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())


def exportd(c, name, *args):
    """Runs a command of exportd for a data directory. Returns (exit status, its output)."""
    path = os.path.join(c.dir, "etc", name + ".yaml")
    r = subprocess.run([os.path.join(BIN, "exportd"), "--config", path, *args], stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    return r.returncode, r.stdout


def load(c, name, path):
    return exportd(c, name, "--load", path)


def dump(c, path):
    return json.loads(c.admin("meta", "dump", path, "--json").stdout)


def leads(c):
    """Returns the addresses of members that lead by their own account, with their terms."""
    return {m["address"]: m["term"] for m in c.metas()["members"] if m["answers"] and m["leads"]}


def set_aside(c, name):
    """Takes the data directory of an exportd away."""
    n = len([f for f in os.listdir(c.base) if f.startswith("aside")])
    shutil.move(c.data(name), os.path.join(c.base, "aside-%d" % n))


def fsck(c):
    return json.loads(c.admin("fsck", "--json", check=False).stdout)


def volumes(c):
    return {v["name"] for v in json.loads(c.admin("volume", "list", "--json").stdout)}


def leases_shorten(c):
    """Mounts of which a dump knows, and which are gone, are waited for so long."""
    for name in c.names("exportd"):
        path = os.path.join(c.dir, "etc", name + ".yaml")
        with open(path) as f:
            text = f.read()
        with open(path, "w") as f:
            f.write(text.replace("exportd:\n", "exportd:\n  lease_s: 3\n", 1))
    c.restart(*c.names("exportd"))
    c.remount()


class Writer:
    """Makes files, one after the other; `done` are those whose fsync has returned. It is a process of its own: a
    program that is started while exportd is down would wait at the files that its parent has open on the mount."""

    def __init__(self, mnt, name):
        fork = multiprocessing.get_context("fork")
        self.folder = os.path.join(mnt, name)
        os.mkdir(self.folder)
        self.n_done, self.ends = fork.Value("i", 0), fork.Event()
        self.process = fork.Process(target=self.run, daemon=True)
        self.process.start()

    @property
    def done(self):
        return ["%d" % i for i in range(self.n_done.value)]

    def run(self):
        while not self.ends.is_set():
            name = "%d" % self.n_done.value
            with open(os.path.join(self.folder, name), "wb") as f:
                f.write(pattern(name, FILE_BYTES))
                os.fsync(f.fileno())
            self.n_done.value += 1

    def end(self):
        self.ends.set()
        self.process.join()
        assert self.process.exitcode == 0

    def check(self, names):
        for name in names:
            with open(os.path.join(self.folder, name), "rb") as f:
                assert f.read() == pattern(name, FILE_BYTES), name


def make_anew(c, name, path):
    """Kills all exportds and starts one from a dump."""
    for n in c.names("exportd"):
        if process_runs(c.pid(n)):
            c.kill(n)
    set_aside(c, name)
    status, said = load(c, name, path)
    assert status == 0, said
    c.restart(name)


@needs_mounts
def test_a_dump_of_a_busy_quorum_becomes_a_quorum_of_one(cluster):
    c = cluster(metas=3)
    leases_shorten(c)
    busy, still = os.path.join(c.base, "busy"), os.path.join(c.base, "still")
    w = Writer(c.mnt, "w")
    wait_for(lambda: len(w.done) >= 10, "some files")
    before = list(w.done)
    at_first = leads(c)
    told = dump(c, busy)
    assert told["keys"] > len(before) and told["entry"] > 0
    assert told["address"] not in at_first or leads(c) != at_first
    assert os.stat(busy).st_mode & 0o777 == 0o600 and os.path.getsize(busy) == told["bytes"]
    w.end()
    files = list(w.done)
    dump(c, still)

    make_anew(c, "exportd-1", still)
    wait_for(lambda: c.serving() == "exportd-1", "the loaded one to serve")
    c.remount()
    w.check(files)
    assert sorted(os.listdir(w.folder)) == sorted(files)
    wait_for(lambda: fsck(c)["clean"], "fsck to find nothing")

    make_anew(c, "exportd-1", busy)
    c.remount()
    w.check(before)


@needs_mounts
def test_a_dump_of_a_single_exportd(cluster):
    c = cluster()
    leases_shorten(c)
    path = os.path.join(c.base, "dump")
    w = Writer(c.mnt, "w")
    wait_for(lambda: len(w.done) >= 5, "some files")
    before = list(w.done)
    assert dump(c, path)["entry"] is None
    w.end()
    make_anew(c, "exportd", path)
    c.remount()
    w.check(before)
    with open(os.path.join(w.folder, "0"), "r+b") as f:  # storages take what a file written before becomes
        f.write(pattern("later", FILE_BYTES))
        os.fsync(f.fileno())
    c.remount()
    with open(os.path.join(w.folder, "0"), "rb") as f:
        assert f.read() == pattern("later", FILE_BYTES)


def test_a_dump_that_is_not_whole_is_refused(cluster):
    c = cluster(metas=3, mounts=0)
    path, bad, name = os.path.join(c.base, "dump"), os.path.join(c.base, "bad"), "exportd-1"
    c.admin("volume", "create", "kept")
    with open(path, "wb") as f:
        f.write(b"older")
    dump(c, path)
    assert not os.path.exists(path + ".part")
    os.mkfifo(bad)  # as a device would be: it must not be replaced by a file
    r = c.admin("meta", "dump", bad, check=False)
    assert r.returncode == 1 and "no file" in r.stderr and not os.path.isfile(bad)
    os.unlink(bad)
    with open(path, "rb") as f:
        good = f.read()
    status, said = load(c, name, path)
    assert status == 1 and "is the data directory of an exportd" in said
    c.kill(name)
    set_aside(c, name)

    def refused(data, words):
        with open(bad, "wb") as f:
            f.write(data)
        status, said = load(c, name, bad)
        assert status == 1 and words in said, said
        assert not os.path.exists(os.path.join(c.data(name), "kv"))

    refused(b"", "is not a file of `rozo meta dump`")
    refused(b"x" * 500, "is not a file of `rozo meta dump`")
    refused(good[:-1], "the dump is not complete")
    refused(good[:-32], "the dump is not complete")  # all keys, without the end
    refused(good + b"\0", "is damaged")
    at = good.index(b"kept")
    refused(good[:at] + b"Kept" + good[at + 4:], "is damaged")
    refused(good[:40] + bytes([good[40] ^ 1]) + good[41:], "is damaged")
    status, said = load(c, name, os.path.join(c.base, "nothing"))
    assert status == 1 and "No such file" in said
    status, said = load(c, name, path)
    assert status == 0, said
    status, said = load(c, name, path)
    assert status == 1 and "is the data directory of an exportd" in said


def test_a_load_that_was_interrupted_is_repeated(cluster):
    c = cluster(metas=3, mounts=0)
    path, name = os.path.join(c.base, "dump"), "exportd-1"
    c.admin("volume", "create", "kept")
    dump(c, path)
    for n in NAMES:
        c.kill(n)
    set_aside(c, name)
    os.makedirs(os.path.join(c.data(name), "kv.load"), mode=0o700)
    with open(os.path.join(c.data(name), "kv.load", "000003.log"), "wb") as f:
        f.write(b"torn")
    status, said = exportd(c, name)
    assert status == 1 and "a load was interrupted" in said
    os.mkdir(os.path.join(c.data(name), "kv"))  # another one was, later
    status, said = load(c, name, path)
    assert status == 1 and "remove %s/kv" % c.data(name) in said
    os.rmdir(os.path.join(c.data(name), "kv"))
    status, said = load(c, name, path)
    assert status == 0, said
    c.restart(name)
    assert c.serving() == name and "kept" in volumes(c)


@needs_mounts
def test_a_survivor_goes_on_alone(cluster):
    c = cluster(metas=3)
    w = Writer(c.mnt, "w")
    wait_for(lambda: len(w.done) >= 5, "some files")
    survivor = [n for n in NAMES if n != c.serving()][0]
    gone = [n for n in NAMES if n != survivor]
    w.end()
    files = list(w.done)
    wait_for(lambda: len({m["applied"] for m in c.metas()["members"]}) == 1, "all to have the same")
    c.kill(gone[0])
    status, said = exportd(c, survivor, "--force-alone", "--yes")
    assert status == 1 and "in use by another exportd" in said
    c.kill(survivor)
    status, said = exportd(c, survivor, "--force-alone", "--yes")
    assert status == 1 and "runs: it may have what this one lacks" in said
    c.kill(gone[1])
    status, said = exportd(c, survivor, "--force-alone")
    assert status == 1 and "this needs --yes" in said
    status, said = exportd(c, survivor, "--force-alone", "--yes")
    assert status == 0, said
    assert "its newest change was made at" in said and "s ago" in said
    c.restart(survivor)
    assert c.serving() == survivor
    w.check(files)  # the mount goes on
    again = Writer(c.mnt, "again")
    wait_for(lambda: len(again.done) >= 3, "files made with one member")

    term = c.metas()["members"][NAMES.index(survivor)]["term"]
    for n in gone:
        exportd_starts(c, n)
    for n in gone:
        wait_for(lambda n=n: "went on without this one" in c.log(n), "%s to hear that it is no member" % n)
        wait_for(lambda n=n: not process_runs(c.pid(n)), "%s to end" % n)
    again.end()
    again.check(again.done)
    told = c.metas()
    assert told["serving"] == NAMES.index(survivor) + 1
    assert told["members"][NAMES.index(survivor)]["term"] == term
    wait_for(lambda: fsck(c)["clean"], "fsck to find nothing")


@contextlib.contextmanager
def asked_to_go_alone(c, name):
    """Runs --force-alone on a terminal up to its question. Yields the process, a function that answers, and what it
    said."""
    path = os.path.join(c.dir, "etc", name + ".yaml")
    terminal, end = pty.openpty()
    said = tempfile.TemporaryFile("w+")
    p = subprocess.Popen([os.path.join(BIN, "exportd"), "--config", path, "--force-alone"], stdin=end, stdout=said,
                         stderr=said)

    def so_far():
        said.seek(0)
        return said.read()

    try:
        wait_for(lambda: "Type `alone`" in so_far() or p.poll() is not None, "the question")
        assert "Type `alone`" in so_far(), so_far()
        yield p, lambda text: os.write(terminal, text.encode() + b"\n"), so_far
    finally:
        p.kill()
        p.wait()
        os.close(terminal)
        os.close(end)
        said.close()


def test_members_that_wait_for_the_others_hear_that_one_went_on(cluster):
    """They ask for what they lack, and for nothing else: whoever has no part in the quorum any more must not be there
    when another one of its kind comes back."""
    c = cluster(metas=3, mounts=0)
    survivor = c.serving()
    waits = next(n for n in NAMES if n != survivor)
    at = NAMES.index(waits)
    wait_for(lambda: len({m["applied"] for m in c.metas()["members"]}) == 1, "all to have the same")
    for n in NAMES:
        c.kill(n)
    os.remove(os.path.join(c.dir, "data", waits, "quorum", "vote"))
    exportd_starts(c, waits)
    wait_for(lambda: "this member has lost its vote" in c.log(waits), "it to copy")
    status, said = exportd(c, survivor, "--force-alone", "--yes")
    assert status == 1 and "runs: it may have what this one lacks" in said
    c.kill(waits)
    with asked_to_go_alone(c, survivor) as (process, answer, said):
        exportd_starts(c, waits)  # while somebody thinks about it
        wait_for(lambda: c.metas()["members"][at].get("role") == "copies", "it to wait")
        answer("alone")
        assert process.wait(60) == 1, said()
        assert "runs: it may have what this one lacks" in said()
    c.kill(waits)
    with asked_to_go_alone(c, survivor) as (process, answer, said):
        answer("alone")
        assert process.wait(60) == 0, said()
    exportd_starts(c, waits)  # before the survivor
    wait_for(lambda: c.metas()["members"][at].get("role") == "copies", "it to wait")
    c.restart(survivor)
    wait_for(lambda: c.serving() == survivor, "the survivor to serve")
    wait_for(lambda: "went on without this one" in c.log(waits), "it to hear that it is no member")
    wait_for(lambda: not process_runs(c.pid(waits)), "it to end")


def kill_with_a_tail(c, leader):
    """Kills the others of a busy leader, then it. Returns its newest entry if that was not committed, or None."""
    for n in NAMES:
        if n != leader:
            c.kill(n)
    m = c.metas()["members"][NAMES.index(leader)]
    c.kill(leader)
    return m["last"] if m["last"] > m["commit"] else None


@needs_mounts
def test_a_survivor_keeps_what_its_log_has(cluster):
    c = cluster(metas=3)
    w = Writer(c.mnt, "w")
    wait_for(lambda: len(w.done) >= 5, "some files")
    for _ in range(20):
        survivor = c.serving()
        last = kill_with_a_tail(c, survivor)
        if last is not None:
            break
        for n in NAMES:  # all that the writer had sent was committed
            c.restart(n)
    assert last is not None
    n = len(w.done)
    status, said = exportd(c, survivor, "--force-alone", "--yes")
    assert status == 0, said
    assert "is %d of term" % last in said
    status, said = exportd(c, survivor, "--force-alone", "--yes")  # as after one that was interrupted
    assert status == 0 and "is %d of term" % last in said, said
    c.restart(survivor)
    wait_for(lambda: len(w.done) > n, "the writer to go on")
    w.end()
    w.check(w.done)
    assert sorted(os.listdir(w.folder)) == sorted(w.done)
    assert c.serving() == survivor


def exportd_starts(c, name):
    """Starts an exportd that may end by itself soon."""
    with open(os.path.join(c.dir, "log", name + ".log"), "a") as log:
        p = subprocess.Popen([os.path.join(BIN, "exportd"), "--config", os.path.join(c.dir, "etc", name + ".yaml")],
                             stdout=log, stderr=log)
    with open(os.path.join(c.dir, "run", name + ".pid"), "w") as f:
        f.write("%d\n" % p.pid)
