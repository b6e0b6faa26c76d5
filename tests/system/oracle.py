"""Clients that know what they were told: each notes the changes that were acknowledged to it, and compares later.

Every client runs in a thread of its own on one mount, and is the only owner of what it changes (Names, Pages) or has
agreed with the others on how to share it (Appender, Counter). It sends a change once. A change that ended with an error
because its mount was killed is in doubt: both outcomes are right. Any other error is a fault; so EEXIST and ENOENT tell
that a change was done twice, or lost.
"""
import errno
import fcntl
import os
import random
import struct
import threading
import time

from pages import PAGE, describe, page_of

DEATH = {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ESHUTDOWN}  # of a mount
RECORD = struct.Struct("<QQ")
NAMES_MAX = 60
PAGES_MAX = 64


class MountState:
    """A mount that may be killed by the test. `deaths` is odd from before a kill until it is mounted again."""

    def __init__(self, mnt):
        self.mnt, self.deaths = mnt, 0

    def alive(self):
        return self.deaths % 2 == 0


class Client(threading.Thread):
    """Runs step() until stop() is called or a fault is found."""

    def __init__(self, mount, name, seed):
        super().__init__(name="%s on %s" % (name, os.path.basename(mount.mnt)), daemon=True)
        self.mount, self.rng, self.mark = mount, random.Random("%d %s" % (seed, self.name)), name
        self.n, self.ends, self.error = 0, False, None

    def path(self, *names):
        return os.path.join(self.mount.mnt, *names)

    def run(self):
        try:
            while not self.ends:
                deaths = self.mount.deaths
                try:
                    self.step()
                    self.n += 1
                except OSError as e:
                    if e.errno not in DEATH or (deaths % 2 == 0 and self.mount.deaths == deaths):
                        raise
                    self.wait_for_mount()
                    self.return_()
        except (OSError, AssertionError) as e:
            self.error = e

    def wait_for_mount(self):
        while not self.mount.alive() and not self.ends:
            time.sleep(0.05)

    def step(self):
        """Does one change, and notes it."""
        raise NotImplementedError

    def return_(self):
        """Finds out what became of the change in doubt: the mount serves again."""

    def check(self, mnt):
        """Compares what is there, seen through this mount, with what was acknowledged. After stop()."""

    def stop(self):
        self.ends = True

    def fault(self):
        """Returns what went wrong, or None. After stop()."""
        self.join(120)
        if self.is_alive():
            return "%s: hangs" % self.name
        return None if self.error is None else "%s after %d changes: %s" % (self.name, self.n, self.error)


class Names(Client):
    """Makes, renames, links and removes names in a folder of its own.

    names: name -> None for a folder, or the key of a file; links: key -> number of names.
    """

    def __init__(self, mount, name, seed):
        super().__init__(mount, name, seed)
        self.names, self.links, self.next, self.doubt = {}, {}, 0, None
        os.mkdir(self.path(self.mark))

    def step(self):
        self.next += 1
        new, old = "n%d" % self.next, self.rng.choice(list(self.names)) if self.names else None
        kinds = ["create", "mkdir"] if old is None else ["create", "mkdir", "rename", "link", "remove"]
        kind = "remove" if len(self.names) >= NAMES_MAX else self.rng.choice(kinds)
        if kind == "link" and self.names[old] is None:
            kind = "rename"
        self.doubt = kind, old, new
        self.send(kind, old, new)
        self.note(*self.doubt)
        self.doubt = None

    def send(self, kind, old, new):
        at, to = self.path(self.mark, old or ""), self.path(self.mark, new)
        if kind == "create":
            os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        elif kind == "mkdir":
            os.mkdir(to)
        elif kind == "rename":
            os.rename(at, to)
        elif kind == "link":
            os.link(at, to)
        elif self.names[old] is None:
            os.rmdir(at)
        else:
            os.unlink(at)

    def note(self, kind, old, new):
        """The change was done."""
        if kind in ("create", "mkdir"):
            self.names[new] = new if kind == "create" else None
            self.links.update({new: 1} if kind == "create" else {})
        elif kind == "rename":
            self.names[new] = self.names.pop(old)
        elif kind == "link":
            self.names[new] = self.names[old]
            self.links[self.names[old]] += 1
        else:
            key = self.names.pop(old)
            if key is not None:
                self.links[key] -= 1

    def return_(self):
        if self.doubt is None:
            return
        kind, old, new = self.doubt
        there = os.path.lexists(self.path(self.mark, old if kind == "remove" else new))
        if there != (kind == "remove"):
            self.note(kind, old, new)
        self.doubt = None

    def check(self, mnt):
        at = os.path.join(mnt, self.mark)
        there = set(os.listdir(at))
        assert there == set(self.names), "%s: lost %s, too much %s" % (
            self.name, sorted(set(self.names) - there), sorted(there - set(self.names)))
        inodes = {}
        for name, key in self.names.items():
            st = os.lstat(os.path.join(at, name))
            if key is not None:
                assert st.st_nlink == self.links[key], "%s: %s has %d links, not %d" % (
                    self.name, name, st.st_nlink, self.links[key])
                assert inodes.setdefault(key, st.st_ino) == st.st_ino, "%s: %s is another file" % (self.name, name)


