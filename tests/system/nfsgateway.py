"""A gateway of NFS on a network of its own, and libnfs as a client of it.

Each gateway lives in network, mount and process namespaces of its own, as on a node of its own: with the rpcbind and
rpc.statd that NFS v3 needs, and with the usual ports. When its first process ends, all of it ends.
"""
import contextlib
import ctypes
import itertools
import os
import signal
import socket
import subprocess

from conftest import ROZO, rozo, wait_for
from nfsclient import Nfs3, Nfs4, Nfs4Owner, Nlm
from mounts import alone

CLONE_NEWNET = 0x40000000
INSIDE = r"""
ip link set lo up
mount -t tmpfs none /run
mkdir /run/rpcbind
rpcbind -f -w &
until rpcinfo -p >/dev/null 2>&1; do sleep 0.02; done
mkdir -p "$1/statd/sm" "$1/statd/sm.bak"
rpc.statd -F --no-notify -P "$1/statd" &
until rpcinfo -t 127.0.0.1 100024 1 >/dev/null 2>&1; do sleep 0.02; done
shift
"$@" &
server=$!
trap 'kill $server' TERM
while kill -0 $server 2>/dev/null; do wait $server; status=$?; done
exit $status
"""
libc = ctypes.CDLL(None, use_errno=True)
READ_PIECE = 64 << 10
WRITE_PIECE = {3: 64 << 10, 4: 2048}  # libnfs 4.0 cannot encode much more for v4; its nfs-cp fails for that reason
F_LOCK, F_TLOCK, F_ULOCK, F_TEST = range(4)


