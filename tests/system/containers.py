"""A container that mounts, run by runc with what the `docker run` line of docs/CONTAINERS.md asks for.

There is no daemon and no image: the root file system is made of the host's own /usr, read-only, and of the programs
that are tested. Namespaces, capabilities, devices, masked paths and propagation of mounts are those of that line.
"""
import contextlib
import glob
import json
import os
import signal
import shutil
import subprocess
import uuid

from conftest import BIN, mounts_below, wait_for

# Capabilities that docker grants without --cap-add.
CAPABILITIES = ["CAP_" + n for n in (
    "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL "
    "AUDIT_WRITE").split()]
# Calls that docker's profile of seccomp refuses in spite of --cap-add SYS_ADMIN, and mount(2) without it.
FORBIDDEN = ("acct add_key clock_settime create_module delete_module finit_module init_module io_uring_enter "
             "io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl move_pages "
             "nfsservctl open_by_handle_at pivot_root process_vm_readv process_vm_writev ptrace reboot request_key "
             "settimeofday swapoff swapon sysfs userfaultfd uselib vhangup").split()
FORBIDDEN_WITHOUT_ADMIN = "mount umount umount2 setns unshare fsopen fsmount open_tree move_mount".split()
PLAIN_DEVICES = [("c", 1, 3), ("c", 1, 8), ("c", 1, 7), ("c", 5, 0), ("c", 1, 5), ("c", 1, 9), ("c", 5, 1),
                 ("c", 136, None), ("c", 5, 2)]
MASKED = ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
          "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"]
READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]


def cannot_run():
    """Returns the reason why no container can run here, or None."""
    if shutil.which("runc") is None:
        return "runc is not installed (deploy/install-deps.sh --tests)"
    return None


def make_shared(path):
    """Makes a folder whose mounts propagate, as systemd makes / on a host."""
    os.makedirs(path, exist_ok=True)
    subprocess.run(["mount", "--bind", path, path], check=True)
    subprocess.run(["mount", "--make-rshared", path], check=True)


def configure(c, etc):
    """Makes the folder that a container sees as /etc/rozo, for mounts of a cluster."""
    os.makedirs(etc)
    shutil.copy(c.dir + "/etc/client.key", etc)
    with open(etc + "/rozo.yaml", "w") as f:
        f.write("exportd: %s\nclient_key: /etc/rozo/client.key\n" % c.dev_status()["exportd"])


class Container:
    """volumes: (source, target, propagation, "rw" or "ro"). device: --device /dev/fuse. admin: --cap-add SYS_ADMIN.
    granted: the capabilities beside that one. forbid: (system call, errno), as a profile of AppArmor may do."""

    def __init__(self, base, argv, volumes, device=True, admin=True, forbid=(), granted=CAPABILITIES):
        self.bundle = os.path.join(base, "container-" + uuid.uuid4().hex[:8])
        self.name = os.path.basename(self.bundle)
        self.root = os.path.join(self.bundle, "state")
        self.p = None
        top = os.path.join(self.bundle, "rootfs")
        for d in (*"proc sys dev tmp run usr etc/rozo opt/rozo".split(), *[v[1].strip("/") for v in volumes]):
            os.makedirs(os.path.join(top, d), exist_ok=True)
        for link in ("bin", "sbin", *[os.path.basename(p) for p in glob.glob("/lib*") if os.path.islink(p)]):
            os.symlink("usr/" + link, os.path.join(top, link))
        volumes = [("/usr", "/usr", "rprivate", "ro"), (BIN, "/opt/rozo", "rprivate", "ro"), *volumes]
        with open(os.path.join(self.bundle, "config.json"), "w") as f:
            json.dump(self.config(argv, volumes, device, admin, forbid, granted), f)

    @staticmethod
    def config(argv, volumes, device, admin, forbid, granted):
        caps = granted + (["CAP_SYS_ADMIN"] if admin else [])
        devices = PLAIN_DEVICES + ([("c", 10, 229)] if device else [])
        # docker widens the propagation of the root so far that those of the volumes mean what they say
        ways = [v[2] for v in volumes]
        root = "shared" if "rshared" in ways else "rslave" if "rslave" in ways else "rprivate"
        forbidden = FORBIDDEN + ([] if admin else FORBIDDEN_WITHOUT_ADMIN)
        return {
            "ociVersion": "1.0.0", "root": {"path": "rootfs"}, "hostname": "rozo",
            "process": {"args": list(argv), "cwd": "/", "user": {"uid": 0, "gid": 0},
                        "env": ["PATH=/opt/rozo:/usr/sbin:/usr/bin:/sbin:/bin"],
                        "capabilities": {k: caps for k in ("bounding", "effective", "permitted")}},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                 "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
                {"destination": "/sys", "type": "sysfs", "source": "sysfs",
                 "options": ["nosuid", "noexec", "nodev", "ro"]},
                *[{"destination": v[1], "type": "bind", "source": v[0], "options": ["rbind", v[2], v[3]]}
                  for v in volumes]],
            "linux": {
                "rootfsPropagation": root,
                "namespaces": [{"type": t} for t in ("pid", "ipc", "uts", "mount")],  # --network host
                "devices": [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 0o600,
                             "uid": 0, "gid": 0}] if device else [],
                "resources": {"devices": [{"allow": False, "access": "rwm"}] + [
                    {"allow": True, "type": t, "major": a, **({} if b is None else {"minor": b}), "access": "rwm"}
                    for t, a, b in devices]},
                "maskedPaths": MASKED, "readonlyPaths": READ_ONLY,
                "seccomp": {"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
                            "syscalls": [{"names": forbidden, "action": "SCMP_ACT_ERRNO", "errnoRet": 1},
                                         *[{"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": errno}
                                           for name, errno in forbid]]},
            }}

    def runc(self, *argv, check=True):
        return subprocess.run(["runc", "--root", self.root, *argv], check=check,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60)

    def start(self):
        with open(self.bundle + "/log", "w") as log:
            self.p = subprocess.Popen(["runc", "--root", self.root, "run", "--bundle",
                                       self.bundle, self.name], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def log(self):
        with open(self.bundle + "/log", errors="replace") as f:
            return f.read()

    def inner(self):
        """Returns the pid of the first process inside, as the host sees it."""
        return json.loads(self.runc("state", self.name).stdout)["pid"]

    def exec(self, *argv):
        """Returns the output of a command inside."""
        return self.runc("exec", self.name, *argv).stdout

    def wait_for_log(self, words):
        wait_for(lambda: words in self.log() or self.p.poll() is not None, "the container to log '%s'" % words)
        assert words in self.log(), self.log()

    def wait_end(self, timeout=30):
        """Returns the exit status and the log of a container that ends by itself."""
        return self.p.wait(timeout), self.log()

    def stop(self, sig=signal.SIGTERM, timeout=60):
        """Sends a signal to the first process; returns the exit status of the container."""
        os.kill(self.inner(), sig)
        return self.p.wait(timeout)

    def end(self):
        if self.p is not None and self.p.poll() is None:
            with contextlib.suppress(subprocess.SubprocessError, ValueError, OSError):
                os.kill(self.inner(), signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.p.wait(20)
        self.runc("delete", "--force", self.name, check=False)
