"""When changes are answered: `acknowledge: memory`, the default: a majority has written them; `disk`: synced them."""
import os
import re
import signal
import subprocess
import threading

import pytest

from conftest import BIN, cannot_mount, process_runs, wait_for

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

NAMES = ["exportd-1", "exportd-2", "exportd-3"]
MADE = 200


def acknowledge(c, when):
    for name in NAMES:
        path = os.path.join(c.dir, "etc", name + ".yaml")
        with open(path) as f:
            text = f.read()
        with open(path, "w") as f:
            f.write(text.replace("quorum:\n", "quorum:\n  acknowledge: %s\n" % when))
        c.restart(name)


def kill_all(c):
    pids = [c.pid(name) for name in NAMES]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(process_runs(pid) for pid in pids), "the end of all members")


class Maker(threading.Thread):
    """Makes directories until told to end; `made` are those that were acknowledged."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.made, self.ends, self.error = folder, [], False, None
        os.mkdir(folder)
        self.start()

    def run(self):
        try:
            while not self.ends:
                name = "%d" % len(self.made)
                os.mkdir(os.path.join(self.folder, name))
                self.made.append(name)
        except OSError as e:
            self.error = e


@pytest.mark.parametrize("when", ["memory", "disk"])
def test_processes_of_all_members_are_killed_at_once(cluster, when):
    c = cluster(metas=3, mounts=1)
    if when == "disk":
        acknowledge(c, when)
    maker = Maker(os.path.join(c.mnt, "made"))
    for _ in range(2):
        before = len(maker.made)
        wait_for(lambda: len(maker.made) >= before + MADE or maker.error, "changes")
        kill_all(c)
        made = list(maker.made)
        c.restart(*NAMES)
        wait_for(lambda: len(maker.made) > len(made) or maker.error, "changes after the kill")
        assert maker.error is None
    maker.ends = True
    maker.join()
    c.remount()
    assert sorted(os.listdir(maker.folder)) == sorted(maker.made)


def lose_power(c, name):
    """Makes the boot record unreadable: the member cannot know any more that its machine did not go down."""
    path = os.path.join(c.data(name), "quorum", "boot")
    with open(path, "r+b") as f:
        f.write(os.urandom(os.path.getsize(path)))


def are_uncertain(c):
    """Tells whether two members say that they wait for the third one."""
    members = c.metas()["members"][:2]
    return all(m["answers"] and m["role"] == "uncertain" and m["uncertain"] and m["waits_for"] == [3] for m in members)


def test_members_that_lost_power_take_part_again(cluster):
    """One gets what it may lack from the next leader. All together go on, and the next fsync tells."""
    c = cluster(metas=3, mounts=1)
    maker = Maker(os.path.join(c.mnt, "made"))
    name = c.serving()
    c.kill(name)
    lose_power(c, name)
    c.restart(name)
    wait_for(lambda: "this member has everything again" in c.log(name), "what it may lack")
    maker.ends = True
    maker.join()
    assert maker.error is None
    assert "a majority of the members lost power" not in c.log(name)
    folder = os.open(maker.folder, os.O_RDONLY)
    os.fsync(folder)
    os.mkdir(os.path.join(maker.folder, "unsynced"))
    kill_all(c)
    for n in NAMES:
        lose_power(c, n)
    c.restart(*NAMES[:2])
    wait_for(lambda: are_uncertain(c), "two members to wait for the third one")
    text = c.admin("meta", "status").stdout
    assert re.search(r"member 1 at \S+ lost power, and may lack changes", text), text
    assert re.search(r"member 3 at \S+ does not answer member 1", text), text
    assert all(re.search(r"member 3 at \S+ does not answer", c.log(n)) for n in NAMES[:2])
    c.restart(NAMES[2])
    with pytest.raises(OSError):
        os.fsync(folder)
    os.fsync(folder)
    os.close(folder)
    assert any("a majority of the members lost power" in c.log(n) for n in NAMES)
    wait_for(lambda: all(m["losses"] for m in c.metas()["members"]), "all members to have the count")
    assert "A majority of the members has lost power together" in c.admin("meta", "status").stdout
    assert sorted(os.listdir(maker.folder)) == sorted(maker.made + ["unsynced"])


def test_a_survivor_that_lost_power_goes_on_alone(cluster):
    """It asks nobody what it may lack: they are gone for ever."""
    c = cluster(metas=3, mounts=1)
    maker = Maker(os.path.join(c.mnt, "made"))
    wait_for(lambda: len(maker.made) >= MADE or maker.error, "changes")
    maker.ends = True
    maker.join()
    assert maker.error is None
    name = c.serving()
    kill_all(c)
    lose_power(c, name)
    config = os.path.join(c.dir, "etc", name + ".yaml")
    command = [os.path.join(BIN, "exportd"), "--config", config, "--force-alone", "--yes"]
    subprocess.run(command, check=True, timeout=120)
    c.restart(name)
    assert c.serving() == name
    assert "lost power" not in c.log(name)
    assert sorted(os.listdir(maker.folder)) == sorted(maker.made)
    os.mkdir(os.path.join(maker.folder, "alone"))
