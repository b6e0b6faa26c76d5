"""workload.py WORKLOAD MNT WHO SEED OPS [--sync] [--pace MS] - one client of a history: calls through one mount.

For each call a line of JSON on standard output when it has ended: the fields of linear.Op. An error that does not tell
whether it was done (the mount died, was cut off, gave up) ends it with an unknown outcome; then the folder is opened
anew until that works, and the work goes on. --sync: what is written is made stable before the call counts as done, as
it must be for what shall survive the death of its mount. --pace: rest up to twice as long between calls. Says "ready",
begins with the first line of its input, ends after OPS calls.

Everything happens in MNT/work, which whoever starts us has made and filled with prepare().
"""
import argparse
import ctypes
import errno
import fcntl
import json
import mmap
import os
import random
import struct
import sys
import time
import zlib

PAGE = 4096
BLOCK = 8192
LINE = 64         # divides a block: of a line that is not whole nothing is there
FIRST_LINE = "0-0"
DIRECT_MAX = 1 << 20  # bytes of one request to the mount
N_BLOCKS = 2
N_NAMES = 5
N_VALUES = 5
N_KEYS = 2
RENAME_NOREPLACE = 1
UNKNOWN = (errno.EIO, errno.ENOTCONN, errno.ECONNABORTED, errno.ESTALE, errno.ETIMEDOUT)


def prepare(work):
    """What every workload finds there."""
    os.mkdir(work)
    for name, data in (("register", bytes(N_BLOCKS * BLOCK)), ("log", line(FIRST_LINE)), ("counter", b"%020d" % 0)):
        with open(os.path.join(work, name), "wb") as f:
            f.write(data)
    os.mkdir(os.path.join(work, "names"))
    for key in range(N_KEYS):
        os.mkdir(os.path.join(work, "cas%d" % key))
        open(os.path.join(work, "cas%d" % key, "v0"), "w").close()
        with open(os.path.join(work, "target%d" % key), "wb") as f:
            f.write(b"%020d" % 0)


def line(item):
    return item.encode().ljust(LINE - 1) + b"\n"


