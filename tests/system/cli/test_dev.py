"""`rozo dev`: private clusters that start, stop, return with their data, and leave nothing behind."""
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import time

import pytest

from conftest import CODECS, ROZO, cannot_mount, mounts_below, process_runs, rozo, wait_for


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)
        os.fsync(f.fileno())


def read(path):
    with open(path, "rb") as f:
        return f.read()


def members(c):
    return {m["name"]: m for m in c.dev_status()["members"]}


def test_up_starts_what_it_says_where_it_says(cluster):
    c = cluster(layout=0, links=2)
    status = c.dev_status()
    assert status["state"] == "up"
    assert [m["name"] for m in status["members"]] == \
        ["exportd", "storaged-1", "storaged-2", "storaged-3", "storaged-4", "mount-1"]
    ports = set()
    for m in status["members"]:
        assert m["state"] == "running"
        assert c.pid(m["name"]) == m["pid"] and process_runs(m["pid"])
        assert os.path.exists(os.path.join(c.dir, "log", m["name"] + ".log"))
        # Members have a session of their own, no terminal of the caller, and only files that they opened.
        assert os.getsid(m["pid"]) == m["pid"]
        assert os.readlink("/proc/%d/fd/0" % m["pid"]) == "/dev/null"
        for address in m["addresses"]:
            host, port = address.rsplit(":", 1)
            socket.create_connection((host, int(port)), timeout=5).close()
            ports.add(port)
        if m["kind"] != "mount":
            assert os.path.isdir(c.data(m["name"]))
    assert len(ports) == 1 + 4 * 2
    for key in ("node.key", "client.key"):
        assert stat.S_IMODE(os.stat(os.path.join(c.dir, "etc", key)).st_mode) == 0o600
    assert os.path.ismount(c.mnt)
    text = rozo("dev", "status", "--dir", c.dir).stdout
    assert all(len(line) <= 80 or c.dir in line for line in text.splitlines())


def test_down_then_up_finds_all_data(cluster):
    c = cluster(layout=0)
    data = os.urandom(3 << 20)
    write(c.mnt + "/kept", data)
    os.mkdir(c.mnt + "/dir")
    pids = [m["pid"] for m in c.dev_status()["members"]]
    cluster_id = c.status()["cluster_id"]
    c.down()
    assert not os.path.ismount(c.mnt)
    assert not any(process_runs(pid) for pid in pids)
    assert c.dev_status()["state"] == "down"
    c.up()
    assert read(c.mnt + "/kept") == data
    assert sorted(os.listdir(c.mnt)) == ["dir", "kept"]
    assert c.status()["cluster_id"] == cluster_id
    c.down()
    c.mnts = []  # without --mount: the last mounts again
    c.up()
    assert read(os.path.join(c.base, "mnt1", "kept")) == data


def test_second_up_says_that_it_runs(cluster):
    c = cluster(layout=0)
    before = {name: m["pid"] for name, m in members(c).items()}
    out = c.up().stdout
    assert "Running already" in out
    assert {name: m["pid"] for name, m in members(c).items()} == before


def test_down_twice_is_fine(cluster):
    c = cluster(layout=0)
    c.down()
    c.down()
    assert c.dev_status()["state"] == "down"


def test_up_starts_again_what_has_crashed(cluster):
    c = cluster(layout=0)
    write(c.mnt + "/f", b"x" * 100000)
    before = {name: m["pid"] for name, m in members(c).items()}
    for name in ("exportd", "storaged-2", "mount-1"):
        c.kill(name)
        assert members(c)[name]["state"] == "crashed"
    assert c.dev_status()["state"] == "partly up"
    c.up()
    after = {name: m["pid"] for name, m in members(c).items()}
    assert c.dev_status()["state"] == "up"
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"exportd", "storaged-2", "mount-1"}
    assert read(c.mnt + "/f") == b"x" * 100000


