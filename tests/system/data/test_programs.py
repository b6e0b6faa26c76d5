"""Programs that people run on file systems: git, a compiler, sqlite, fio.

ROZO_PROGRAMS_LONG=1 (tests/soak/run.sh): larger repositories, databases and files, and a build of all daemons.
"""
import json
import os
import shutil
import sqlite3
import subprocess

import pytest

from conftest import ROOT
from programs import make_repository, run, use_git

LONG = os.environ.get("ROZO_PROGRAMS_LONG") == "1"
COMMITS = 2000 if LONG else 500
ROWS = 50000 if LONG else 8000
TREE_FILES, FSX_OPS = (600, 4000) if LONG else (300, 2000)
FIO_SIZES = ("16m", "48m") if LONG else ("2m", "6m")  # with blocks of 4 KB; then with larger ones


def test_git_clone_fsck_gc(cluster, tmp_path):
    c = cluster(layout=0)
    make_repository(str(tmp_path / "origin"), COMMITS)
    use_git(str(tmp_path / "origin"), COMMITS, c.mnt)


def test_build_this_project_inside_the_mount(cluster):
    c = cluster(layout=0)
    src = c.mnt + "/src"
    files = run("git", "-C", ROOT, "ls-files", "-co", "--exclude-standard").split("\n")
    for name in filter(None, files):
        if os.path.isfile(os.path.join(ROOT, name)):
            os.makedirs(os.path.dirname(os.path.join(src, name)), exist_ok=True)
            shutil.copy2(os.path.join(ROOT, name), os.path.join(src, name))
    env = dict(os.environ, CCACHE_DISABLE="1")
    run("cmake", "-S", src, "-B", src + "/build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", env=env)
    # Messages are generated and archived, and a program is linked that runs; the daemons, or the codec, would
    # take many times as long.
    targets = ["exportd", "storaged", "rozomount"] if LONG else ["rozo_proto", "fsx2"]
    run("cmake", "--build", src + "/build", "--target", *targets, env=env)
    if LONG:
        assert run(src + "/build/bin/exportd", "--version").startswith("exportd ")
    else:
        run(src + "/build/tests/tools/fsx2", "--ops", "200", c.mnt + "/made-by-what-was-built")
    # A second make does nothing: the times of sources and objects are consistent.
    out = run("cmake", "--build", src + "/build", "--target", targets[0], env=env)
    assert "no work to do" in out


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_sqlite_inserts(cluster, journal):
    c = cluster(layout=0)
    db = sqlite3.connect(c.mnt + "/test.db", isolation_level=None)
    assert db.execute("pragma journal_mode=%s" % journal).fetchone()[0] == journal
    db.execute("create table t (id integer primary key, name text, data blob)")
    db.execute("create index t_name on t (name)")
    for base in range(0, ROWS, 500):
        db.execute("begin")
        db.executemany("insert into t values (?, ?, ?)",
                       [(i, "name %d" % (i * 7919 % ROWS), b"%06d" % i * (1 + i % 30))
                        for i in range(base, base + 500)])
        db.execute("commit")
    assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
    db.close()
    c.remount()
    db = sqlite3.connect(c.mnt + "/test.db")
    assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
    assert db.execute("select count(*), sum(length(data)) from t").fetchone() == \
        (ROWS, sum(6 * (1 + i % 30) for i in range(ROWS)))
    db.close()


