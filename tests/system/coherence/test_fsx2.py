"""fsx2: random operations on one file, through one mount and through two in turn, compared with a copy in memory.

ROZO_FSX_MOUNTS: numbers of mounts (1,2); fsx2.py has the others.
"""
import os

import pytest

from conftest import cannot_mount
from fsx2 import run_seeds
from mounts import end, mount

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

MOUNTS = [int(n) for n in os.environ.get("ROZO_FSX_MOUNTS", "1,2").split(",")]


@pytest.mark.parametrize("mounts", MOUNTS)
@pytest.mark.parametrize("layout", [0, 1])
def test_every_byte_is_right(cluster, layout, mounts):
    c = cluster(layout=layout, mounts=mounts)
    run_seeds(c, c.mnts, *["--lazy"] * (mounts == 1))


@pytest.mark.parametrize("mounts", MOUNTS)
def test_every_byte_is_right_past_the_kernels_pages(cluster, scratch, mounts):
    """With cache=direct, pages are used only for mappings."""
    c = cluster(layout=0)
    mnts = [scratch + "/m%d" % i for i in range(mounts)]
    processes = [mount(c, mnt, "cache=direct") for mnt in mnts]
    run_seeds(c, mnts, *["--lazy"] * (mounts == 1))
    for p in processes:
        p.terminate()
        status, err = end(p)
        assert status == 0, err
