"""A real smbd on a mount of an export made with --names=fold: files open by another case or normalisation, as
exportd's index says, and without it Samba asks for no index."""
import contextlib
import os
import shutil
import signal
import subprocess

import pytest

from conftest import cannot_mount, wait_for
from mounts import alone, end, mount
from ports import free_port
from samba import end_samba
from users import let_others_in

PROGRAMS = [p for p in ("smbd", "smbclient") if shutil.which(p, path="/usr/sbin:/usr/bin") is None]
pytestmark = [pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount()),
              pytest.mark.skipif(PROGRAMS != [], reason="not installed: %s" % ", ".join(PROGRAMS))]

CONF = """
[global]
    server role = standalone server
    disable netbios = yes
    interfaces = lo
    bind interfaces only = yes
    smb ports = %(port)d
    private dir = %(dir)s/private
    state directory = %(dir)s/state
    cache directory = %(dir)s/cache
    lock directory = %(dir)s/lock
    pid directory = %(dir)s/run
    ncalrpc dir = %(dir)s/ncalrpc
    passdb backend = tdbsam:%(dir)s/private/passdb.tdb
    logging = file
    log file = %(dir)s/smbd.log
    map to guest = bad user
    load printers = no
    disable spoolss = yes
[fold]
    path = %(mnt)s
    guest ok = yes
    force user = root
    read only = no
    vfs objects = %(modules)s
    case sensitive = no
    preserve case = yes
    short preserve case = yes
    mangled names = no
"""


class Smbd:
    def __init__(self, folder, mnt, modules):
        self.dir, self.port = folder, free_port()
        for name in ("private", "state", "cache", "lock", "run", "ncalrpc"):
            os.makedirs(os.path.join(folder, name))
        let_others_in(folder)
        conf = os.path.join(folder, "smb.conf")
        with open(conf, "w") as f:
            f.write(CONF % {"port": self.port, "dir": folder, "mnt": mnt, "modules": modules})
        with open(folder + "/out", "w") as out:
            # smbd looks at every mount of the machine when a client connects, and those of other tests may hang.
            self.p = subprocess.Popen(alone(os.path.dirname(mnt), shutil.which("smbd", path="/usr/sbin:/usr/bin"),
                                            "--foreground", "--no-process-group", "--configfile=" + conf),
                                      stdin=subprocess.DEVNULL,
                                      stdout=out, stderr=out, start_new_session=True)
        try:
            wait_for(self.serves, "smbd to serve")
        except BaseException:
            self.end()
            raise

    def serves(self):
        status, said = self.client("pwd")
        assert self.p.poll() is None and status == 0, said
        return True

    def client(self, commands):
        """Returns the exit status and the output of smbclient."""
        r = subprocess.run(["smbclient", "-N", "//127.0.0.1/fold", "-p", str(self.port), "-c", commands],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        return r.returncode, r.stdout

    def text(self, name):
        """Returns the contents of a file, or the answer."""
        to = os.path.join(self.dir, "got")
        status, out = self.client('get "%s" "%s"' % (name, to))
        if status != 0:
            return out.split()[0]
        with open(to) as f:
            got = f.read()
        os.unlink(to)
        return got

    def end(self):
        self.p.send_signal(signal.SIGTERM)
        self.p.wait(timeout=30)
        end_samba(self.dir + "/smb.conf")


@contextlib.contextmanager
def served(cluster, modules):
    """Gives the cluster, the mount of an export that folds names, and the smbd on it."""
    c = cluster(mounts=0)
    c.mnts = []
    c.admin("export", "create", "fold", "--names", "fold")
    mnt = os.path.join(c.base, "fold")
    p = mount(c, mnt, export="fold")
    assert p.poll() is None, end(p)
    try:
        smbd = Smbd(os.path.join(c.base, "smbd"), mnt, modules)
        try:
            yield c, mnt, smbd
        finally:
            smbd.end()
    finally:
        p.send_signal(signal.SIGTERM)
        end(p)


def questions(c):
    return c.status()["exportd"]["requests"].get("real_name", 0)


@pytest.mark.parametrize("modules", ["glusterfs_fuse", "catia fruit streams_xattr acl_xattr glusterfs_fuse"])
def test_files_open_by_another_case(cluster, modules):
    with served(cluster, modules) as (c, mnt, smbd):
        os.mkdir(mnt + "/Footage")
        for i in range(500):
            os.mknod("%s/Footage/Take_%03d.mov" % (mnt, i), 0o644)
        for name in ("Clip.MOV", "\u00c9t\u00e9.mov", "Long_" + "n" * 222):
            with open("%s/Footage/%s" % (mnt, name), "w") as f:
                f.write(name)
        n = questions(c)
        assert smbd.text("Footage/Clip.MOV") == "Clip.MOV"
        assert questions(c) == n  # names that are right need no question
        assert smbd.text("fOOTAGE/cLIP.mov") == "Clip.MOV"
        assert questions(c) > n
        assert smbd.text("footage/e\u0301te\u0301.MOV") == "\u00c9t\u00e9.mov"
        assert smbd.text("footage/LONG_" + "N" * 222) == "Long_" + "n" * 222
        assert smbd.text("footage/none.mov") == "NT_STATUS_OBJECT_NAME_NOT_FOUND"
        assert smbd.client("cd footage; put /etc/hostname new.txt; rename NEW.txt New.Txt")[0] == 0
        assert [n for n in os.listdir(mnt + "/Footage") if n.lower() == "new.txt"] == ["New.Txt"]
        assert smbd.client("mkdir FOOTAGE/Sub; rm footage/NEW.TXT")[0] == 0
        assert os.path.isdir(mnt + "/Footage/Sub") and not os.path.exists(mnt + "/Footage/New.Txt")
        # Linux limits the question: such a name opens as it is, and no new one can be made.
        long = "n" * 228
        with open("%s/Footage/%s" % (mnt, long), "w") as f:
            f.write(long)
        assert smbd.text("footage/" + long) == long
        assert smbd.client("cd footage; put /etc/hostname " + "m" * 228)[0] != 0


def test_without_the_module_samba_reads_the_directory(cluster):
    with served(cluster, "") as (c, mnt, smbd):
        with open(mnt + "/Clip.MOV", "w") as f:
            f.write("clip")
        assert smbd.text("cLIP.mov") == "clip"
        assert questions(c) == 0
