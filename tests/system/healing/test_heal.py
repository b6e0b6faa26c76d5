"""Missed, lost and rotten data is healed automatically, at no more cost than necessary.

The tests count the bytes of bodies that healing read and wrote (`rozo rebuild status`). A storage that missed b bytes
of its projections needs k rows of as many to recompute them, and writes b: at most COST_MAX times that.
"""
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import uuid

import pytest

from conftest import K, ROZO, all_up, lose_disk, pattern, slow_healing, wait_for
from mounts import alone

MIB = 1 << 20
COST_MAX = 1.2
HEAD_PAGE = 4096  # the first page of a projection file; extents of records follow


def write(path, data, at=0, flags=os.O_CREAT):
    fd = os.open(path, os.O_WRONLY | flags, 0o644)
    try:
        for off in range(0, len(data), MIB):
            assert os.pwrite(fd, data[off:off + MIB], at + off) == len(data[off:off + MIB])
        os.fsync(fd)
    finally:
        os.close(fd)


def read(path):
    """Reads without any cache."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return b"".join(iter(Reader(fd)))
    finally:
        os.close(fd)


class Reader:
    def __init__(self, fd):
        self.fd, self.at = fd, 0

    def __iter__(self):
        while True:
            data = os.pread(self.fd, MIB, self.at)
            if not data:
                return
            self.at += len(data)
            yield data


def home_of(c, path, place=0):
    """Returns the name of the home of projection `place` of a file, and its projection file."""
    number = c.locate(path)["storages"][place]["id"]
    name = [n for n in c.names("storaged") if c.number_of(n) == number][0]
    return name, number


def back(c, name, path):
    c.restart(name)
    c.wait_for(lambda: all_up(c, path), "%s to be reached again" % name)
    c.wait_healed()


def right_without_each(c, files):
    """Checks that the files hold these bytes whichever storage is down; files: path -> bytes."""
    for name in c.names("storaged"):
        c.kill(name)
        for path, data in files.items():
            assert read(path) == data, "%s without %s" % (os.path.basename(path), name)
        c.restart(name)
        c.wait_for(lambda: all_up(c, next(iter(files))), "%s to be reached again" % name)


def moved(c, before=None):
    """Returns (bytes read, bytes written) by healing on all storages, since `before`."""
    now = {n: (h["heal_read_bytes"], h["heal_written_bytes"]) for n, h in c.health().items()}
    # the counters of a restarted storage begin at 0
    return now, tuple(sum(b[i] - (before[n][i] if before and before[n][i] <= b[i] else 0)
                          for n, b in now.items()) for i in (0, 1))


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("kind", ["new", "overwritten"])
def test_storage_that_was_down_repairs_only_missed_writes(cluster, layout, kind):
    c = cluster(layout=layout)
    path, n_bytes = c.mnt + "/f", 16 * MIB
    kept, data = pattern(2, n_bytes), pattern(3, n_bytes)
    write(c.mnt + "/kept", kept)
    write(path, pattern(1, n_bytes) if kind == "overwritten" else b"x")
    name, _ = home_of(c, path)
    c.wait_healed()
    before, _ = moved(c)
    c.kill(name)
    write(path, data)
    back(c, name, path)
    _, (n_read, n_written) = moved(c, before)
    missed = n_bytes // K[layout]
    print("layout %d, %s: missed %d, read %.2fx, wrote %.2fx" % (
        layout, kind, missed, n_read / (missed * K[layout]), n_written / missed))
    assert missed <= n_written <= COST_MAX * missed
    assert n_read <= COST_MAX * K[layout] * missed
    right_without_each(c, {path: data, c.mnt + "/kept": kept})


def test_missed_truncate_punch_and_unlink_are_repaired(cluster):
    c = cluster()
    files = {c.mnt + "/" + n: pattern(i, 4 * MIB) for i, n in enumerate(("cut", "punched", "gone", "grown"))}
    for path, data in files.items():
        write(path, data)
    name, _ = home_of(c, c.mnt + "/cut")
    c.kill(name)
    os.truncate(c.mnt + "/cut", MIB + 5)
    files[c.mnt + "/cut"] = files[c.mnt + "/cut"][:MIB + 5]
    punch(c.mnt + "/punched", MIB, 2 * MIB)
    d = files[c.mnt + "/punched"]
    files[c.mnt + "/punched"] = d[:MIB] + bytes(2 * MIB) + d[3 * MIB:]
    os.unlink(c.mnt + "/gone")
    files.pop(c.mnt + "/gone")
    os.truncate(c.mnt + "/grown", MIB)
    os.truncate(c.mnt + "/grown", 6 * MIB)
    files[c.mnt + "/grown"] = files[c.mnt + "/grown"][:MIB] + bytes(5 * MIB)
    for path in files:
        fd = os.open(path, os.O_WRONLY)
        os.fsync(fd)
        os.close(fd)
    back(c, name, c.mnt + "/cut")
    right_without_each(c, files)
    wait_for(lambda: fsck(c)["clean"], "fsck to find nothing")
    assert_scrub_finds_nothing(c)


def punch(path, at, n_bytes):
    subprocess.run(["fallocate", "--punch-hole", "--offset", str(at), "--length", str(n_bytes), path], check=True)


def fsck(c, *more):
    return json.loads(c.admin("fsck", "--json", *more, check=False).stdout)


def assert_scrub_finds_nothing(c):
    found = {n: r for n, r in c.scrub().items() if r["found"] != 0}
    assert not found, found


class Load:
    """A client that reads and overwrites the same files all the time, and knows their contents."""

    def __init__(self, files):
        self.files = {path: bytearray(data) for path, data in files.items()}
        self.stop, self.error, self.n = threading.Event(), None, 0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        rng = random.Random(9)
        try:
            while not self.stop.is_set():
                path = rng.choice(sorted(self.files))
                data, at = self.files[path], rng.randrange(0, len(self.files[path]) - 65536)
                new = rng.randbytes(rng.choice((100, 4096, 65536)))
                write(path, new, at, flags=0)
                data[at:at + len(new)] = new
                at = rng.randrange(0, len(data) - MIB)
                with open(path, "rb", buffering=0) as f:
                    os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    assert os.pread(f.fileno(), MIB, at) == data[at:at + MIB], "%s at %d" % (path, at)
                self.n += 1
        except (OSError, AssertionError) as e:
            self.error = e

    def end(self):
        self.stop.set()
        self.thread.join()
        assert self.error is None, self.error
        assert self.n > 0
        return {path: bytes(data) for path, data in self.files.items()}


@pytest.mark.parametrize("layout", [0, 1])
def test_a_lost_storage_is_rebuilt_while_clients_go_on(cluster, layout):
    """The storage is also killed during the rebuild, and continues at the same place."""
    c = cluster(layout=layout)
    files = {}
    for i in range(16):
        files["%s/f%d" % (c.mnt, i)] = pattern(50 + i, MIB + 65536 + i * 777)
    for path, data in files.items():
        write(path, data)
    load = Load(files)
    try:
        name, number = home_of(c, sorted(files)[0])
        slow_healing(c, name, 2)  # MiB a second: slow enough for a kill in the middle
        lose_disk(c, name)
        c.wait_for(lambda: "replace" in [s for s in c.status()["storages"] if s["id"] == number][0]["error"],
                   "exportd to see another disk")
        c.admin("storage", "replace", number)

        at = {}

        def rebuilt():
            at.update(c.health_of(number)["rebuild"])
            return at

        c.wait_for(lambda: rebuilt()["files_done"] >= 1, "a file to be rebuilt", 90)
        c.kill(name)
        assert at["state"] == "running" and at["files_done"] < at["files"], at
        slow_healing(c, name, 0)
        c.restart(name)
        c.wait_for(lambda: rebuilt()["state"] == "done", "the rebuild to end", 180)
    finally:
        files = load.end()
    c.wait_healed()
    right_without_each(c, files)
    assert fsck(c)["lacking"] == []
    assert_scrub_finds_nothing(c)


def projection_files(c, name):
    """Returns the paths of all projection files of a storage, largest first."""
    found = []
    for folder, _, names in os.walk(c.data(name)):
        found += [os.path.join(folder, n) for n in names]
    return sorted((p for p in found if "journal" not in p), key=os.path.getsize, reverse=True)


def rot(path, rng, n_places):
    """Flips bits after the first page."""
    with open(path, "r+b", buffering=0) as f:
        size = os.fstat(f.fileno()).st_size
        for _ in range(n_places):
            at = rng.randrange(HEAD_PAGE, size)
            byte = os.pread(f.fileno(), 1, at)
            os.pwrite(f.fileno(), bytes([byte[0] ^ 1 << rng.randrange(8)]), at)
        os.fsync(f.fileno())


def not_looked_at(report):
    """Tells whether the report has unchecked files: a storage that has just started may not know all others
    yet."""
    return any("cannot be looked at" in text for text in report["findings"])


@pytest.mark.parametrize("layout", [0, 1])
def test_scrub_finds_and_heals_rot(cluster, layout):
    c = cluster(layout=layout)
    path, data, rng = c.mnt + "/rotten", pattern(70, 8 * MIB), random.Random(70)
    write(path, data)
    name, number = home_of(c, path, 1)
    c.wait_for(lambda: not any(not_looked_at(r) for r in c.scrub().values()), "a scrub that can look at everything")
    c.wait_healed()  # an earlier scrub's unchecked files are not retried during the damage
    healed = c.health_of(number)["healed_records"]
    c.kill(name, signal.SIGSTOP)
    rot(projection_files(c, name)[0], rng, 20)
    c.kill(name, signal.SIGCONT)
    report = c.scrub()[number]
    assert report["found"] > 0 or not_looked_at(report), report  # otherwise it is retried until it is possible
    assert any("%016x: " % os.stat(path).st_ino in text for text in report["findings"]), report
    c.wait_healed()
    c.wait_for(lambda: c.health_of(number)["healed_records"] > healed, "the rot to be healed")
    assert_scrub_finds_nothing(c)
    right_without_each(c, {path: data})


def restart_after_power_cut(c, name):
    """Starts it as after a power cut of the machine: with another boot id."""
    boot = os.path.join(c.base, "boot_id")
    with open(boot, "w") as f:
        f.write("%s\n" % uuid.uuid4())
    script = 'mount --bind "$1" /proc/sys/kernel/random/boot_id && exec "$2" dev restart --dir "$3" "$4"'
    subprocess.run(alone(boot, "sh", "-ec", script, "sh", boot, ROZO, c.dir, name), check=True, timeout=60)


def test_data_lost_in_a_power_cut_is_found_and_repaired(cluster):
    """Two files have unsynced bytes: one has lost its end, the other all but its first page."""
    c = cluster()
    files = {c.mnt + "/" + n: pattern(i, 3 * MIB) for i, n in enumerate(("short", "gone", "well"))}
    for path, data in files.items():
        write(path, data)
    name, number = home_of(c, c.mnt + "/short")
    own = {os.path.basename(p).split(".")[0][-16:]: p for p in projection_files(c, name)}
    hit = [own["%016x" % os.stat(path).st_ino] for path in files if "%016x" % os.stat(path).st_ino in own][:2]
    c.wait_healed()
    c.kill(name)
    os.truncate(hit[0], os.path.getsize(hit[0]) // 2)
    os.truncate(hit[-1], HEAD_PAGE)
    restart_after_power_cut(c, name)
    assert "scrub: begins, of versions only" in c.log(name)
    c.wait_all_up()
    for path, data in files.items():
        assert read(path) == data, path
    c.wait_for(lambda: c.health_of(number)["scrub"]["state"] in ("done", "incomplete"),
               "the scrub after the start to end")
    c.wait_healed()
    assert c.health_of(number)["healed_records"] > 0
    assert_scrub_finds_nothing(c)
    right_without_each(c, files)
    before = c.log(name).count("of versions only")
    c.restart(name)  # a normal start
    assert c.log(name).count("of versions only") == before


def test_fsck_finds_strays_and_missing_projections(cluster):
    c = cluster()
    data = {c.mnt + "/" + n: pattern(i, MIB) for i, n in enumerate(("a", "b"))}
    for path, d in data.items():
        write(path, d)
    assert fsck(c)["clean"]
    # A file that exportd removed while a storage was restored from an older copy.
    name, number = home_of(c, c.mnt + "/a")
    c.restart(name)
    c.kill(name)
    copy = os.path.join(c.base, "copy")
    shutil.copytree(c.data(name), copy)
    c.restart(name)
    c.wait_for(lambda: all_up(c, c.mnt + "/a"), "all to be reached")
    os.unlink(c.mnt + "/a")
    c.wait_for(lambda: c.status()["trash"] == 0, "the removal to reach all")
    c.kill(name)
    restore(copy, c.data(name))
    c.restart(name)
    c.wait_all_up()
    report = fsck(c)
    assert not report["clean"]
    assert [s["storage"] for s in report["strays"]] == [number], report
    assert fsck(c, "--repair")["removed"] >= 1
    c.wait_for(lambda: fsck(c)["clean"], "nothing to be left")
    # A missing one is reported by its path, and rebuilt.
    name, number = home_of(c, c.mnt + "/b")
    c.kill(name)
    os.unlink(projection_files(c, name)[0])
    c.restart(name)
    c.wait_all_up()
    lacking = fsck(c)["lacking"]
    assert [(f["path"], f["missing_on"]) for f in lacking] == [("b", [number])], lacking
    fsck(c, "--repair")
    c.wait_for(lambda: fsck(c)["clean"], "it to be made again", 60)
    right_without_each(c, {c.mnt + "/b": data[c.mnt + "/b"]})


def restore(copy, data):
    """Restores projection files only: the storage keeps its identity."""
    for folder, _, names in os.walk(copy):
        for n in names:
            there = os.path.join(data, os.path.relpath(folder, copy), n)
            if not os.path.exists(there) and "journal" not in there and "ledger" not in there:
                os.makedirs(os.path.dirname(there), exist_ok=True)
                shutil.copy2(os.path.join(folder, n), there)
