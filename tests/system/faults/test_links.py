"""Several links to each storage, over wires of a limited speed in network namespaces: the links share the
bytes, and a dead wire costs only its share."""
import os
import threading

import pytest

from conftest import BIN, cannot_mount, wait_for
from wires import WiredCluster, Wires, cannot_wire

MIB = 1 << 20
MBIT = 400
pytestmark = pytest.mark.skipif((cannot_mount() or cannot_wire()) is not None,
                                reason=str(cannot_mount() or cannot_wire()))


def write(path, data):
    with open(path, "wb", buffering=0) as f:
        for at in range(0, len(data), MIB):
            f.write(data[at:at + MIB])
        os.fsync(f.fileno())


def read(path):
    """Reads from the storages: drops this mount's own pages first."""
    with open(path, "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return f.read()


def carried(wires, direction):
    return [wires.carried(i)[direction] for i in range(wires.n)]


@pytest.mark.parametrize("n", [2, 4])
def test_all_links_carry_their_share(scratch, n):
    data = os.urandom(24 * MIB)
    with Wires(n, MBIT) as wires, WiredCluster(BIN, scratch, wires) as c:
        for direction, work in ((0, lambda: write(c.mnt + "/f", data)), (1, lambda: read(c.mnt + "/f"))):
            before = carried(wires, direction)
            work()
            shares = [b - a for a, b in zip(before, carried(wires, direction))]
            assert sum(shares) >= len(data) * (1 if direction else 1.5)
            assert min(shares) > 0.5 * sum(shares) / n, shares
        assert read(c.mnt + "/f") == data


def test_a_link_that_dies_takes_nothing_with_it(scratch):
    data, other = os.urandom(16 * MIB), os.urandom(16 * MIB)
    with Wires(2, MBIT) as wires, WiredCluster(BIN, scratch, wires) as c:
        write(c.mnt + "/a", data)
        writer = threading.Thread(target=write, args=(c.mnt + "/b", other))
        at = wires.carried(0)[0]
        writer.start()
        wait_for(lambda: wires.carried(0)[0] > at + 2 * MIB, "bytes on the wire that is to die")
        wires.cut(0)
        writer.join()
        assert read(c.mnt + "/a") == data and read(c.mnt + "/b") == other
        wires.mend(0)
        at = wires.carried(0)[0]

        def used_again():
            write(c.mnt + "/c", data)
            return wires.carried(0)[0] > at + 4 * MIB
        wait_for(used_again, "the wire that is whole again to be used")
        assert read(c.mnt + "/c") == data
