"""Networks of one's own: two network namespaces, joined by wires that have a speed and can be cut.

    with Wires(n=2, mbit=400) as w:
        w.popen("storages", ["storaged", ...])     # in the one namespace; w.storage_address(i) is its address on wire i
        w.run("client", ["rozo", ...])             # in the other
        w.cut(0), w.mend(0)                        # nothing gets through; nobody is told (as with a switch that fails)
        w.carried(1)                               # bytes that wire 1 carried: (to the storages, to the client)

A wire is a veth with a token bucket (tc tbf) at both ends. The namespaces' names carry our pid, so several can be there
at once. File systems are seen everywhere: only the network is of one's own. One wire more, without a limit, is for
metadata: w.quiet_address.
"""
import json
import os
import subprocess
import time

BURST_KB, LATENCY_MS = 128, 50  # of a token bucket: what may go at once, and how long bytes wait for their turn


STORAGES, LAYOUT = 4, 0
START_MAX_S = 30


def cannot_wire():
    """Why there can be no wires here; None when there can."""
    if os.geteuid() != 0:
        return "not run as root"
    name = "rozo-try-%d" % os.getpid()
    try:
        if subprocess.run(["ip", "netns", "add", name], stderr=subprocess.DEVNULL).returncode != 0:
            return "no network namespace can be made here"
    except FileNotFoundError as e:
        return "%s is not installed" % e.filename
    try:
        r = subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "1mbit", "burst",
                            "16kb", "latency", "50ms"], stderr=subprocess.PIPE, text=True)
        return None if r.returncode == 0 else "the kernel has no token bucket (tc tbf): " + r.stderr.strip()
    except FileNotFoundError as e:
        return "%s is not installed" % e.filename
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


class Wires:
    def __init__(self, n, mbit):
        self.n, self.mbit = n, mbit
        self.names = {who: "rozo-%s-%d" % (who, os.getpid()) for who in ("storages", "client")}

    def __enter__(self):
        try:
            for name in self.names.values():
                self._ip("netns", "add", name)
                self._ip("-n", name, "link", "set", "lo", "up")
            for i in range(self.n + 1):
                self._wire(i)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], check=False)

    @staticmethod
    def _ip(*args):
        subprocess.run(["ip", *args], check=True)

    def _wire(self, i):
        """The last one has no limit."""
        ends = {who: "wire%d" % i for who in self.names}
        self._ip("link", "add", "wire%d" % i, "netns", self.names["storages"], "type", "veth",
                 "peer", "name", "wire%d" % i, "netns", self.names["client"])
        for host, (who, end) in enumerate(ends.items(), 1):
            self._ip("-n", self.names[who], "addr", "add", "10.77.%d.%d/24" % (i, host), "dev", end)
            self._ip("-n", self.names[who], "link", "set", end, "up")
            if i < self.n:
                subprocess.run(["tc", "-n", self.names[who], "qdisc", "add", "dev", end, "root", "tbf",
                                "rate", "%dmbit" % self.mbit, "burst", "%dkb" % BURST_KB,
                                "latency", "%dms" % LATENCY_MS], check=True)

    def storage_address(self, i):
        assert i < self.n
        return "10.77.%d.1" % i

    @property
    def quiet_address(self):
        return "10.77.%d.1" % self.n

    def _there(self, who, argv):
        return ["nsenter", "--net=/run/netns/" + self.names[who], *argv]

    def popen(self, who, argv, **more):
        return subprocess.Popen(self._there(who, argv), **more)

    def run(self, who, argv, **more):
        return subprocess.run(self._there(who, argv), **more)

    def cut(self, i):
        """What is sent is lost at both ends, silently."""
        for name in self.names.values():
            subprocess.run(["tc", "-n", name, "qdisc", "replace", "dev", "wire%d" % i, "root", "tbf", "rate", "8bit",
                            "burst", "1", "limit", "1"], check=True)

    def mend(self, i):
        for name in self.names.values():
            subprocess.run(["tc", "-n", name, "qdisc", "replace", "dev", "wire%d" % i, "root", "tbf",
                            "rate", "%dmbit" % self.mbit, "burst", "%dkb" % BURST_KB,
                            "latency", "%dms" % LATENCY_MS], check=True)

    def carried(self, i):
        r = self.run("client", ["ip", "-s", "-j", "link", "show", "dev", "wire%d" % i], check=True,
                     stdout=subprocess.PIPE, text=True)
        stats = json.loads(r.stdout)[0]["stats64"]
        return stats["tx"]["bytes"], stats["rx"]["bytes"]


class WiredCluster:
    """A cluster of layout 0 in a folder: exportd and storages in the one namespace, a mount in the other, `mnt`.

    Each storage listens on every wire; exportd is reached over the wire without a limit.
    """

    def __init__(self, programs, folder, wires):
        self.programs, self.folder, self.wires = programs, folder, wires
        self.mnt = os.path.join(folder, "mnt")
        self.daemons = []

    def __enter__(self):
        try:
            self._keys_and_configs()
            self._daemon("exportd", "exportd")
            for i in range(STORAGES):
                self._daemon("storaged", "storaged-%d" % i)
            for i in range(STORAGES):
                self._retry("storage", "add", ",".join(self._addresses(i)))
            self._retry("export", "create", "home", "--layout", str(LAYOUT))
            os.mkdir(self.mnt)
            self.rozo("mount", "home", self.mnt)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            if os.path.ismount(self.mnt):
                subprocess.run(["umount", self.mnt], check=True)
        finally:
            for p in reversed(self.daemons):
                p.terminate()
            for p in self.daemons:
                p.wait()

    def _addresses(self, storage):
        return ["%s:%d" % (self.wires.storage_address(w), 4711 + storage) for w in range(self.wires.n)]

    def _file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as f:
            f.write(text)
        return path

    def _keys_and_configs(self):
        keys = {who: os.path.join(self.folder, who + ".key") for who in ("node", "client")}
        for path in keys.values():
            self.rozo("key", "new", path)
        exportd = self.wires.quiet_address + ":4700"
        cluster = "cluster: {node_key: %(node)s, client_key: %(client)s}\n" % keys
        self._file("rozo.yaml", "exportd: %s\nkey: %s\nclient_key: %s\n" % (exportd, keys["node"], keys["client"]))
        self._file("exportd.yaml", cluster + "exportd: {data: %s/exportd, listen: [\"%s\"]}\n" % (self.folder, exportd))
        for i in range(STORAGES):
            self._file("storaged-%d.yaml" % i, cluster + "storaged: {data: %s/disk%d, host: h%d, listen: [%s]}\n" % (
                self.folder, i, i, ", ".join('"%s"' % a for a in self._addresses(i))))

    def _daemon(self, program, name):
        with open(os.path.join(self.folder, name + ".log"), "wb") as log:
            self.daemons.append(self.wires.popen(
                "storages",
                [os.path.join(self.programs, program), "--config", os.path.join(self.folder, name + ".yaml")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def rozo(self, *args, check=True):
        env = dict(os.environ, ROZO_CONFIG=os.path.join(self.folder, "rozo.yaml"), ROZO_EXPORTD="", ROZO_KEY="")
        return self.wires.run("client", [os.path.join(self.programs, "rozo"), *args], check=check, env=env,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _retry(self, *args):
        """Until the daemons that it speaks to serve."""
        end = time.monotonic() + START_MAX_S
        while (r := self.rozo(*args, check=False)).returncode != 0:
            if time.monotonic() > end:
                raise RuntimeError("rozo %s: %s" % (" ".join(args), r.stderr))
            time.sleep(0.1)
