"""Runs of tests/tools/fsx2: random operations on one file, compared with a copy in memory.

ROZO_FSX_OPS: operations of each run; ROZO_FSX_SEEDS: number of runs (tests/soak/run.sh raises both);
ROZO_FSX_FIRST: the first seed.
"""
import os
import subprocess

from conftest import BIN

FSX2 = os.path.join(os.path.dirname(BIN), "tests", "tools", "fsx2")
OPS = int(os.environ.get("ROZO_FSX_OPS", "1500"))
N_SEEDS = int(os.environ.get("ROZO_FSX_SEEDS", "2"))
FIRST = int(os.environ.get("ROZO_FSX_FIRST", "1"))


def run_seeds(c, mnts, *options, seeds=range(FIRST, FIRST + N_SEEDS), ops=OPS):
    """Runs the seeds, a few at a time, each on a file of its own."""
    left, running, failed = list(seeds), [], []
    while left or running:
        while left and len(running) < 4:
            seed = left.pop(0)
            said = open(os.path.join(c.base, "fsx2-%d" % seed), "w+")
            paths = [os.path.join(mnt, "fsx2-%d" % seed) for mnt in mnts]
            cmd = [FSX2, "--seed", str(seed), "--ops", str(ops), *options, *paths]
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
    assert not failed, "%d of %d seeds failed:\n%s" % (len(failed), len(seeds), "\n".join(failed[:3]))
