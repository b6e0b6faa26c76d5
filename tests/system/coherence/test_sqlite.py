"""sqlite in rollback-journal mode, written from two mounts: each sees the other's commits, and nothing breaks.

ROZO_SQLITE_TRANSACTIONS: number of transactions in all.
"""
import os
import sqlite3
import subprocess
import sys

import pytest

from conftest import cannot_mount

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

TRANSACTIONS = int(os.environ.get("ROZO_SQLITE_TRANSACTIONS", "300"))

# A writer that keeps the database open: a line of input is the number of the last row that must exist, -1 for
# "any".
WRITER = r"""
import sqlite3, sys
path, who = sys.argv[1:]
db = sqlite3.connect(path, isolation_level=None, timeout=120)
assert db.execute("pragma journal_mode").fetchone()[0] == "delete"
for line in sys.stdin:
    want = int(line)
    db.execute("begin immediate")
    n, sum_before = db.execute("select n, sum from t order by n desc limit 1").fetchone()
    if want >= 0:
        assert n == want, "row %d is the last, not %d" % (n, want)
    db.execute("insert into t values (?, ?, ?, ?)", (n + 1, who, sum_before + n + 1, b"%d " % (n + 1) * (n * 37 % 900)))
    db.execute("update last set who = ?, n = ?", (who, n + 1))
    db.execute("commit")
    print(n + 1, flush=True)
"""


class Writer:
    def __init__(self, path, who):
        self.p = subprocess.Popen([sys.executable, "-c", WRITER, path, who], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def start(self, want):
        self.p.stdin.write("%d\n" % want)
        self.p.stdin.flush()

    def answer(self):
        line = self.p.stdout.readline()
        assert line, self.p.communicate()[1][-3000:]
        return int(line)


@pytest.fixture
def writers(cluster):
    c = cluster(mounts=2)
    db = sqlite3.connect(c.mnts[0] + "/test.db", isolation_level=None)
    assert db.execute("pragma journal_mode=delete").fetchone()[0] == "delete"
    db.execute("create table t (n integer primary key, who text, sum integer, data blob)")
    db.execute("create index t_who on t (who, n)")
    db.execute("create table last (who text, n integer)")
    db.execute("insert into t values (0, '', 0, '')")
    db.execute("insert into last values ('', 0)")
    db.close()
    made = [Writer(mnt + "/test.db", who) for mnt, who in zip(c.mnts, "ab")]
    yield c, made
    for w in made:
        w.p.kill()
        w.p.communicate()


def check(c, n):
    for mnt in c.mnts:
        db = sqlite3.connect(mnt + "/test.db")
        assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
        assert db.execute("select count(*), max(n), max(sum) from t").fetchone() == (n + 1, n, n * (n + 1) // 2)
        assert db.execute("select n from last").fetchone() == (n,)
        assert db.execute("select count(*) from t where length(data) != length(n || ' ') * ((n - 1) * 37 % 900) "
                          "and n > 0").fetchone() == (0,)
        db.close()


def test_two_mounts_in_turn(writers):
    c, (a, b) = writers
    for n in range(TRANSACTIONS):
        w = (a, b)[n % 2]
        w.start(n)
        assert w.answer() == n + 1
    check(c, TRANSACTIONS)


def test_two_mounts_at_once(writers):
    """Both use sqlite's locks at the same time."""
    c, (a, b) = writers
    each = TRANSACTIONS // 4
    for _ in range(each):
        a.start(-1)
        b.start(-1)
    seen = [w.answer() for w in (a, b) for _ in range(each)]
    assert sorted(seen) == list(range(1, 2 * each + 1))
    check(c, 2 * each)
