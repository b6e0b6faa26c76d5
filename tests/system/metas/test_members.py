"""Members of a quorum come and go: added, removed, replaced, by number and address, while clients work."""
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import uuid

import pytest

from conftest import BIN, cannot_mount, process_runs, rozo, wait_for
from daemons import Daemon, can_connect, free_port

ADDED_S = 60


class Exportd:
    """An exportd with an empty data directory and a section `quorum` with `listen` only."""

    def __init__(self, folder, keys):
        self.folder = folder
        os.mkdir(folder)
        for name in ("node.key", "client.key"):
            shutil.copy(os.path.join(keys, name), folder)
        self.daemon = Daemon(folder, "exportd")
        self.quorum_port, self.process = free_port(), None
        self.client, self.address = ("127.0.0.1:%d" % p for p in (self.daemon.port, self.quorum_port))

    def config(self, more=""):
        return self.daemon.config(quorum="quorum:\n  listen: ['%s']\n%s" % (self.address, more))

    def write_config(self, more=""):
        path = os.path.join(self.folder, "exportd.yaml")
        with open(path, "w") as f:
            f.write(self.config(more))
        return path

    def start(self, more=""):
        path = self.write_config(more)
        with open(os.path.join(self.folder, "log"), "a") as log:
            self.process = subprocess.Popen([os.path.join(BIN, "exportd"), "--config", path], stdout=log, stderr=log)
        wait_for(lambda: can_connect(self.daemon.port), "an exportd to listen")

    def begin(self):
        """Makes it the only member of a new quorum."""
        more = "  id: 1\n  members: [{id: 1, address: '%s'}]\n" % self.address
        path = self.write_config(more)
        subprocess.run([os.path.join(BIN, "exportd"), "--config", path, "--begin-quorum", str(uuid.uuid4())],
                       check=True, capture_output=True, timeout=60)
        self.start(more)

    def kill(self, sig=signal.SIGKILL):
        self.process.send_signal(sig)
        return self.process.wait(30)

    def empty(self):
        shutil.rmtree(self.daemon.data)

    def log(self):
        with open(os.path.join(self.folder, "log")) as f:
            return f.read()


class Group:
    """Exportds of a test, and `rozo` that asks all of them."""

    def __init__(self, folder):
        self.folder, self.exportds, self.known = folder, [], []
        self.keys = os.path.join(folder, "keys")
        os.mkdir(self.keys)
        for name in ("node.key", "client.key"):
            rozo("key", "new", os.path.join(self.keys, name))

    def new(self, is_known=True):
        e = Exportd(os.path.join(self.folder, "e%d" % (len(self.exportds) + 1)), self.keys)
        self.exportds.append(e)
        if is_known:
            self.known.append(e.client)
        return e

    def first(self):
        e = self.new()
        e.begin()
        return e

    def command(self, *args):
        return [*args, "--exportd", ",".join(self.known), "--key", os.path.join(self.keys, "node.key")]

    def rozo(self, *args, check=True):
        return rozo(*self.command(*args), check=check)

    def refused(self, *args):
        r = self.rozo(*args, check=False)
        assert r.returncode == 1, r.stdout
        return r.stderr

    def metas(self):
        return json.loads(self.rozo("meta", "status", "--json").stdout)

    def member(self, exportd):
        return self.metas()["members"][self.known.index(exportd.client)]

    def leader(self):
        """Returns the exportd that serves, as soon as one does."""
        wait_for(lambda: self.metas()["address"] is not None, "a member to serve", ADDED_S)
        address = self.metas()["address"]
        return next(e for e in self.exportds if e.client == address)

    def volumes(self):
        return {v["name"] for v in json.loads(self.rozo("volume", "list", "--json").stdout)}

    def end(self):
        for e in self.exportds:
            if e.process is not None and e.process.poll() is None:
                e.kill()


@pytest.fixture
def group(scratch):
    g = Group(scratch)
    yield g
    g.end()


def test_one_becomes_three_and_survives_the_loss_of_the_first(group):
    first = group.first()
    group.rozo("volume", "create", "before")
    for number in (2, 3):
        e = group.new()
        e.start()
        assert group.member(e)["role"] == "waits" and group.member(e)["id"] == 0
        added = group.rozo("meta", "add", e.address).stdout
        assert "member %d at %s votes now" % (number, e.address) in added
        assert ("add one more" in added) == (number == 2)
        assert group.member(e)["id"] == number
        group.rozo("volume", "create", "with-%d" % number)
    assert json.loads(group.rozo("meta", "add", e.address, "--json").stdout) == {
        "id": 3, "address": e.address, "voters": 3, "witness": False}
    assert group.leader() is first
    first.kill()
    assert group.leader() is not first
    assert group.volumes() == {"before", "with-2", "with-3"}
    first.start()
    wait_for(lambda: group.member(first)["role"] == "follower", "the first one to come back")


