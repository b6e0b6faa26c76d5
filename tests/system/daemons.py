"""Daemons that a test starts by itself, with a config of its own."""
import contextlib
import os
import resource
import socket
import subprocess

import pytest

from conftest import BIN, ROZO, rozo, wait_for
from ports import free_port

STARTS_MAX_S = 30


class Daemon:
    """A daemon started without `rozo dev`, with a config of the test."""

    def __init__(self, folder, kind="storaged", port=None):
        self.folder, self.kind = folder, kind
        self.data = os.path.join(folder, "data")
        self.port = port or free_port()
        for name in ("node.key", "client.key"):
            if not os.path.exists(os.path.join(folder, name)):
                rozo("key", "new", os.path.join(folder, name))

    def config(self, **change):
        """Returns the good config with lines replaced: config(listen='  listen: 5')."""
        lines = {"cluster": "cluster:", "node_key": "  node_key: %s/node.key" % self.folder,
                 "client_key": "  client_key: %s/client.key" % self.folder, "kind": self.kind + ":",
                 "data": "  data: " + self.data, "listen": "  listen: ['127.0.0.1:%d']" % self.port,
                 "log": "log:", "level": "  level: info"}
        lines.update(change)
        return "\n".join(line for line in lines.values() if line is not None) + "\n"

    def run(self, text, most_files=None):
        """Starts it with that config; it must end by itself. Returns (exit status, its output)."""
        path = os.path.join(self.folder, self.kind + ".yaml")
        with open(path, "w") as f:
            f.write(text)
        try:
            r = subprocess.run([os.path.join(BIN, self.kind), "--config", path], timeout=STARTS_MAX_S,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", preexec_fn=limit_files(most_files and (most_files, most_files)))
        except subprocess.TimeoutExpired as e:
            pytest.fail("%s started with\n%s\n%s" % (self.kind, text, e.stdout))
        return r.returncode, r.stdout

    @contextlib.contextmanager
    def running(self, text=None, most_files=None):
        path = os.path.join(self.folder, self.kind + ".yaml")
        with open(path, "w") as f:
            f.write(text or self.config())
        with open(os.path.join(self.folder, "log"), "a") as log:
            p = subprocess.Popen([os.path.join(BIN, self.kind), "--config", path], stdout=log, stderr=log,
                                 preexec_fn=limit_files(most_files))
        try:
            wait_for(lambda: can_connect(self.port), "%s to listen" % self.kind)
            assert p.poll() is None
            yield p
        finally:
            p.terminate()
            assert p.wait(30) == 0  # a clean stop


def limit_files(limits):
    """Sets the soft and the hard limit of open files, for preexec_fn."""
    return limits and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits))


def can_connect(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


def start_by_hand(c, config_path, log_name):
    """Starts a storaged outside of `rozo dev`."""
    with open(os.path.join(c.dir, "log", log_name + ".log"), "w") as log:
        p = subprocess.Popen([os.path.join(os.path.dirname(ROZO), "storaged"), "--config", config_path], stderr=log)
    wait_for(lambda: "listening" in c.log(log_name), "%s to listen" % log_name)
    return p
