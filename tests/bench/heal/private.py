"""private.py - private clusters, fio and CPU time, for the benchmarks of healing.

In:     a folder with the programs of a build. Out: `rozo dev` clusters below a temporary folder.
Keeps:  no mount and no process is left behind, however the benchmark ends.
"""
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "tools"))
from ports import free_port  # noqa: E402

MIB = 1 << 20
TICKS = os.sysconf("SC_CLK_TCK")


def fail(words):
    sys.exit(os.path.basename(sys.argv[0]) + ": " + words)


def drop_caches():
    """Returns True if the kernel dropped its clean pages, entries and inodes."""
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("3\n")
        return True
    except OSError:
        return False


def cpu_of(pid):
    """Returns (user, system) seconds of a process."""
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return int(fields[11]) / TICKS, int(fields[12]) / TICKS


class Processes:
    """CPU time of the processes of a cluster, by its pid files."""

    def __init__(self, folder):
        self.run = None if folder is None else os.path.join(folder, "run")
        if self.run is not None and not os.path.isdir(self.run):
            fail("%s holds no cluster of rozo dev" % folder)

    def cpu_s(self):
        """Returns name -> (user, system) seconds of all daemons and mounts."""
        out = {}
        if self.run is None:
            return out
        for name in os.listdir(self.run):
            if not name.endswith(".pid"):
                continue
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(os.path.join(self.run, name)) as f:
                    out[name[:-4]] = cpu_of(int(f.read()))
        return out

    def since(self, before, share):
        """Returns kind -> {"user", "sys"}: seconds since `before` of all processes of the kind, divided by
        share."""
        kinds = {}
        for name, (user, system) in self.cpu_s().items():
            kind = kinds.setdefault(name.split("-")[0], {"user": 0, "sys": 0})
            kind["user"] += (user - before.get(name, (0, 0))[0]) / share
            kind["sys"] += (system - before.get(name, (0, 0))[1]) / share
        return {name: {k: round(v, 3) for k, v in kind.items()} for name, kind in kinds.items()}


def fio(folder, name, size, options):
    """Runs one job; returns its JSON."""
    cmd = ["fio", "--name=" + name, "--filename=" + os.path.join(folder, "fio.data"),
           "--size=%d" % size, "--thread", "--output-format=json", "--fallocate=none",
           "--randseed=7", "--refill_buffers", *options]
    r = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/tmp")
    if r.returncode != 0:
        fail("%s\n%s" % (" ".join(cmd), r.stdout[-1000:] + r.stderr[-1000:]))
    job = json.loads(r.stdout[r.stdout.index("{"):])["jobs"][0]
    if job["error"] != 0:
        fail("fio ended with error %d in %s" % (job["error"], folder))
    return job


def of_job(job, unit):
    """Returns (figure, bytes moved, 99th percentile of latency in us) of a job."""
    side = job["read"] if job["read"]["io_bytes"] else job["write"]
    took_s = job["job_runtime"] / 1000 if unit == "MB/s" else side["runtime"] / 1000
    figure = side["io_bytes"] / 1e6 / took_s if unit == "MB/s" else side["total_ios"] / took_s
    p99 = side["clat_ns"].get("percentile", {}).get("99.000000", 0) / 1000
    return figure, side["io_bytes"], p99


