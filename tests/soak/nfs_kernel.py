#!/usr/bin/env python3
"""nfs_kernel.py - Linux's own client of NFS against `rozo gateway nfs`: v3, v4.0, v4.1 and v4.2, in a virtual machine.

In:     root, a release build, Debian's nfs-ganesha-vfs and nfs-common. The kernel of the guest, qemu and busybox
        are downloaded with apt-get and unpacked below ~/.cache/rozo-tests/vm; nothing of them is installed.
Out:    a line for each thing that was tried; exit status 0: all went well. Some 6 minutes: qemu emulates a processor.
Keeps:  nothing is left behind but the downloads.

The machine that runs the tests may have no NFS in its kernel, and none is needed: the guest mounts through qemu's own
network, which ends in the gateway's namespace. Two gateways have a mount each; the address moves when the second one
takes the place of the first in that namespace.
"""
import contextlib
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "system"))

from conftest import ROZO, Cluster  # noqa: E402
from nfsgateway import Gateway  # noqa: E402

CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "rozo-tests", "vm")
VERSIONS = ("3", "4.0", "4.1", "4.2")
MODULES = ("fs/nfs", "fs/lockd", "fs/nfs_common", "fs/netfs", "fs/fscache", "net/sunrpc", "net/core",
           "net/dns_resolver", "drivers/virtio", "crypto", "drivers/net/virtio_net.ko", "drivers/net/net_failover.ko")
GUEST_MAX_S = 1500
# Each version must say these in this order; at some of them the host does something.
STEPS = ("a tree is copied and compared", "8 MiB are read back", "rename, link, chmod", "100 names",
         "an open file outlives unlink", "the tree is removed", "READY restart",
         "writes go on over kill -9 of the gateway", "READY move", "an open file is read after the move",
         "writes to an open file go on after the move",
         "names and new files after the move", "unmounted")
INIT = r"""#!/bin/sh
export PATH=/bin:/sbin
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev
ip link set lo up
for m in virtio_pci virtio_net nfs nfsv3 nfsv4; do modprobe $m; done
ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2
say() { echo "RESULT $v $*"; }
writes() { n=0; while [ $n -lt $1 ]; do echo line$n >&8 || return 1; sync; sleep 1; n=$((n+1)); done; }
run() {
    v=$1; at=/mnt/$v; mkdir -p $at
    mount.nfs 10.0.2.2:/main $at -n -o vers=$v,hard,$2 || return
    mkdir $at/t$v; cd $at/t$v || return
    cp -r /etc . && diff -r /etc etc && say a tree is copied and compared
    dd if=/dev/urandom of=/tmp/big bs=1M count=8 2>/dev/null; cp /tmp/big big; sync
    echo 3 > /proc/sys/vm/drop_caches; cmp big /tmp/big && say 8 MiB are read back
    mv big big2 && ln big2 hard && chmod 600 big2 && [ "$(stat -c %a%h hard)" = 6002 ] && say rename, link, chmod
    mkdir many; n=0; while [ $n -lt 100 ]; do : > many/n$n; n=$((n+1)); done
    [ $(ls many | wc -l) = 100 ] && say 100 names
    exec 7<big2; rm big2 hard; cmp - /tmp/big <&7 && say an open file outlives unlink; exec 7<&-
    cd ..; rm -rf t$v; [ ! -e t$v ] && say the tree is removed
    echo begin > held$v; cp /tmp/big read$v; sync; exec 8>>held$v; say READY restart
    writes 15 && exec 8>&- && [ $(wc -l < held$v) = 16 ] && say writes go on over kill -9 of the gateway
    exec 8>&-
    echo 3 > /proc/sys/vm/drop_caches; exec 7<read$v; exec 8>>held$v; say READY move
    sleep 5
    cmp - /tmp/big <&7 && say an open file is read after the move
    exec 7<&-
    writes 3 && say writes to an open file go on after the move
    exec 8>&-
    echo new > new$v && [ "$(cat new$v)" = new ] && cmp read$v /tmp/big && say names and new files after the move
    cd /; umount $at && say unmounted
}
run 3 nolock; run 4.0; run 4.1; run 4.2
echo "RESULT end"
poweroff -f
"""


