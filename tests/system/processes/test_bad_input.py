"""Wrong configs, used ports, foreign and future data, garbage on the wire, damaged projection files.

Each gives a clear message and a non-zero exit, or leaves a healthy daemon: never a crash, never wrong data.
"""
import concurrent.futures
import contextlib
import errno
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import time

import pytest

from conftest import BIN, K, process_runs, rozo, wait_for
from daemons import STARTS_MAX_S, Daemon, can_connect
from ports import free_port


def no_crash(status, said):
    assert status == 1, "exit %d: %s" % (status, said)
    assert "Sanitizer" not in said and "Assertion" not in said, said


# ---- configs ----

WRONG_CONFIGS = [
    # (replacement of a line, text that the error must contain)
    ({"listen": "  lisen: ['127.0.0.1:1']"}, r"\.yaml:6: .*lisen"),
    ({"listen": None}, r"listen"),
    ({"data": None}, r"data"),
    ({"node_key": None}, r"node_key"),
    ({"listen": "  listen: 5"}, r"\.yaml:6: .*listen.*list"),
    ({"listen": "  listen: []"}, r"listen"),
    ({"listen": "  listen: ['127.0.0.1']"}, r"127\.0\.0\.1"),
    ({"listen": "  listen: ['127.0.0.1:99999']"}, r"99999"),
    ({"listen": "  listen: ['host.invalid:1']"}, r"host\.invalid"),
    ({"level": "  level: loud"}, r"\.yaml:8: level: expected one of error, warn, info, debug, found \"loud\""),
    ({"level": "  level: {}"}, r"\.yaml:8: .*level"),
    ({"log": "logs:"}, r"\.yaml:7: .*logs"),
    ({"node_key": "  node_key: /nowhere/node.key"}, r"/nowhere/node\.key"),
    ({"data": "  data: /proc/nowhere/data"}, r"/proc/nowhere/data.*its parent .*mounted"),
    ({"cluster": "cluster: [", "node_key": None}, r"\.yaml"),
    ({"kind": "\t:"}, r"\.yaml"),
]


@pytest.mark.parametrize("kind", ["exportd", "storaged"])
@pytest.mark.parametrize("change,wanted", WRONG_CONFIGS, ids=[str(i) for i in range(len(WRONG_CONFIGS))])
def test_wrong_config(scratch, kind, change, wanted):
    d = Daemon(scratch, kind)
    status, said = d.run(d.config(**change))
    no_crash(status, said)
    assert re.search(wanted, said), said


@pytest.mark.parametrize("what", ["lease_s", "evict_s"])
def test_a_time_out_of_range(scratch, what):
    d = Daemon(scratch, "exportd")
    for value in ("2", "3601", "-1", "long"):
        status, said = d.run(d.config(data="  data: %s\n  %s: %s" % (os.path.join(scratch, "data"), what, value)))
        no_crash(status, said)
        assert what in said, said


@pytest.mark.parametrize("what,most", [("session_tokens_max", 524288), ("tokens_max", 64 << 20)])
def test_a_number_of_tokens_out_of_range(scratch, what, most):
    d = Daemon(scratch, "exportd")
    for value in ("63", str(most + 1), "-1", "many"):
        status, said = d.run(d.config(data="  data: %s\n  %s: %s" % (os.path.join(scratch, "data"), what, value)))
        no_crash(status, said)
        assert what in said, said


@pytest.mark.parametrize("kind", ["exportd", "storaged"])
def test_too_few_descriptors(scratch, kind):
    d = Daemon(scratch, kind)
    status, said = d.run(d.config(), most_files=80)
    no_crash(status, said)
    assert status == 1 and re.search(r"needs \d+ file descriptors, and its hard limit is 80", said), said


@pytest.mark.parametrize("kind", ["exportd", "storaged"])
def test_just_enough_descriptors(scratch, kind):
    d = Daemon(scratch, kind)
    need = int(re.search(r"needs (\d+) file descriptors", d.run(d.config(), most_files=80)[1]).group(1))
    status, said = d.run(d.config(), most_files=need - 1)
    assert status == 1 and "needs %d file" % need in said, said
    with d.running(most_files=(need, need)) as p:
        assert len(os.listdir("/proc/%d/fd" % p.pid)) < need / 2  # the rest is for clients and files