def test_status_tells_stopped_from_running(cluster):
    c = cluster(layout=0)
    c.kill("storaged-3", signal.SIGSTOP)
    wait_for(lambda: members(c)["storaged-3"]["state"] == "stopped", "storaged-3 to be stopped")
    c.kill("storaged-3", signal.SIGCONT)
    wait_for(lambda: members(c)["storaged-3"]["state"] == "running", "storaged-3 to run")


def test_restart_of_each_member(cluster):
    c = cluster(layout=0)
    data = os.urandom(1 << 20)
    write(c.mnt + "/f", data)
    for name in c.names():
        pid = c.pid(name)
        c.restart(name)
        assert c.pid(name) != pid and not process_runs(pid)
        c.wait_all_up()
        assert read(c.mnt + "/f") == data
    r = rozo("dev", "restart", "--dir", c.dir, "storaged-9", check=False)
    assert r.returncode == 1 and "storaged-9" in r.stderr


def test_down_with_stopped_members_and_a_busy_mount(cluster):
    c = cluster(layout=0)
    write(c.mnt + "/f", b"y" * 4096)
    pids = [m["pid"] for m in c.dev_status()["members"]]
    c.kill("storaged-1", signal.SIGSTOP)
    fd = os.open(c.mnt + "/f", os.O_RDONLY)
    try:
        r = c.down()
        assert c.mnt in r.stderr and "in use" in r.stderr
    finally:
        with contextlib.suppress(OSError):  # its mount is gone
            os.close(fd)
    assert not any(process_runs(pid) for pid in pids)
    assert mounts_below(c.base) == []


def stop(c, *names):
    for name in names:
        c.kill(name, signal.SIGSTOP)
    wait_for(lambda: all(members(c)[name]["state"] == "stopped" for name in names), "them to be stopped")


def test_up_continues_what_was_stopped(cluster):
    """`up` restores also the mount: a program that reads its folder waits."""
    c = cluster(layout=0)
    before = {name: m["pid"] for name, m in members(c).items()}
    stop(c, "exportd", "storaged-2", "mount-1")
    assert "Continued" in c.up().stdout
    assert {name: m["pid"] for name, m in members(c).items()} == before
    assert c.dev_status()["state"] == "up"
    c.wait_all_up()
    write(c.mnt + "/f", b"z" * 100000)
    assert "Running already" in c.up().stdout


@contextlib.contextmanager
def writer(c, path, size):
    """Writes data that is in flight: the mount has it, and the close waits until it is stored."""
    p = subprocess.Popen(["dd", "if=/dev/zero", "of=" + path, "bs=%d" % size, "count=1"], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: os.stat(path).st_size == size, "the bytes to be with the mount")
        yield p
    finally:
        p.kill()
        p.wait()


def test_down_lets_mounts_write_to_stopped_storages(cluster):
    """All storages are stopped (SIGSTOP); data in the mount's memory is stored nevertheless."""
    c = cluster(layout=0)
    stop(c, "storaged-1", "storaged-2", "storaged-3", "storaged-4")
    with writer(c, c.mnt + "/f", 1 << 20):
        stop(c, "exportd", "mount-1")
        assert "killed" not in c.down().stderr
    c.up()
    assert read(c.mnt + "/f") == bytes(1 << 20)


def test_a_stopped_mount_can_be_restarted(cluster):
    c = cluster(layout=0)
    data = os.urandom(1 << 20)
    write(c.mnt + "/f", data)
    pid = c.pid("mount-1")
    stop(c, "mount-1")
    c.restart("mount-1")
    assert c.pid("mount-1") != pid and not process_runs(pid)
    assert read(c.mnt + "/f") == data


