"""A cluster with three exportds, each in a network namespace of its own, so that one of them can be cut off.

    with WiredQuorum(programs, folder, n_mounts=2) as q:
        q.cut(1)    # nothing reaches exportd 1, and nothing of it arrives anywhere; nobody is told
        q.mend(1)

Storages, mounts and commands are in one more namespace, the hub, whose bridge is the network. A cut takes the port of
an exportd from the bridge. File systems are seen everywhere. Layout 0; configs, logs and data are below `folder`.
"""
import os
import subprocess
import time
import uuid

N_METAS, N_STORAGES = 3, 4
CLIENTS_PORT, MEMBERS_PORT, STORAGE_PORT = 4700, 4701, 4711
HUB = "10.78.0.1"
START_MAX_S = 60


def cannot_cut():
    """Returns why there can be no such cluster here; None: there can."""
    if os.geteuid() != 0:
        return "not run as root"
    name = "rozo-try-%d" % os.getpid()
    try:
        if subprocess.run(["ip", "netns", "add", name], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            return "no network namespace can be made here"
    except FileNotFoundError:
        return "ip (iproute2) is not installed"
    try:
        r = subprocess.run(["ip", "-n", name, "link", "add", "bridge", "type", "bridge"], stderr=subprocess.PIPE,
                           text=True, check=False)
        return None if r.returncode == 0 else "the kernel has no bridge: " + r.stderr.strip()
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


class WiredQuorum:
    def __init__(self, programs, folder, n_mounts):
        self.programs, self.dir = os.path.abspath(programs), folder
        self.hub = "rozo-hub-%d" % os.getpid()
        self.ids = range(1, N_METAS + 1)
        self.mnts = [os.path.join(folder, "m%d" % i) for i in range(n_mounts)]
        self.addresses = {i: "%s:%d" % (self._ip_of(i), CLIENTS_PORT) for i in self.ids}
        self.daemons = []

    def __enter__(self):
        try:
            self._networks()
            self._keys_and_configs()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for mnt in self.mnts:
            if mnt in (line.split()[4] for line in open("/proc/self/mountinfo")):
                subprocess.run(["umount", "-l", mnt], check=False)
        for p in self.daemons:
            p.terminate()
        for p in self.daemons:
            try:
                p.wait(START_MAX_S)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
        for name in [self.hub, *map(self._name_of, self.ids)]:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)

    def cut(self, meta):
        self._ip("-n", self.hub, "link", "set", "port%d" % meta, "nomaster")

    def mend(self, meta):
        self._ip("-n", self.hub, "link", "set", "port%d" % meta, "master", "bridge")

    def rozo(self, *args, check=True):
        env = dict(os.environ, ROZO_CONFIG=self._path("etc", "rozo.yaml"), ROZO_EXPORTD="", ROZO_KEY="")
        return subprocess.run(self._there(self.hub, [os.path.join(self.programs, "rozo"), *map(str, args)]), env=env,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              check=check)

    @staticmethod
    def _ip(*args):
        subprocess.run(["ip", *args], check=True)

    @staticmethod
    def _ip_of(meta):
        return "10.78.0.%d" % (10 + meta)

    @staticmethod
    def _name_of(meta):
        return "rozo-meta%d-%d" % (meta, os.getpid())

    @staticmethod
    def _there(name, argv):
        return ["nsenter", "--net=/run/netns/" + name, *argv]

    def _path(self, *parts):
        return os.path.join(self.dir, *parts)

    def _networks(self):
        self._ip("netns", "add", self.hub)
        self._ip("-n", self.hub, "link", "set", "lo", "up")
        self._ip("-n", self.hub, "link", "add", "bridge", "type", "bridge")
        self._ip("-n", self.hub, "addr", "add", HUB + "/24", "dev", "bridge")
        self._ip("-n", self.hub, "link", "set", "bridge", "up")
        for i in self.ids:
            name, port = self._name_of(i), "port%d" % i
            self._ip("netns", "add", name)
            self._ip("-n", name, "link", "set", "lo", "up")
            self._ip("link", "add", port, "netns", self.hub, "type", "veth", "peer", "name", "wire", "netns", name)
            self._ip("-n", name, "addr", "add", self._ip_of(i) + "/24", "dev", "wire")
            self._ip("-n", name, "link", "set", "wire", "up")
            self._ip("-n", self.hub, "link", "set", port, "master", "bridge")
            self._ip("-n", self.hub, "link", "set", port, "up")

    def _config(self, name, text):
        with open(self._path("etc", name + ".yaml"), "w") as f:
            f.write(text)

    def _keys_and_configs(self):
        for name in ("etc", "log", "data"):
            os.makedirs(self._path(name))
        keys = {who: self._path("etc", who + ".key") for who in ("node", "client")}
        for path in keys.values():
            self.rozo("key", "new", path)
        cluster = "cluster: {node_key: %(node)s, client_key: %(client)s}\n" % keys
        self._config("rozo", "exportd: %s\nkey: %s\nclient_key: %s\n" % (
            ",".join(self.addresses.values()), keys["node"], keys["client"]))
        members = ", ".join('{id: %d, address: "%s:%d"}' % (i, self._ip_of(i), MEMBERS_PORT) for i in self.ids)
        for i in self.ids:
            self._config("exportd-%d" % i, cluster + "exportd: {data: %s, listen: [\"%s\"]}\n"
                         "quorum: {id: %d, listen: [\"%s:%d\"], members: [%s]}\n" % (
                             self._path("data", "exportd-%d" % i), self.addresses[i], i, self._ip_of(i), MEMBERS_PORT,
                             members))
        for i in range(N_STORAGES):
            self._config("storaged-%d" % i, cluster + "storaged: {data: %s, host: h%d, listen: [\"%s:%d\"]}\n" % (
                self._path("data", "storaged-%d" % i), i, HUB, STORAGE_PORT + i))

    def _daemon(self, where, program, name, *args):
        with open(self._path("log", name + ".log"), "ab") as log:
            return subprocess.Popen(
                self._there(where, [os.path.join(self.programs, program), "--config",
                                    self._path("etc", name + ".yaml"), *args]),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _start(self):
        birth = uuid.uuid4().hex
        for p in [self._daemon(self._name_of(i), "exportd", "exportd-%d" % i, "--begin-quorum", birth)
                  for i in self.ids]:
            if p.wait() != 0:
                raise RuntimeError("a member cannot begin: see the logs in " + self._path("log"))
        for i in self.ids:
            self.daemons.append(self._daemon(self._name_of(i), "exportd", "exportd-%d" % i))
        for i in range(N_STORAGES):
            self.daemons.append(self._daemon(self.hub, "storaged", "storaged-%d" % i))
        for i in range(N_STORAGES):
            self._retry("storage", "add", "%s:%d" % (HUB, STORAGE_PORT + i))
        self._retry("export", "create", "home", "--layout", 0)
        for mnt in self.mnts:
            os.mkdir(mnt)
            self._retry("mount", "home", mnt)

    def _retry(self, *args):
        """Repeats a command until the daemons that it speaks to serve."""
        end = time.monotonic() + START_MAX_S
        while (r := self.rozo(*args, check=False)).returncode != 0:
            if time.monotonic() > end:
                raise RuntimeError("rozo %s: %s" % (" ".join(map(str, args)), r.stderr))
            time.sleep(0.1)