@pytest.mark.parametrize("kind", ["exportd", "storaged"])
def test_a_low_soft_limit_is_raised(scratch, kind):
    d = Daemon(scratch, kind)
    with d.running(most_files=(64, 1024)) as p:
        with open("/proc/%d/limits" % p.pid) as f:
            limits = next(line.split() for line in f if line.startswith("Max open files"))
        assert limits[3:5] == ["1024", "1024"]


def test_a_period_out_of_range(scratch):
    d = Daemon(scratch, "exportd")
    for value in ("2678401", "-1", "long"):
        status, said = d.run(d.config(data="  data: %s\n  strays_s: %s" % (os.path.join(scratch, "data"), value)))
        no_crash(status, said)
        assert "strays_s" in said, said


@pytest.mark.parametrize("kind", ["exportd", "storaged"])
def test_config_files_that_are_none(scratch, kind):
    d = Daemon(scratch, kind)
    rng = random.Random(5)
    good = d.config()
    for text in ("", "\n", "5", "[]", "\0" * 100, "a: &a [*a]", "- " * 5000, "{" * 5000, good + "\0",
                 "x: y\n" * 50000, good.replace("data", "da\xff\xfeta"), good + good):
        no_crash(*d.run(text))
    for _ in range(20):  # one changed byte: refused or accepted, never a crash
        at = rng.randrange(len(good))
        text = good[:at] + chr(rng.randrange(1, 127)) + good[at + 1:]
        path = os.path.join(scratch, "mutated.yaml")
        with open(path, "w") as f:
            f.write(text)
        p = subprocess.Popen([os.path.join(BIN, kind), "--config", path], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, cwd=scratch)
        with contextlib.suppress(subprocess.TimeoutExpired):
            p.wait(0.5)
        p.terminate()
        said = p.communicate(timeout=30)[0]
        assert p.returncode in (0, 1, -15), (p.returncode, text, said)
        shutil.rmtree(d.data, ignore_errors=True)


@pytest.mark.parametrize("kind", ["exportd", "storaged"])
def test_arguments(kind, scratch):
    for args, status in ((["--nonsense"], 2), (["--config"], 2), ([], 2), (["--config", "/nowhere"], 1)):
        r = subprocess.run([os.path.join(BIN, kind), *args], stdout=subprocess.PIPE, cwd=scratch,
                           stderr=subprocess.PIPE, text=True, timeout=STARTS_MAX_S)
        assert r.returncode == status and r.stderr, (args, r)


@pytest.mark.parametrize("kind", ["exportd", "storaged"])
def test_key_files(scratch, kind):
    d = Daemon(scratch, kind)
    path = scratch + "/node.key"
    for text, mode in (("", 0o600), ("zz" * 32 + "\n", 0o600), ("ab" * 31 + "\n", 0o600),
                       ("ab" * 33 + "\n", 0o600), ("ab" * 32 + "\n", 0o644)):
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, mode)
        status, said = d.run(d.config())
        no_crash(status, said)
        assert "node.key" in said


# ---- ports and data directories ----

@pytest.mark.parametrize("kind", ["exportd", "storaged"])
def test_port_in_use(scratch, kind):
    d = Daemon(scratch, kind)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        d.port = s.getsockname()[1]
        status, said = d.run(d.config())
    no_crash(status, said)
    assert str(d.port) in said and "in use" in said, said
    with d.running():  # it starts when the port is free
        pass


@pytest.mark.parametrize("kind", ["exportd", "storaged"])
def test_two_daemons_never_share_a_data_directory(scratch, kind):
    d = Daemon(scratch, kind)
    with d.running() as p:
        os.mkdir(scratch + "/2")
        second = Daemon(scratch + "/2", kind)
        second.data = d.data
        status, said = second.run(second.config())
        no_crash(status, said)
        assert d.data in said
        assert p.poll() is None


@pytest.mark.parametrize("kind", ["exportd", "storaged"])
def test_data_directory_with_other_things(scratch, kind):
    d = Daemon(scratch, kind)
    os.mkdir(d.data)
    with open(d.data + "/holiday.jpg", "w") as f:
        f.write("x")
    status, said = d.run(d.config())
    no_crash(status, said)
    assert d.data in said
    assert os.listdir(d.data) == ["holiday.jpg"]