def test_a_member_that_lost_its_disk_is_replaced_at_its_address(group):
    group.first()
    for _ in range(2):
        e = group.new()
        e.start()
        group.rozo("meta", "add", e.address)
    group.rozo("volume", "create", "kept")
    e.kill()
    e.empty()
    e.start()
    wait_for(lambda: group.member(e)["role"] == "waits", "the emptied one to wait")
    assert "rozo meta replace" in e.log()
    added = group.rozo("meta", "replace", "3", e.address).stdout
    assert "member 4 at %s votes now" % e.address in added
    assert group.member(e)["id"] == 4
    assert "no member 3" not in group.rozo("meta", "replace", "3", e.address).stderr  # repeated
    assert "no member 9" in group.refused("meta", "replace", "9", "127.0.0.1:1")
    ids = {m["id"] for m in group.metas()["members"]}
    assert ids == {1, 2, 4} and group.metas()["silent"] == []
    group.leader().kill()
    group.leader()
    assert group.volumes() == {"kept"}


def test_a_member_does_not_take_the_place_of_another_one(group):
    """The address of a member that votes, instead of that of an exportd that waits, removes nobody; a repeated command
    does what is left."""
    first = group.first()
    for _ in range(2):
        second = group.new()
        second.start()
        group.rozo("meta", "add", second.address)
    others = group.exportds[1:]
    for e in others:
        said = group.refused("meta", "replace", "1", e.address)
        assert "votes already" in said and "`rozo meta remove 1`" in said, said
    assert "votes already" in group.refused("meta", "replace", "2", others[1].address)
    assert "no member 9" in group.refused("meta", "replace", "9", others[1].address)
    assert {m["id"] for m in group.metas()["members"]} == {1, 2, 3} and group.metas()["silent"] == []
    # Interrupted when the new one votes and the old one is still there: `add` is the first half of `replace`.
    new = group.new()
    new.start()
    group.rozo("meta", "add", new.address)
    assert "votes already" in group.refused("meta", "replace", "1", others[1].address)
    assert "member 4 at" in group.rozo("meta", "replace", "1", new.address).stdout
    wait_for(lambda: group.member(first)["role"] == "removed", "the first one to notice")
    assert "member 4 at" in group.rozo("meta", "replace", "1", new.address).stdout  # all was done
    assert "votes already" in group.refused("meta", "replace", "2", new.address)
    assert {m["id"] for m in group.metas()["members"] if m["role"] != "removed"} == {2, 3, 4}


def test_a_witness_is_added_and_removed(group):
    group.first()
    second, w = group.new(), group.new()
    second.start()
    w.start("  witness: true\n")
    said = group.refused("meta", "add", w.address, "--witness")
    assert "are no group" in said and "loss of either stops everything" in said, said
    assert group.member(w)["role"] == "waits"
    group.rozo("meta", "add", second.address)
    assert "add it with --witness" in group.refused("meta", "add", w.address)
    third = group.new()
    third.start()
    assert "write `witness: true`" in group.refused("meta", "add", third.address, "--witness")
    said = group.rozo("meta", "add", w.address, "--witness").stdout
    assert "votes now, as a witness" in said and "add one more" not in said
    assert group.member(w)["role"] == "witness"
    group.rozo("volume", "create", "v1")
    leader = group.leader()
    leader.kill()
    assert group.leader() is not leader
    assert group.volumes() == {"v1"}
    leader.start()
    wait_for(lambda: group.member(leader)["answers"], "the first one to be back")
    follower = next(e for e in group.exportds[:2] if e is not group.leader())
    assert "are no group" in group.refused("meta", "remove", str(group.member(follower)["id"]))
    assert "only one of" not in group.rozo("meta", "status").stdout
    # Another witness takes its place, without saying what it is.
    w.kill()
    new = group.new()
    new.start("  witness: true\n")
    group.rozo("meta", "replace", str(group.metas()["silent"][0]), new.address)
    assert group.member(new)["role"] == "witness"
    # With one machine that has metadata, a witness is of no use: who insists is told.
    follower = next(e for e in group.exportds[:2] if e is not group.leader())
    said = group.rozo("meta", "remove", str(group.member(follower)["id"]), "--force").stdout
    assert "only one of the members that vote has metadata" in said, said
    assert "only one of the members that vote has metadata" in group.rozo("meta", "status").stdout
    assert "only one of" not in group.rozo("meta", "remove", str(group.member(new)["id"])).stdout
    assert "only one of" not in group.rozo("meta", "status").stdout
    assert "v1" in group.volumes()


