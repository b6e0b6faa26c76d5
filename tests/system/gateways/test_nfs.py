"""NFS: `rozo gateway nfs`, which is ganesha.nfsd over a mount. Two gateways have a mount each, as two nodes have.

The kernel's client is not used: it would need a kernel with NFS. Clients are libnfs and one of our own (nfsclient.py),
which keeps file handles from server to server.
"""
import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import time

import pytest

from conftest import cannot_mount, pattern, rozo, wait_for
from nfsclient import NFS4_GRACE, NFS4_NO_GRACE, NFS_NOENT, NFS_OK, NFS_STALE, NLM_DENIED, NLM_GRANTED
from nfsgateway import F_ULOCK, Gateway, LibNfs, v4_can_lock

NEEDED = ("ganesha.nfsd", "rpcbind", "rpc.statd", "nfs-cp", "nfs-ls", "nfs-cat")
MISSING = [p for p in NEEDED if shutil.which(p, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None]
pytestmark = [
    pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount()),
    pytest.mark.skipif(bool(MISSING), reason="not installed: %s (deploy/install-deps.sh --tests)" % ", ".join(MISSING)),
]


@pytest.fixture
def gateways(cluster):
    """Returns a function that starts a cluster, and a gateway on each of its mounts."""
    started = []

    def start(mounts=2, **options):
        c = cluster(layout=0, mounts=mounts)
        for i, mnt in enumerate(c.mnts):
            started.append(Gateway(c, "ab"[i], mnt, **options))
            started[-1].launch()
        for g in started:
            g.start()
        return (c, *started)

    yield start
    for g in started:
        g.kill()


def get_granted(lock, what, timeout=60):
    """Asks for a lock until it is granted: a server that has just started is in its time of grace."""
    wait_for(lambda: lock() == NLM_GRANTED, what, timeout)


def put(path, data):
    with open(path, "wb") as f:
        f.write(data)


def get(path):
    with open(path, "rb") as f:
        return f.read()


# ---- files ----

ODD_NAMES = ["plain", "with blank", "tab\tin it", "\u00e9 composed", "e\u0301 decomposed", "n" * 255, "-dash",
             "\u65e5\u672c"]


@pytest.mark.parametrize("version", [3, 4])
def test_a_tree_is_copied_compared_and_removed(gateways, version):
    c, g = gateways(mounts=1)
    g.wait_grace()
    nfs = LibNfs(g, version)
    files = {"/tree/%s" % n: pattern(i, 1000 * i * i) for i, n in enumerate(ODD_NAMES)}
    files["/tree/sub/deep/big"] = pattern(99, 3 << 20 if version == 3 else 200000)
    for d in ("/tree", "/tree/sub", "/tree/sub/deep"):
        nfs.mkdir(d)
    for path, data in files.items():
        nfs.put(path, data)
    nfs.symlink("../plain", "/tree/sub/link")
    # By the same protocol, on the mount, and on the way back.
    for path, data in files.items():
        assert nfs.get(path) == data
        assert get(c.mnt + path) == data
        assert nfs.stat(path).size == len(data) and nfs.stat(path).mode & 0o7777 == 0o640
        assert nfs.stat(path).ino == os.stat(c.mnt + path).st_ino
    assert nfs.listdir("/tree") == sorted(ODD_NAMES + ["sub"]) == sorted(os.listdir(c.mnt + "/tree"))
    assert nfs.readlink("/tree/sub/link") == "../plain" == os.readlink(c.mnt + "/tree/sub/link")
    # The tools of libnfs.
    url = "nfs://127.0.0.1/main%s?version=" + str(version)
    local = os.path.join(c.base, "local")
    put(local, pattern(5, 700000))
    if version == 3:
        g.tool("nfs-cp", local, url % "/tree/copied")
    else:
        put(c.mnt + "/tree/copied", get(local))
    assert get(c.mnt + "/tree/copied") == get(local)
    g.tool("nfs-cp", url % "/tree/copied", local + ".back")
    assert get(local + ".back") == get(local)
    assert g.tool("nfs-cat", url % "/tree/plain") == files["/tree/plain"]
    assert b" sub\n" in g.tool("nfs-ls", url % "/tree")
    nfs.rename("/tree/copied", "/tree/sub/moved")
    with pytest.raises(OSError) as e:
        nfs.rmdir("/tree/sub")
    assert e.value.errno in (errno.ENOTEMPTY, errno.EEXIST)
    for path in [*files, "/tree/sub/link", "/tree/sub/moved"]:
        nfs.unlink(path)
    for d in ("/tree/sub/deep", "/tree/sub", "/tree"):
        nfs.rmdir(d)
    assert os.listdir(c.mnt) == [] and nfs.listdir("/") == []
    nfs.close()
    assert g.stop() == 0


