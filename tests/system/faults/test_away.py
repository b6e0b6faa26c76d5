"""The table "When storages are away" of docs/OPERATIONS.md, cell by cell, on real daemons.

For each size of cluster, storages are killed one after the other. At both ends of each row of the table (of the
last one, at its beginning) a new file, an overwrite and reads must behave as the table says.
"""
import errno
import itertools
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import K, N, Q, ROOT, STORAGES, pattern, wait_for
from files import load, store

SIZE = 40 << 10
HEADING = "## When storages are away\n"


def table():
    """Returns [(layout, storages, first away, last away, new files, overwrites, reads, losses survived)] of
    the page."""
    with open(os.path.join(ROOT, "docs", "OPERATIONS.md")) as f:
        text = f.read().split(HEADING)[1].split("\n## ")[0]
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 7 or not cells[0].isdigit():
            continue
        away = [int(n) for n in re.fullmatch(r"(\d+)(?:-(\d+))?", cells[2]).groups() if n is not None]
        rows.append((int(cells[0]), int(cells[1]), away[0], away[-1], *cells[3:]))
    return rows


CLUSTERS = [(layout, storages) for layout in K for storages in (STORAGES[layout], N[layout])]


def test_the_table_is_complete_and_keeps_the_promise():
    """Each number of unreachable storages is in one row; acknowledged data survives the loss of one storage
    or more."""
    rows = table()
    assert {row[:2] for row in rows} == set(CLUSTERS)
    for layout, storages in CLUSTERS:
        away = [n for row in rows if row[:2] == (layout, storages) for n in range(row[2], row[3] + 1)]
        assert away == list(range(storages + 1))
    for layout, storages, first, last, new, overwrites, _, losses in rows:
        assert new in ("yes", "EIO") and new == overwrites
        assert (new == "yes") == (storages - last >= Q[layout])
        if new == "yes":  # as many as accept it, n at most
            assert {min(N[layout], storages - away) - K[layout] for away in (first, last)} == {int(losses)}
            assert int(losses) >= 1
        else:
            assert losses == "-"


def place(n):
    """Returns the offset to read with n storages down: not at the front, and at unequal distances, so that
    readahead stays off."""
    return (n * n + n + 1) << 20


def make_old(path, numbers):
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    for n in numbers:
        assert os.pwrite(fd, pattern(n, SIZE), place(n)) == SIZE
    os.fsync(fd)
    os.close(fd)


def candidates(path):
    """Returns the ids of its storages in order: homes first, then spares."""
    return [s["id"] for s in json.loads(os.getxattr(path, "rozo.locate"))["storages"]]


def fails(fn, path, *args):
    try:
        fn(path, *args)
    except OSError as e:
        assert e.errno == errno.EIO, path
        return
    pytest.fail("%s of %s is done though too few storages are there" % (fn.__name__, path))


def succeeds(fn, *args):
    """Retries: on a busy machine storages that are up may be taken for absent."""
    got = []
    wait_for(lambda: got.append(fn(*args)) or True, "%s%r" % (fn.__name__, args[:1]))
    return got[0]


@pytest.mark.parametrize("layout,storages", CLUSTERS)
def test_a_cluster_does_what_the_table_says(cluster, layout, storages):
    rows = [row for row in table() if row[:2] == (layout, storages)]
    numbers = {row: sorted({row[2], row[3] if row is not rows[-1] else row[2]}) for row in rows}
    all_numbers = sum(numbers.values(), [])
    c = cluster(layout=layout, storages=storages, mounts=2, mount_options="io_timeout=1")
    writer, reader = c.mnts
    assert c.status()["exports"][0]["storages_missing"] == STORAGES[layout] - storages
    assert ("its volume has %d of the %d storages" % (storages, STORAGES[layout]) in c.admin("status").stdout) == \
        (storages < STORAGES[layout])
    # The spares of one file stop first, so that it can be read for as long as any file can.
    make_old(writer + "/good", all_numbers)
    its = candidates(writer + "/good")
    assert len(its) == storages
    order = its[N[layout]:] + its[:N[layout]]
    some = [row[2] for row in rows if row[6] == "some"]
    bad = ""  # this file loses too many storages as soon as any file does
    for i in itertools.count():
        if not some or bad:
            break
        make_old("%s/bad-%d" % (writer, i), [])
        its = candidates("%s/bad-%d" % (writer, i))
        assert len(its) == storages
        if len(set(order[:some[0]]) & set(its[:N[layout]])) > N[layout] - K[layout]:
            bad = "/bad-%d" % i
            make_old(writer + bad, all_numbers)
    for n in all_numbers:
        store("%s/old-%d" % (writer, n), pattern(500 + n, SIZE))
    names = {c.number_of(name): name for name in c.names("storaged")}
    acked, refused, away = {}, {}, 0
    for row in rows:
        _, _, _, _, new, overwrites, reads, _ = row
        for n in numbers[row]:
            for storage in order[away:n]:
                c.kill(names[storage])
            away = n
            data = pattern(1000 + n, SIZE)
            with ThreadPoolExecutor(4) as pool:
                jobs = []
                for name, does in (("/new-%d" % n, new), ("/old-%d" % n, overwrites)):
                    jobs.append(pool.submit(succeeds if does == "yes" else fails, store, writer + name, data))
                    (acked if does == "yes" else refused)[name] = data
                got = pool.submit(fails if reads == "EIO" else succeeds, load, reader + "/good", SIZE, place(n))
                jobs.append(got)
                if reads == "some":
                    jobs.append(pool.submit(fails, load, reader + bad, SIZE, place(n)))
            for job in jobs:
                job.result()
            assert reads == "EIO" or got.result() == pattern(n, SIZE)
            if n == storages - K[layout]:  # data acknowledged with the minimum of storages is readable with the last k
                for name in [name for name in acked if name.endswith("-%d" % (storages - Q[layout]))]:
                    assert succeeds(load, reader + name, SIZE) == acked.pop(name)
    c.restart(*[names[storage] for storage in order[:away]])
    for name, data in refused.items():
        succeeds(store, writer + name, data)
    for name, data in {**acked, **refused}.items():
        assert succeeds(load, reader + name, SIZE) == data
    for n in all_numbers:
        assert succeeds(load, reader + "/good", SIZE, place(n)) == pattern(n, SIZE)