def test_a_leader_is_removed_and_does_not_come_back(group):
    first = group.first()
    for _ in range(3):
        e = group.new()
        e.start()
        group.rozo("meta", "add", e.address)
    assert "member 1 is removed" in group.rozo("meta", "remove", "1").stdout
    assert group.leader() is not first
    wait_for(lambda: group.member(first)["role"] == "removed", "the removed one to notice")
    term = group.member(group.leader())["term"]
    assert "has been removed: stop it" in first.log()
    assert first.kill(signal.SIGTERM) == 0
    first.start()
    wait_for(lambda: group.member(first)["role"] == "removed", "the removed one to notice again")
    assert "cannot come back" in group.refused("meta", "add", first.address)
    assert "no member 1" in group.refused("meta", "remove", "1")
    assert group.member(group.leader())["term"] == term  # nobody was disturbed
    first.kill()
    first.empty()
    first.start()
    assert "member 5 at" in group.rozo("meta", "add", first.address).stdout  # a number of its own


class Gate:
    """An address that leads to another one: for one connection, and for all once it is open."""

    def __init__(self, port):
        self.port, self.is_open, self.n = port, False, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        with contextlib.suppress(OSError):  # closed by end()
            while True:
                near, _ = self.listener.accept()
                self.n += 1
                if self.n > 1 and not self.is_open:
                    near.close()
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", self.port))
                except OSError:  # it listens anew when it has been added
                    near.close()
                    continue
                for a, b in ((near, far), (far, near)):
                    threading.Thread(target=self.copy, args=(a, b), daemon=True).start()

    @staticmethod
    def copy(a, b):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                b.sendall(data)
        for s in (a, b):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def end(self):
        self.listener.close()


