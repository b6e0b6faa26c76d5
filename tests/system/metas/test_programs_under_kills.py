"""Programs on several mounts go on while leaders die: fsx, histories, sqlite and git, as in their own tests.

The leader is taken away again and again, by SIGKILL and by SIGSTOP in turn, and comes back when another one serves and
the load goes on. No call may fail, and the programs compare what they find. The log of the quorum is the measure of
progress: a leader dies when that has grown by ENTRIES. A load is repeated until enough leaders have died.

ROZO_META_PROGRAMS_S: for so many seconds at least (0); then loads are larger. ROZO_META_PAUSE_S: from one death to the
next at least (0). tests/soak/run.sh sets both.
"""
import concurrent.futures
import contextlib
import itertools
import json
import os
import shutil
import signal
import threading
import time

import pytest

from conftest import TEST_MAX_S, cannot_mount, shared, wait_for
from fsx2 import run_seeds
from histories import KINDS, History
from programs import SqliteWriter, check_database, make_database, make_repository, run, use_git

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

N_MOUNTS = 4
SECONDS = int(os.environ.get("ROZO_META_PROGRAMS_S", "0"))
PAUSE_S = float(os.environ.get("ROZO_META_PAUSE_S", "0"))
LONG = SECONDS > 0
KILLS = 1          # for each program, and more if SECONDS are not over
SIGNALS = itertools.cycle((signal.SIGKILL, signal.SIGSTOP))
ENTRIES = 60       # of the log, before a leader dies; after it, before it comes back
GOES_ON_S = 240    # git may compute for long
FSX_SEEDS, FSX_OPS = (4, 10000) if LONG else (2, 350)
HISTORY_OPS = 400 if LONG else 20
WRITERS, TRANSACTIONS = (8, 40) if LONG else (4, 8)
COMMITS = 500 if LONG else 12


class DyingLeaders:
    """Takes leaders away while a load runs. c: the cluster; name: of the folders in which the load works."""

    def __init__(self, c, name):
        self.c, self.name, self.n, self.n_rounds = c, name, 0, 0
        self.begun = self.last_death = time.monotonic()
        self.addresses = {n: "%s:%d" % c.addresses(n)[0] for n in c.names("exportd")}
        self.load_is_over, self.error = threading.Event(), None
        self.entries = self.log_end()  # end of the log when the last leader had been replaced

    def rounds(self):
        """Yields the number of the next round of the load, and a folder as each mount has it, until enough died."""
        while not self.is_enough():
            folder = "%s-%d" % (self.name, self.n_rounds)
            os.mkdir(os.path.join(self.c.mnt, folder))
            yield self.n_rounds, [os.path.join(mnt, folder) for mnt in self.c.mnts]
            shutil.rmtree(os.path.join(self.c.mnt, folder))
            self.n_rounds += 1
        wait_for(self.is_clean, "fsck to find nothing")
        print("\n%d kills of leaders, by SIGKILL and SIGSTOP in turn: %s, %d rounds, %d entries, %d s" % (
            self.n, self.name, self.n_rounds, self.log_end(), time.monotonic() - self.begun))

    def is_enough(self):
        return self.n >= KILLS and time.monotonic() - self.begun >= SECONDS

    def is_clean(self):
        return json.loads(self.c.admin("fsck", "--json", check=False).stdout)["clean"]

    @contextlib.contextmanager
    def dying(self):
        """Leaders die while the body runs. It must not have files open on a mount: each program that is started, this
        class starts some, flushes them, and waits for that."""
        self.load_is_over.clear()
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self.load_is_over.set()
            thread.join()
        assert self.error is None, self.error

    def run(self):
        try:
            while self.log_grows():
                self.take_away(next(SIGNALS))
        except BaseException as e:  # pylint: disable=broad-except
            self.error = e

    def log_end(self, without=None):
        """Returns the last entry that a member has; `without` is not asked."""
        members = self.c.metas(*[a for n, a in self.addresses.items() if n != without])["members"]
        return max(m["last"] for m in members if m["answers"])

    def log_grows(self):
        """Waits until the next leader shall die. Returns False if the load is over, or enough have died."""
        while not self.load_is_over.is_set() and not self.is_enough():
            if time.monotonic() - self.last_death >= PAUSE_S and self.log_end() >= self.entries + ENTRIES:
                return True
            time.sleep(0.15)
        return False

    def take_away(self, sig):
        name = self.c.serving()
        number, others = int(name.split("-")[1]), [a for n, a in self.addresses.items() if n != name]
        self.last_death = time.monotonic()
        try:
            self.c.kill(name, sig)
            wait_for(lambda: self.c.metas(*others)["serving"] not in (None, number), "another leader", GOES_ON_S)
            end = self.log_end(name) + ENTRIES
            wait_for(lambda: self.load_is_over.is_set() or self.log_end(name) >= end, "the load to go on", GOES_ON_S)
        finally:
            if sig == signal.SIGSTOP:
                self.c.kill(name, signal.SIGCONT)
            else:
                self.c.restart(name)
        wait_for(self.c.quorum_is_whole, "all members to be back", GOES_ON_S)
        self.n += 1
        self.entries = self.log_end()


@pytest.fixture(scope="module")
def quorum(request):
    with shared(request, metas=3, mounts=N_MOUNTS) as c:
        yield c


@pytest.fixture
def leaders(quorum, request):
    request.node.clusters = [quorum]
    timer = threading.Timer(TEST_MAX_S, quorum.tear)
    timer.start()
    yield DyingLeaders(quorum, request.node.name.replace("test_", ""))
    timer.cancel()


def test_fsx_through_two_mounts(leaders):
    for n, folders in leaders.rounds():
        with leaders.dying():
            run_seeds(leaders.c, folders[:2], seeds=range(1 + n * FSX_SEEDS, 1 + (n + 1) * FSX_SEEDS), ops=FSX_OPS)


def test_histories_of_four_mounts(leaders):
    for n, folders in leaders.rounds():
        h = History(folders, leaders.c.base)
        try:
            h.prepare(KINDS, HISTORY_OPS, 1 + n)
            with leaders.dying():
                ops = h.run()
            said = [w.words() for w in h.workers]
            assert not any(said), said
        finally:
            h.end()
        for kind in KINDS:
            h.judge(kind, ops[kind])


def test_sqlite_with_many_writers(leaders):
    for _, folders in leaders.rounds():
        paths = [os.path.join(folder, "test.db") for folder in folders]
        make_database(paths[0])
        writers = [SqliteWriter(paths[i % N_MOUNTS], "writer %d" % i) for i in range(WRITERS)]
        try:
            with leaders.dying():
                for _ in range(TRANSACTIONS):
                    for w in writers:
                        w.start(-1)
                rows = [w.answer() for w in writers for _ in range(TRANSACTIONS)]
        finally:
            for w in writers:
                w.end()
        assert sorted(rows) == list(range(1, WRITERS * TRANSACTIONS + 1))
        for path in paths:
            check_database(path, len(rows))


def test_git_on_two_mounts(leaders, tmp_path):
    origin = str(tmp_path / "origin")
    make_repository(origin, COMMITS)
    for _, folders in leaders.rounds():
        at = [os.path.join(folder, "git-%d" % i) for i, folder in enumerate(folders[:2])]
        for path in at:
            os.mkdir(path)
        with leaders.dying(), concurrent.futures.ThreadPoolExecutor() as pool:
            for done in [pool.submit(use_git, origin, COMMITS, path) for path in at]:
                done.result()
        for i, folder in enumerate(folders[2:]):
            run("git", "-C", os.path.join(folder, "git-%d" % i, "second"), "fsck", "--full", "--strict")
