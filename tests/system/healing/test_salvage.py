"""Files are restored from the data directories alone: no daemon runs, some storages are missing, overwrites were in
progress.

A cluster is filled and all of it is killed at once. Then `rozo salvage` gets directories, and its result is compared
with the writes: synced data is there byte for byte; every block that was being overwritten has one of the contents
that were written.
"""
import itertools
import json
import mmap
import os
import random
import resource
import signal
import subprocess
import threading

import pytest

from conftest import K, N, ROZO, STORAGES, rozo

BLOCK = 8192


def blocks(data):
    return [data[i:i + BLOCK] for i in range(0, len(data), BLOCK)]


def fill(c):
    """Writes some synced files; returns {inode: content}."""
    rng, files = random.Random(c.layout), {}
    for name, size in (("empty", 0), ("one", 1), ("small", 5000), ("odd", 12 * BLOCK + 77), ("big", 9_000_001)):
        data = rng.randbytes(size)
        with open(os.path.join(c.mnt, name), "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        files[os.stat(os.path.join(c.mnt, name)).st_ino] = data
    path = os.path.join(c.mnt, "sparse")
    with open(path, "wb") as f:
        f.write(b"begin")
        f.seek(50_000_000)
        f.write(b"end")
        f.flush()
        os.fsync(f.fileno())
    files[os.stat(path).st_ino] = b"begin" + bytes(50_000_000 - 5) + b"end"
    path = os.path.join(c.mnt, "cut")
    with open(path, "wb") as f:
        f.write(rng.randbytes(40 * BLOCK))
        f.flush()
        os.fsync(f.fileno())
        f.truncate(BLOCK + 10)
        os.fsync(f.fileno())
    with open(path, "rb") as f:
        files[os.stat(path).st_ino] = f.read()
    return files


def kill_all(c):
    for name in c.names("mount") + c.daemons():
        try:
            c.kill(name)
        except ProcessLookupError:
            pass
    for mnt in c.mnts:
        subprocess.run(["umount", "-l", mnt], check=False, stderr=subprocess.DEVNULL)


def data_dirs(c):
    return [c.data(name) for name in ("storaged-%d" % (i + 1) for i in range(STORAGES[c.layout]))]


def salvage(*args, expect=0):
    r = rozo("salvage", "--json", *args, check=False)
    assert r.returncode == expect, "exit %d\n%s%s" % (r.returncode, r.stdout, r.stderr)
    report = json.loads(r.stdout)
    assert report["summary"]["files"] == len(report["files"])
    return report


def restored(report, to):
    files = {}
    for f in report["files"]:
        if f["file"] is not None:
            with open(os.path.join(to, f["file"]), "rb") as file:
                files[int(f["inode"], 16)] = file.read()
    return files


@pytest.mark.parametrize("layout", [0, 1, 2])
def test_synced_files_come_back_from_fewer_directories(cluster, tmp_path, layout):
    c = cluster(layout=layout)
    files = fill(c)
    kill_all(c)
    dirs = data_dirs(c)
    lost = [(), *itertools.combinations(dirs, 1)] if layout == 0 else [(), tuple(random.Random(layout).sample(
        dirs, {1: 2, 2: 4}[layout]))]
    before = {d: tree_state(d) for d in dirs}
    for i, gone in enumerate(lost):
        to = str(tmp_path / str(i))
        report = salvage("--to", to, *[d for d in dirs if d not in gone])
        got = restored(report, to)
        for ino, data in files.items():
            if data:  # a file without blocks has no projections
                assert got[ino] == data, "inode %x, without %s" % (ino, gone)
        assert report["summary"]["missing"] == 0
    assert {d: tree_state(d) for d in dirs} == before, "salvage changed a directory"
    assert os.stat(os.path.join(to, report["files"][0]["file"])).st_mode & 0o777 == 0o600
    sparse = max(files, key=lambda ino: len(files[ino]))
    name = next(f["file"] for f in report["files"] if int(f["inode"], 16) == sparse)
    assert os.stat(os.path.join(to, name)).st_blocks * 512 < 1_000_000, "holes were written"


@pytest.mark.parametrize("layout", [0, 1])
def test_any_k_storages_of_a_file_are_enough(cluster, tmp_path, layout):
    """Salvage gets, for each file, any k of the n directories with its projections, and no other."""
    c = cluster(layout=layout)
    files = fill(c)
    c.wait_healed()
    path = os.path.join(c.mnt, "big")
    ino, where = os.stat(path).st_ino, c.locate(path)
    dirs = {c.number_of(name): c.data(name) for name in c.names("storaged")}
    homes = [dirs[s["id"]] for s in where["storages"][:N[layout]]]
    kill_all(c)
    for i, given in enumerate(itertools.combinations(homes, K[layout])):
        if layout > 0 and i % 5:  # 3 of the 15
            continue
        to = str(tmp_path / str(i))
        r = rozo("salvage", "--json", "--to", to, *given, check=False)
        report = json.loads(r.stdout)
        assert [f["whole"] for f in report["files"] if int(f["inode"], 16) == ino] == [True], report
        assert restored(report, to)[ino] == files[ino], given


def test_a_restore_that_is_killed_leaves_no_half_file_by_its_name(cluster, tmp_path):
    c = cluster(layout=0)
    files = fill(c)
    kill_all(c)
    to, most = str(tmp_path / "out"), 4 << 20  # the kernel kills it when a file grows beyond that
    r = subprocess.run([ROZO, "salvage", "--to", to, *data_dirs(c)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                       text=True, timeout=60,
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))
    assert r.returncode == -signal.SIGXFSZ, (r.returncode, r.stderr)
    names = names_below(to)
    assert sum(n.endswith(".part") for n in names) == 1, names
    whole = [n for n in names if not n.endswith(".part")]
    for n in whole:
        with open(os.path.join(to, n), "rb") as f:
            assert f.read() == files[int(os.path.basename(n), 16)], n
    # The next run restores the rest, and overwrites nothing.
    report = salvage("--to", to, *data_dirs(c), expect=1 if whole else 0)
    assert all((f["file"] is None) == ("%08x/%s" % (f["export"], f["inode"]) in whole) for f in report["files"])
    for n in names_below(to):
        with open(os.path.join(to, n), "rb") as f:
            assert f.read() == files[int(os.path.basename(n), 16)], n


def names_below(path):
    return [os.path.relpath(os.path.join(d, n), path) for d, _, names in os.walk(path) for n in names]


def tree_state(path):
    state = {}
    for d, _, names in os.walk(path):
        for name in names:
            st = os.stat(os.path.join(d, name))
            state[os.path.join(d, name)] = (st.st_size, st.st_mtime_ns, st.st_ino)
    return state


def overwrite(fd, new, order, acked, begun):
    """Overwrites four blocks at a time until the mount is gone."""
    buf = mmap.mmap(-1, 4 * BLOCK)
    try:
        for at in order:
            buf[:] = new[at:at + 4 * BLOCK]
            begun.update(range(at // BLOCK, at // BLOCK + 4))
            assert os.pwrite(fd, buf, at) == 4 * BLOCK
            acked.update(range(at // BLOCK, at // BLOCK + 4))
    except OSError:
        pass


@pytest.mark.parametrize("layout", [0, 1])
def test_overwrites_under_way_are_old_or_new(cluster, tmp_path, layout):
    c = cluster(layout=layout)
    rng = random.Random(7)
    old, new = rng.randbytes(16 << 20), rng.randbytes(16 << 20)
    path = os.path.join(c.mnt, "f")
    with open(path, "wb") as f:
        f.write(old)
        f.flush()
        os.fsync(f.fileno())
    ino = os.stat(path).st_ino
    fd = os.open(path, os.O_WRONLY | os.O_DIRECT)
    order = list(range(0, len(new), 4 * BLOCK))
    rng.shuffle(order)
    acked, begun = set(), set()
    writer = threading.Thread(target=overwrite, args=(fd, new, order, acked, begun))
    writer.start()
    c.wait_for(lambda: len(acked) > 200, "some overwrites")
    for pid in [c.pid(name) for name in c.names("mount") + c.daemons()]:
        os.kill(pid, signal.SIGKILL)
    writer.join()
    try:
        os.close(fd)
    except OSError:
        pass
    kill_all(c)
    to = str(tmp_path / "out")
    report = salvage("--to", to, *data_dirs(c))
    assert report["summary"]["waiting"] > 0, "nothing was in a journal"
    got = restored(report, to)[ino]
    assert len(got) == len(old)
    for i, (g, o, n) in enumerate(zip(blocks(got), blocks(old), blocks(new))):
        may = [n] if i in acked else [o, n] if i in begun else [o]  # acknowledged: on enough storages
        assert g in may, "block %d: %s" % (i, "acked" if i in acked else "begun" if i in begun else "not touched")


def test_salvage_reports_blocks_that_cannot_be_restored(cluster, tmp_path):
    c = cluster(layout=0)
    files = fill(c)
    kill_all(c)
    dirs = data_dirs(c)
    r = rozo("salvage", *dirs)
    assert "whole" in r.stdout and "something missing" in r.stdout
    report = salvage("--verify", dirs[0], expect=1)
    assert report["summary"]["whole"] == 0
    assert all(f["blocks"]["unreadable"] > 0 and f["file"] is None for f in report["files"])
    # The bodies of one file are damaged on all storages but one.
    big = next(ino for ino, data in files.items() if len(data) == 9_000_001)
    damaged = 0
    for d in dirs:
        for base, _, names in os.walk(os.path.join(d, "objects")):
            for name in names:
                if "%016x." % big in name and damaged < 2:
                    with open(os.path.join(base, name), "r+b") as f:
                        f.seek(1_000_000)
                        f.write(b"\xff" * 100)
                    damaged += 1
    assert damaged == 2
    to = str(tmp_path / "out")
    report = salvage("--to", to, *dirs, expect=1)
    bad = [f for f in report["files"] if not f["whole"]]
    assert [int(f["inode"], 16) for f in bad] == [big]
    assert 1 <= bad[0]["blocks"]["unreadable"] <= 2
    lost = {i for first, end in bad[0]["unreadable"] for i in range(first, end)}
    got = restored(report, to)
    for i, (g, w) in enumerate(zip(blocks(got[big]), blocks(files[big]))):
        assert g == (bytes(len(w)) if i in lost else w), "block %d" % i
    for ino, data in files.items():
        assert ino == big or not data or got[ino] == data
    # A second run to the same place overwrites nothing.
    r = rozo("salvage", "--to", to, *dirs, check=False)
    assert r.returncode == 1 and "exists" in r.stderr


def test_salvage_leaves_no_part_of_a_file_that_cannot_be_written(cluster, tmp_path):
    """The target disk is too small for some files."""
    c = cluster(layout=0)
    files = fill(c)
    kill_all(c)
    to, dirs = str(tmp_path / "out"), data_dirs(c)
    large = [ino for ino, data in files.items() if len(data) > 8_000_000]
    # Python ignores SIGXFSZ, and so do its children: the limit gives an error, as a full disk does.
    r = subprocess.run([ROZO, "salvage", "--json", "--to", to, *dirs], capture_output=True, text=True, check=False,
                       restore_signals=False,
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8_000_000, 8_000_000)))
    assert r.returncode == 1, r.stderr
    report = json.loads(r.stdout)
    told = {int(f["inode"], 16): f for f in report["files"]}
    for ino in large:
        assert not told[ino]["whole"] and told[ino]["file"] is None and "large" in told[ino]["error"]
    got = restored(report, to)
    assert all(not data or ino in large or got[ino] == data for ino, data in files.items())
    assert all(f["error"] is None for ino, f in told.items() if ino not in large)
    names = {n for _, _, names in os.walk(to) for n in names}
    assert names == {os.path.basename(f["file"]) for f in told.values() if f["file"]}


def test_wrong_directories_are_refused(cluster, tmp_path):
    c = cluster(layout=0)
    d = c.data("storaged-1")
    for args in ([], [str(tmp_path)], [d, d], ["--to", str(tmp_path / "x"), "--list", d], ["--export", "x", d],
                 [str(tmp_path / "nowhere")]):
        r = rozo("salvage", *args, check=False)
        assert r.returncode == 2 and r.stderr, (args, r.stdout, r.stderr)
        assert "are used nevertheless" not in r.stderr
    r = rozo("salvage", d, check=False)  # a daemon serves it: allowed, with a warning
    assert r.returncode in (0, 1) and "serves it" in r.stderr
    assert os.access(ROZO, os.X_OK)
