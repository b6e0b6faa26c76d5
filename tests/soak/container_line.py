#!/usr/bin/env python3
"""container_line.py - the image and the command line of docs/CONTAINERS.md, run by podman as they stand there.

In:     root, a release build, Debian's podman, runc and debootstrap. debian:12 is made by debootstrap, once, below
        ~/.cache/rozo-tests/container, since tests use no registry.
Out:    a line for each thing that was tried; exit status 0: all went well. Some 5 minutes with the first debootstrap.
Keeps:  images and containers are in a folder of the run, removed at the end. The machine's own podman sees none.

Lines are taken from the page: `docker` becomes `podman`, and the folders of the host become those of the run.
"""
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "system"))

from conftest import Cluster, mounts_below, wait_for  # noqa: E402
from containers import configure, make_shared  # noqa: E402
from files import get  # noqa: E402

CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "rozo-tests", "container")
BASE = os.path.join(CACHE, "debian-12.tar")
# podman raises limits of its containers, which a machine may forbid even root.
RUNTIME = """#!/usr/bin/python3
import json, os, sys
if "create" in sys.argv:
    path = sys.argv[sys.argv.index("--bundle") + 1] + "/config.json"
    with open(path) as f:
        config = json.load(f)
    config["process"]["rlimits"] = []
    with open(path, "w") as f:
        json.dump(config, f)
os.execvp("runc", ["runc", *sys.argv[1:]])
"""
CONFIG = """[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "limited"
conmon_path = ["%s"]
[engine.runtimes]
limited = ["%s/runtime"]
"""


def say(*words):
    print(*words, flush=True)


def lines_of_page():
    """Returns the commands of docs/CONTAINERS.md, each on one line."""
    with open(os.path.join(ROOT, "docs", "CONTAINERS.md")) as f:
        text = f.read().replace("\\\n", " ")
    return [" ".join(line.split()) for line in text.splitlines() if line.startswith("    ")]


def line_of_page(start):
    found = [line for line in lines_of_page() if line.startswith(start)]
    assert len(found) == 1, "%d lines of the page begin with %r" % (len(found), start)
    return found[0]