@pytest.mark.parametrize("interrupted", [False, True], ids=["patient", "interrupted"])
def test_down_of_a_mount_whose_writes_cannot_land(cluster, interrupted):
    """The writes may take until io_timeout; then the mount reports the lost data and ends. ^C shortens the
    wait."""
    c = cluster(layout=0, mount_options="io_timeout=%d" % (3600 if interrupted else 12))
    for name in c.names("storaged"):
        c.kill(name)
    pid = c.pid("mount-1")
    with writer(c, c.mnt + "/f", 1 << 20):
        p = subprocess.Popen([ROZO, "dev", "down", "--dir", c.dir], stderr=subprocess.PIPE, text=True)
        if interrupted:
            wait_for(lambda: "got a signal" in c.log("mount-1"), "the mount to get the signal")
            p.send_signal(signal.SIGINT)
        said = p.communicate(timeout=100)[1]
    assert p.returncode == 0 and not process_runs(pid)
    assert ("killed" in said) == interrupted, said
    if not interrupted:
        assert "some data could not be stored" in c.log("mount-1")
    assert mounts_below(c.base) == []


def test_two_clusters_side_by_side(cluster):
    a, b = cluster(layout=0), cluster(layout=0)
    write(a.mnt + "/f", b"of a")
    write(b.mnt + "/f", b"of b")
    assert a.status()["cluster_id"] != b.status()["cluster_id"]
    a.down()
    assert read(b.mnt + "/f") == b"of b"
    a.up()
    assert read(a.mnt + "/f") == b"of a"


def test_two_clients_and_one_more_later(cluster):
    c = cluster(layout=0, mounts=2)
    write(c.mnts[0] + "/f", b"seen by both")
    assert read(c.mnts[1] + "/f") == b"seen by both"
    before = c.pid("mount-1")
    c.mnts.append(os.path.join(c.base, "mnt3"))
    c.up()
    assert c.pid("mount-1") == before
    assert read(c.mnts[2] + "/f") == b"seen by both"


def test_up_with_more_storages_makes_the_cluster_larger(cluster):
    c = cluster(layout=0, storages=4)
    write(c.mnt + "/f", b"z" * 100000)
    c.options[c.options.index("--storages") + 1] = 6
    c.up()
    assert len(c.status()["storages"]) == 6
    assert read(c.mnt + "/f") == b"z" * 100000


def test_options_that_contradict_the_cluster_are_refused(cluster):
    c = cluster(layout=0, mounts=0)
    for option in (["--layout", 1], ["--links", 3], ["--inline", 4096], ["--storages", 3], ["--names", "fold"],
                   ["--codec", next(codec for codec in CODECS if codec != c.codec)]):
        r = rozo("dev", "up", "--dir", c.dir, *option, check=False)
        assert r.returncode == 1 and option[0] in r.stderr, r.stderr
    assert c.dev_status()["state"] == "up"


def test_names_of_the_export_can_be_folded(cluster):
    c = cluster(layout=0, names="fold")
    assert [e["names"] for e in c.status()["exports"]] == ["fold"]
    write(c.mnt + "/Clip.mov", b"x")
    assert os.getxattr(c.mnt, b"glusterfs.get_real_filename:CLIP.MOV") == b"Clip.mov\0"
    c.down()
    c.up()  # the same option again is no contradiction, nor is none
    assert os.getxattr(c.mnt, b"glusterfs.get_real_filename:clip.mov") == b"Clip.mov\0"
    r = rozo("dev", "up", "--dir", c.dir, "--names", "posix", check=False)
    assert r.returncode == 1 and "--names" in r.stderr, r.stderr
    r = rozo("dev", "up", "--dir", c.dir, "--names", "ntfs", check=False)
    assert r.returncode == 2 and "posix or fold" in r.stderr, r.stderr


def test_unknown_codec_is_refused_with_a_list_of_all(scratch):
    r = rozo("dev", "up", "--dir", scratch + "/c", "--codec", "nonsense", check=False)
    assert r.returncode != 0 and "known: " + ", ".join(CODECS) in " ".join(r.stderr.split())


