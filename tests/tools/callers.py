"""callers - programs that use one mount, each as a thread: what they see must be right, whatever dies below."""
import contextlib
import os
import random
import sqlite3
import threading
import time


def served_by(mnt):
    """Returns the process that serves the mount, when there is one. Starts no process: one that starts closes the
    descriptors of this one, and so flushes files."""
    return int(os.getxattr(mnt, "rozo.process").split()[0])


class Caller(threading.Thread):
    """Calls turn() until it is told to end; keeps the first error, and how many turns there were."""

    def __init__(self):
        super().__init__(daemon=True)
        self.ended, self.n, self.error = False, 0, None

    def run(self):
        try:
            while not self.ended:
                self.turn()
                self.n += 1
        except (OSError, AssertionError, sqlite3.Error) as e:
            self.error = e

    def turn(self):
        raise NotImplementedError

    def end(self):
        """Returns None, or what went wrong."""
        self.ended = True
        self.join(120)
        return "it hangs" if self.is_alive() else self.error


class Changer(Caller):
    """Makes, renames, links and removes names, each once: all of these calls fail if they are done twice."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        os.mkdir(folder)

    def turn(self):
        name = self.folder + "/%d" % self.n
        os.mkdir(name)
        os.close(os.open(name + "/f", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.link(name + "/f", name + "/l")
        os.rename(name + "/f", name + "/g")
        os.setxattr(name + "/g", "user.x", b"x", os.XATTR_CREATE)
        os.removexattr(name + "/g", "user.x")
        os.symlink("x", name + "/s")
        for last in ("/s", "/l", "/g"):
            os.unlink(name + last)
        os.rmdir(name)


class Writer(Caller):
    """Writes, appends and overwrites files without any fsync; knows what they must hold."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.files = folder, {}
        os.mkdir(folder)

    def turn(self):
        name, data = self.folder + "/%d" % (self.n % 20), os.urandom(5000)
        with open(name, "ab", buffering=0) as f:
            f.write(data)
        whole = self.files.get(name, b"") + data
        with open(name, "r+b", buffering=0) as f:
            f.seek(len(whole) // 3)
            f.write(data[:100])
            whole = whole[:len(whole) // 3] + data[:100] + whole[len(whole) // 3 + 100:]
            assert f.seek(0) == 0 and f.read() == whole, name
        self.files[name] = whole


class RandomWriter(Caller):
    """Random reads, writes and truncates of one open file against a copy in memory. flags: of open(2)."""

    SIZE = 1 << 20

    def __init__(self, path, seed, flags=0):
        super().__init__()
        self.rng, self.copy = random.Random(seed), bytearray()
        self.fds = [os.open(path, os.O_CREAT | os.O_RDWR | flags), os.open(path, os.O_RDONLY)]

    def turn(self):
        rng, at = self.rng, self.rng.randrange(self.SIZE)
        kind = rng.random()
        if kind < 0.45:
            data = rng.randbytes(rng.randrange(1, 30000))
            if at > len(self.copy):
                self.copy.extend(bytes(at - len(self.copy)))
            self.copy[at:at + len(data)] = data
            assert os.pwrite(self.fds[0], data, at) == len(data)
        elif kind < 0.5:
            self.copy[at:] = bytes(max(0, at - len(self.copy)))
            os.ftruncate(self.fds[0], at)
        else:
            got = os.pread(rng.choice(self.fds), 60000, at)
            assert got == bytes(self.copy[at:at + 60000]), "step %d: wrong bytes from %d on" % (self.n, at)
        assert os.fstat(self.fds[1]).st_size == len(self.copy), "step %d: wrong size" % self.n

    def end(self):
        wrong = super().end()
        for fd in self.fds:
            os.close(fd)
        return wrong


class Inserter(Caller):
    """Transactions of sqlite, each synced. None may fail, and all must be there at the end."""

    def __init__(self, path):
        super().__init__()
        self.path, self.db = path, None

    def run(self):
        super().run()
        if self.db is not None:
            self.db.close()

    def turn(self):
        if self.db is None:  # in this thread, as sqlite wants it
            self.db = sqlite3.connect(self.path, isolation_level=None, timeout=60)
            self.db.execute("pragma synchronous = full")
            self.db.execute("create table t (n integer primary key)")
        self.db.execute("insert into t values (?)", (self.n,))

    def end(self):
        wrong = super().end()
        if wrong is not None:
            return wrong
        with contextlib.closing(sqlite3.connect(self.path)) as db:
            if db.execute("pragma integrity_check").fetchone() != ("ok",):
                return "the database is damaged"
            there = {row[0] for row in db.execute("select n from t")}
        made = set(range(self.n))
        return None if there == made else "transactions are lost: %s; not made: %s" % (sorted(made - there),
                                                                                    sorted(there - made))


class Player(Caller):
    """Reads a file from start to end again and again at a rate; knows the longest time that a read took."""

    def __init__(self, path, size, rate):
        super().__init__()
        self.data, self.longest_s, self.frame = os.urandom(1 << 20), 0, 1 << 20
        self.every_s = self.frame / rate
        with open(path, "wb") as f:
            for _ in range(size // self.frame):
                f.write(self.data)
            f.flush()
            os.fsync(f.fileno())
        self.fd, self.n_frames = os.open(path, os.O_RDONLY), size // self.frame
        self.due = time.monotonic()

    def turn(self):
        begun = time.monotonic()
        got = os.pread(self.fd, self.frame, self.n % self.n_frames * self.frame)
        assert got == self.data, "frame %d: wrong bytes" % self.n
        self.longest_s = max(self.longest_s, time.monotonic() - begun)
        self.due = max(self.due + self.every_s, begun)
        time.sleep(max(0, self.due - time.monotonic()))

    def end(self):
        wrong = super().end()
        os.close(self.fd)
        return wrong
