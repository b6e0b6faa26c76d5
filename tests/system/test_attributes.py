"""What stat tells, on every mount: times that only few programs set, and what a file takes on the storages."""
import os

import pytest

from conftest import cannot_mount
from test_coherence import ab, two_mounts  # noqa: F401: fixtures

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

NS = 10 ** 9


def test_times_that_nanoseconds_do_not_hold(ab, two_mounts):
    """Seconds beyond 1677 and 2262 stay what they are: on the mount that set them, on others, and over restarts."""
    a, b = ab
    seconds = (-2 ** 63 + 1, -62135596800, -9223372037, -1, 0, 9223372036, 9223372037, 15032385535, 253402300799,
               2 ** 63 - 2)
    for i, s in enumerate(seconds):
        open(os.path.join(a, str(i)), "w").close()
        os.utime(os.path.join(a, str(i)), ns=(s * NS + 999999999, s * NS + 1))

    def check(top):
        for i, s in enumerate(seconds):
            st = os.stat(os.path.join(top, str(i)))
            assert (st.st_atime_ns, st.st_mtime_ns) == (s * NS + 999999999, s * NS + 1), "%s of %d" % (top, s)

    check(a)
    check(b)
    for entry in os.scandir(b):  # as readdirplus told them
        assert entry.stat().st_mtime_ns == seconds[int(entry.name)] * NS + 1
    two_mounts.restart("exportd")
    two_mounts.remount()
    check(b)
    check(a)