class Pages(Client):
    """Writes pages of a file and syncs them; sometimes cuts it.

    pages: what was synced; may: page number -> generations that may be there, too, since the sync was not acknowledged.
    """

    def __init__(self, mount, name, seed):
        super().__init__(mount, name, seed)
        self.pages, self.may, self.generation = [], {}, 0
        os.close(os.open(self.path(self.mark), os.O_CREAT | os.O_EXCL, 0o644))

    def step(self):
        fd = os.open(self.path(self.mark), os.O_RDWR)
        try:
            first = self.rng.randint(0, len(self.pages))
            n = self.rng.randint(1, 8)
            if first + n > PAGES_MAX:
                first, n = 0, 1
            self.generation += 1
            for i in range(first, first + n):
                self.may.setdefault(i, set()).add(self.generation)
            data = [page_of(i, self.generation) for i in range(first, first + n)]
            assert os.pwrite(fd, b"".join(data), first * PAGE) == n * PAGE
            os.fsync(fd)
        finally:
            os.close(fd)
        self.pages += [0] * (first + n - len(self.pages))
        self.pages[first:first + n] = [self.generation] * n
        for i in range(first, first + n):
            del self.may[i]

    def check(self, mnt):
        with open(os.path.join(mnt, self.mark), "rb") as f:
            got = f.read()
        most = max([len(self.pages)] + [i + 1 for i in self.may])
        assert len(self.pages) * PAGE <= len(got) <= most * PAGE, "%s: %d bytes, not %d" % (
            self.name, len(got), len(self.pages) * PAGE)
        for i in range(len(got) // PAGE):
            page = got[i * PAGE:(i + 1) * PAGE]
            right = {self.pages[i] if i < len(self.pages) else 0} | self.may.get(i, set())
            assert any(page == (page_of(i, g) if g else bytes(PAGE)) for g in right), \
                "%s: page %d holds %s, not generation %s" % (self.name, i, describe(page, i), sorted(right))


class Appender(Client):
    """Appends records to a file that appenders on other mounts append to, too."""

    def __init__(self, mount, name, seed, shared, number):
        super().__init__(mount, name, seed)
        self.shared, self.number, self.next, self.synced = shared, number, 0, set()

    def step(self):
        fd = os.open(self.path(self.shared), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            self.next += 1
            assert os.write(fd, RECORD.pack(self.number, self.next)) == RECORD.size
            os.fsync(fd)
        finally:
            os.close(fd)
        self.synced.add(self.next)

    def check(self, mnt):
        with open(os.path.join(mnt, self.shared), "rb") as f:
            got = f.read()
        assert len(got) % RECORD.size == 0
        mine = [seq for number, seq in RECORD.iter_unpack(got) if number == self.number]
        assert len(set(mine)) == len(mine), "%s: appended twice: %s" % (
            self.name, sorted(s for s in set(mine) if mine.count(s) > 1))
        assert self.synced <= set(mine), "%s: lost %s" % (self.name, sorted(self.synced - set(mine)))
        assert set(mine) <= set(range(1, self.next + 1)) and mine == sorted(mine)


class Counter(Client):
    """Adds one to a number in a file, under a lock that counters on other mounts take, too."""

    def __init__(self, mount, name, seed, shared):
        super().__init__(mount, name, seed)
        self.shared, self.sure, self.doubts, self.adds = shared, 0, 0, False

    def step(self):
        fd = os.open(self.path(self.shared), os.O_RDWR)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX)
            value = int(os.pread(fd, 16, 0))
            self.adds = True
            assert os.pwrite(fd, b"%016d" % (value + 1), 0) == 16
            os.fsync(fd)
            self.sure, self.adds = self.sure + 1, False
            fcntl.lockf(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)
        time.sleep(self.rng.uniform(0, 0.02))

    def return_(self):
        self.doubts, self.adds = self.doubts + self.adds, False


class Holder:
    """Holds a lock for as long as its mount lives."""

    def __init__(self, mount, name):
        self.mount, self.name, self.fd = mount, name, -1
        self.take()

    def take(self):
        if self.fd >= 0:
            try:
                os.close(self.fd)
            except OSError as e:  # its mount was killed
                assert e.errno in DEATH
        self.fd = os.open(os.path.join(self.mount.mnt, self.name), os.O_CREAT | os.O_RDWR, 0o644)
        fcntl.lockf(self.fd, fcntl.LOCK_EX)

    def check(self, other):
        """Fails if the lock can be had through the other mount."""
        fd = os.open(os.path.join(other.mnt, self.name), os.O_RDWR)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        finally:
            os.close(fd)
        raise AssertionError("the lock %s of a mount that lives is free" % self.name)