class Podman:
    def __init__(self, base):
        self.base = base
        for name, text in (("runtime", RUNTIME), ("containers.conf", CONFIG % (shutil.which("conmon"), base)),
                           ("storage.conf", '[storage]\ndriver = "vfs"\ngraphroot = "%s/store"\nrunroot = "%s/state"\n'
                                            % (base, base)),
                           ("policy.json", '{"default": [{"type": "insecureAcceptAnything"}]}')):
            with open(os.path.join(base, name), "w") as f:
                f.write(text)
        os.chmod(base + "/runtime", 0o755)
        self.env = dict(os.environ, CONTAINERS_CONF=base + "/containers.conf",
                        CONTAINERS_STORAGE_CONF=base + "/storage.conf")

    def __call__(self, *argv, check=True, stdin=None):
        r = subprocess.run(["podman", *argv], env=self.env, stdin=stdin or subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
        assert r.returncode == 0 or not check, "podman %s: %d %s" % (" ".join(argv), r.returncode, r.stdout[-2000:])
        return r.stdout.strip()

    def state(self, name):
        return json.loads(self("inspect", name))[0]["State"]


def build(podman, base):
    """The two lines of the page that make the image."""
    if not os.path.exists(BASE):
        os.makedirs(CACHE, exist_ok=True)
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", base + "/debian"], check=True,
                       stdout=subprocess.DEVNULL)
        subprocess.run(["tar", "-C", base + "/debian", "-cf", BASE + ".new", "."], check=True)
        os.rename(BASE + ".new", BASE)
        shutil.rmtree(base + "/debian")
    podman("import", "--signature-policy", base + "/policy.json", BASE, "debian:12")
    install = line_of_page("DESTDIR=").replace("$PWD/build/image", base + "/image")
    subprocess.run(install, shell=True, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    argv = line_of_page("docker build").replace("build/image", base + "/image").split()[2:]
    os.chdir(ROOT)
    podman("build", "--signature-policy", base + "/policy.json", "--pull=never", "--network", "host", *argv)
    say("the image is built")


class Line:
    """The line of the page."""

    def __init__(self, podman, c, base):
        self.podman, self.base, self.mnt = podman, base, base + "/srv/rozo/home"
        make_shared(base + "/srv/rozo")
        for d in (self.mnt, base + "/run/rozo"):
            os.makedirs(d, exist_ok=True)
        configure(c, base + "/etc/rozo")

    def run(self, without=""):
        """Starts the container, without a part of the line."""
        text = line_of_page("docker run -d")
        assert without in text
        text = text.replace(without, "", 1)
        for path in ("/srv/rozo", "/etc/rozo:", "/run/rozo:"):
            text = re.sub(r"(source=|-v )" + path, r"\g<1>" + self.base + path, text)
        self.podman(*text.split()[1:])

    def reader(self):
        """Starts a container of other programs; returns the folder that it sees as /data."""
        self.podman("run", "-d", "--name", "reader", "--network", "host", "--entrypoint", "sleep", "--mount",
                    "type=bind,source=%s/srv/rozo,target=/data,bind-propagation=rslave" % self.base, "rozo", "1000")
        return "/proc/%d/root/data" % self.podman.state("reader")["Pid"]

    def mounted(self):
        return self.mnt in mounts_below(self.mnt)

    def log(self):
        return self.podman("logs", "rozo-home")


def try_line(podman, c, base):
    line = Line(podman, c, base)
    reader = line.reader()
    line.run()
    wait_for(line.mounted, "the mount on the host")
    with open(line.mnt + "/seen", "w") as f:
        f.write("by the host")
    assert get(reader + "/home/seen") == b"by the host"
    with open("/proc/%d/status" % podman.state("rozo-home")["Pid"]) as f:
        assert re.search(r"^Seccomp:\t2$", f.read(), re.M)
    assert "warn" not in line.log(), line.log()
    say("the host and another container use the mount; a profile of seccomp is in force")
    podman("kill", "--signal", "KILL", "rozo-home")
    for path in (line.mnt, reader + "/home"):
        wait_for(lambda at=path: fails(at, "not connected"), "ENOTCONN in " + path)
    podman("start", "rozo-home")
    wait_for(lambda: get(line.mnt + "/seen") == b"by the host" == get(reader + "/home/seen"), "the mount to be back")
    assert "unmounted a dead rozo mount" in line.log() and "dead mounts of this machine: 1" in line.log()
    say("killed, both get ENOTCONN; started again, both have the mount")
    podman("stop", "rozo-home")
    assert podman.state("rozo-home")["ExitCode"] == 0 and not line.mounted() and os.listdir(reader + "/home") == []
    say("stopped: unmounted for both, exit status 0")
    for part, words in (("--device /dev/fuse", "there is no /dev/fuse"), ("--cap-add SYS_ADMIN", "CAP_SYS_ADMIN")):
        podman("rm", "--force", "rozo-home")
        line.run(without=part)
        wait_for(lambda w=words: w in line.log(), "the log to name " + words)
        assert not line.mounted()
        say("without %s: '%s'" % (part, line.log().splitlines()[0]))


def fails(path, words):
    r = subprocess.run(["ls", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return r.returncode != 0 and words in r.stdout


def main():
    missing = [p for p in ("podman", "conmon", "runc", "debootstrap") if shutil.which(p, path=os.environ["PATH"]
                                                                                    + ":/usr/sbin") is None]
    if os.geteuid() != 0 or missing:
        sys.exit("container_line.py: needs root, and: " + (", ".join(missing) or "nothing else"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    base = tempfile.mkdtemp(prefix="rozo-t-")
    os.mkdir(base + "/cluster")
    podman, c = Podman(base), Cluster(base + "/cluster", mounts=0)
    try:
        build(podman, base)
        c.up()
        c.admin("export", "create", "home")
        try_line(podman, c, base)
        return 0
    finally:
        podman("rm", "--all", "--force", "--time", "0", check=False)
        for point in mounts_below(base):
            subprocess.run(["umount", "-l", point], check=False)
        with contextlib.suppress(Exception):
            c.destroy()
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