def test_a_directory_of_many_names_is_listed_whole(gateways):
    c, g = gateways(mounts=1)
    os.mkdir(c.mnt + "/d")
    names = sorted("clip-%04d.mov" % i for i in range(1000))
    for n in names:
        os.mknod(c.mnt + "/d/" + n)
    for version in (3, 4):
        nfs = LibNfs(g, version)
        assert nfs.listdir("/d") == names
        nfs.close()


def test_attributes_are_seen_at_the_other_gateway_at_once(gateways):
    c, a, b = gateways()
    put(c.mnt + "/f", b"old")
    a3, b3, b4 = a.v3(), b.v3(), b.v4()
    root = a3.mount("/main")[1]
    f = a3.lookup(root, "f")[1]
    f4 = b4.lookup("main", "f")[1]
    for i in range(20):
        data = b"x" * (10 + i)
        assert b3.getattr(f)[0] == NFS_OK  # it knows the attributes of before
        assert a3.write(f, data)[0] == NFS_OK
        status, attr = b3.getattr(f)
        assert status == NFS_OK and attr.size == len(data)
        assert b3.read(f) == (NFS_OK, data) == b4.read(f4)
        assert b4.size(f4) == (NFS_OK, len(data))
        os.chmod(c.mnts[1] + "/f", 0o600 + i)
        assert a3.getattr(f)[1].mode & 0o7777 == 0o600 + i
    # Names: a file that takes the place of another one, one that is new, one that is gone.
    client = LibNfs(b, 3)
    assert client.listdir("/") == ["f"]
    for i in range(5):
        put(c.mnt + "/new", b"new %d" % i)
        os.rename(c.mnt + "/new", c.mnt + "/f")
        before, before4 = f, f4
        f, f4 = b3.lookup(root, "f")[1], b4.lookup("main", "f")[1]
        assert f != before and b3.read(f) == (NFS_OK, b"new %d" % i)
        assert f4 != before4 and b4.read(f4) == (NFS_OK, b"new %d" % i)
        put("%s/g%d" % (c.mnt, i), b"")
        assert client.listdir("/") == ["f", "g%d" % i] and b3.lookup(root, "g%d" % i)[0] == NFS_OK
        os.unlink("%s/g%d" % (c.mnt, i))
        assert b3.lookup(root, "g%d" % i)[0] == NFS_NOENT and client.listdir("/") == ["f"]
    # The file system is one for clients, too.
    assert a3.getattr(f)[1].fsid == b3.getattr(f)[1].fsid != 0
    assert a3.getattr(f)[1].fileid == os.stat(c.mnt + "/f").st_ino


# ---- handles ----

def mount_elsewhere(c, name, mnt):
    """Replaces a rozomount that was killed, so that the file system has another st_dev."""
    before, taken = os.stat(mnt).st_dev, []
    c.kill(name)
    subprocess.run(["umount", "-l", mnt], check=True)
    try:
        for i in range(4):  # file systems that take the number that was freed
            taken.append(os.path.join(c.base, "tmpfs%d" % i))
            os.mkdir(taken[-1])
            subprocess.run(["mount", "-t", "tmpfs", "none", taken[-1]], check=True)
        c.restart(name)
        assert os.stat(mnt).st_dev != before
    finally:
        for path in taken:
            with contextlib.suppress(OSError):
                subprocess.run(["umount", path], check=True)


def test_a_handle_outlives_gateway_mount_and_move(gateways):
    c, a, b = gateways()
    os.makedirs(c.mnt + "/a/b")
    put(c.mnt + "/a/b/f", b"contents")
    put(c.mnt + "/gone", b"gone")
    client3, client4 = a.v3(), a.v4()
    root = client3.mount("/main")[1]
    d = client3.lookup(client3.lookup(root, "a")[1], "b")[1]
    f, gone = client3.lookup(d, "f")[1], client3.lookup(root, "gone")[1]
    f4, gone4 = client4.lookup("main", "a", "b", "f")[1], client4.lookup("main", "gone")[1]
    fsid = client3.getattr(root)[1].fsid

    def check(gateway):
        n3, n4 = gateway.v3(), gateway.v4()
        assert n3.mount("/main") == (NFS_OK, root)
        assert n3.read(f) == (NFS_OK, b"contents") == n4.read(f4)
        assert n3.lookup(d, "f") == (NFS_OK, f) and n4.lookup("main", "a", "b", "f") == (NFS_OK, f4)
        assert n3.getattr(root)[1].fsid == fsid
        n3.close()
        n4.close()

    check(a)
    check(b)              # the move to another gateway with another mount
    assert os.stat(c.mnts[0]).st_dev != os.stat(c.mnts[1]).st_dev
    assert a.stop() == 0, a.log()[-1000:]
    mount_elsewhere(c, "mount-1", c.mnts[0])
    a.start()
    check(a)              # another mount, with another st_dev
    a.kill()
    a.start()
    check(a)              # a gateway that was killed
    # A handle of a file that was removed opens no other file, although new ones were made.
    os.unlink(c.mnts[1] + "/gone")
    for i in range(100):
        put("%s/new%d" % (c.mnts[1], i), b"new")
    for gateway in (a, b):
        n3 = gateway.v3()
        # GETATTR does not open it, as READ does. exportd keeps it for 2 s, in case another mount opens it.
        wait_for(lambda: n3.getattr(gone)[0] == NFS_STALE, "the removed file to be gone")
        assert n3.read(gone)[0] == NFS_STALE and gateway.v4().read(gone4)[0] == NFS_STALE
    c.restart("exportd")
    for i in range(100):
        put("%s/newer%d" % (c.mnts[1], i), b"newer")
    for gateway in (a, b):
        assert gateway.v3().read(gone)[0] == NFS_STALE and gateway.v4().read(gone4)[0] == NFS_STALE


