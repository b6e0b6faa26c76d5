"""kernel_caches - the caches of this machine's kernel, which all its file systems share. Tests that run beside one
another, of any run of the tests, agree on them by a lock."""
import contextlib
import fcntl
import os

LOCK = "/tmp/rozo-tests.caches.lock"


@contextlib.contextmanager
def locked(how):
    with open(LOCK, "a") as lock:
        fcntl.flock(lock, how)
        yield


def kept():
    """A context in which no test makes the kernel drop its caches, for tests that count what a mount asks for."""
    return locked(fcntl.LOCK_SH)


def drop():
    """Makes the kernel drop clean pages, entries and attributes of all file systems."""
    os.sync()
    with locked(fcntl.LOCK_EX), open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3\n")
