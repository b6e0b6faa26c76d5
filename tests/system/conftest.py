"""Clusters for the system tests: real daemons and mounts, made by `rozo dev` in a folder of the test.

    def test_something(cluster):
        c = cluster(layout=0)          # started and mounted; c.mnt is the mount point
        c.kill("storaged-1")           # SIGKILL, or c.kill(name, signal.SIGSTOP)
        c.restart("storaged-1")
        c.wait_for(lambda: ..., "the awaited condition")

Programs come from ROZO_BIN (default build/release/bin). ROZO_TEST_CODEC=NAME sets the code of every cluster
that does not choose one: all tests must pass with each. However it ends, a test leaves no mount and no process
behind. A failed test prints the ends of the logs.

Each folder has one subject:

    cli        the verbs of `rozo`, its clusters for developers, and the steps of the guide
    processes  daemons and mounts: their configs and input, start and end, descriptors
    data       contents of files: all ways to write, sizes, space, programs at work
    metas      several exportds that are a quorum: elections, hand-overs, wrong configs
    metadata   names, attributes and small files, which exportd keeps, over its restarts
    posix      what programs expect of Linux: the suites, locks, privileges, file handles
    coherence  several mounts of one folder
    faults     storages, disks and links that fail under load
    gateways   exports by SMB and NFS: the configuration, and real servers and clients
    healing    missed, lost and damaged data is restored

Functions for several files are in the modules beside this one; a test file imports no other one.
"""
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

import kernel_caches

pytest.register_assert_rewrite("agents", "daemons", "files", "fsx2", "histories", "mounts", "nfsclient", "nfsgateway",
                                 "programs", "users")

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOLS = os.path.join(ROOT, "tests", "tools")
sys.path.insert(0, TOOLS)
BIN = os.path.abspath(os.environ.get("ROZO_BIN", os.path.join(ROOT, "build", "release", "bin")))
ROZO = os.path.join(BIN, "rozo")
CODECS = ("mojette", "mojette-nonsystematic", "mojette-finite", "rs")  # the first is the default
TEST_CODEC = os.environ.get("ROZO_TEST_CODEC", CODECS[0])
assert TEST_CODEC in CODECS, "ROZO_TEST_CODEC is none of " + ", ".join(CODECS)
N, K = {0: 3, 1: 6, 2: 12}, {0: 2, 1: 4, 2: 8}  # by layout
STORAGES = {0: 4, 1: 8, 2: 16}
Q = {layout: max(K[layout], STORAGES[layout] - K[layout] + 1) for layout in K}
LOG_TAIL_LINES = 40
TEST_MAX_S = int(os.environ.get("ROZO_TEST_MAX_S", "600"))  # limit of a test; then its mounts are torn down
CASE_MAX_S = int(os.environ.get("ROZO_CASE_MAX_S", "300"))  # the same of a test with `ab`
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "rozo-tests", "bin")
# Marks of a sanitizer in a log; a daemon that wrote one failed the test.
SANITIZER_MARKS = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "WARNING: ThreadSanitizer",
                   "runtime error:", "Assertion `")


def cannot_mount():
    """Returns the reason why no file system can be mounted here, or None."""
    if os.geteuid() != 0:
        return "not run as root"
    if not os.path.exists("/dev/fuse"):
        return "/dev/fuse is not there"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as e:
        return "/dev/fuse cannot be opened: %s" % e.strerror
    return None


def tool(name):
    path = shutil.which(name) or os.path.join(CACHE, name)
    if not os.path.exists(path):
        pytest.skip("%s is not installed (deploy/install-deps.sh --tests)" % name)
    return path


def mounts_below(path):
    """Returns the mount points at or below path, the innermost first."""
    found = []
    with open("/proc/self/mountinfo") as f:
        for line in f:
            point = line.split()[4].encode().decode("unicode_escape")
            if point == path or point.startswith(path + "/"):
                found.append(point)
    return sorted(found, key=len, reverse=True)