@pytest.mark.parametrize("codec", CODECS)
def test_codec_can_be_chosen(cluster, codec):
    c = cluster(layout=0, codec=codec)
    assert [e["codec"] for e in c.status()["exports"]] == [codec]
    data = os.urandom(300001)
    write(c.mnt + "/f", data)
    for lost in ("storaged-1", "storaged-2", "storaged-3", "storaged-4"):
        c.kill(lost)
        c.remount()
        assert read(c.mnt + "/f") == data
        c.restart(lost)
        c.wait_all_up()


def test_a_folder_with_other_things_is_left_alone(scratch):
    write(scratch + "/precious", b"mine")
    r = rozo("dev", "up", "--dir", scratch, check=False)
    assert r.returncode == 1 and "not empty" in r.stderr
    assert os.listdir(scratch) == ["precious"]


def test_no_cluster_there(scratch):
    for verb in (["down"], ["status"], ["restart"]):
        r = rozo("dev", *verb, "--dir", scratch + "/none", *(["exportd"] if verb == ["restart"] else []),
                 check=False)
        assert r.returncode == 1 and "rozo dev up" in r.stderr
    assert not os.path.exists(scratch + "/none")


@pytest.mark.parametrize("moment_s", [0.02, 0.1, 0.2, 0.4])
def test_interrupted_up_stops_what_it_started(scratch, moment_s):
    """^C at any moment: no process and no mount is left, and the next up works."""
    if cannot_mount():
        pytest.skip("mounting needs root and /dev/fuse: " + cannot_mount())
    d, mnt = scratch + "/c", scratch + "/mnt"
    p = subprocess.Popen([ROZO, "dev", "up", "--dir", d, "--mount", mnt], stdout=subprocess.DEVNULL,
                         stderr=subprocess.PIPE, text=True)
    time.sleep(moment_s)  # the moment is the input of the test
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=120)
    try:
        if p.returncode != 0:
            assert mounts_below(scratch) == []
            run = os.path.join(d, "run")
            assert not os.path.isdir(run) or os.listdir(run) == []
        rozo("dev", "up", "--dir", d, "--mount", mnt)
        assert os.listdir(mnt) == []
    finally:
        rozo("dev", "down", "--dir", d, check=False)


def test_a_port_that_is_taken_is_named(cluster):
    c = cluster(layout=0)
    write(c.mnt + "/f", b"still here")
    host, port = c.addresses("storaged-2")[0]
    c.down()
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((host, port))
        s.listen()
        r = c.up(check=False)
        assert r.returncode == 1
        assert "storaged-2" in r.stderr and str(port) in r.stderr
        assert c.dev_status()["state"] == "down"  # all started members are stopped again
    c.up()
    assert read(c.mnt + "/f") == b"still here"


def test_pid_files_of_a_dead_machine_hurt_nobody(cluster):
    """Pids of another boot, now used by other processes, are never signalled."""
    c = cluster(layout=0, mounts=0)
    c.down()
    victim = subprocess.Popen(["sleep", "600"])
    try:
        for name in ("exportd", "storaged-1"):
            write(os.path.join(c.dir, "run", name + ".pid"), b"%d\n" % victim.pid)
            write(os.path.join(c.dir, "run", name + ".proc"),
                  b"pid %d\nstart 5\nboot 0-0\nprogram /usr/bin/sleep\n" % victim.pid)
        assert members(c)["exportd"]["state"] == "crashed"
        c.down()
        assert victim.poll() is None
        c.up()
        assert victim.poll() is None and c.dev_status()["state"] == "up"
    finally:
        victim.kill()
        victim.wait()


def test_up_json(scratch):
    try:
        status = json.loads(rozo("dev", "up", "--dir", scratch + "/c", "--json").stdout)
        assert status["state"] == "up" and status["storages"] == 4 and status["layout"] == 0
    finally:
        rozo("dev", "down", "--dir", scratch + "/c", check=False)