class Gateway:
    def __init__(self, c, name, mnt, grace=3, options=()):
        self.base, self.dir = c.base, os.path.join(c.base, "gateway-" + name)
        self.dirs = ("--dir", os.path.join(self.dir, "nfs"))
        os.mkdir(self.dir)
        rozo("gateway", "nfs", "main", "--mount", mnt, "--squash", "none", "--grace", grace, *options, *self.dirs)
        self.server = [ROZO, "gateway", "run", "nfs", *self.dirs]
        self.p = None
        self.log_start = 0

    def launch(self):
        self.log_start = len(self.log())
        with open(os.path.join(self.dir, "log"), "a") as log:
            self.p = subprocess.Popen(
                alone(self.base, "bash", "-c", INSIDE, "bash", self.dir, *self.server,
                      options=("--net", "--pid", "--fork", "--kill-child", "--mount-proc")),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self):
        if self.p is None or self.p.poll() is not None:
            self.launch()
        try:
            wait_for(self.serves, "the gateway to serve", 60)
        except BaseException:
            print(self.log()[-4000:])
            raise

    def serves(self):
        assert self.p.poll() is None, "the gateway ended with status %d" % self.p.returncode
        with self.net():
            for port in (2049, 20048, 32803):
                socket.create_connection(("127.0.0.1", port), 5).close()
        return True

    def wait_grace(self):
        """Waits for the end of the time of grace; until then no file is opened or truncated."""
        wait_for(lambda: "NOT IN GRACE" in self.log()[self.log_start:], "the end of the time of grace", 60)

    def log(self):
        with contextlib.suppress(FileNotFoundError), open(os.path.join(self.dir, "log"), errors="replace") as f:
            return f.read()
        return ""

    def inner_pid(self):
        """Returns the pid of the first process inside, which takes SIGTERM to mean the server."""
        with open("/proc/%d/task/%d/children" % (self.p.pid, self.p.pid)) as f:
            pids = f.read().split()
        assert pids, "nothing runs inside"
        return int(pids[0])

    def ganesha_pid(self):
        """Returns the pid of ganesha.nfsd."""
        def children(pid):
            with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
                return [int(p) for p in f.read().split()]

        return [g for p in children(self.inner_pid()) for g in children(p)][0]

    def stop(self):
        """Ends the server by SIGTERM. Returns the exit status of `rozo gateway run`."""
        os.kill(self.inner_pid(), signal.SIGTERM)
        return self.p.wait(60)

    def kill(self):
        if self.p is not None and self.p.poll() is None:
            self.p.kill()
            self.p.wait()

    @contextlib.contextmanager
    def net(self):
        """Runs the calling thread on the network of the gateway: its sockets stay there."""
        with open("/proc/thread-self/ns/net") as ours, open("/proc/%d/ns/net" % self.inner_pid()) as theirs:
            if libc.setns(theirs.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            try:
                yield
            finally:
                assert libc.setns(ours.fileno(), CLONE_NEWNET) == 0

    def v3(self):
        with self.net():
            return Nfs3(2049, 20048)

    def v4(self):
        with self.net():
            return Nfs4(2049)

    def owner(self, name):
        with self.net():
            return Nfs4Owner(2049, name)

    def nlm(self, owner):
        with self.net():
            return Nlm(32803, owner)

    def tool(self, *argv):
        """Runs a program on the network of the gateway; returns its output."""
        r = subprocess.run(["nsenter", "--net=/proc/%d/ns/net" % self.inner_pid(), *argv], stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        assert r.returncode == 0, "%s: %d %s" % (argv, r.returncode, r.stderr)
        return r.stdout

    def status(self):
        return rozo("gateway", "status", *self.dirs).stdout


class _Stat(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in "dev ino mode nlink uid gid rdev size blksize blocks atime mtime ctime "
                "atime_ns mtime_ns ctime_ns used".split()]


class _Dirent(ctypes.Structure):
    _fields_ = [("next", ctypes.c_void_p), ("name", ctypes.c_char_p)]


class LibNfs:
    """A client of one gateway. Errors of libnfs are OSErrors."""

    numbers = itertools.count(1)

    def __init__(self, gateway, version, path="/main"):
        self.gateway, self.version = gateway, version
        self.lib = ctypes.CDLL("libnfs.so.13")
        for name in ("nfs_init_context", "nfs_readdir", "nfs_get_error"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.nfs = ctypes.c_void_p(self.lib.nfs_init_context())
        self.call("nfs_set_version", version)
        # Two clients of one name would end each other's state.
        self.lib.nfs4_set_client_name(self.nfs, b"client %d" % next(self.numbers))
        self.call("nfs_mount", b"127.0.0.1", path.encode())

    def call(self, name, *args):
        with self.gateway.net():
            rc = getattr(self.lib, name)(self.nfs, *args)
        if rc < 0:
            raise OSError(-rc, ctypes.string_at(self.lib.nfs_get_error(self.nfs)).decode(errors="replace"))
        return rc

    def close(self):
        with self.gateway.net():
            self.lib.nfs_destroy_context(self.nfs)

    @contextlib.contextmanager
    def open(self, path, flags=os.O_RDWR):
        fh = ctypes.c_void_p()
        self.call("nfs_open2", path.encode(), flags, 0o640, ctypes.byref(fh))
        try:
            yield fh
        finally:
            self.call("nfs_close", fh)

    def pwrite(self, fh, data, offset=0):
        done = 0
        while done < len(data):
            piece = data[done:done + WRITE_PIECE[self.version]]
            done += self.call("nfs_pwrite", fh, ctypes.c_uint64(offset + done), ctypes.c_uint64(len(piece)), piece)

    def pread(self, fh, n, offset=0):
        buf, out = ctypes.create_string_buffer(READ_PIECE), b""
        while len(out) < n:
            got = self.call("nfs_pread", fh, ctypes.c_uint64(offset + len(out)),
                            ctypes.c_uint64(min(n - len(out), len(buf))), buf)
            if got == 0:
                break
            out += buf.raw[:got]
        return out

    def put(self, path, data):
        with self.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC) as fh:
            self.pwrite(fh, data)
            self.call("nfs_fsync", fh)
        self.call("nfs_chmod", path.encode(), 0o640)  # by v4 libnfs makes files without a mode

    def get(self, path):
        with self.open(path, os.O_RDONLY) as fh:
            return self.pread(fh, 1 << 30)

    def stat(self, path):
        st = _Stat()
        self.call("nfs_lstat64", path.encode(), ctypes.byref(st))
        return st

    def listdir(self, path):
        d, names = ctypes.c_void_p(), []
        self.call("nfs_opendir", path.encode(), ctypes.byref(d))
        while True:
            e = self.lib.nfs_readdir(self.nfs, d)
            if e is None:
                break
            names.append(_Dirent.from_address(e).name.decode())
        self.lib.nfs_closedir(self.nfs, d)
        return sorted(n for n in names if n not in (".", ".."))

    def readlink(self, path):
        buf = ctypes.create_string_buffer(4096)
        self.call("nfs_readlink", path.encode(), buf, len(buf))
        return buf.value.decode()

    def mkdir(self, path):
        self.call("nfs_mkdir", path.encode())

    def symlink(self, target, path):
        self.call("nfs_symlink", target.encode(), path.encode())

    def rename(self, a, b):
        self.call("nfs_rename", a.encode(), b.encode())

    def unlink(self, path):
        self.call("nfs_unlink", path.encode())

    def rmdir(self, path):
        self.call("nfs_rmdir", path.encode())

    def open_to_lock(self, path):
        """Opens a file for try_lock(). libnfs 4.0 counts wrongly after locks, and cannot close it."""
        fh = ctypes.c_void_p()
        self.call("nfs_open", path.encode(), os.O_RDWR, ctypes.byref(fh))
        return fh

    def try_lock(self, fh, op=F_TLOCK):
        """Returns whether the first 100 bytes were locked, or unlocked. After a refusal fh is of no use."""
        try:
            self.call("nfs_lockf", fh, op, ctypes.c_uint64(100))
        except OSError as e:
            if "NFS4ERR_DENIED" in str(e):
                return False
            raise
        return True


def v4_can_lock(gateway, path):
    """Returns whether a new client gets the lock, which it gives back."""
    nfs = LibNfs(gateway, 4)
    try:
        fh = nfs.open_to_lock(path)
        return nfs.try_lock(fh) and nfs.try_lock(fh, F_ULOCK)
    finally:
        nfs.close()
