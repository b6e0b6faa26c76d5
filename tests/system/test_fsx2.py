"""fsx2: random operations on one file, through one mount and through two in turn, compared with a copy in memory.

ROZO_FSX_OPS: operations of each run; ROZO_FSX_SEEDS: number of runs (tests/soak/run.sh raises both);
ROZO_FSX_FIRST: the first seed; ROZO_FSX_MOUNTS: numbers of mounts (1,2).
"""
import os
import subprocess

import pytest

from conftest import BIN, cannot_mount
from test_mount import end, mount

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

FSX2 = os.path.join(os.path.dirname(BIN), "tests", "tools", "fsx2")
OPS = int(os.environ.get("ROZO_FSX_OPS", "1500"))
N_SEEDS = int(os.environ.get("ROZO_FSX_SEEDS", "4"))
MOUNTS = [int(n) for n in os.environ.get("ROZO_FSX_MOUNTS", "1,2").split(",")]
FIRST = int(os.environ.get("ROZO_FSX_FIRST", "1"))


def run_seeds(c, mnts, *options):
    """Runs all seeds, a few at a time, each on a file of its own."""
    left, running, failed = list(range(FIRST, FIRST + N_SEEDS)), [], []
    while left or running:
        while left and len(running) < 4:
            seed = left.pop(0)
            said = open(os.path.join(c.base, "fsx2-%d" % seed), "w+")
            paths = [os.path.join(mnt, "fsx2-%d" % seed) for mnt in mnts]
            cmd = [FSX2, "--seed", str(seed), "--ops", str(OPS), *options, *paths]
            running.append((subprocess.Popen(cmd, stdout=said, stderr=subprocess.STDOUT), said))
        process, said = running.pop(0)
        try:
            status = process.wait()
        finally:
            for p, _ in running:
                if process.returncode is None:
                    p.kill()
        said.seek(0)
        text = said.read()
        said.close()
        if status != 0:
            failed.append("exit status %d\n%s" % (status, text[-6000:]))
    assert not failed, "%d of %d seeds failed:\n%s" % (len(failed), N_SEEDS, "\n".join(failed[:3]))


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
