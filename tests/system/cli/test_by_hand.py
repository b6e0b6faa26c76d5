"""A cluster made by the steps of docs/OPERATIONS.md: example configs, daemons started by hand, storages
added."""
import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import time

import pytest

from conftest import BIN, ROOT, ROZO, cannot_mount, rozo, wait_for
from ports import free_port

EXAMPLES = os.path.join(ROOT, "deploy", "examples")


@contextlib.contextmanager
def daemon(program, config, folder):
    """Runs a daemon as systemd does; yields (process, its notifications so far)."""
    path = os.path.join(folder, os.path.basename(config) + ".notify")
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(path)
    notify.settimeout(30)
    with open(config + ".log", "wb") as log:
        p = subprocess.Popen([os.path.join(BIN, program), "--config", config], stdin=subprocess.DEVNULL,
                             stdout=log, stderr=log, env=dict(os.environ, NOTIFY_SOCKET=path))
    try:
        yield p, lambda: notify.recv(4096).decode()
    finally:
        if p.poll() is None:
            p.kill()
            p.wait()
        notify.close()


def example(name, folder, to, **change):
    """Returns an example config with the test's addresses and paths; each replaced text must occur."""
    with open(os.path.join(EXAMPLES, name)) as f:
        text = f.read()
    text = text.replace("/etc/rozo", folder)
    for old, new in change.values():
        assert old in text, (name, old)
        text = text.replace(old, new)
    path = os.path.join(folder, to)
    with open(path, "w") as f:
        f.write(text)
    return path


def test_cluster_is_set_up_by_hand_as_the_guide_says(scratch):
    ports = [free_port() for _ in range(9)]
    etc = os.path.join(scratch, "etc")
    os.makedirs(etc)
    rozo("key", "new", etc + "/node.key")
    rozo("key", "new", etc + "/client.key")
    env = {"ROZO_CONFIG": example("rozo.yaml", etc, "rozo.yaml", a=("10.0.0.1:4700", "127.0.0.1:%d" % ports[0])),
           "ROZO_EXPORTD": "", "ROZO_KEY": ""}
    configs = [("exportd", example("exportd.yaml", etc, "exportd.yaml", a=("10.0.0.1:4700", "127.0.0.1:%d" % ports[0]),
                                   d=("/var/lib/rozo/exportd", scratch + "/exportd")))]
    for i in range(4):
        configs.append(("storaged", example(
            "storaged-disk1.yaml", etc, "storaged-%d.yaml" % i, a=("10.0.0.11:4711", "127.0.0.1:%d" % ports[1 + 2 * i]),
            b=("10.0.1.11:4711", "127.0.0.1:%d" % ports[2 + 2 * i]), d=("/srv/rozo/disk1", scratch + "/disk%d" % i),
            h=("node11", "node%d" % i))))
    with contextlib.ExitStack() as stack:
        daemons = [stack.enter_context(daemon(program, config, scratch)) for program, config in configs]
        for _, said in daemons:
            assert said().startswith("READY=1")  # not before it serves
        assert "No storage" in rozo("status", env=env).stdout
        r = rozo("export", "create", "home", "--layout", "0", check=False, env=env)
        assert r.returncode == 1 and "storage" in r.stderr
        for i in range(4):
            rozo("storage", "add", "127.0.0.1:%d,127.0.0.1:%d" % (ports[1 + 2 * i], ports[2 + 2 * i]), env=env)
        rozo("export", "create", "home", "--layout", "0", env=env)
        status = json.loads(rozo("status", "--json", env=env).stdout)
        assert [(s["up"], s["host"], len(s["addresses"])) for s in status["storages"]] == \
            [(True, "node%d" % i, 2) for i in range(4)]
        assert status["exportd"]["requests"]["storage_add"] == 4
        if cannot_mount() is None:
            mnt = scratch + "/mnt"
            os.mkdir(mnt)
            rozo("mount", "home", mnt, env=env)
            try:
                shutil.copytree(EXAMPLES, mnt + "/examples")
                assert subprocess.run(["diff", "-r", EXAMPLES, mnt + "/examples"]).returncode == 0
            finally:
                subprocess.run(["umount", mnt], check=True)
            wait_for(lambda: json.loads(rozo("status", "--json", env=env).stdout)["exports"][0]["clients"] == 0,
                     "the mount to end")
        for p, said in reversed(daemons):
            p.send_signal(signal.SIGTERM)
            assert said() == "STOPPING=1"
            assert p.wait(timeout=30) == 0
    for _, config in configs:  # log lines: time, level, component
        with open(config + ".log") as f:
            for line in f:
                assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z (error|warn |info |debug) (exportd|storaged): ",
                                line), line


def on_a_terminal(*args, timeout=120):
    """Runs rozo with a terminal as its stderr; returns (exit status, output on the terminal)."""
    try:
        ours, its = pty.openpty()
    except OSError as e:
        pytest.skip("no terminal can be made here: %s" % e)
    p = subprocess.Popen([ROZO, *args], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=its)
    os.close(its)
    said = b""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                said += os.read(ours, 4096)
            except OSError:  # the program has ended
                break
    os.close(ours)
    return p.wait(timeout=10), said.decode()


def test_progress_of_a_long_command_shows_on_a_terminal_only(cluster):
    c = cluster(layout=0, mounts=0)
    c.kill("exportd", signal.SIGSTOP)
    config = ["--config", c.dir + "/etc/rozo.yaml"]
    elsewhere = subprocess.Popen([ROZO, "status", *config], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True)
    status, said = on_a_terminal("status", *config)
    assert status == 1
    assert re.search(r"\[-+\] 0/1 +2 s  \S", said), said
    assert all(len(line) < 80 for line in re.split("[\r\n]+", said) if line.startswith("["))
    said = elsewhere.communicate(timeout=60)[1]
    assert elsewhere.returncode == 1 and said and "\r" not in said and "[-" not in said
    c.kill("exportd", signal.SIGCONT)


@pytest.mark.skipif(os.geteuid() != 0, reason="not run as root")
@pytest.mark.parametrize("size_kb", [20, 40, 64, 200])
def test_dev_up_on_a_full_disk(scratch, size_kb):
    """The command reports that the disk is full, and leaves nothing running."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%dk" % size_kb, "rozo-test", scratch], check=True)
    try:
        r = rozo("dev", "up", "--dir", scratch + "/c", check=False)
        assert r.returncode == 1
        assert re.search(r"No space left|NO_SPACE|disk is full", r.stderr), r.stderr
        assert "there is no cluster" not in r.stderr
        for folder, _, names in os.walk(scratch):
            for name in names:
                assert not name.endswith(".pid"), os.path.join(folder, name)
    finally:
        subprocess.run(["umount", scratch], check=True)