def test_format_of_the_future(scratch):
    for kind, name, pattern in (("storaged", "storage.id", rb"format: \d\b"),
                                ("exportd", "format", rb"format \d\b")):
        folder = os.path.join(scratch, kind)
        os.mkdir(folder)
        d = Daemon(folder, kind)
        with d.running():
            pass
        path = os.path.join(d.data, name)
        with open(path, "rb") as f:
            was = f.read()
        future = re.sub(pattern, lambda m: m.group(0)[:-1] + b"7", was)
        assert future != was
        with open(path, "wb") as f:
            f.write(future)
        status, said = d.run(d.config())
        no_crash(status, said)
        assert re.search(r"format 7", said) and name in said or d.data in said, said
        with open(path, "rb") as f:
            assert f.read() == future  # not changed
        with open(path, "wb") as f:
            f.write(was)
        with d.running():
            pass


@pytest.mark.parametrize("text", [b"", b"\0" * 64, b"rozo-storage\nformat: x\n", os.urandom(500),
                                  b"rozo-storage\nformat: 1\nincarnation: 00\n"])
def test_damaged_identity(scratch, text):
    d = Daemon(scratch)
    with d.running():
        pass
    with open(d.data + "/storage.id", "wb") as f:
        f.write(text)
    status, said = d.run(d.config())
    no_crash(status, said)
    assert "storage.id" in said


def test_generations_of_a_storage(scratch):
    """A clean stop leaves nothing uncertain, a kill does; a damaged file is refused."""
    def generations():
        with open(path) as f:
            lines = dict(line.split(": ") for line in f.read().splitlines()[1:] if not line.startswith("lost"))
        return int(lines["stable"]), int(lines["last"])

    d = Daemon(scratch)
    path = d.data + "/storage.generations"
    last = 0
    for _ in range(3):
        with d.running():
            stable, now = generations()
            assert stable < now and last < now
        stable, last = generations()
        assert stable == last
    p = subprocess.Popen([os.path.join(BIN, "storaged"), "--config", os.path.join(scratch, "storaged.yaml")],
                         stderr=subprocess.DEVNULL)
    wait_for(lambda: can_connect(d.port), "storaged to listen")
    p.kill()
    p.wait()
    stable, now = generations()
    assert stable == last < now
    with d.running():
        assert generations()[1] > now  # no number is used twice
    with open(path) as f:
        was = f.read()
    for text in ("", "rozo-generations\nformat: 1\n", was.replace("stable: ", "stable: 9"), "\0" * 100):
        with open(path, "w") as f:
            f.write(text)
        status, said = d.run(d.config())
        no_crash(status, said)
        assert "storage.generations" in said and "move it away" in said
    os.unlink(path)
    with d.running():
        pass


def test_a_storage_of_another_cluster_is_not_admitted(cluster):
    """A storage with the same keys but of another cluster is refused: its data belongs to that one."""
    a, b = cluster(layout=0, mounts=0), cluster(layout=0, mounts=0)
    b.down()
    d = Daemon(b.base + "/", "storaged")
    d.data = b.data("storaged-1")
    for name in ("node.key", "client.key"):
        shutil.copy2(os.path.join(a.dir, "etc", name), os.path.join(d.folder, name))
    with d.running():
        r = a.admin("storage", "add", "127.0.0.1:%d" % d.port, check=False)
        assert r.returncode == 1 and r.stderr
        assert len(a.status()["storages"]) == 4


def test_swapped_data_directories_never_give_wrong_data(cluster):
    """Two disks of a running cluster are swapped."""
    c = cluster(layout=0, mount_options="io_timeout=3")
    data = os.urandom(1 << 20)
    with open(c.mnt + "/f", "wb") as f:
        f.write(data)
    one, two = c.data("storaged-1"), c.data("storaged-2")

    def swap():
        for name in ("storaged-1", "storaged-2"):
            c.kill(name)
        os.rename(one, one + ".x")
        os.rename(two, one)
        os.rename(one + ".x", two)
        c.restart("storaged-1", "storaged-2")

    swap()
    c.drop_caches()
    try:
        with open(c.mnt + "/f", "rb") as f:
            assert f.read() == data
    except OSError as e:
        assert e.errno == errno.EIO
    swap()
    c.wait_all_up()
    c.remount()
    with open(c.mnt + "/f", "rb") as f:
        assert f.read() == data


# ---- mounting ----

def rozomount(*args, timeout=90):
    return subprocess.run([os.path.join(BIN, "rozomount"), *args], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=timeout)


