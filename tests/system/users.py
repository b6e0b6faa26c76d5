"""Rights of users: ACLs, capabilities, and what nobody may do."""
import os
import struct

from calls import errno_of

NOBODY = 65534
CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32


def acl(*entries):
    """Packs (tag, permissions[, id]) in order, as the kernel takes them."""
    return struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", e[0], e[1], e[2] if len(e) > 2 else 0xffffffff) for e in entries)


DEFAULT_ACLS = {
    "none": None,
    "minimal": acl((USER_OBJ, 7), (GROUP_OBJ, 5), (OTHER, 0)),
    "a user": acl((USER_OBJ, 7), (USER, 6, NOBODY), (GROUP_OBJ, 5), (MASK, 7), (OTHER, 4)),
    "a mask": acl((USER_OBJ, 6), (USER, 7, NOBODY), (GROUP_OBJ, 7), (GROUP, 7, 1), (MASK, 2), (OTHER, 1)),
}


def let_others_in(path):
    """Opens the parents of path: some cases walk down as nobody."""
    while path != "/":
        os.chmod(path, os.stat(path).st_mode | 0o055)
        path = os.path.dirname(path)


def as_nobody(work, gid=NOBODY, groups=()):
    """Runs work() in a process of nobody; passes on the errno of an OSError."""
    pid = os.fork()
    if pid == 0:
        status = 255
        try:
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(NOBODY)
            status = errno_of(work)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def write_as_nobody(path, flags, before_second=lambda: None):
    """Writes twice to path as nobody; calls before_second() as root in between."""
    go, went = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            fd = os.open(path, flags)
            os.write(fd, b"one")
            os.write(went[1], b".")
            os.read(go[0], 1)
            os.write(fd, b"two")
            os._exit(0)
        finally:
            os._exit(1)
    os.close(went[1])
    assert os.read(went[0], 1) == b"."
    before_second()
    os.write(go[1], b".")
    assert os.waitpid(pid, 0)[1] == 0
    for end in (go[0], go[1], went[0]):
        os.close(end)