@pytest.mark.parametrize("layout", [0, 1, 2])
@pytest.mark.parametrize("engine", ["psync", "libaio-direct", "mmap"])
def test_fio_verify(cluster, layout, engine):
    c = cluster(layout=layout)
    opts = {"psync": ["--ioengine=psync"], "mmap": ["--ioengine=mmap"],
            "libaio-direct": ["--ioengine=libaio", "--direct=1", "--iodepth=8"]}[engine]
    for rw in ("write", "randwrite"):
        for bs in ("4k", "64k", "1m", "4k-256k"):
            if bs == "4k-256k" and engine == "libaio-direct":
                opts = opts + ["--blockalign=4k"]
            size = FIO_SIZES[bs != "4k"]
            name = "%s-%s" % (rw, bs)
            out = run("fio", "--name=" + name, "--directory=" + c.mnt, "--rw=" + rw, "--bsrange=" + bs if
                      "-" in bs else "--bs=" + bs, "--size=" + size, "--verify=crc32c",
                      "--verify_fatal=1", "--do_verify=1", "--end_fsync=1", "--fallocate=none",
                      "--output-format=json", *opts, cwd="/tmp")
            jobs = json.loads(out[out.index("{"):])["jobs"]
            assert [j["error"] for j in jobs] == [0]
            assert jobs[0]["read"]["io_bytes"] > 0  # verification did run
            os.unlink(c.mnt + "/%s.0.0" % name)


def tree_files(top, n):
    """Returns [(path, contents)]."""
    return [("%s/d%d/e%d/f%d" % (top, i % 7, i % 31, i), b"%d" % i * (i % 5000)) for i in range(n)]


def fill_tree(top, n):
    for path, contents in tree_files(top, n):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(contents)


@pytest.mark.parametrize("loops", [2, 4])
def test_parallel_work_on_several_loops(cluster, tmp_path, loops):
    """Everything runs at once, so that requests move between loops: no mismatch, no error, nothing left."""
    c = cluster(layout=0, mount_options="loops=%d" % loops)
    fsx = shutil.which("fsx") or os.path.expanduser("~/.cache/rozo-tests/bin/fsx")
    fill_tree(c.mnt + "/tree", TREE_FILES)
    work = {
        "fio": ["fio", "--name=v", "--directory=" + c.mnt, "--rw=randrw", "--bsrange=4k-128k",
                "--blockalign=4k", "--size=6m", "--numjobs=3", "--verify=crc32c", "--verify_fatal=1",
                "--fallocate=none", "--end_fsync=1", "--group_reporting"],
        "direct": ["fio", "--name=d", "--directory=" + c.mnt, "--rw=randwrite", "--bs=64k", "--size=12m",
                   "--ioengine=libaio", "--direct=1", "--iodepth=8", "--verify=crc32c", "--do_verify=1",
                   "--verify_fatal=1", "--fallocate=none"],
        "copies": ["sh", "-ec", "for i in 1 2 3; do cp -a '%s/tree' '%s/copy'; diff -r '%s/tree' '%s/copy'; "
                   "rm -rf '%s/copy'; done" % ((c.mnt,) * 5)],
        "find": ["sh", "-c", "for i in $(seq 10); do find '%s' -ls; cat /proc/self/mountinfo; "
                 "df '%s'; done >/dev/null 2>&1; true" % ((c.mnt,) * 2)],
        "renames": ["sh", "-ec", "mkdir '%s/r'; cd '%s/r'; for i in $(seq 150); do echo $i >a; mv a b$i; "
                    "ln b$i c$i; setfattr -n user.x -v $i c$i; test $(cat c$i) = $i; truncate -s 3 b$i; "
                    "rm b$i; done; test $(ls | wc -l) = 150" % ((c.mnt,) * 2)],
    }
    if os.path.exists(fsx):
        for seed in (11, 12):
            work["fsx-%d" % seed] = [fsx, "-N", str(FSX_OPS), "-S", str(seed), "-P", str(tmp_path),
                                     "%s/fsx-%d" % (c.mnt, seed)]
    running = {name: subprocess.Popen(cmd, cwd="/tmp", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
               for name, cmd in work.items()}
    failed = {}
    for name, p in running.items():
        out = p.communicate(timeout=500)[0]
        if p.returncode != 0:
            failed[name] = out[-3000:]
    assert not failed
    c.remount()
    for path, contents in tree_files(c.mnt + "/tree", TREE_FILES):
        with open(path, "rb") as f:
            assert f.read() == contents, path
    run("rm", "-rf", *[os.path.join(c.mnt, name) for name in os.listdir(c.mnt)])
    assert os.listdir(c.mnt) == []
