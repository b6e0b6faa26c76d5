"""`rozo stream`: reservations, their limits, what survives, and healing that leaves them free."""
import json
import mmap
import os
import socket
import time

import pytest

from conftest import lose_disk, rozo

NAMES = ["storaged-%d" % i for i in (1, 2, 3, 4)]


def carry(c, names, **keys):
    """Restarts storages with these keys in their configs."""
    for name in names:
        path = os.path.join(c.dir, "etc", name + ".yaml")
        with open(path) as f:
            text = f.read()
        with open(path, "w") as f:
            f.write(text.replace("storaged:\n", "storaged:\n" + "".join("  %s: %s\n" % key for key in keys.items())))
    c.restart(*names)
    c.wait_for(lambda: all(s["stream_mb"] == keys["stream_mb"] for s in listed(c)["storages"]
                           if s["id"] in [c.number_of(n) for n in names]), "exportd to know what storages carry")


def listed(c):
    return json.loads(c.admin("stream", "list", "--json").stdout)


def reserve(c, host, *args):
    r = c.admin("stream", "reserve", "main", host, *args, check=False)
    return r.returncode, r.stdout + r.stderr


def heal_rates(c):
    """Returns the limits of all storages, MB per second."""
    health = c.health()
    assert None not in health.values()
    return {h["rate_bytes"] / 1e6 for h in health.values()}


def test_streams_are_reserved_refused_and_released(cluster):
    c = cluster(layout=0, mounts=0)
    status, text = reserve(c, "edit1", "--read", 5, "--rate", 25)
    assert status == 1 and "set storaged.stream_mb there" in text
    carry(c, NAMES, stream_mb=100, link_mb=60)
    assert reserve(c, "edit1", "--read", 4, "--write", 2, "--rate", 25) == (
        0, "reserved for edit1: 4 streams of main read and 2 written, 25 MB/s each\n")
    status, text = reserve(c, "edit2", "--read", 3, "--rate", 25)
    assert status == 1 and "carries 100.0 MB/s of streams: 75.0 are reserved, and this needs 37.5 more" in text
    status, text = reserve(c, "edit2", "--read", 1, "--rate", 22)
    assert status == 1 and "the links (1) of storage" in text and "from it: 50.0 are reserved" in text
    c.wait_for(lambda: heal_rates(c) == {25.0}, "healing to leave free what is reserved")
    c.restart("exportd")
    c.restart(NAMES[0])
    told = listed(c)
    assert told["streams"] == [{"export": "main", "host": "edit1", "read": 4, "written": 2, "rate_mb": 25.0,
                                "reads": 0, "late_reads": 0}]
    assert [(round(s["read_mb"]), round(s["written_mb"])) for s in told["storages"]] == [(50, 25)] * 4
    text = c.admin("stream", "list").stdout
    assert "edit1" in text and all(len(line) <= 80 for line in text.splitlines())
    c.wait_for(lambda: heal_rates(c) == {25.0}, "the limit of healing after restarts")
    c.admin("stream", "release", "main", "edit1")
    r = c.admin("stream", "release", "main", "edit1", check=False)
    assert r.returncode == 1 and "edit1 has no streams of export main" in r.stderr
    c.wait_for(lambda: heal_rates(c) == {0}, "healing to be free again")
    assert listed(c)["streams"] == []


def test_reserved_streams_slow_a_rebuild_down(cluster):
    c = cluster(layout=0)
    carry(c, NAMES, stream_mb=42)
    c.wait_all_up()
    with open(c.mnt + "/f", "wb") as f:
        f.write(os.urandom(8 << 20))
        os.fsync(f.fileno())
    victim = next(n for n in NAMES if c.number_of(n) == c.locate(c.mnt + "/f")["storages"][0]["id"])
    assert reserve(c, "edit1", "--read", 3, "--write", 1, "--rate", 20)[0] == 0
    c.wait_for(lambda: heal_rates(c) == {2.0}, "healing to leave free what is reserved")
    number = c.number_of(victim)
    lose_disk(c, victim)
    c.wait_for(lambda: any(s["id"] == number and "replace" in s["error"] for s in c.status()["storages"]), "a new disk")
    begun = time.monotonic()
    c.admin("storage", "replace", number)
    c.wait_healed(120)
    assert time.monotonic() - begun > 3  # 12 MB are read and written, at 2 MB/s


def test_reservations_survive_the_leader(cluster):
    c = cluster(metas=3, mounts=0)
    carry(c, NAMES, stream_mb=100)
    assert reserve(c, "edit1", "--read", 2, "--rate", 25)[0] == 0
    before = c.serving()
    c.kill(before)
    c.wait_for(lambda: c.serving() != before, "another leader")
    assert [s["host"] for s in listed(c)["streams"]] == ["edit1"]
    c.wait_for(lambda: [s["stream_mb"] for s in listed(c)["storages"]] == [100.0] * 4, "what storages carry")
    assert reserve(c, "edit2", "--read", 7, "--rate", 25)[0] == 1
    assert reserve(c, "edit2", "--read", 6, "--rate", 25)[0] == 0


def test_late_reads_of_a_host_are_counted(cluster):
    """No read of 1 MiB takes 1000 s, and each takes longer than 10 us."""
    c = cluster(layout=0, mounts=2)
    c.configure(lease_s=3)  # mounts report with each keep-alive
    carry(c, NAMES, stream_mb=1000000)
    c.wait_all_up()
    c.remount()
    with open(c.mnt + "/f", "wb") as f:
        f.write(os.urandom(1 << 20))
        os.fsync(f.fileno())
    buf = mmap.mmap(-1, 1 << 20)
    opened = [os.open(mnt + "/f", os.O_RDONLY | os.O_DIRECT) for mnt in c.mnts]
    counts = []

    def are_counted(count):
        for fd in opened:
            assert os.preadv(fd, [buf], 0) == 1 << 20
        counts[:] = [(s["reads"], s["late_reads"]) for s in listed(c)["streams"]]
        return count(*counts[0])

    try:
        assert reserve(c, socket.gethostname(), "--read", 1, "--rate", 0.001)[0] == 0
        c.wait_for(lambda: are_counted(lambda reads, late: reads > 0 and late == 0), "reads to be counted")
        assert reserve(c, socket.gethostname(), "--read", 1, "--rate", 100000)[0] == 0
        c.wait_for(lambda: are_counted(lambda reads, late: late > 0), "late reads to be counted")
        assert counts[0][1] < counts[0][0]
        text = c.admin("stream", "list").stdout
        assert "LATE" in text and all(len(line) <= 80 for line in text.splitlines()), text
    finally:
        for fd in opened:
            os.close(fd)


@pytest.mark.parametrize("args, words", [
    (("reserve", "main", "h", "--read", "1"), "--rate is missing"),
    (("reserve", "main", "h", "--rate", "25"), "nothing to reserve"),
    (("reserve", "main", "h", "--read", "1", "--rate", "fast"), "--rate wants MB per second"),
    (("reserve", "main", "--read", "1", "--rate", "25"), "HOST"),
    (("release", "main"), "HOST")])
def test_wrong_wishes_for_streams_are_usage(args, words):
    r = rozo("stream", *args, check=False)
    assert r.returncode == 2 and words in r.stderr