@contextlib.contextmanager
def half_add(group):
    """Yields what adds a member that is in the list and does not know, that member, and its gate."""
    late = group.new()
    late.start()
    gate = Gate(late.quorum_port)
    adds = subprocess.Popen([os.path.join(BIN, "rozo"), *group.command("meta", "add", gate.address)],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(lambda: "it does not know yet" in group.rozo("meta", "status").stdout, "the list to have it")
        yield adds, late, gate
    finally:
        adds.kill()
        gate.end()


@pytest.fixture
def half_added(group):
    """Two members, and a third one as half_add() makes it."""
    group.first()
    e = group.new()
    e.start()
    group.rozo("meta", "add", e.address)
    with half_add(group) as half:
        yield half


def test_an_addition_survives_the_death_of_the_leader(group, half_added):
    adds, late, gate = half_added
    first = group.leader()
    first.kill()
    wait_for(lambda: group.metas()["address"] is None, "the leader to be gone")
    first.start("")
    group.leader()
    gate.is_open = True
    out, _ = adds.communicate(timeout=120)
    assert adds.returncode == 0 and "member 3 at" in out, out
    wait_for(lambda: group.member(late)["role"] == "follower", "it to take part")
    assert group.member(late)["id"] == 3


def test_an_interrupted_addition_goes_on(group, half_added):
    adds, late, gate = half_added
    adds.send_signal(signal.SIGINT)
    out, _ = adds.communicate(timeout=60)
    assert adds.returncode == 1 and "goes on being added" in out, out
    gate.is_open = True
    wait_for(lambda: group.member(late)["role"] == "follower", "the addition to end", ADDED_S)
    assert "member 3 at" in group.rozo("meta", "add", gate.address).stdout


def test_an_addition_that_cannot_end_is_removed(group, half_added):
    adds, late, _ = half_added
    assert "member 3 is removed" in group.rozo("meta", "remove", "3").stdout
    out, _ = adds.communicate(timeout=60)
    assert adds.returncode == 1 and "member 3 was removed meanwhile" in out, out
    assert group.member(late)["role"] == "waits"
    assert "member 4 at" in group.rozo("meta", "add", late.address).stdout


def test_data_of_a_former_member_are_refused(group):
    """Before it is in the list, and also if they come to its place afterwards, as when a disk is mounted late."""
    group.first()
    former = group.new()
    former.start()
    group.rozo("meta", "add", former.address)
    group.rozo("meta", "remove", "2")
    assert "give it an empty" in group.refused("meta", "replace", "1", former.address)
    with half_add(group) as (adds, late, gate):
        for e in (former, late):
            e.kill()
        late.empty()
        shutil.copytree(former.daemon.data, late.daemon.data)
        late.start()
        gate.is_open = True
        out, _ = adds.communicate(timeout=60)
        assert adds.returncode == 1 and "member 2, which this quorum does not have" in out, out
        assert "give it an empty data directory" in out
        late.kill()
        late.empty()
        late.start()
        assert "member 3 at" in group.rozo("meta", "add", gate.address).stdout


def test_an_address_without_a_waiting_exportd_is_refused(group):
    first = group.first()
    free = "127.0.0.1:%d" % free_port()
    assert "no exportd answers the leader at %s" % free in group.refused("meta", "add", free)
    for nowhere in ("nowhere", "0.0.0.0:%d" % free_port(), "[::]:%d" % free_port()):
        assert "no HOST:PORT" in group.refused("meta", "add", nowhere)
    assert "name an address of quorum.listen" in group.refused("meta", "add", first.client)
    os.mkdir(os.path.join(group.folder, "other"))
    other = Group(os.path.join(group.folder, "other"))
    shutil.rmtree(other.keys)
    shutil.copytree(group.keys, other.keys)
    try:
        stranger = other.first()
        assert "no exportd answers" in group.refused("meta", "add", stranger.address)
    finally:
        other.end()
    assert "only one that votes" in group.refused("meta", "remove", "1")
    assert [m["id"] for m in group.metas()["members"]] == [1]


class Writer(threading.Thread):
    """Makes directories and files in a mount, one after the other, until it is told to end."""

    def __init__(self, mnt):
        super().__init__()
        self.folder, self.n, self.ends, self.error = os.path.join(mnt, "made"), 0, False, None
        os.mkdir(self.folder)
        self.start()

    def run(self):
        try:
            while not self.ends:
                with open(os.path.join(self.folder, "%d" % self.n), "w") as f:
                    f.write(str(self.n))
                self.n += 1
        except OSError as e:
            self.error = e

    def goes_on(self):
        seen = self.n
        wait_for(lambda: self.n > seen + 3 or self.error is not None, "the mount to write", 60)
        assert self.error is None, self.error

    def end(self):
        self.ends = True
        self.join()
        assert self.error is None, self.error
        assert sorted(os.listdir(self.folder)) == sorted(str(i) for i in range(self.n))


@pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())
def test_a_mount_goes_on_when_all_members_are_replaced(cluster):
    """It knows the first three only; the others are told to it. So with `rozo`: one address is enough."""
    c = cluster(metas=3, mounts=1)
    key, folder = os.path.join(c.dir, "etc", "node.key"), os.path.join(c.dir, "more")
    os.mkdir(folder)
    with contextlib.ExitStack() as stack:
        writer = Writer(c.mnt)
        stack.callback(lambda: setattr(writer, "ends", True))
        writer.goes_on()
        old, new = [1, 2, 3], []
        old.remove(c.metas()["serving"])
        old.insert(0, c.metas()["serving"])
        for number in old:
            new.append(Exportd(os.path.join(folder, "new%d" % number), os.path.join(c.dir, "etc")))
            new[-1].start()
            stack.callback(lambda e=new[-1]: e.process.poll() is None and e.kill())
            said = c.admin("meta", "replace", number, new[-1].address).stdout  # the old ones follow at the end
            assert "member %d at" % (3 + len(new)) in said, said
            writer.goes_on()
            pid = c.pid("exportd-%d" % number)
            c.kill("exportd-%d" % number)
            wait_for(lambda: not process_runs(pid), "the removed one to end")
            writer.goes_on()
        for e in new:
            assert json.loads(rozo("status", "--json", "--exportd", e.client, "--key", key).stdout)["storages"]
            told = json.loads(rozo("meta", "status", "--json", "--exportd", e.client, "--key", key).stdout)
            assert told["address"] in [n.client for n in new]
        next(e for e in new if e.client == told["address"]).kill()
        writer.goes_on()
        writer.end()
        pid = c.pid("mount-1")
        subprocess.run(["umount", c.mnt], check=True)
        wait_for(lambda: not process_runs(pid), "the mount to end while it is answered")
