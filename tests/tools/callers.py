"""callers - programs that use one mount, each as a thread: what they see must be right, whatever dies below."""
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


class SyncedWriter(Caller):
    """Random reads, writes and truncates of one open file, each write synced (O_SYNC), against a copy in memory."""

    SIZE = 1 << 20

    def __init__(self, path, seed):
        super().__init__()
        self.rng, self.copy = random.Random(seed), bytearray()
        self.fds = [os.open(path, os.O_CREAT | os.O_RDWR | os.O_SYNC), os.open(path, os.O_RDONLY)]

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
    """Transactions of sqlite, synced; one that fails is looked for, and done again if it is not there."""

    def __init__(self, path):
        super().__init__()
        self.path, self.story = path, []

    def run(self):
        self.db = sqlite3.connect(self.path, isolation_level=None, timeout=60)
        self.db.execute("pragma synchronous = full")
        self.db.execute("create table t (n integer primary key)")
        super().run()
        self.db.close()

    def turn(self):
        try:
            self.db.execute("insert into t values (?)", (self.n,))
        except sqlite3.OperationalError as e:
            self.story.append((self.n, getattr(e, "sqlite_errorname", str(e))))
            while not self.is_known():
                pass

    def is_known(self):
        """Finds out whether the transaction took place; False: tried in vain."""
        try:
            if self.db.in_transaction:
                self.db.execute("rollback")
            if self.db.execute("select count(*) from t where n = ?", (self.n,)).fetchone()[0] == 0:
                self.n -= 1
            return True
        except sqlite3.OperationalError as e:
            self.story.append((self.n, getattr(e, "sqlite_errorname", str(e))))
            return False

    def end(self):
        wrong = super().end()
        if wrong is not None:
            return wrong
        db = sqlite3.connect(self.path)
        if db.execute("pragma integrity_check").fetchone() != ("ok",):
            return "the database is damaged"
        there = {row[0] for row in db.execute("select n from t")}
        if there != set(range(self.n)):
            lost = sorted(set(range(self.n)) - there)
            return "transactions are lost: %s; not made: %s; what failed: %s" % (
                lost, sorted(there - set(range(self.n))), [(n, e) for n, e in self.story if n in lost])
        db.close()
        return None


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
