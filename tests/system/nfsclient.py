"""A small client of NFS v3, v4.0 and NLM, which shows file handles and sends each request as it is told to.

The tools of libnfs hide handles. Here a handle that one server gave is sent to another one. Requests are RPCs of
RFC 5531 over TCP with AUTH_SYS; v3 is RFC 1813, NLM its appendix II, v4.0 RFC 7530.
"""
import itertools
import socket
import struct

NFS, MOUNT, NLM = 100003, 100005, 100021
NFS_OK, NFS_NOENT, NFS_STALE = 0, 2, 70
NFS4_GRACE, NFS4_NO_GRACE = 10013, 10033
NLM_GRANTED, NLM_DENIED = 0, 1
ATTR_SIZE = 4


def opaque(data):
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


class Answer:
    """Reads XDR from the front of a reply."""

    def __init__(self, data):
        self.data = data

    def take(self, n):
        assert len(self.data) >= n, "the reply is too short"
        out, self.data = self.data[:n], self.data[n:]
        return out

    def u32(self):
        return struct.unpack(">I", self.take(4))[0]

    def u64(self):
        return struct.unpack(">Q", self.take(8))[0]

    def opaque(self):
        n = self.u32()
        return self.take(n + -n % 4)[:n]


class Rpc:
    """One connection to one program."""

    xids = itertools.count(1)

    def __init__(self, port, program, version, timeout=20):
        self.program, self.version = program, version
        self.sock = socket.create_connection(("127.0.0.1", port), timeout)

    def close(self):
        self.sock.close()

    def receive(self, n):
        out = b""
        while len(out) < n:
            piece = self.sock.recv(n - len(out))
            if not piece:
                raise ConnectionResetError("the server closed the connection")
            out += piece
        return out

    def call(self, procedure, args=b""):
        xid = next(self.xids)
        cred = opaque(struct.pack(">I", 0) + opaque(b"client") + struct.pack(">III", 0, 0, 0))
        msg = struct.pack(">6I", xid, 0, 2, self.program, self.version, procedure) + \
            struct.pack(">I", 1) + cred + struct.pack(">II", 0, 0) + args
        self.sock.sendall(struct.pack(">I", 1 << 31 | len(msg)) + msg)
        while True:
            data, last = b"", False
            while not last:
                mark, = struct.unpack(">I", self.receive(4))
                data, last = data + self.receive(mark & 0x7fffffff), mark >> 31
            a = Answer(data)
            if a.u32() != xid:
                continue
            assert (a.u32(), a.u32()) == (1, 0), "the server denied the call"
            a.u32()
            a.opaque()
            status = a.u32()
            assert status == 0, "RPC status %d" % status
            return a


class Attr3:
    def __init__(self, a):
        self.type, self.mode, self.nlink, self.uid, self.gid = (a.u32() for _ in range(5))
        self.size, self.used = a.u64(), a.u64()
        a.u64()
        self.fsid, self.fileid = a.u64(), a.u64()
        self.atime, self.mtime, self.ctime = (a.u64() for _ in range(3))


class Nfs3:
    """NFS v3 and its MOUNT at one server. Methods return (status, result)."""

    def __init__(self, nfs_port, mount_port):
        self.nfs, self.mnt = Rpc(nfs_port, NFS, 3), Rpc(mount_port, MOUNT, 3)

    def close(self):
        self.nfs.close()
        self.mnt.close()

    def mount(self, path):
        a = self.mnt.call(1, opaque(path.encode()))
        status = a.u32()
        return status, None if status else a.opaque()

    def getattr(self, handle):
        a = self.nfs.call(1, opaque(handle))
        status = a.u32()
        return status, None if status else Attr3(a)

    def lookup(self, parent, name):
        a = self.nfs.call(3, opaque(parent) + opaque(name.encode()))
        status = a.u32()
        return status, None if status else a.opaque()

    def read(self, handle, offset=0, n=1 << 16):
        a = self.nfs.call(6, opaque(handle) + struct.pack(">QI", offset, n))
        status = a.u32()
        if status:
            return status, None
        if a.u32():
            Attr3(a)
        a.u64()  # count, end of file
        return status, a.opaque()

    def write(self, handle, data, offset=0):
        """Writes FILE_SYNC; the result is the server's write verifier."""
        a = self.nfs.call(7, opaque(handle) + struct.pack(">QII", offset, len(data), 2) + opaque(data))
        status = a.u32()
        if status:
            return status, None
        if a.u32():
            a.take(24)  # size, mtime, ctime before
        if a.u32():
            Attr3(a)
        assert (a.u32(), a.u32()) == (len(data), 2)
        return status, a.take(8)


