"""Mounts that a test starts by itself, and one that can be cut off from exportd."""
import contextlib
import os
import signal
import socket
import subprocess
import threading

from conftest import BIN, mounts_below, wait_for

ALONE = """for m in $(findmnt -rno TARGET -t fuse.rozomount); do case $m in "$0"/*) ;; *) umount -l "$m" ;; esac; done
exec "$@" """


def alone(keep, *argv, options=()):
    """Returns the command that runs argv in mounts of its own, with those rozo mounts only that lie below keep: a
    mount does not end while another namespace has it, and those of other tests may hang."""
    return ["unshare", "--mount", *options, "sh", "-c", ALONE, keep, *argv]


def mount(c, mnt, *options, foreground=True, export="main"):
    """Starts a rozomount on mnt, with two loops so that its end can fail in more ways than in other tests;
    returns the process when it serves (or has ended)."""
    with contextlib.suppress(FileExistsError):  # exist_ok would stat a dead mount
        os.mkdir(mnt)
    argv = [os.path.join(BIN, "rozomount"), "%s/%s" % (c.dev_status()["exportd"], export), mnt, "-o",
            ",".join(["key=%s/etc/client.key" % c.dir, "loops=2", *options])]
    if not foreground:
        return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    p = subprocess.Popen(argv + ["-f"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: os.path.ismount(mnt) or p.poll() is not None, "the mount on " + mnt)
    return p


def end(p, timeout=60):
    """Returns its exit status and its log."""
    err = p.communicate(timeout=timeout)[1]
    return p.returncode, err


def put_open(path, data):
    """Makes a file; returns its descriptor."""
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644)
    assert os.write(fd, data) == len(data)
    return fd


def let_go(fd):
    with contextlib.suppress(OSError):  # its mount is gone
        os.close(fd)


def shut_down(*socks):
    """Breaks connections in both directions; some may be broken already."""
    for s in socks:
        with contextlib.suppress(OSError):
            s.shutdown(socket.SHUT_RDWR)


class Proxy:
    """A relay between one mount and exportd. If cut, it passes nothing in either direction and closes
    nothing."""

    def __init__(self, target):
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.lock, self.socks, self.ended = threading.Lock(), [self.listener], False
        self.open = threading.Event()
        self.open.set()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.connect, args=(near,), daemon=True).start()

    def connect(self, near):
        self.open.wait()
        try:
            far = socket.create_connection(self.target, timeout=30)
            far.settimeout(None)
        except OSError:
            near.close()
            return
        for s in (near, far):
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.lock:
            self.socks += [near, far]
        threading.Thread(target=self.pump, args=(far, near), daemon=True).start()
        self.pump(near, far)

    def passes(self, _a):
        """Tells whether data that come from `_a` are passed on."""
        return True

    def pump(self, a, b):
        """Passes data on. Data in flight at the cut arrives when the link is back, as with TCP."""
        try:
            while True:
                data = a.recv(1 << 16)
                self.open.wait()
                if not data:
                    break
                if self.passes(a):
                    b.sendall(data)
        except OSError:
            pass
        shut_down(a, b)

    def end(self):
        self.open.set()
        with self.lock:
            shut_down(*self.socks)
            for s in self.socks:
                s.close()


class CutOff:
    """One more mount of a cluster, through a proxy."""

    def __init__(self, c, name="cut-off", proxy=Proxy):
        self.mnt = os.path.join(c.base, "mnt-" + name)
        os.mkdir(self.mnt)
        self.proxy = proxy(c.addresses("exportd")[0])
        with open(os.path.join(c.dir, "log", "mount-%s.log" % name), "w") as log:
            self.p = subprocess.Popen(
                [os.path.join(BIN, "rozomount"), self.proxy.address + "/main", self.mnt, "-f", "-o",
                 "key=" + os.path.join(c.dir, "etc", "client.key")], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_for(lambda: mounts_below(self.mnt), "the mount by way of a proxy")
        except BaseException:
            self.end()
            raise

    def end(self):
        self.proxy.open.set()
        subprocess.run(["umount", "-l", self.mnt], check=False)
        self.p.send_signal(signal.SIGTERM)
        try:
            self.p.wait(30)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
        self.proxy.end()
