"""Configs and data directories of members that do not go together: each is refused with what to do."""
import contextlib
import os
import shutil
import subprocess
import uuid

import pytest

from conftest import BIN, wait_for
from daemons import Daemon, can_connect
from ports import free_port


class Members:
    """Three exportds with configs of their own, which nobody has begun."""

    def __init__(self, folder):
        self.daemons, self.ports = [], [free_port() for _ in range(3)]
        for i in range(3):
            own = os.path.join(folder, str(i + 1))
            os.mkdir(own)
            self.daemons.append(Daemon(own, "exportd"))
        for d in self.daemons[1:]:
            for key in ("node.key", "client.key"):
                shutil.copy(os.path.join(self.daemons[0].folder, key), d.folder)

    def quorum(self, i, number=None, members=None, listen=None):
        listed = members or [(j + 1, "127.0.0.1:%d" % p) for j, p in enumerate(self.ports)]
        return ("quorum:\n  id: %d\n  listen: ['127.0.0.1:%d']\n  members:\n" % (number or i + 1, self.ports[i]) +
                "\n".join("    - {id: %s, address: '%s'}" % m for m in listed))

    def config(self, i, **change):
        return self.daemons[i].config(quorum=self.quorum(i, **change))

    def begin(self, i, birth, text=None):
        """Runs --begin-quorum. Returns (exit status, its output)."""
        path = os.path.join(self.daemons[i].folder, "exportd.yaml")
        with open(path, "w") as f:
            f.write(text or self.config(i))
        r = subprocess.run([os.path.join(BIN, "exportd"), "--config", path, "--begin-quorum", str(birth)],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        return r.returncode, r.stdout

    def begin_all(self):
        birth = uuid.uuid4()
        for i in range(3):
            status, said = self.begin(i, birth)
            assert status == 0, said
        return birth

    def refused(self, i, text=None):
        """Starts a member that must not start. Returns what it said."""
        status, said = self.daemons[i].run(text or self.config(i))
        assert status == 1, said
        return said


@pytest.fixture
def members(scratch):
    return Members(scratch)


A, B = "127.0.0.1:1111", "127.0.0.1:2222"


@pytest.mark.parametrize("listed, number, words", [
    ([(1, A), (2, B), (3, "127.0.0.1:3333")], 4, "4 is none of the members"),
    ([(1, A), (2, B), (2, "127.0.0.1:3333")], 1, "two have the id 2"),
    ([(1, A), (2, B), (3, A)], 1, "1 and 3 have the same address"),
    ([(1, A), (2, B)], 1, "name an odd number"),
    ([(1, A), (0, B), (3, "127.0.0.1:3333")], 1, "an id is 1 or more"),
    ([(1, A), (2, "machine"), (3, "127.0.0.1:3333")], 1, "is no HOST:PORT"),
    ([(1, A), (2, "machine:0"), (3, "127.0.0.1:3333")], 1, "is no HOST:PORT"),
    ([(1, A), (2, "machine:80x"), (3, "127.0.0.1:3333")], 1, "is no HOST:PORT"),
    ([(1, A), (2, "ma chine:80"), (3, "127.0.0.1:3333")], 1, "is no HOST:PORT"),
    ([(1, A), (2, "0.0.0.0:80"), (3, "127.0.0.1:3333")], 1, "is no HOST:PORT"),
    ([("x", A)], 1, "id"),
])
def test_a_section_that_makes_no_sense(members, listed, number, words):
    assert words in members.refused(0, members.config(0, number=number, members=listed))
    assert not os.path.exists(members.daemons[0].data)


@pytest.mark.parametrize("line, words", [("log_keep_mb: 63", "log_keep_mb: 64 to 1536"),
                                         ("log_keep_mb: 4096", "log_keep_mb: 64 to 1536"),
                                         ("seed_rate_mb: 100001", "seed_rate_mb: 1 to 100000")])
def test_limits_of_a_member_have_bounds(members, line, words):
    listen_only = members.daemons[0].config(quorum="quorum:\n  listen: ['127.0.0.1:%d']\n" % members.ports[0])
    for text in (members.config(0), listen_only):
        assert words in members.refused(0, text.replace("quorum:\n", "quorum:\n  %s\n" % line))


def test_witnesses_of_a_section(members):
    own, others = "{id: 1,", "{id: 2,"
    text = members.config(0)
    in_list = text.replace(own, "{witness: true, id: 1,")
    in_section = text.replace("quorum:\n", "quorum:\n  witness: true\n")
    for wrong in (in_list, in_section, in_section.replace(others, "{witness: true, id: 2,")):
        assert "or to neither" in members.refused(0, wrong)
    two = in_list.replace("quorum:\n", "quorum:\n  witness: true\n").replace(others, "{witness: true, id: 2,")
    assert "2 of 3 are witnesses" in members.refused(0, two)


def test_id_and_members_come_together(members):
    listen = "quorum:\n  listen: ['127.0.0.1:%d']\n" % members.ports[0]
    for more in ("  id: 1\n", "  members: [{id: 1, address: '127.0.0.1:%d'}]\n" % members.ports[0]):
        assert "come together" in members.refused(0, members.daemons[0].config(quorum=listen + more))
    status, said = members.begin(0, uuid.uuid4(), members.daemons[0].config(quorum=listen))
    assert status == 1 and "no section `quorum` that lists" in said


def test_a_member_that_began_needs_neither_id_nor_members(members):
    members.begin_all()
    listen = "quorum:\n  listen: ['127.0.0.1:%d']\n"
    with contextlib.ExitStack() as stack:
        for i in range(2):
            stack.enter_context(members.daemons[i].running(members.daemons[i].config(quorum=listen % members.ports[i])))


def test_a_member_without_data_does_not_begin_by_itself(members):
    said = members.refused(0)
    assert "--begin-quorum" in said and "member 1 of a quorum" in said
    for _ in range(2):  # a second start finds it as it was
        assert "--begin-quorum" in members.refused(0)


def test_begin_quorum_refuses_an_invalid_number(members):
    for birth in ("", "12", "x" * 32, "0" * 33):
        status, said = members.begin(0, birth)
        assert status == 1 and "32 hexadecimal digits" in said
    status, said = members.begin(0, uuid.uuid4(), members.daemons[0].config())
    assert status == 1 and "no section `quorum`" in said


def test_a_quorum_begins_once(members):
    birth = members.begin_all()
    status, said = members.begin(0, birth)  # harmless
    assert status == 0, said
    status, said = members.begin(0, uuid.uuid4())
    assert status == 1 and "another number" in said
    other = [(1, A), (2, B), (3, "127.0.0.1:3333")]
    status, said = members.begin(0, birth, members.config(0, members=other))
    assert status == 1 and "list of members" in said


def test_a_member_that_lost_its_data_does_not_begin_again(members):
    birth = members.begin_all()
    with contextlib.ExitStack() as stack:
        for i in range(2):
            stack.enter_context(members.daemons[i].running(members.config(i)))
        shutil.rmtree(members.daemons[2].data)
        status, said = members.begin(2, birth)
        assert status == 1 and "must not begin again" in said
        assert "--begin-quorum" in members.refused(2)


def test_data_of_somebody_else(members):
    members.begin_all()
    one, two = members.daemons[0].data, members.daemons[1].data
    said = members.refused(0, members.daemons[0].config(quorum=members.quorum(0), data="  data: " + two))
    assert "belongs to member 2" in said and "id: 1" in said
    assert "no section `quorum`" in members.refused(0, members.daemons[0].config())
    shutil.rmtree(os.path.join(one, "quorum"))
    assert "quorum/identity is missing" in members.refused(0)
    with open(os.path.join(two, "quorum", "identity"), "a") as f:
        f.write("x")
    assert "identity is damaged" in members.refused(1)


def test_data_of_an_exportd_without_a_quorum(members):
    d = members.daemons[0]
    with d.running():
        pass
    assert "an exportd without a quorum" in members.refused(0)
    status, said = members.begin(0, uuid.uuid4())
    assert status == 1 and "an exportd without a quorum" in said
    with d.running():  # as before
        pass


def test_members_that_began_differently_do_not_speak_to_each_other(members):
    """Two quorums that were made of one config: no member counts the votes of the other one."""
    for i in range(2):
        status, said = members.begin(i, uuid.uuid4())
        assert status == 0, said
    with members.daemons[0].running(members.config(0)), members.daemons[1].running(members.config(1)):
        for d in members.daemons[:2]:
            with open(os.path.join(d.folder, "log")) as log:
                wait_for(lambda: "cluster" in log.read(), "%s to say why" % d.folder)
    for d in members.daemons[:2]:
        with open(os.path.join(d.folder, "log")) as log:
            assert "leads" not in log.read()


def test_addresses_that_were_mixed_up(members):
    """Each member is told to reach the others where somebody else listens."""
    members.ports.append(members.ports.pop(0))  # from here on the list, but each listens where it should
    listens = [members.ports[2], members.ports[0], members.ports[1]]
    texts = [members.config(i).replace("listen: ['127.0.0.1:%d']" % members.ports[i],
                                       "listen: ['127.0.0.1:%d']" % listens[i]) for i in range(3)]
    birth = uuid.uuid4()
    for i in range(3):
        status, said = members.begin(i, birth, texts[i])
        assert status == 0, said
    with contextlib.ExitStack() as stack:
        for d, text in zip(members.daemons, texts):
            stack.enter_context(d.running(text))
        for d in members.daemons:
            with open(os.path.join(d.folder, "log")) as log:
                wait_for(lambda: "it has another id" in log.read(), "%s to say why" % d.folder)


def test_a_port_that_is_taken(members):
    members.begin_all()
    with members.daemons[0].running(members.config(0)):
        assert can_connect(members.ports[0])
        taken = members.daemons[1].config(quorum=members.quorum(1).replace(
            "listen: ['127.0.0.1:%d']" % members.ports[1], "listen: ['127.0.0.1:%d']" % members.ports[0]))
        said = members.refused(1, taken)
        assert "quorum" in said and str(members.ports[0]) in said