class Client:
    def __init__(self, args):
        self.who, self.sync = args.who, args.sync
        self.work = os.path.join(args.mnt, "work")
        self.random = random.Random(args.seed)
        self.dir = None
        self.fds = {}          # (name, flags) -> descriptor kept open
        self.n = 0             # operations begun
        self.room = None       # for what is read with O_DIRECT
        self.changing = False  # from now on an error leaves the outcome unknown

    # ---- files ----

    def enter(self):
        """Open the folder; a mount that is gone for the moment comes back."""
        self.leave()
        end = time.monotonic() + 300
        while True:
            try:
                self.dir = os.open(self.work, os.O_RDONLY | os.O_DIRECTORY)
                return
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def leave(self):
        for fd in [*self.fds.values(), *([] if self.dir is None else [self.dir])]:
            try:
                os.close(fd)
            except OSError:
                pass
        self.fds, self.dir = {}, None

    def open(self, name, flags):
        return os.open(name, flags, 0o644, dir_fd=self.dir)

    def kept(self, name, flags):
        """A descriptor that is open for long; now and then a new one."""
        if (name, flags) in self.fds and self.random.randrange(8) == 0:
            os.close(self.fds.pop((name, flags)))
        if (name, flags) not in self.fds:
            self.fds[name, flags] = self.open(name, flags)
        return self.fds[name, flags]

    def stable(self, fd):
        if self.sync:
            os.fsync(fd)

    def stable_names(self, name="."):
        if self.sync:
            fd = self.open(name, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def attempt(self, call, *args, **kw):
        """Whether it was done; False for "is there already" and "is not there"."""
        self.changing = True
        try:
            call(*args, **kw)
            return True
        except (FileExistsError, FileNotFoundError):
            return False

    def read_directly(self, fd):
        """All of a file, as one request that goes past the kernel's pages.

        It ends where the mount says, also when the kernel has missed that the file has grown (docs/POSIX.md), but for a
        file that the kernel believes empty: then the mount is not asked.
        """
        if self.room is None:
            self.room = mmap.mmap(-1, DIRECT_MAX)  # aligned
        n = os.preadv(fd, [self.room], 0)
        assert 0 < n < DIRECT_MAX, "%d bytes read, of at most %d" % (n, DIRECT_MAX)
        return self.room[:n]

    def value(self):
        """One that nobody else writes."""
        return int(self.who) << 32 | self.n

    # ---- operations: give [(call, args, result)]; several when the object consists of several ----

    def register(self):
        """A block, page by page: the kernel copies them one by one."""
        block = self.random.randrange(N_BLOCKS)
        keys = ["%d.%d" % (block, page) for page in range(BLOCK // PAGE)]
        if self.random.randrange(2):
            fd = self.kept("register", self.random.choice((os.O_RDWR, os.O_WRONLY)))
            value = self.value()
            self.told = [("write", (key, value), None) for key in keys]
            self.changing = True
            n = os.pwrite(fd, struct.pack("<Q", value) * (BLOCK // 8), block * BLOCK)
            assert n == BLOCK, "%d bytes written" % n
            self.stable(fd)
            return self.told
        fd = self.kept("register", self.random.choice((os.O_RDWR, os.O_RDONLY)))
        data = os.pread(fd, BLOCK, block * BLOCK)
        assert len(data) == BLOCK, "%d bytes read" % len(data)
        told = []
        for i, key in enumerate(keys):
            page = data[i * PAGE:(i + 1) * PAGE]
            whole = page == page[:8] * (PAGE // 8)
            told.append(("read", (key,), struct.unpack("<Q", page[:8])[0] if whole else "torn: " + page[::512].hex()))
        return told

    def append(self):
        if self.random.randrange(5):
            fd = self.kept("log", os.O_WRONLY | os.O_APPEND)
            item = "%s-%d" % (self.who, self.n)
            self.told = [("append", (item,), None)]
            self.changing = True
            n = os.write(fd, line(item))
            assert n == LINE, "%d bytes written" % n
            self.stable(fd)
            return self.told
        data = self.read_directly(self.kept("log", os.O_RDONLY | os.O_DIRECT))
        assert len(data) % LINE == 0, "%d bytes are no number of lines" % len(data)
        return [("length", (zlib.crc32(data),), len(data) // LINE)]

    def counter(self):
        fd = self.kept("counter", os.O_RDWR)
        self.told = [("add", ("counter",), None)]
        fcntl.lockf(fd, fcntl.LOCK_EX)
        now = int(os.pread(fd, 20, 0)) + 1
        self.changing = True
        n = os.pwrite(fd, b"%020d" % now, 0)
        assert n == 20, "%d bytes written" % n
        self.stable(fd)
        fcntl.lockf(fd, fcntl.LOCK_UN)
        return [("add", ("counter",), now)]

    def names(self):
        name = "n%d" % self.random.randrange(N_NAMES)
        path = "names/" + name
        what = self.random.randrange(8)
        if what < 3:
            self.told = [("create", (name,), None)]
            done = self.attempt(lambda: os.close(self.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)))
        elif what < 6:
            self.told = [("unlink", (name,), None)]
            done = self.attempt(os.unlink, path, dir_fd=self.dir)
        elif what < 7:
            return [("exists", (name,), self.exists(path))]
        else:
            fd = self.open("names", os.O_RDONLY | os.O_DIRECTORY)
            try:
                there = os.listdir(fd)
            finally:
                os.close(fd)
            # One that went and came again meanwhile may be there twice.
            return [("exists", ("n%d" % i,), "n%d" % i in there) for i in range(N_NAMES)]
        if done:
            self.stable_names("names")
        return [(call, args, done) for call, args, _ in self.told]

    def exists(self, path):
        try:
            os.stat(path, dir_fd=self.dir)
            return True
        except FileNotFoundError:
            return False

    def rename(self):
        """The value is the one name that is there.

        Not rename(): when the kernel finds the file at the old name and, asking later, at the new one, that succeeds
        at once.
        """
        key = "cas%d" % self.random.randrange(N_KEYS)
        old, new = self.random.sample(range(N_VALUES), 2)
        if self.random.randrange(3) == 0:
            return [("is", (key, old), self.exists("%s/v%d" % (key, old)))]
        self.told = [("cas", (key, old, new), None)]
        done = self.attempt(self.rename_to_new, "%s/v%d" % (key, old), "%s/v%d" % (key, new))
        if done:
            self.stable_names(key)
        return [("cas", (key, old, new), done)]

    def rename_to_new(self, old, new):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.renameat2(self.dir, old.encode(), self.dir, new.encode(), RENAME_NOREPLACE) != 0:
            raise OSError(ctypes.get_errno(), "rename to " + new)

    def replace(self):
        """A file is replaced by another, as an editor does."""
        key = "target%d" % self.random.randrange(N_KEYS)
        if self.random.randrange(2):
            fd = self.open(key, os.O_RDONLY)
            try:
                data = os.read(fd, 100)
            finally:
                os.close(fd)
            return [("read", (key,), int(data) if len(data) == 20 else "torn: %r" % data)]
        value, new = self.value(), "new-%s-%d" % (self.who, self.n)
        self.told = [("write", (key, value), None)]
        fd = self.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        try:
            os.write(fd, b"%020d" % value)
            self.stable(fd)
        finally:
            os.close(fd)
        self.changing = True
        os.rename(new, key, src_dir_fd=self.dir, dst_dir_fd=self.dir)
        self.stable_names()
        return self.told

    # ---- the life of a client ----

    def run(self, work, n_ops, pace_s):
        self.enter()
        print("ready", flush=True)
        sys.stdin.readline()
        while self.n < n_ops:
            time.sleep(self.random.uniform(0, 2 * pace_s))
            self.n += 1
            self.told, self.changing = [], False
            begin = time.monotonic_ns()
            try:
                self.tell(work(), begin, time.monotonic_ns())
            except OSError as e:
                if e.errno not in UNKNOWN:
                    raise
                print("%s: operation %d: %s" % (self.who, self.n, e), file=sys.stderr, flush=True)
                self.tell(self.told if self.changing else [], begin, None)
                self.enter()
        self.leave()

    def tell(self, told, begin, end):
        """One line, also of nothing: whoever started us counts them."""
        print(json.dumps([[self.who, call, args, None if end is None else result, begin, end]
                          for call, args, result in told]), flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("workload", choices=["register", "append", "counter", "names", "rename", "replace"])
    p.add_argument("mnt")
    p.add_argument("who")
    p.add_argument("seed", type=int)
    p.add_argument("ops", type=int)
    p.add_argument("--sync", action="store_true")
    p.add_argument("--pace", type=float, default=0, metavar="MS")
    args = p.parse_args()
    client = Client(args)
    client.run(getattr(client, args.workload), args.ops, args.pace / 1000)


if __name__ == "__main__":
    main()