def rozo(*args, check=True, timeout=180, env=None):
    """Runs the command line; returns the CompletedProcess with text output."""
    r = subprocess.run([ROZO, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True, timeout=timeout,
                       env=None if env is None else dict(os.environ, **env))
    if check:
        assert r.returncode == 0, "rozo %s: exit %d\n%s%s" % (" ".join(map(str, args)), r.returncode,
                                                              r.stdout, r.stderr)
    return r


def wait_for(condition, what="a condition", timeout=30.0):
    """Waits until condition() is true; fails with `what`. Errors in condition() count as false."""
    end = time.monotonic() + timeout
    last = None
    while True:
        try:
            if condition():
                return
            last = None
        except (OSError, AssertionError, KeyError, ValueError, subprocess.SubprocessError) as e:
            last = e
        if time.monotonic() > end:
            pytest.fail("waited %.0f s in vain for %s%s" % (timeout, what, "" if last is None else
                                                           " (last: %r)" % (last,)))
        time.sleep(0.05)


def pattern(seed, n_bytes):
    """Makes the pattern in pieces, so that the interpreter lets other threads run, which time their calls."""
    rng, piece = random.Random(seed), 64 << 10
    return b"".join(rng.randbytes(min(piece, n_bytes - at)) for at in range(0, n_bytes, piece))


def slow_healing(c, name, mib):
    """Limits the speed of healing from its next start on; 0: no limit."""
    path = os.path.join(c.dir, "etc", name + ".yaml")
    with open(path) as f:
        lines = [line for line in f if "heal_rate_mb" not in line]
    at = lines.index("storaged:\n") + 1
    with open(path, "w") as f:
        f.writelines(lines[:at] + ["  heal_rate_mb: %d\n" % mib] + lines[at:])


def lose_disk(c, name):
    """The storage runs on with an empty data directory, and the config that the test gave it."""
    c.kill(name)
    shutil.rmtree(c.data(name))
    c.restart(name)


def all_up(c, path=None):
    """Tells whether exportd reaches all storages; with a path, whether the mount reaches those of the file.

    A write that finds fewer than n storages is only as safe as their number: a test that then loses n - k of them
    must wait until the mount reaches all again.
    """
    if not all(s["up"] for s in c.status()["storages"]):
        return False
    return path is None or all(s["reachable"] for s in c.locate(path)["storages"])


class Cluster:
    """A private cluster. Names of members are those of `rozo dev status`."""

    def __init__(self, base, layout=0, codec=None, storages=None, links=None, mounts=1,
                 mount_options=None, log_level=None, inline=None, metas=None, witness=False, names=None):
        self.base = base                       # folder of the test; all of it is removed at the end
        self.dir = os.path.join(base, "c")     # folder of the cluster
        self.mnts = [os.path.join(base, "mnt%d" % (i + 1)) for i in range(mounts)]
        self.layout = layout
        self.codec = codec or TEST_CODEC
        self.mount_options = mount_options
        self.options = ["--layout", layout]
        for option, value in (("--codec", codec or os.environ.get("ROZO_TEST_CODEC")), ("--storages", storages),
                              ("--links", links), ("--log-level", log_level), ("--inline", inline),
                              ("--metas", metas), ("--names", names)):
            if value is not None:
                self.options += [option, value]
        self.options += ["--witness"] if witness else []

    @property
    def mnt(self):
        return self.mnts[0]

    # ---- start and stop ----

    def up(self, *more, check=True):
        args = list(self.options)
        for mnt in self.mnts:
            args += ["--mount", mnt]
        if self.mnts and self.mount_options:
            args += ["--mount-options", self.mount_options]
        return rozo("dev", "up", "--dir", self.dir, *args, *more, check=check)

    def down(self):
        return rozo("dev", "down", "--dir", self.dir)

    def restart(self, *names):
        """Stops the members (if they run) and starts them again; returns when they serve."""
        return rozo("dev", "restart", "--dir", self.dir, *names)

    def configure(self, **keys):
        """Restarts exportd with these keys in its config."""
        path = os.path.join(self.dir, "etc", "exportd.yaml")
        with open(path) as f:
            text = f.read()
        with open(path, "w") as f:
            f.write(text.replace("exportd:\n", "exportd:\n" + "".join("  %s: %s\n" % key for key in keys.items())))
        self.restart("exportd")

    def remount(self):
        """Replaces every rozomount by a fresh one without any cached state."""
        self.restart(*self.names("mount"))

    # ---- state ----

    def dev_status(self):
        return json.loads(rozo("dev", "status", "--dir", self.dir, "--json").stdout)

    def admin(self, *args, check=True):
        """Runs a verb of `rozo` that talks to this cluster's exportd."""
        return rozo(*args, "--config", os.path.join(self.dir, "etc", "rozo.yaml"), check=check)

    def status(self):
        """Returns `rozo status --json`: storages, volumes, exports as exportd sees them."""
        return json.loads(self.admin("status", "--json").stdout)

    def metas(self, *asked):
        """Returns `rozo meta status --json`. asked: addresses, instead of all of this cluster."""
        option = ("--exportd", ",".join(asked)) if asked else ()
        return json.loads(self.admin("meta", "status", "--json", *option).stdout)

    def quorum_is_whole(self):
        """Tells whether all members answer, one serves, and all have what was committed when the first was asked."""
        told = self.metas()
        m = told["members"]
        return told["serving"] is not None and all(x["answers"] for x in m) and \
            min(x["last"] for x in m) >= max(x["commit"] for x in m) - 100

    def serving(self):
        """Returns the name of the exportd of a quorum that serves, as soon as one does."""
        found = []

        def one_serves():
            found[:] = [self.metas()["serving"]]
            return found[0] is not None

        wait_for(one_serves, "an exportd to serve")
        return "exportd-%d" % found[0]

    def health(self):
        """Returns storage id -> its record in `rozo rebuild status`; None for storages that do not answer."""
        told = json.loads(self.admin("rebuild", "status", "--json", check=False).stdout)
        return {s["id"]: s["health"] for s in told["storages"]}

    def health_of(self, number):
        """Returns the record of one storage; an AssertionError (wait_for(): false) while it does not answer."""
        health = self.health()[number]
        assert health is not None, "storage %d does not answer" % number
        return health

    def not_healed(self):
        """Returns storage id -> remaining work: empty when all projections are good."""
        left = {}
        for number, h in self.health().items():
            if h is None:
                left[number] = "does not answer"
                continue
            counts = {k: h[k] for k in ("uncommitted", "missed_ranges", "queued", "unhealed") if h[k] != 0}
            if h["rebuild"]["state"] == "running":
                counts["rebuild"] = h["rebuild"]
            if counts:
                left[number] = dict(counts, problem=h["problem"])
        return left

    def locate(self, path):
        return json.loads(rozo("locate", "--json", path).stdout)

    def names(self, kind=None):
        return [m["name"] for m in self.dev_status()["members"] if kind in (None, m["kind"])]

    def daemons(self):
        """Returns the names of exportd and the storages."""
        return self.names("exportd") + self.names("storaged")

    def pid(self, name):
        with open(os.path.join(self.dir, "run", name + ".pid")) as f:
            return int(f.read())

    def log(self, name):
        with open(os.path.join(self.dir, "log", name + ".log"), errors="replace") as f:
            return f.read()

    def addresses(self, name):
        """Returns [(host, port)] on which a daemon listens."""
        for m in self.dev_status()["members"]:
            if m["name"] == name:
                return [(a.rsplit(":", 1)[0], int(a.rsplit(":", 1)[1])) for a in m["addresses"]]
        raise KeyError(name)

    def number_of(self, name):
        """Returns exportd's number of the storage."""
        address = "%s:%d" % self.addresses(name)[0]
        return [s["id"] for s in self.status()["storages"] if address in s["addresses"]][0]

    def data(self, name):
        return os.path.join(self.dir, "data", name)

    # ---- actions ----

    def kill(self, name, sig=signal.SIGKILL):
        """Sends a signal; after SIGKILL returns when the process is gone."""
        pid = self.pid(name)
        os.kill(pid, sig)
        if sig == signal.SIGKILL:
            wait_for(lambda: not process_runs(pid), "%s (pid %d) to be gone" % (name, pid))

    def wait_for(self, condition, what="a condition", timeout=30.0):
        wait_for(condition, what, timeout)

    def wait_all_up(self, timeout=30.0):
        wait_for(lambda: all(s["up"] for s in self.status()["storages"]), "all storages up", timeout)

    def wait_healed(self, timeout=60.0):
        self.wait_all_up(timeout)
        try:
            wait_for(lambda: not self.not_healed(), "all to be healed", timeout)
        except pytest.fail.Exception:
            pytest.fail("not healed after %.0f s: %s" % (timeout, self.not_healed()))

    def scrub(self, timeout=120.0):
        """Scrubs everything now; returns storage id -> its report."""
        now = {}

        def told():
            """Notes all reports. Returns False if a storage did not answer, as happens on a busy machine."""
            health = self.health()
            now.update({number: h["scrub"] for number, h in health.items() if h is not None})
            return None not in health.values()

        wait_for(told, "all storages to tell of their scrubs")
        before = {number: r["ended_ns"] for number, r in now.items()}
        self.admin("scrub", "start")
        wait_for(lambda: told() and all(r["state"] in ("done", "incomplete") and r["ended_ns"] != before[number]
                                        for number, r in now.items()), "the scrub to end", timeout)
        return now

    def drop_caches(self):
        """Makes the kernel drop clean pages, entries and attributes of all file systems."""
        kernel_caches.drop()

    # ---- end ----

    def log_tails(self):
        text = []
        log_dir = os.path.join(self.dir, "log")
        for name in sorted(os.listdir(log_dir)) if os.path.isdir(log_dir) else []:
            with open(os.path.join(log_dir, name), errors="replace") as f:
                lines = f.readlines()
            text.append("---- %s, last %d of %d lines ----\n%s" % (
                name, min(LOG_TAIL_LINES, len(lines)), len(lines), "".join(lines[-LOG_TAIL_LINES:])))
        return "\n".join(text)

    def sanitizer_reports(self):
        found = []
        log_dir = os.path.join(self.dir, "log")
        for name in sorted(os.listdir(log_dir)) if os.path.isdir(log_dir) else []:
            text = self.log(name[:-4])
            for mark in SANITIZER_MARKS:
                at = text.find(mark)
                if at >= 0:
                    found.append("%s:\n%s" % (name, text[max(0, at - 200):at + 3000]))
                    break
        return found

    def tear(self):
        """Ends every call into the test's mounts with an error, also into a hung one."""
        for name in self.names("mount"):
            try:
                self.kill(name)
            except OSError:
                pass

    def destroy(self):
        """Stops and removes everything; returns a description of faults, or None."""
        wrong = None
        if os.path.exists(os.path.join(self.dir, "etc", "cluster.json")):
            try:
                r = rozo("dev", "down", "--dir", self.dir, check=False)
                if r.returncode != 0:
                    wrong = "rozo dev down: exit %d: %s" % (r.returncode, r.stderr)
            except subprocess.TimeoutExpired:
                wrong = "rozo dev down did not return"
        for point in mounts_below(self.base):
            subprocess.run(["umount", "-l", point], check=False)
        kill_recorded(self.dir)
        return wrong


def process_runs(pid):
    """Tells whether any thread of the process lives, as `rozo dev` does: the first one may already be a
    zombie."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            fields = f.read().rsplit(")", 1)[1].split()  # from the third field on
            return fields[0] not in "ZX" or int(fields[17]) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill_recorded(cluster_dir):
    """Kills processes that `rozo dev down` should have stopped; only those started from our ROZO_BIN."""
    run = os.path.join(cluster_dir, "run")
    for name in os.listdir(run) if os.path.isdir(run) else []:
        if not name.endswith(".pid"):
            continue
        try:
            with open(os.path.join(run, name)) as f:
                pid = int(f.read())
            if os.readlink("/proc/%d/exe" % pid).startswith(BIN + "/"):
                os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):
            pass


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if call.when == "call":
        item.call_failed = report.failed
    if report.failed:
        for c in getattr(item, "clusters", []):
            report.sections.append(("logs of %s" % c.dir, c.log_tails()))


def make_factory(owner, base, limited=True):
    """Returns the factory behind the fixtures, and the function that ends what it made."""
    made, late = [], []

    def watchdog():
        late.append("the test took longer than %d s; its mounts were torn down" % TEST_MAX_S)
        for c in made:
            c.tear()

    timer = threading.Timer(TEST_MAX_S, watchdog)
    timer.daemon = True

    def make(start=True, **options):
        why = cannot_mount()
        if why is not None and options.get("mounts", 1) != 0:
            pytest.skip("mounting needs root and /dev/fuse: " + why)
        if not os.access(ROZO, os.X_OK):
            pytest.fail("%s is not built; cmake --build it, or set ROZO_BIN" % ROZO)
        c = Cluster(os.path.join(base, "r%d" % (len(made) + 1)), **options)
        os.makedirs(c.base)
        made.append(c)
        owner.clusters = made
        if len(made) == 1 and limited:
            timer.start()
        if start:
            c.up()
        return c

    def end():
        timer.cancel()
        wrong = late + [w for w in (c.destroy() for c in made) if w]
        reports = [r for c in made for r in c.sanitizer_reports()]
        assert not wrong, "\n".join(wrong)
        assert not reports, "a sanitizer or an assertion spoke:\n" + "\n".join(reports)

    return make, end


@pytest.fixture
def scratch():
    """A folder of the test with a short path, removed at the end."""
    path = tempfile.mkdtemp(prefix="rozo-t-")
    yield path
    for point in mounts_below(path):
        subprocess.run(["umount", "-l", point], check=False)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def cluster(request, scratch):
    """make(layout=0, codec=None, storages=None, links=None, mounts=1, mount_options=None, inline=None, metas=None,
    witness=False, start=True)"""
    make, end = make_factory(request.node, scratch)
    yield make
    end()


@contextlib.contextmanager
def shared(request, **options):
    """A cluster for all tests of a file that leave it intact."""
    base = tempfile.mkdtemp(prefix="rozo-t-")
    make, end = make_factory(request.node, base, limited=False)
    try:
        yield make(layout=0, **options)
        end()
    finally:
        for point in mounts_below(base):
            subprocess.run(["umount", "-l", point], check=False)
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster_shared(request):
    """One cluster of layout 0 for all tests of a file that leave it intact."""
    with shared(request) as c:
        yield c


@pytest.fixture(scope="module")
def two_mounts(request):
    """The same as cluster_shared, with two mounts."""
    with shared(request, mounts=2) as c:
        yield c


@pytest.fixture
def ab(two_mounts, request):
    """A folder of the test on both mounts. Hung calls end with an error, and then the following tests fail,
    too."""
    timer = threading.Timer(CASE_MAX_S, two_mounts.tear)
    timer.start()
    name = request.node.name.replace("/", "-")
    os.mkdir(os.path.join(two_mounts.mnts[0], name))
    yield [os.path.join(m, name) for m in two_mounts.mnts]
    timer.cancel()
