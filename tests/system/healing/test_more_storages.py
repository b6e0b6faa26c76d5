"""Files with too few storages, or with lost storages, get others automatically."""
import json
import os
import shutil
import threading

import pytest

from conftest import N, STORAGES, pattern
from daemons import start_by_hand
from files import load, store

SIZE = 300 << 10


class More:
    """Storages beside those of `rozo dev`, in the same cluster."""

    def __init__(self, c, n_first):
        self.c, self.n_first, self.running = c, n_first, []

    def add(self):
        c, last, n = self.c, "storaged-%d" % self.n_first, len(self.running) + 1
        with open(os.path.join(c.dir, "etc", last + ".yaml")) as f:
            text = f.read()
        host, port = c.addresses(last)[0]
        name = "more-%d" % n
        text = text.replace(c.data(last), c.data(name)).replace(":%d" % port, ":%d" % (port + 20 + n))
        path = os.path.join(c.dir, "etc", name + ".yaml")
        with open(path, "w") as f:
            f.write(text)
        self.running.append(start_by_hand(c, path, name))
        c.admin("storage", "add", "%s:%d" % (host, port + 20 + n))

    def end(self):
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def more(cluster):
    made = []

    def make(c, n_first):
        made.append(More(c, n_first))
        return made[-1]
    yield make
    for m in made:
        m.end()


def candidates(path):
    return [s["id"] for s in json.loads(os.getxattr(path, "rozo.locate"))["storages"]]


def wait_until_all_have_theirs(c):
    c.wait_for(lambda: [e["files_few"] for e in c.status()["exports"]] == [0] * len(c.status()["exports"]),
               "all files to have their storages", timeout=90)


@pytest.mark.parametrize("layout", [0, 1])
def test_files_get_the_storages_that_their_volume_gets(cluster, more, layout):
    c = cluster(layout=layout, storages=N[layout], mounts=2)
    names = [os.path.join(c.mnt, "f%d" % i) for i in range(6)]
    for i, name in enumerate(names):
        store(name, pattern(i, SIZE))
    open(os.path.join(c.mnt, "empty"), "w").close()
    held = os.open(names[0], os.O_RDWR)  # open all the time, on one mount
    seen = os.open(os.path.join(c.mnts[1], "f1"), os.O_RDONLY)  # and on the other
    assert os.pread(seen, SIZE, 0) == pattern(1, SIZE)
    before = candidates(names[0])
    assert len(before) == N[layout]
    m = more(c, N[layout])
    for _ in range(STORAGES[layout] - N[layout]):
        m.add()
    wait_until_all_have_theirs(c)
    for name in names + [os.path.join(c.mnt, "empty")]:
        assert len(set(candidates(name))) == STORAGES[layout]
    assert candidates(names[0])[:N[layout]] == before
    assert json.loads(c.admin("fsck", "--json").stdout)["few_candidates"] == []
    # enough for an overwrite with one storage down
    c.kill("storaged-1")
    os.pwrite(held, pattern(100, SIZE), 0)
    os.fsync(held)
    for i, name in enumerate(names[1:], 1):
        store(name, pattern(100 + i, SIZE))
    assert os.pread(seen, SIZE, 0) == pattern(101, SIZE)
    for i in range(len(names)):
        with open(os.path.join(c.mnts[1], "f%d" % i), "rb") as f:
            assert f.read() == pattern(100 + i, SIZE)
    os.close(held)
    os.close(seen)


def test_files_of_a_lost_storage_get_another(cluster, more):
    c = cluster(layout=0, storages=4)
    names = [os.path.join(c.mnt, "f%d" % i) for i in range(8)]
    for i, name in enumerate(names):
        store(name, pattern(i, SIZE))
    number = c.number_of("storaged-2")
    places = [candidates(name).index(number) for name in names]
    c.kill("storaged-2")
    c.wait_for(lambda: not [s for s in c.status()["storages"] if s["id"] == number][0]["up"], "exportd to notice")
    c.admin("storage", "lost", number)
    more(c, 4).add()
    wait_until_all_have_theirs(c)
    new = max(s["id"] for s in c.status()["storages"])
    for name, place in zip(names, places):
        assert candidates(name)[place] == new and number not in candidates(name)
    # one more is down: the new one has the data of the lost one
    c.kill("storaged-1")
    c.remount()
    for i, name in enumerate(names):
        with open(name, "rb") as f:
            assert f.read() == pattern(i, SIZE)
        store(name, pattern(200 + i, SIZE))


def test_programs_go_on_while_their_files_get_more_storages(cluster, more):
    c = cluster(layout=0, storages=3, mounts=2)
    paths = [[os.path.join(mnt, "f%d" % i) for i in range(4)] for mnt in c.mnts]
    for i, path in enumerate(paths[0]):
        store(path, pattern(i, SIZE))
    wrong, stop = [], threading.Event()

    def write(number):
        n = 0
        try:
            while not stop.is_set():
                i = n % 2 + 2 * number  # each mount has two files of its own to write
                store(paths[number][i], pattern(1000 * (n + 1) + i, SIZE))
                if load(paths[number][i], 4096) != pattern(1000 * (n + 1) + i, 4096):
                    wrong.append("%s has other bytes" % paths[number][i])
                with open(paths[1 - number][i], "rb") as f:
                    f.read()
                n += 1
        except OSError as e:
            wrong.append(repr(e))

    threads = [threading.Thread(target=write, args=(n,)) for n in (0, 1)]
    for t in threads:
        t.start()
    try:
        more(c, 3).add()
        wait_until_all_have_theirs(c)
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert not wrong
    assert all(len(candidates(path)) == 4 for path in paths[0])


def test_files_are_read_after_a_restore_of_older_metadata(cluster, more):
    """Goal: exportd's data come from a backup that does not know of a change; storages do."""
    c = cluster(layout=0, storages=3)
    name = os.path.join(c.mnt, "f")
    store(name, pattern(1, SIZE))
    c.kill("exportd", 15)
    backup = c.dir + "/backup"
    shutil.copytree(c.data("exportd"), backup)
    c.restart("exportd")
    m = more(c, 3)
    m.add()
    address = [a for s in c.status()["storages"] if s["id"] == 4 for a in s["addresses"]]
    wait_until_all_have_theirs(c)
    *homes, last = candidates(name)
    assert len(homes) == 3 and last == 4
    c.kill("exportd")
    shutil.rmtree(c.data("exportd"))
    shutil.copytree(backup, c.data("exportd"))
    c.restart("exportd")
    c.remount()
    homes = ", ".join(str(s) for s in homes)
    moved = "main: f: is on storages %s, 4 by now; exportd's data say %s\n" % (homes, homes)
    c.wait_for(lambda: moved in c.admin("fsck", check=False).stdout, "fsck to name the file")
    assert "storage 4: exportd does not know it" in c.admin("fsck", check=False).stdout
    c.admin("storage", "add", *address)
    with open(name, "rb") as f:
        assert f.read() == pattern(1, SIZE)
    assert json.loads(c.admin("fsck", "--json").stdout)["moved"] == []
    store(name, pattern(2, SIZE))
    assert candidates(name)[3] == 4