def test_mounts_that_cannot_be(cluster, scratch):
    c = cluster(layout=0)
    key = "key=%s/etc/client.key" % c.dir
    exportd = c.dev_status()["exportd"]
    full, empty, plain = scratch + "/full", scratch + "/empty", scratch + "/plain"
    os.makedirs(full + "/something")
    os.mkdir(empty)
    with open(plain, "w") as f:
        f.write("x")
    rozo("key", "new", scratch + "/other.key")
    nobody = "127.0.0.1:%d" % free_port()
    for args, wanted in (
            ([exportd + "/main", full, "-o", key], "not empty|nonempty"),
            ([exportd + "/main", plain, "-o", key], "plain"),
            ([exportd + "/main", scratch + "/none", "-o", key], "none"),
            ([exportd + "/main", c.mnt, "-o", key], "mount"),
            ([exportd + "/nothing", empty, "-o", key], "nothing"),
            ([exportd + "/main", empty, "-o", "key=/nowhere/k"], "/nowhere/k"),
            ([exportd + "/main", empty, "-o", "key=%s/other.key" % scratch], "key"),
            ([nobody + "/main", empty, "-o", key + ",mount_timeout=3"], re.escape(nobody)),
            ([exportd + "/main", empty, "-o", key + ",nonsense=5"], "nonsense")):
        r = rozomount(*args)
        assert r.returncode in (1, 2), (args, r)
        assert re.search(wanted, r.stderr), (args, r.stderr)
        assert not os.path.ismount(empty)
    for args in ([], [exportd + "/main"], ["nonsense", empty], [exportd + "/main", empty, "more"]):
        assert rozomount(*args).returncode == 2, args
    assert os.listdir(c.mnt) == []


def test_a_hung_exportd_at_mount(cluster, scratch):
    """The port accepts connections and never answers."""
    c = cluster(layout=0, mounts=0)
    os.mkdir(scratch + "/m")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen(16)
        r = rozomount("127.0.0.1:%d/main" % s.getsockname()[1], scratch + "/m", "-o",
                      "key=%s/etc/client.key,mount_timeout=3" % c.dir)
        assert r.returncode == 1 and r.stderr
        r = c.admin("status", "--exportd", "127.0.0.1:%d" % s.getsockname()[1], check=False)
        assert r.returncode == 1 and r.stderr


# ---- the wire ----

def garbage(rng):
    """Yields the input of a scanner, a wrong client or an attacker."""
    yield b""
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(200)  # TLS
    yield b"\0" * 100000
    yield b"\xff" * 100000
    yield rng.randbytes(1)
    yield rng.randbytes(47)
    yield rng.randbytes(1 << 20)
    for kind in range(7):  # frames with a good beginning
        for length in (0, 1, 4 << 20, 0xffffffff):
            yield b"ROZ1" + struct.pack("<HHHHQQIIII", 1, kind, rng.randrange(300), 0, rng.randrange(9), 0,
                                        length, length, 0, rng.randrange(1 << 32)) + rng.randbytes(64)


def test_garbage_on_every_listening_port(cluster):
    c = cluster(layout=0, links=2)
    data = os.urandom(1 << 20)
    with open(c.mnt + "/f", "wb") as f:
        f.write(data)
        os.fsync(f.fileno())
    pids = {name: c.pid(name) for name in c.names()}
    rng = random.Random(11)
    silent = []
    for name in c.daemons():
        for address in c.addresses(name):
            for blob in garbage(rng):
                with socket.create_connection(address, timeout=10) as s:
                    s.settimeout(0.05)
                    with contextlib.suppress(OSError):  # the server may close in the middle
                        s.sendall(blob)
                        s.recv(4096)
            for _ in range(30):
                s = socket.create_connection(address, timeout=10)
                s.setblocking(False)
                with contextlib.suppress(OSError):
                    s.send(b"ROZ1"[:rng.randrange(5)])
                silent.append(s)  # kept open: no test waits for them
    assert {name: c.pid(name) for name in c.names()} == pids
    assert all(process_runs(pid) for pid in pids.values())
    assert all(s["up"] for s in c.status()["storages"])
    c.remount()  # new connections are accepted while the idle ones stay
    with open(c.mnt + "/f", "rb") as f:
        assert f.read() == data
    for s in silent:
        s.close()
    for name in c.daemons():  # error messages are rate limited
        assert len(c.log(name)) < 1 << 20