class Cluster:
    """A cluster with the programs of one build, mounted once or more often."""

    def __init__(self, name, programs, layout, folder, mounts=1, options=()):
        self.name, self.rozo = name, os.path.join(programs, "rozo")
        self.dir, self.mnt = os.path.join(folder, name), os.path.join(folder, name + "-mnt")
        self.layout = layout
        self.mnts = [self.mnt] + ["%s-%d" % (self.mnt, i) for i in range(2, mounts + 1)]
        self.call("dev", "up", "--dir", self.dir, "--layout", layout, *options,
                  *[a for mnt in self.mnts for a in ("--mount", mnt)])
        self.processes = Processes(self.dir)

    def call(self, *args, check=True):
        r = subprocess.run([self.rozo, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True)
        if check and r.returncode != 0:
            fail("rozo %s: %s" % (" ".join(map(str, args)), r.stderr))
        return r.stdout

    def admin(self, *args, check=True):
        return self.call(*args, "--config", os.path.join(self.dir, "etc", "rozo.yaml"), check=check)

    def health(self):
        """Returns storage id -> its record in `rozo rebuild status`."""
        told = json.loads(self.admin("rebuild", "status", "--json", check=False))
        return {s["id"]: s["health"] for s in told["storages"]}

    def quiet(self):
        """Tells whether nothing is left to heal, recover or apply."""
        if not all(s["up"] for s in json.loads(self.admin("status", "--json"))["storages"]):
            return False
        return all(h is not None and not (h["queued"] or h["missed_ranges"] or h["unhealed"] or h["uncommitted"])
                   and h["rebuild"]["state"] != "running" for h in self.health().values())

    def left(self):
        """Returns the number of records and marks not applied yet and files not removed yet (`rozo status`)."""
        told = json.loads(self.admin("status", "--json", check=False))
        return told.get("trash", 0) + sum((s.get("health") or {}).get("pending_records", 0) for s in told["storages"])

    def pid(self, name):
        with open(os.path.join(self.dir, "run", name + ".pid")) as f:
            return int(f.read())

    def number_of(self, name):
        """Returns exportd's number of the storage."""
        members = json.loads(self.call("dev", "status", "--dir", self.dir, "--json"))["members"]
        address = [m["addresses"][0] for m in members if m["name"] == name][0]
        storages = json.loads(self.admin("status", "--json"))["storages"]
        return [s["id"] for s in storages if address in s["addresses"]][0]

    def new_disk(self, name):
        """Replaces the disk by an empty one; returns when exportd waits for `rozo storage replace`."""
        number = self.number_of(name)

        def another_disk():
            s, = [s for s in json.loads(self.admin("status", "--json"))["storages"] if s["id"] == number]
            return "replace" in (s["error"] or "")

        os.kill(self.pid(name), signal.SIGKILL)
        time.sleep(1)
        shutil.rmtree(os.path.join(self.dir, "data", name))
        self.call("dev", "restart", "--dir", self.dir, name)
        wait_for(another_disk, "exportd to see another disk", 60)

    def is_rebuilding(self, name):
        with open(os.path.join(self.dir, "data", name, "storage.id")) as f:
            return "rebuild: yes" in f.read()

    def down(self):
        subprocess.run([self.rozo, "dev", "down", "--dir", self.dir], stdout=subprocess.DEVNULL, check=False)


@contextlib.contextmanager
def late_storage(c, name, build, late_ms):
    """Delays all answers of a storage: moves it to another port, and puts the relay on its old port."""
    config = os.path.join(c.dir, "etc", name + ".yaml")
    with open(config) as f:
        text = f.read()
    port = int(re.search(r"127\.0\.0\.1:(\d+)", text).group(1))
    addresses = [s["addresses"] for s in json.loads(c.admin("status", "--json"))["storages"]]
    other = free_port(c.dir)
    with open(config, "w") as f:
        # otherwise it would send exportd its real address, and clients would connect to
        # it
        f.write(text.replace("127.0.0.1:%d" % port, "0.0.0.0:%d" % other))
    c.call("dev", "restart", "--dir", c.dir, name)
    relay = subprocess.Popen([os.path.join(build, "tests", "tools", "late_link"), str(port), str(other), str(late_ms)],
                             stdout=subprocess.PIPE, text=True)
    try:
        if relay.stdout.readline() != "ready\n":
            fail("the relay did not start")
        wait_for(lambda: all(s["up"] for s in json.loads(c.admin("status", "--json"))["storages"]),
                 "all storages to be up")
        if [s["addresses"] for s in json.loads(c.admin("status", "--json"))["storages"]] != addresses:
            fail("clients do not go through the relay")
        yield
    finally:
        relay.kill()
        relay.wait()


@contextlib.contextmanager
def folder():
    """Makes a temporary folder with a path short enough for sockets; removes it at the end."""
    path = tempfile.mkdtemp(prefix="rozo-b-")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def wait_for(condition, what, timeout_s=600, step_s=0.1):
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            fail("waited %d s in vain for %s" % (timeout_s, what))
        time.sleep(step_s)


def stream(path, size, rw):
    """Returns the MB/s of one sequential pass of fio; reads are cold."""
    if rw == "read":
        drop_caches()
    job = fio(path, rw, size, ["--rw=" + rw, "--bs=1m", "--ioengine=psync"] +
                      (["--end_fsync=1"] if rw == "write" else []))
    return of_job(job, "MB/s")[0]


def write_json(path, what):
    if path:
        with open(path, "w") as f:
            json.dump(what, f, indent=2)
            f.write("\n")
