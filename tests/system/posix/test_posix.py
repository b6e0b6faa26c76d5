"""pjdfstest and fsx: the same results as on the machine's own file system.

ROZO_FSX_OPS: operations of each fsx (tests/soak/run.sh sets more).
"""
import contextlib
import os
import re
import signal
import subprocess

import pytest

from conftest import ROOT, tool
from mounts import end, mount
from users import CAPABILITY, let_others_in, write_as_nobody

SEEDS = [1, 2, 3, 4, 5]
FSX_OPS = int(os.environ.get("ROZO_FSX_OPS", "5000"))
DOC = os.path.join(ROOT, "docs", "POSIX.md")
CONFIG = """
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"""


def pjdfstest(config, where):
    """Returns case -> ok | FAILED | skipped."""
    os.makedirs(where, exist_ok=True)
    let_others_in(where)
    r = subprocess.run([tool("pjdfstest"), "-c", config, "-p", where], stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, timeout=900)
    out = dict(re.findall(r"^(\S+::\S+)\s+(ok|FAILED|skipped)\b", r.stdout, re.M))
    assert len(out) > 300, r.stdout[-3000:]
    return out, r.stdout


def documented_cases():
    """Returns the first column of the table at the top of docs/POSIX.md."""
    with open(DOC) as f:
        return re.findall(r"^\| `(\S+::\S+)` \|", f.read(), re.M)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The config of pjdfstest, and its results on the machine's own file system."""
    folder = tmp_path_factory.mktemp("pjdfstest")
    config = folder / "pjdfstest.toml"
    config.write_text(CONFIG)
    return str(config), pjdfstest(str(config), str(folder / "local"))[0]


@pytest.mark.parametrize("names", ["posix", "fold"])
def test_pjdfstest_passes_what_the_local_file_system_passes(cluster, local, names):
    """Passes all but the cases listed in docs/POSIX.md; a listed case that passes must be removed from the
    list. An index of folded names changes nothing."""
    config, of_machine = local
    c = cluster(layout=0, mounts=1 if names == "posix" else 0)
    with contextlib.ExitStack() as ends:
        if names == "fold":
            c.mnts = [os.path.join(c.base, "fold")]
            c.admin("export", "create", "fold", "--names", "fold")
            p = mount(c, c.mnt, export="fold")
            ends.callback(end, p)
            ends.callback(p.send_signal, signal.SIGTERM)
        ours, text = pjdfstest(config, c.mnt + "/pjd")
    runs = [case for case, result in of_machine.items() if result == "ok"]
    failed = sorted(case for case in runs if ours.get(case) != "ok")
    expected = sorted(case for case in documented_cases() if case in runs)
    assert failed == expected, text[-3000:]


@pytest.fixture(scope="module")
def fsx_runs(cluster_shared, tmp_path_factory):
    """Runs all seeds concurrently, each on a file of its own; returns (process, output) by seed."""
    fsx, folder, runs = tool("fsx"), tmp_path_factory.mktemp("fsx"), {}
    for seed in SEEDS:
        said = open(folder / ("fsx-%d.said" % seed), "w+")
        runs[seed] = subprocess.Popen([fsx, "-N", str(FSX_OPS), "-S", str(seed), "-P", str(folder),
                                       "%s/fsx-%d" % (cluster_shared.mnt, seed)],
                                      stdout=said, stderr=subprocess.STDOUT), said
    yield runs
    for process, said in runs.values():
        process.kill()
        process.wait()
        said.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_fsx(fsx_runs, seed):
    process, said = fsx_runs[seed]
    status = process.wait(timeout=600 + FSX_OPS // 50)
    said.seek(0)
    assert status == 0, said.read()[-4000:]


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC])
def test_a_write_takes_privileges_away(cluster_shared, flags):
    c = cluster_shared
    let_others_in(c.mnt)
    path = os.path.join(c.mnt, "privileged-%d" % flags)

    def give():
        os.chmod(path, 0o6777)
        os.setxattr(path, "security.capability", CAPABILITY)

    def privileges():
        return os.stat(path).st_mode & 0o6000, os.listxattr(path)

    open(path, "w").close()
    give()
    write_as_nobody(path, flags)
    assert privileges() == (0, [])
    write_as_nobody(path, flags, give)  # set while the file was open
    assert privileges() == (0, [])
    give()
    fd = os.open(path, flags)
    os.write(fd, b"root")
    assert privileges() == (0o6000, [])
    give()
    os.write(fd, b"root")
    assert privileges() == (0o6000, [])
    os.close(fd)