def test_a_file_that_another_gateway_removed_gives_its_space_back(gateways):
    """Ganesha keeps files open that clients have read."""
    c, a, b = gateways()
    put(c.mnt + "/big", pattern(1, 1 << 20))
    n3 = a.v3()
    big = n3.lookup(n3.mount("/main")[1], "big")[1]
    assert n3.read(big)[0] == NFS_OK

    def held():
        at = "/proc/%d/fd" % a.ganesha_pid()
        open_now = [os.readlink(os.path.join(at, fd)) for fd in os.listdir(at)]
        return [path[len(c.mnt):] for path in open_now if path.startswith(c.mnt + "/")]

    assert held() == ["/big"]
    os.unlink(c.mnts[1] + "/big")
    wait_for(lambda: held() == [], "the removed file to be closed")
    assert n3.read(big)[0] == NFS_STALE


def test_write_verifiers_of_gateways_differ(gateways):
    """A client that comes to another gateway must see that unstable writes may be lost. Ganesha's own verifier is the
    second in which it started."""
    c, a, b = gateways()
    put(c.mnt + "/f", b"")
    seen = set()
    for g in (a, b):
        n3 = g.v3()
        status, verifier = n3.write(n3.lookup(n3.mount("/main")[1], "f")[1], b"x")
        assert status == NFS_OK
        seen.add(verifier)
        for half in (verifier[:4], verifier[4:]):
            for order in ("little", "big"):
                assert abs(int.from_bytes(half, order) - time.time()) > 600
    assert len(seen) == 2


# ---- locks ----

