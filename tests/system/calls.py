"""Calls of Linux that Python does not have."""
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE = 1, 2, 16


def call(function, *args):
    """Calls libc; raises OSError if it returns -1."""
    rc = function(*args)
    if rc == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return rc


def errno_of(function, *args):
    """Returns 0, or the errno of an OSError."""
    try:
        function(*args)
    except OSError as e:
        return e.errno
    return 0


def fallocate(path, mode, offset, length):
    fd = os.open(path, os.O_WRONLY)
    try:
        call(libc.fallocate, fd, mode, ctypes.c_long(offset), ctypes.c_long(length))
    finally:
        os.close(fd)


def renameat2(old, new, flags):
    call(libc.renameat2, AT_FDCWD, old.encode(), AT_FDCWD, new.encode(), flags)