class Nlm:
    """Locks of v3. The owner is a text; each has a process number of its own."""

    def __init__(self, port, owner):
        self.rpc, self.owner, self.pid = Rpc(port, NLM, 4), owner.encode(), sum(owner.encode())

    def close(self):
        self.rpc.close()

    def holder(self, handle, offset, n):
        return opaque(self.owner) + opaque(handle) + opaque(self.owner) + struct.pack(">IQQ", self.pid, offset, n)

    def lock(self, handle, offset=0, n=0, exclusive=True):
        """Returns NLM_GRANTED, NLM_DENIED or another status; does not wait."""
        a = self.rpc.call(2, opaque(b"c") + struct.pack(">II", 0, exclusive) + self.holder(handle, offset, n) +
                          struct.pack(">II", 0, 1))
        a.opaque()
        return a.u32()

    def unlock(self, handle, offset=0, n=0):
        a = self.rpc.call(4, opaque(b"c") + self.holder(handle, offset, n))
        a.opaque()
        return a.u32()


class Nfs4:
    """NFS v4.0 without state: handles, attributes, and reads by the anonymous stateid."""

    def __init__(self, port):
        self.rpc = Rpc(port, NFS, 4)

    def close(self):
        self.rpc.close()

    def compound(self, *ops):
        """ops: (number, arguments). Returns (status, Answer at the results)."""
        args = opaque(b"") + struct.pack(">II", 0, len(ops)) + b"".join(struct.pack(">I", n) + x for n, x in ops)
        a = self.rpc.call(1, args)
        status = a.u32()
        a.opaque()
        a.u32()
        return status, a

    def lookup(self, *names):
        """Returns (status, handle) of a path from the root of the pseudo file system."""
        status, a = self.compound((24, b""), *[(15, opaque(n.encode())) for n in names], (10, b""))
        if status:
            return status, None
        a.take(8 * (len(names) + 2))  # operation and status of each; nothing more but of the last
        return status, a.opaque()

    def read(self, handle, offset=0, n=1 << 16):
        status, a = self.compound((22, opaque(handle)), (25, bytes(16) + struct.pack(">QI", offset, n)))
        if status:
            return status, None
        a.take(8 + 8 + 4)
        return status, a.opaque()

    def size(self, handle):
        status, a = self.compound((22, opaque(handle)), (9, struct.pack(">II", 1, 1 << ATTR_SIZE)))
        if status:
            return status, None
        a.take(8 + 8)
        for _ in range(a.u32()):
            a.u32()
        return status, struct.unpack(">Q", a.opaque())[0]


class Nfs4Owner(Nfs4):
    """A client of NFS v4.0 that opens files, and claims them again from a server that has lost its state."""

    def __init__(self, port, name):
        super().__init__(port)
        self.name, self.seqid = name.encode(), itertools.count(1)
        callback = struct.pack(">I", 0x40000000) + opaque(b"tcp") + opaque(b"0.0.0.0.0.0") + bytes(4)
        status, a = self.compound((35, b"verifier" + opaque(self.name) + callback))
        assert status == NFS_OK, status
        a.take(8)
        self.id = a.take(8)
        assert self.compound((36, self.id + a.take(8)))[0] == NFS_OK

    def args(self, claim):
        return struct.pack(">III", next(self.seqid), 3, 0) + self.id + opaque(b"owner") + bytes(4) + claim

    def open(self, parent, name):
        """Opens a file for reading and writing, as its first open. Returns the status."""
        status, a = self.compound((22, opaque(parent)), (18, self.args(bytes(4) + opaque(name.encode()))), (10, b""))
        if status:
            return status
        a.take(8 + 8)
        stateid = a.take(16)
        a.take(20 + 4)
        for _ in range(a.u32()):
            a.u32()
        assert a.u32() == 0, "a delegation"
        a.take(8)
        return self.compound((22, opaque(a.opaque())), (20, stateid + struct.pack(">I", next(self.seqid))))[0]

    def claim(self, handle):
        """Claims the open again. Returns the status."""
        return self.compound((22, opaque(handle)), (18, self.args(struct.pack(">II", 1, 0))))[0]
