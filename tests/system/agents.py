"""Processes with an open file on one of two mounts, which do what a test tells them."""
import os
import select
import subprocess
import sys

import pytest

# A process with one open file: executes commands, one per line, and reports the results.
AGENT = r"""
import errno, fcntl, mmap, os, signal, struct, sys
def interrupt(*args):
    raise OSError(errno.EINTR, "a signal")  # else Python would begin anew
signal.signal(signal.SIGUSR1, interrupt)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
TYPES = {"r": fcntl.F_RDLCK, "w": fcntl.F_WRLCK, "u": fcntl.F_UNLCK}
def record(kind, start, length):
    return struct.pack("hhqqi4x", TYPES[kind], 0, start, length, 0)
print("ready", flush=True)
for line in sys.stdin:
    what, *rest = line.split()
    try:
        if what in ("set", "wait", "ofdset", "ofdwait"):
            cmd = {"set": fcntl.F_SETLK, "wait": fcntl.F_SETLKW, "ofdset": 37, "ofdwait": 38}[what]
            fcntl.fcntl(fd, cmd, record(rest[0], int(rest[1]), int(rest[2])))
            answer = "ok"
        elif what == "get":
            r = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, record(rest[0], int(rest[1]), int(rest[2]))))
            answer = "free" if r[0] == fcntl.F_UNLCK else "%s %d %d" % ("rw"[r[0]], r[2], r[3])
        elif what == "flock":
            fcntl.flock(fd, {"r": fcntl.LOCK_SH, "w": fcntl.LOCK_EX, "u": fcntl.LOCK_UN}[rest[0][0]]
                        | (fcntl.LOCK_NB if rest[0].endswith("n") else 0))
            answer = "ok"
        elif what == "count":  # a counter under lock
            fcntl.fcntl(fd, fcntl.F_SETLKW, record("w", 0, 0))
            n = int(os.pread(fd, 20, 0) or b"0") + 1
            os.pwrite(fd, b"%020d" % n, 0)
            fcntl.fcntl(fd, fcntl.F_SETLK, record("u", 0, 0))
            answer = str(n)
        elif what == "write":
            os.ftruncate(fd, 0)
            os.pwrite(fd, " ".join(rest).encode(), 0)
            answer = "ok"
        elif what == "put":  # exportd is not asked
            os.pwrite(fd, rest[0].encode(), 0)
            answer = "ok"
        elif what == "read":
            answer = os.pread(fd, 1000, 0).decode()
        elif what == "fill":  # bytes of one kind, somewhere
            os.pwrite(fd, rest[0].encode() * int(rest[2]), int(rest[1]))
            answer = "ok"
        elif what == "source":  # of copies
            source = os.open(rest[0], os.O_RDONLY)
            answer = str(sum(len(os.pread(source, 1 << 20, at)) for at in range(0, os.fstat(source).st_size, 1 << 20)))
        elif what == "copy":
            answer = str(os.copy_file_range(source, fd, int(rest[0]), 0, 0))
        elif what == "direct":  # the kernel keeps nothing of it
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
            page = mmap.mmap(-1, 4096)
            os.preadv(fd, [page], int(rest[0]))
            answer = page[:1].decode()
        elif what == "end":
            answer = str(os.lseek(fd, 0, os.SEEK_END))
        elif what == "hole":
            answer = str(os.lseek(fd, 0, os.SEEK_HOLE))
        elif what == "append":
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
            os.write(fd, " ".join(rest).encode())
            answer = "ok"
        elif what == "look":  # not through the open file
            answer = str(os.stat(sys.argv[1]).st_size)
        elif what == "fsync":
            os.fsync(fd)
            answer = "ok"
        elif what == "reopen":
            os.close(os.open(sys.argv[1], os.O_RDWR))
            answer = "ok"
        elif what == "close":
            os.close(fd)
            answer = "ok"
    except OSError as e:
        answer = errno.errorcode[e.errno]
    print(answer, flush=True)
"""


class Agent:
    def __init__(self, path):
        self.p = subprocess.Popen([sys.executable, "-c", AGENT, path], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, bufsize=0)  # select() sees unread bytes
        assert self.answer() == "ready"

    def start(self, *what):
        self.p.stdin.write((" ".join(map(str, what)) + "\n").encode())

    def answer(self):
        ready, _, _ = select.select([self.p.stdout], [], [], 60)
        assert ready, "no answer"
        return self.p.stdout.readline().decode().strip()

    def __call__(self, *what):
        self.start(*what)
        return self.answer()

    def is_waiting(self):
        """Tells whether the process sleeps in the kernel, in an unanswered request to rozomount."""
        with open("/proc/%d/wchan" % self.p.pid) as f:
            return "request_wait_answer" in f.read() or "fuse" in f.read()

    def kill(self):
        self.p.kill()
        self.p.wait()


@pytest.fixture
def two(cluster):
    c = cluster(mounts=2)
    agents = []

    def agent(mount, name="file"):
        agents.append(Agent(os.path.join(c.mnts[mount], name)))
        return agents[-1]

    yield c, agent
    for a in agents:
        a.kill()
