"""TCP ports of 127.0.0.1 for daemons that a test or a bench starts without `rozo dev`."""
import fcntl
import os
import random
import socket

FIRST, LAST = 18000, 31999  # as those of `rozo dev`: below the ports that the kernel gives to outgoing connections


def free_port(owner=None):
    """Returns a port on which nobody listens, and reserves it as `rozo dev` does, so that no cluster that is made
    meanwhile gets it, although nobody listens yet. It is reserved for as long as the path `owner` exists; None: the
    folder for temporary files of this run of the tests."""
    owner = owner or os.environ.get("TMPDIR", "/nonexistent")
    parent = os.environ.get("XDG_RUNTIME_DIR") or "/tmp"
    folder = os.path.join(parent, "rozo-dev-ports-%d" % os.getuid())
    os.makedirs(folder, 0o700, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        while True:
            port = random.randint(FIRST, LAST)
            if is_free(port) and reserve(os.path.join(folder, str(port)), owner):
                return port
    finally:
        os.close(fd)


def is_free(port):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the daemons do
        try:
            s.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False


def reserve(link, owner):
    if os.path.lexists(link):
        if os.path.exists(link):
            return False
        os.unlink(link)
    os.symlink(owner, link)
    return True
