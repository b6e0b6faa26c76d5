"""sqlite in rollback-journal mode, written from two mounts: each sees the other's commits, and nothing breaks.

ROZO_SQLITE_TRANSACTIONS: number of transactions in all.
"""
import os

import pytest

from conftest import cannot_mount
from programs import SqliteWriter, check_database, make_database

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

TRANSACTIONS = int(os.environ.get("ROZO_SQLITE_TRANSACTIONS", "300"))


@pytest.fixture
def writers(cluster):
    c = cluster(mounts=2)
    make_database(c.mnts[0] + "/test.db")
    made = [SqliteWriter(mnt + "/test.db", who) for mnt, who in zip(c.mnts, "ab")]
    yield c, made
    for w in made:
        w.end()


def check(c, n):
    for mnt in c.mnts:
        check_database(mnt + "/test.db", n)


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