# ---- projection files ----

def damage_ways():
    """Returns name -> function(path, rng), a kind of damage to a projection file by a disk."""
    def cut(to):
        def do(path, _rng):
            size = os.path.getsize(path)
            os.truncate(path, int(to * size) if isinstance(to, float) else min(to, size))
        return do

    def scribble(first, last, n):
        def do(path, rng):
            with open(path, "r+b") as f:
                size = os.path.getsize(path)
                for _ in range(n if size else 0):
                    f.seek(rng.randrange(min(first, size - 1), min(last, size)))
                    f.write(rng.randbytes(1))
        return do

    def fill(first, n_bytes, byte):
        def do(path, _rng):
            with open(path, "r+b") as f:
                f.seek(first)
                f.write(bytes([byte]) * n_bytes)
        return do

    def swap_pages(path, _rng):
        with open(path, "r+b") as f:
            a, b = f.read(16384), f.read(16384)
            f.seek(0)
            f.write(b + a)

    end = 1 << 40
    return {"empty": cut(0), "100 bytes": cut(100), "header page only": cut(4096), "no bodies": cut(20480),
            "half": cut(0.5), "one byte short": cut(0.99999), "header bytes": scribble(0, 4096, 64),
            "mark bytes": scribble(4096, 12288, 64), "heads": scribble(16384, 20480, 200),
            "bodies": scribble(20480, end, 500), "everywhere": scribble(0, end, 2000),
            "zero header": fill(0, 4096, 0), "zero marks": fill(4096, 8192, 0),
            "ones in marks": fill(4096, 8192, 255), "zero heads": fill(16384, 4096, 0),
            "ones in heads": fill(16384, 4096, 255), "zero body page": fill(32768, 4096, 0),
            "swapped": swap_pages}


def projection_files(c, storage, ino):
    """Returns paths of an inode's projection files on one storage, also of one in quarantine."""
    found = []
    for folder, _, names in os.walk(os.path.join(c.data(storage), "objects")):
        # The name is the file id in hex (export, generation, inode number: 8, 8, 16 digits), a dot, and the
        # projection.
        found += [os.path.join(folder, n) for n in names if n[16:32] == "%016x" % ino]
    return found