def test_locks_of_two_gateways_exclude_each_other(gateways):
    c, a, b = gateways(grace=6)
    put(c.mnt + "/f", b"x" * 100)
    a3 = a.v3()
    f = a3.lookup(a3.mount("/main")[1], "f")[1]
    one, two = a.nlm("one"), b.nlm("two")
    # v3 against v3
    get_granted(lambda: one.lock(f, 0, 10), "the first lock")
    get_granted(lambda: two.lock(f, 10, 10), "a lock beside it at the other gateway")
    assert two.lock(f, 5, 10) == NLM_DENIED and one.lock(f, 15, 1) == NLM_DENIED
    assert two.lock(f, 0, 10, exclusive=False) == NLM_DENIED
    assert one.unlock(f, 0, 10) == NLM_GRANTED == two.lock(f, 0, 10)
    assert one.lock(f, 0, 10) == NLM_DENIED
    # v3 against a program on either mount
    for mnt in c.mnts:
        with open(mnt + "/f", "r+b") as local:
            with pytest.raises(BlockingIOError):
                fcntl.lockf(local, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
            fcntl.lockf(local, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 30)
            assert one.lock(f, 35, 1) == NLM_DENIED == two.lock(f, 35, 1)
    get_granted(lambda: one.lock(f, 30, 10), "a lock that a program has left")
    assert one.unlock(f) == NLM_GRANTED == two.unlock(f)
    # v4 against v4, v3 and a program
    a.wait_grace()
    b.wait_grace()
    na, nb = LibNfs(a, 4), LibNfs(b, 4)
    fa, fb = na.open_to_lock("/f"), nb.open_to_lock("/f")
    assert na.try_lock(fa) and not v4_can_lock(b, "/f")
    assert two.lock(f) == NLM_DENIED == one.lock(f)
    with open(c.mnts[1] + "/f", "r+b") as local, pytest.raises(BlockingIOError):
        fcntl.lockf(local, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert na.try_lock(fa, F_ULOCK)
    assert nb.try_lock(fb) and not v4_can_lock(a, "/f")
    assert nb.try_lock(fb, F_ULOCK)
    # Locks end with their gateway.
    get_granted(lambda: two.lock(f), "a lock at the other gateway")
    assert one.lock(f) == NLM_DENIED
    b.kill()
    get_granted(lambda: one.lock(f), "the locks of a gateway that was killed to go")


def test_locks_wait_for_the_time_of_grace(gateways):
    """After a restart a gateway gives no new locks until clients had the time to claim theirs."""
    c, g = gateways(mounts=1, grace=4)
    put(c.mnt + "/f", b"x")
    n3 = g.v3()
    f = n3.lookup(n3.mount("/main")[1], "f")[1]
    one = g.nlm("one")
    get_granted(lambda: one.lock(f), "a lock")
    g.kill()
    start = time.monotonic()
    g.start()
    two = g.nlm("two")
    status = two.lock(f)
    assert status == 4 or time.monotonic() > start + 4, "NLM4_DENIED_GRACE_PERIOD is 4, and not %d" % status
    get_granted(lambda: two.lock(f), "a lock after the time of grace")
    assert time.monotonic() - start >= 3


def test_claims_are_granted_only_where_the_state_is(gateways):
    """A gateway that runs refuses claims of clients that come from another one. One that starts with the state of the
    other, over a mount of its own and on a host of another name, grants them, and no other client's."""
    c, a, b = gateways(grace=10)
    put(c.mnt + "/f", b"x")
    n = a.v4()
    top, f = n.lookup("main")[1], n.lookup("main", "f")[1]
    one = a.owner("one")
    wait_for(lambda: one.open(top, "f") == NFS_OK, "the file to be opened", 60)
    b.wait_grace()
    assert b.owner("one").claim(f) == NFS4_NO_GRACE
    a.kill()
    b.kill()
    rozo("gateway", "nfs", "main", "--mount", c.mnts[1], "--squash", "none", "--grace", 10, *a.dirs)
    clients = os.path.join(a.dirs[1], "v4recov")
    os.rename(os.path.join(clients, os.uname().nodename), os.path.join(clients, "other"))
    a.server = ["unshare", "--uts", "sh", "-c", 'hostname other && exec "$@"', "sh", *a.server]
    a.start()
    assert a.owner("two").open(top, "f") == NFS4_GRACE
    assert a.owner("two").claim(f) == NFS4_NO_GRACE
    assert a.owner("one").claim(f) == NFS_OK


# ---- faults ----

def test_clients_go_on_while_a_storage_is_killed(gateways):
    c, g = gateways(mounts=1)
    g.wait_grace()
    nfs = LibNfs(g, 3)
    data = pattern(7, 8 << 20)
    nfs.put("/f", data)
    c.kill("storaged-1")
    nfs.put("/g", data)
    c.drop_caches()
    assert hashlib.sha256(nfs.get("/f")).digest() == hashlib.sha256(data).digest()
    assert nfs.get("/g") == data
    c.restart("storaged-1")
    nfs.put("/f", data[::-1])
    assert get(c.mnt + "/f") == data[::-1]
    nfs.close()


def test_no_bytes_of_a_dead_mount_are_served(gateways):
    """The kernel answers reads of open files from its cache although rozomount is dead; another mount changes them."""
    c, a, b = gateways()
    put(c.mnt + "/f", b"old")
    n3 = a.v3()
    f = n3.lookup(n3.mount("/main")[1], "f")[1]
    assert n3.read(f) == (NFS_OK, b"old")
    c.kill("mount-1")
    assert a.p.wait(30) != 0
    with pytest.raises(OSError):
        n3.read(f)
    assert "ganesha.nfsd was ended; start it again" in a.log()
    status = a.status()
    assert "DOWN" in status and "not connected" in status, status
    # The client moves to the other gateway; then comes back.
    n3 = b.v3()
    assert n3.read(f) == (NFS_OK, b"old") and n3.write(f, b"new")[0] == NFS_OK
    failed = rozo("gateway", "run", "nfs", *a.dirs, check=False)
    assert failed.returncode == 1 and "not connected" in failed.stderr
    c.restart("mount-1")
    a.start()
    assert a.v3().read(f) == (NFS_OK, b"new")
    assert "runs" in a.status()
    # ganesha.nfsd ends with the rozo that runs it.
    with open("/proc/%d/task/%d/children" % ((a.inner_pid(),) * 2)) as children:
        pids = [int(p) for p in children.read().split()]
    run = [p for p in pids if os.readlink("/proc/%d/exe" % p).endswith("/rozo")]
    with open("/proc/%d/task/%d/children" % (run[0], run[0])) as children:
        server = int(children.read())
    os.kill(run[0], signal.SIGKILL)
    wait_for(lambda: not os.path.exists("/proc/%d" % server), "ganesha to end with `rozo gateway run`")
