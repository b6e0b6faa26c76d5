"""A client of SMB2 with the few requests that no program of Samba makes: byte-range locks. It connects as nobody."""
import contextlib
import socket
import struct

NOT_GRANTED, CONFLICT = 0xC0000055, 0xC0000054  # STATUS_LOCK_NOT_GRANTED, STATUS_FILE_LOCK_CONFLICT
PENDING, MORE_PROCESSING = 0x103, 0xC0000016
NEGOTIATE, SESSION_SETUP, TREE_CONNECT, CREATE, CLOSE, READ, WRITE, LOCK = 0, 1, 3, 5, 6, 8, 9, 10
SHARED, EXCLUSIVE, UNLOCK, AT_ONCE = 1, 2, 4, 16


class SmbError(OSError):
    def __init__(self, command, status):
        super().__init__("request %d: status %08x" % (command, status))
        self.status = status


class Smb2:
    """A connection to a share."""

    def __init__(self, address, port, share):
        self.sock = socket.create_connection((address, port), timeout=30)
        self.message, self.session, self.tree = 0, 0, 0
        self.ask(NEGOTIATE, struct.pack("<HHHHI16sQH", 36, 1, 1, 0, 0, bytes(16), 0, 0x0202))
        flags = 0x00088205
        self.setup(b"NTLMSSP\0" + struct.pack("<IIHHIHHI", 1, flags, 0, 0, 32, 0, 0, 32))
        none = (0, 0, 65)
        self.setup(b"NTLMSSP\0" + struct.pack("<IHHIHHIHHIHHIHHIHHII", 3, 1, 1, 64, *none, *none, *none, *none, *none,
                                              flags | 0x800) + b"\0")
        path = ("\\\\%s\\%s" % (address, share)).encode("utf-16-le")
        self.ask(TREE_CONNECT, struct.pack("<HHHH", 9, 0, 72, len(path)) + path)

    def setup(self, token):
        self.ask(SESSION_SETUP, struct.pack("<HBBIIHHQ", 25, 0, 1, 0, 0, 88, len(token), 0) + token)

    def receive(self, n):
        data = b""
        while len(data) < n:
            more = self.sock.recv(n - len(data))
            if not more:
                raise ConnectionError("smbd has closed the connection")
            data += more
        return data

    def ask(self, command, body):
        """Sends a request; returns the body of the answer. Raises SmbError."""
        head = struct.pack("<4sHHIHHIIQIIQ16s", b"\xfeSMB", 64, 0, 0, command, 16, 0, 0, self.message, 0, self.tree,
                           self.session, bytes(16))
        self.message += 1
        self.sock.sendall(struct.pack(">I", len(head) + len(body)) + head + body)
        while True:
            answer = self.receive(struct.unpack(">I", self.receive(4))[0])
            status, = struct.unpack_from("<I", answer, 8)
            if status != PENDING:
                break
        if status not in (0, MORE_PROCESSING):
            raise SmbError(command, status)
        if command == SESSION_SETUP:
            self.session, = struct.unpack_from("<Q", answer, 40)
        if command == TREE_CONNECT:
            self.tree, = struct.unpack_from("<I", answer, 36)
        return answer[64:]

    def open(self, name, context=None):
        """Opens a file for reading and writing, or makes it; returns its id. A (name, data) of a context asks for a
        batch oplock, too."""
        path = name.encode("utf-16-le")
        path += bytes(-len(path) % 8)
        more = b"" if context is None else struct.pack("<IHHHHI4s4x", 0, 16, 4, 0, 24, len(context[1]),
                                                       context[0]) + context[1]
        answer = self.ask(CREATE, struct.pack(
            "<HBBIQQIIIIIHHII", 57, 0, 9 if more else 0, 2, 0, 0, 0x12019F, 0, 7, 3, 0x40, 120,
            len(name.encode("utf-16-le")), 120 + len(path) if more else 0, len(more)) + path + more)
        self.contexts = answer[88:]
        return answer[64:80]

    def open_durable(self, name):
        """Opens a file so that it outlives the connection; returns its id."""
        file = self.open(name, (b"DHnQ", bytes(16)))
        assert b"DHnQ" in self.contexts, "smbd gave no durable handle"
        return file

    def open_again(self, name, file):
        """Takes up a file that a broken connection had open; returns its id."""
        return self.open(name, (b"DHnC", file))

    def read(self, file, length, offset=0):
        answer = self.ask(READ, struct.pack("<HBBIQ16sIIIHHB", 49, 0, 0, length, offset, file, 0, 0, 0, 0, 0, 0))
        at, n = struct.unpack_from("<BxI", answer, 2)
        return answer[at - 64:at - 64 + n]

    def write(self, file, data, offset=0):
        self.ask(WRITE, struct.pack("<HHIQ16sIIHHI", 49, 112, len(data), offset, file, 0, 0, 0, 0, 0) + data)

    def lock(self, file, offset, length, kind=EXCLUSIVE):
        """Locks a range, or raises SmbError at once."""
        self.ask(LOCK, struct.pack("<HHI16sQQII", 48, 1, 0, file, offset, length, kind | AT_ONCE, 0))

    def unlock(self, file, offset, length):
        self.ask(LOCK, struct.pack("<HHI16sQQII", 48, 1, 0, file, offset, length, UNLOCK, 0))

    def close(self, file):
        self.ask(CLOSE, struct.pack("<HHI16s", 24, 0, 0, file))

    def end(self):
        with contextlib.suppress(OSError):
            self.sock.close()


def status_of(work):
    """Returns the status that a request ends with: 0 if it succeeds."""
    try:
        work()
    except SmbError as e:
        return e.status
    return 0