@pytest.mark.parametrize("layout,may_be_lost", [(1, 2), (2, 4)])
def test_projections_lost_under_a_running_cluster(cluster, layout, may_be_lost):
    """Files are cut while the daemons have them open: right bytes up to n - k of them, EIO beyond, never
    zeros."""
    c = cluster(layout=layout, mount_options="io_timeout=2")
    path = os.path.join(c.mnt, "file")
    data = random.Random(layout).randbytes(3 * 1024 * 1024 + 5)
    with open(path, "wb") as f:
        f.write(data)
        os.fsync(f.fileno())
    ino = os.stat(path).st_ino
    found = [p for s in c.names("storaged") for p in projection_files(c, s, ino)]
    assert len(found) >= 3 * may_be_lost
    ways = ["half", "no bodies", "header page only", "empty", "half"]  # all lose the second half
    for n, p in enumerate(found[:may_be_lost]):
        damage_ways()[ways[n]](p, None)
    c.remount()
    with open(path, "rb") as f:
        assert f.read() == data
    for n in range(may_be_lost, len(found)):  # again where a spare has taken a home's data
        for i in range(n + 1):
            damage_ways()[ways[i % len(ways)]](found[i], None)
        c.remount()
        try:
            with open(path, "rb") as f:
                f.seek(5 * len(data) // 6)
                got = f.read(16384)
        except OSError as e:
            assert e.errno == errno.EIO
            break
        assert got == data[5 * len(data) // 6:][:16384]
        assert len(found) - n > K[layout], "%d of %d files are damaged, and k = %d" % (n + 1, len(found), K[layout])
    with open(path, "r+b") as f:
        f.write(data[::-1])
        os.fsync(f.fileno())
    c.remount()
    with open(path, "rb") as f:
        assert f.read() == data[::-1]


def how_it_differs(got, data):
    """Returns the first difference and the bytes there; None if they are equal."""
    if got == data:
        return None
    n = min(len(got), len(data))
    said = "" if len(got) == len(data) else "%d bytes of %d; " % (len(got), len(data))
    wrong = [i for i in range(0, n, 512) if got[i:i + 512] != data[i:min(i + 512, n)]]
    if not wrong:
        return said + "what there is, is right"
    first = next(i for i in range(wrong[0], n) if got[i] != data[i])
    last = next(i for i in range(min(wrong[-1] + 511, n - 1), -1, -1) if got[i] != data[i])
    piece = got[first:last + 1]
    if not any(piece):
        what = "zeros"
    elif len(piece) >= 16 and data.find(piece[:16]) >= 0:
        what = "what belongs at %d" % data.find(piece[:16])
    else:
        what = piece[:16].hex()
    return said + "wrong from %d to %d, in %d pieces of 512: %s" % (first, last, len(wrong), what)


def test_damaged_projection_files(cluster):
    """One projection of each of many files is damaged in its own way: all files are read correctly. After
    damage to a second one: EIO or the right bytes, never others, and never zeros for lost data. All files
    can be overwritten."""
    c = cluster(layout=0, mount_options="io_timeout=2")
    rng = random.Random(3)
    files = {}
    for way in damage_ways():
        path = os.path.join(c.mnt, way.replace(" ", "-"))
        data = rng.randbytes(3 * 128 * 8192 // 2 + 777)  # an extent and a half, a short last block
        with open(path, "wb") as f:
            f.write(data)
            os.fsync(f.fileno())
        files[way] = (path, data, os.stat(path).st_ino)

    def damage(n_th, ways):
        """Damages the file on the n-th storage that has a part of it."""
        hit = 0
        for way in ways:
            do = damage_ways()[way]
            ino = files[way][2]
            holders = [s for s in c.names("storaged") if projection_files(c, s, ino)]
            for path in projection_files(c, holders[n_th], ino):
                do(path, rng)
                hit += 1
        assert hit >= len(ways)

    def read_all(errors_allowed=False):
        c.remount()

        def read(way):
            path, data, _ = files[way]
            try:
                with open(path, "rb") as f:
                    wrong = how_it_differs(f.read(), data)
                    return "right" if wrong is None else "%s: wrong bytes: %s" % (way, wrong)
            except OSError as e:
                return "EIO" if errors_allowed and e.errno == errno.EIO else "%s: %s" % (way, e)

        with concurrent.futures.ThreadPoolExecutor(len(files)) as pool:  # an EIO takes a while
            found = list(pool.map(read, files))
        assert set(found) <= {"right", "EIO"}, found
        return found.count("EIO")

    for name in c.names("storaged"):
        c.kill(name)
    damage(0, list(files))
    c.restart(*c.names("storaged"))
    c.wait_all_up()
    read_all()
    for name in c.names("storaged"):
        c.kill(name)
    damage(0, list(files))  # again, because storages have healed some of the first damage
    damage(1, list(files))
    c.restart(*c.names("storaged"))
    c.wait_all_up()
    assert read_all(errors_allowed=True) > len(files) // 2
    # All files can be overwritten, in place and from their beginning, whatever is damaged; and all can be
    # removed.
    for n, way in enumerate(files):
        path, data, _ = files[way]
        with open(path, "r+b" if n % 2 == 0 else "wb") as f:
            f.write(data[::-1])
            os.fsync(f.fileno())
    c.remount()
    for path, data, _ in files.values():
        with open(path, "rb") as f:
            assert f.read() == data[::-1], path
    for path, _, _ in files.values():
        os.unlink(path)
    wait_for(lambda: c.status()["trash"] == 0, "the projections to be removed")
    assert all(process_runs(c.pid(name)) for name in c.names())


def test_damage_under_a_running_storage(cluster):
    """Bytes change on the disk while the storage has the file open."""
    c = cluster(layout=0)
    data = os.urandom(1 << 20)
    path = c.mnt + "/f"
    with open(path, "wb") as f:
        f.write(data)
        os.fsync(f.fileno())
    ino = os.stat(path).st_ino
    rng = random.Random(9)
    victim = [s for s in c.names("storaged") if projection_files(c, s, ino)][0]
    end = time.monotonic() + 5
    for do in damage_ways().values():
        for p in projection_files(c, victim, ino):
            if os.path.getsize(p) > 65536:
                do(p, rng)
        with open(path, "rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert f.read() == data
        if time.monotonic() > end and len(os.listdir(c.mnt)) > 1:
            break
    assert process_runs(c.pid(victim))
