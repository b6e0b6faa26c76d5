"""Real trees are copied in with cp -a and come back equal, over remounts and restarts.

ROZO_TREES: further directories of this machine to copy, separated by colons (tests/soak/run.sh).
"""
import os
import subprocess
import sys

import pytest

TREES = ["/usr/include/linux", *filter(None, os.environ.get("ROZO_TREES", "").split(":"))]


def run(*cmd, **kw):
    r = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw)
    assert r.returncode == 0, "%s: exit %d\n%s" % (" ".join(cmd), r.returncode, r.stdout[-4000:])
    return r.stdout


def compare(src, dst):
    # Compares contents, then every attribute that rsync knows: modes, owners, times, links, ACLs, xattrs.
    run("diff", "-r", "--no-dereference", "-x", "fifo", src, dst)  # diff takes two fifos for different
    out = run("rsync", "-aHAXcn", "--delete", "--itemize-changes", src + "/", dst + "/")
    assert out.strip() == "", out[:4000]


def make_tree(top):
    """Makes a small tree with every feature that rsync compares and that header files lack."""
    for number in range(120):
        folder = os.path.join(top, "d%d" % (number % 5), "e%d" % (number % 3))
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "a name of %d \u00fc\n" % number)
        with open(path, "wb") as f:
            f.write(os.urandom(number * number))
        os.chmod(path, (0o400, 0o644, 0o4755, 0o2711, 0o1777)[number % 5])
        os.setxattr(path, "user.number", b"%d" % number)
        os.link(path, os.path.join(top, "d%d" % (number % 5), "link%d" % number))
        os.symlink("../nowhere/%d" % number if number % 2 else path, os.path.join(folder, "sym%d" % number))
        if os.geteuid() == 0:
            os.chown(path, number, 1000 + number)
        os.utime(path, ns=(number * 10**15, number * 10**16 + 123456789))
    with open(os.path.join(top, "large"), "wb") as f:
        f.write(os.urandom(20 << 20))
    os.mkfifo(os.path.join(top, "fifo"))
    run("setfacl", "-R", "-m", "u:7:rwx", os.path.join(top, "d1"))
    run("setfacl", "-d", "-m", "g:9:rx", os.path.join(top, "d2"))


def projections(c):
    """Returns the number of projection files of all storages, and their bytes."""
    n = size = 0
    for name in os.listdir(c.dir + "/data"):
        if not name.startswith("storaged"):
            continue
        for d, _, files in os.walk(os.path.join(c.dir, "data", name, "objects")):
            for f in files:
                try:
                    size += os.stat(os.path.join(d, f)).st_blocks * 512
                    n += 1
                except FileNotFoundError:
                    pass
    return n, size


def test_trees_survive_remount_and_restart_and_give_their_space_back(cluster, tmp_path):
    c = cluster(layout=0)
    before, _ = projections(c)
    made = str(tmp_path / "made")
    os.mkdir(made)
    make_tree(made)
    trees = [made, *TREES]
    for src in trees:
        if not os.path.isdir(src) or not os.listdir(src):
            pytest.skip("%s is not there or empty on this machine" % src)
        run("cp", "-a", src, c.mnt + "/")
    for src in trees:
        compare(src, c.mnt + "/" + os.path.basename(src))
    c.remount()
    for src in trees:
        compare(src, c.mnt + "/" + os.path.basename(src))
    for name in c.daemons():
        c.restart(name)
    c.wait_for(lambda: all(s["up"] for s in c.status()["storages"]), "all storages up")
    for src in trees:
        compare(src, c.mnt + "/" + os.path.basename(src))
    filled, held = projections(c)
    assert filled > before and held > 0
    for src in trees:
        run("rm", "-rf", c.mnt + "/" + os.path.basename(src))
    assert os.listdir(c.mnt) == []
    c.wait_for(lambda: projections(c)[0] == before, "the projections of removed files to go", timeout=120)


def test_space_of_an_open_unlinked_file_comes_back_at_its_last_close(cluster):
    c = cluster(layout=0)
    path = c.mnt + "/gone"
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    os.write(fd, b"x" * (4 << 20))
    os.fsync(fd)
    os.unlink(path)
    assert projections(c)[0] >= 3
    assert os.pread(fd, 16, 1 << 20) == b"x" * 16
    assert os.fstat(fd).st_nlink == 0
    os.close(fd)
    c.wait_for(lambda: projections(c)[0] == 0, "the projections of the closed orphan to go")


# tests/soak/run.sh sets this to 1000000: creating them takes some minutes.
DIRECTORY_ENTRIES = int(os.environ.get("ROZO_DIRECTORY_ENTRIES", "8000"))
MAKE_ENTRIES = ("import os, sys\nfor i in range(int(sys.argv[2]), int(sys.argv[3])):\n"
                "    os.mknod('%s/a-file-of-number-%08d' % (sys.argv[1], i))")


def rss_max_kb(pid):
    with open("/proc/%d/status" % pid) as f:
        return int(next(line for line in f if line.startswith("VmHWM")).split()[1])


def test_a_large_directory(cluster):
    """Several processes fill it at once; it is read whole, with little memory, during changes."""
    c = cluster(layout=0)
    d = c.mnt + "/large"
    os.mkdir(d)
    part = DIRECTORY_ENTRIES // 4
    makers = [subprocess.Popen([sys.executable, "-c", MAKE_ENTRIES, d, str(i * part), str((i + 1) * part)])
              for i in range(4)]
    assert [p.wait(timeout=3600) for p in makers] == [0] * 4
    expected = {"a-file-of-number-%08d" % i for i in range(4 * part)}
    assert os.stat(d).st_nlink == 2
    before = rss_max_kb(c.pid("mount-1"))
    with os.scandir(d) as entries:
        seen = [e.name for e in entries]
    assert len(seen) == len(expected) and set(seen) == expected
    assert rss_max_kb(c.pid("mount-1")) - before < 16 << 10  # a page of the directory, not all of it
    # Emptied during a read: every entry that stays is seen, none twice.
    seen, gone = [], set()
    with os.scandir(d) as entries:
        for i, e in enumerate(entries):
            seen.append(e.name)
            if i % 10 == 0:
                os.unlink(os.path.join(d, e.name))
                gone.add(e.name)
    assert len(seen) == len(set(seen)) and set(seen) == expected
    c.remount()
    assert set(os.listdir(d)) == expected - gone
    run("rm", "-rf", d)
    assert os.listdir(c.mnt) == []
