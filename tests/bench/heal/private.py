"""private.py - what the benchmarks of healing share: private clusters, fio and CPU time.

In:     a folder with the programs of a build. Out: `rozo dev` clusters below a temporary folder.
Keeps:  whatever happens, no mount and no process is left behind.
"""
import contextlib
import importlib.machinery
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
import time

MIB, GIB = 1 << 20, 1 << 30


def _fsbench():
    """tests/bench/fsbench as a module: its fio jobs, its count of CPU time."""
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fsbench")
    loader = importlib.machinery.SourceFileLoader("fsbench", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("fsbench", loader))
    loader.exec_module(module)
    return module


fsbench = _fsbench()


class Cluster:
    """One build's programs as a cluster of its own, mounted once."""

    def __init__(self, name, programs, layout, folder):
        self.name, self.rozo = name, os.path.join(programs, "rozo")
        self.dir, self.mnt = os.path.join(folder, name), os.path.join(folder, name + "-mnt")
        self.layout = layout
        self.call("dev", "up", "--dir", self.dir, "--layout", layout, "--mount", self.mnt)
        self.processes = fsbench.Processes(self.dir)

    def call(self, *args, check=True):
        r = subprocess.run([self.rozo, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True)
        if check and r.returncode != 0:
            fsbench.fail("rozo %s: %s" % (" ".join(map(str, args)), r.stderr))
        return r.stdout

    def admin(self, *args, check=True):
        return self.call(*args, "--config", os.path.join(self.dir, "etc", "rozo.yaml"), check=check)

    def health(self):
        """storage id -> what `rozo rebuild status` tells of it."""
        told = json.loads(self.admin("rebuild", "status", "--json", check=False))
        return {s["id"]: s["health"] for s in told["storages"]}

    def quiet(self):
        """Whether nothing is left to heal, settle or apply."""
        if not all(s["up"] for s in json.loads(self.admin("status", "--json"))["storages"]):
            return False
        return all(h is not None and not (h["queued"] or h["missed_ranges"] or h["unhealed"] or h["uncommitted"])
                   and h["rebuild"]["state"] != "running" for h in self.health().values())

    def left(self):
        """Records and marks not applied yet, and files not removed yet, by what `rozo status` tells."""
        told = json.loads(self.admin("status", "--json", check=False))
        return told.get("trash", 0) + sum((s.get("health") or {}).get("pending_records", 0) for s in told["storages"])

    def pid(self, name):
        with open(os.path.join(self.dir, "run", name + ".pid")) as f:
            return int(f.read())

    def number_of(self, name):
        """exportd's number of that storage."""
        members = json.loads(self.call("dev", "status", "--dir", self.dir, "--json"))["members"]
        address = [m["addresses"][0] for m in members if m["name"] == name][0]
        storages = json.loads(self.admin("status", "--json"))["storages"]
        return [s["id"] for s in storages if address in s["addresses"]][0]

    def down(self):
        subprocess.run([self.rozo, "dev", "down", "--dir", self.dir], stdout=subprocess.DEVNULL, check=False)


@contextlib.contextmanager
def folder():
    """A temporary one, short enough for sockets; gone at the end."""
    path = tempfile.mkdtemp(prefix="rozo-b-")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def wait_for(condition, what, timeout_s=600, step_s=0.1):
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            fsbench.fail("waited %d s in vain for %s" % (timeout_s, what))
        time.sleep(step_s)


def stream(path, size, rw):
    """MB/s of one sequential pass of fio, reads cold."""
    if rw == "read":
        fsbench.drop_caches()
    job = fsbench.fio(path, rw, size, ["--rw=" + rw, "--bs=1m", "--ioengine=psync"] +
                      (["--end_fsync=1"] if rw == "write" else []))
    return fsbench.of_job(job, "MB/s")[0]


def write_json(path, what):
    if path:
        with open(path, "w") as f:
            json.dump(what, f, indent=2)
            f.write("\n")