def inst(*packages):
    """Returns what apt-get would install for the packages."""
    out = subprocess.run(["apt-get", "install", "-s", "--no-install-recommends", *packages], stdout=subprocess.PIPE,
                         text=True, check=True).stdout
    return re.findall(r"^Inst (\S+)", out, re.M)


def download():
    """Unpacks qemu, busybox and a kernel below CACHE; returns that folder."""
    files = os.path.join(CACHE, "files")
    if not glob.glob(files + "/boot/vmlinuz-*"):
        debs = os.path.join(CACHE, "debs")
        shutil.rmtree(CACHE, ignore_errors=True)
        os.makedirs(debs)
        kernel = subprocess.run(["apt-cache", "depends", "linux-image-cloud-amd64"], stdout=subprocess.PIPE,
                                text=True, check=True).stdout
        names = [*inst("qemu-system-x86"), "busybox-static", re.search(r"Depends: (\S+)", kernel).group(1)]
        subprocess.run(["apt-get", "download", "-q", *names], cwd=debs, check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        for deb in glob.glob(debs + "/*.deb"):
            subprocess.run(["dpkg-deb", "-x", deb, files], check=True)
        shutil.rmtree(debs)
    return files


def make_initrd(files, to):
    """Packs busybox, the modules of NFS, mount.nfs and INIT."""
    top = tempfile.mkdtemp(prefix="rozo-vm-")
    busybox = next(p for p in (files + "/bin/busybox", files + "/usr/bin/busybox") if os.path.exists(p))
    version = os.path.basename(glob.glob(files + "/lib/modules/*")[0])
    theirs, ours = files + "/lib/modules/" + version, top + "/lib/modules/" + version
    for d in ("bin", "sbin", "proc", "sys", "dev", "mnt", "tmp", "etc", "run", "var/lib/nfs"):
        os.makedirs(os.path.join(top, d))
    shutil.copy(busybox, top + "/bin/busybox")
    for applet in subprocess.run([busybox, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout.split():
        with contextlib.suppress(FileExistsError):
            os.symlink("busybox", top + "/bin/" + applet)
    for path in MODULES:
        at = "/kernel/" + path
        if os.path.isdir(theirs + at):
            shutil.copytree(theirs + at, ours + at, dirs_exist_ok=True)
        elif os.path.exists(theirs + at):
            os.makedirs(os.path.dirname(ours + at), exist_ok=True)
            shutil.copy(theirs + at, ours + at)
    for name in ("modules.builtin", "modules.order"):
        shutil.copy(os.path.join(theirs, name), ours)
    subprocess.run([busybox, "depmod", "-b", top, version], check=True)
    mount_nfs = shutil.which("mount.nfs", path="/sbin:/usr/sbin")
    libraries = subprocess.run(["ldd", mount_nfs], stdout=subprocess.PIPE, text=True, check=True).stdout
    shutil.copy(mount_nfs, top + "/sbin/mount.nfs")
    for path in re.findall(r"(/\S+)", libraries):
        os.makedirs(top + os.path.dirname(path), exist_ok=True)
        shutil.copy(path, top + path)
    for name in ("netconfig", "services", "protocols"):
        if os.path.exists("/etc/" + name):
            shutil.copy("/etc/" + name, top + "/etc/")
    with open(top + "/init", "w") as f:
        f.write(INIT)
    os.chmod(top + "/init", 0o755)
    subprocess.run("find . | %s cpio -o -H newc 2>/dev/null | gzip -1 >%s" % (busybox, to), shell=True, cwd=top,
                   check=True)
    shutil.rmtree(top)


def children(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
        return [int(p) for p in f.read().split()]


class Node:
    """A network, with rpcbind, on which one gateway serves at a time."""

    def __init__(self, gateway):
        self.place, self.server = gateway, None
        gateway.server = ["sleep", "infinity"]
        gateway.launch()
        for _ in range(600):  # until rpcbind and rpc.statd run, then sleep does
            with contextlib.suppress(OSError, AssertionError):
                if "sleep" in subprocess.run(["pgrep", "-a", "-P", str(gateway.inner_pid())], stdout=subprocess.PIPE,
                                             text=True).stdout.replace("sleep 0", ""):
                    break
            time.sleep(0.1)

    def enter(self, *argv):
        return ["nsenter", "--target", str(self.place.inner_pid()), "--net", "--mount", "--pid", *argv]

    def serve(self, gateway, log):
        """Starts the server again each second until it stays, as systemd does."""
        self.end()
        for _ in range(30):
            self.server = subprocess.Popen(self.enter(ROZO, "gateway", "run", "nfs", *gateway.dirs), stdout=log,
                                           stderr=log, stdin=subprocess.DEVNULL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.server.wait(1)
                continue
            return
        raise RuntimeError("the gateway does not start")

    def end(self):
        """Kills `rozo gateway run` and its ganesha."""
        if self.server is not None:
            for pid in [p for child in children(self.server.pid) for p in (*children(child), child)]:
                os.kill(pid, signal.SIGKILL)
            self.server.wait()


def guest(files, initrd, node):
    """Starts the guest; returns it."""
    env = dict(os.environ, LD_LIBRARY_PATH=":".join(files + d + "/x86_64-linux-gnu" for d in ("/usr/lib", "/lib")))
    qemu = files + "/usr/bin/qemu-system-x86_64"
    if not os.path.exists(qemu):
        qemu = "qemu-system-x86_64"
    folders = [x for d in ("/usr/share/qemu", "/usr/share/seabios", "/usr/lib/ipxe/qemu") for x in ("-L", files + d)]
    kernel = glob.glob(files + "/boot/vmlinuz-*")[0]
    return subprocess.Popen(
        node.enter(qemu, *folders, "-machine", "accel=tcg", "-cpu", "max", "-smp", "2", "-m", "768",
                   "-kernel", kernel, "-initrd", initrd, "-append", "console=ttyS0 panic=-1 edd=off quiet",
                   "-nographic", "-no-reboot", "-nic", "user,model=virtio-net-pci"),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, text=True,
        errors="replace")


def play(vm, node, first, second, log):
    """Does what the guest asks for; returns {version: [what it said]}."""
    seen = {v: [] for v in VERSIONS}
    serving = first
    end = time.monotonic() + GUEST_MAX_S
    for line in vm.stdout:
        m = re.search(r"RESULT (\S+) ?(.*?)\s*$", line)
        if m is None:
            log.write(line)
            continue
        if m.group(1) == "end" or time.monotonic() > end:
            break
        seen[m.group(1)].append(m.group(2))
        print("v%s %s" % m.groups(), flush=True)
        if m.group(2) in ("READY restart", "READY move"):
            time.sleep(3 if m.group(2) == "READY restart" else 0)
            if m.group(2) == "READY move":
                serving = second if serving is first else first
            node.serve(serving, log)
    return seen


def main():
    if os.geteuid() != 0:
        sys.exit("nfs_kernel.py: needs root")
    base = tempfile.mkdtemp(prefix="rozo-t-")
    files, initrd = download(), os.path.join(base, "initrd")
    make_initrd(files, initrd)
    c = Cluster(base, mounts=2)
    for mnt in c.mnts:
        os.makedirs(mnt, exist_ok=True)
    node = vm = None
    try:
        c.up()
        a, b = Gateway(c, "a", c.mnts[0], grace=10), Gateway(c, "b", c.mnts[1], grace=10)
        with open(os.path.join(base, "log"), "w") as log:
            node = Node(a)
            node.serve(a, log)
            vm = guest(files, initrd, node)
            seen = play(vm, node, a, b, log)
        missing = {v: [s for s in STEPS if s not in seen[v]] for v in VERSIONS}
        for v in VERSIONS:
            print("v%s: %s" % (v, "MISSING: " + "; ".join(missing[v]) if missing[v] else "all %d steps" % len(STEPS)))
        if any(missing.values()):
            with open(os.path.join(base, "log"), errors="replace") as log:
                print(log.read()[-4000:])
        return 1 if any(missing.values()) else 0
    finally:
        if node is not None:
            node.place.kill()  # and with it all that runs inside
        if vm is not None:
            vm.wait()
        c.destroy()
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
