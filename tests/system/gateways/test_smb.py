"""SMB gateways: a real smbd on each of two mounts, by the configuration that `rozo gateway smb` writes, and Samba's
own clients."""
import fcntl
import os
import re
import shutil
import signal
import struct
import subprocess
import threading

import pytest

from conftest import cannot_mount, pattern, rozo, shared, wait_for
from ports import free_port
from samba import end_samba, samba_processes
from smb2_client import CONFLICT, NOT_GRANTED, SHARED, Smb2, status_of
from users import let_others_in

PROGRAMS = [p for p in ("smbd", "smbclient", "smbcacls", "smbpasswd")
            if shutil.which(p, path="/usr/sbin:/usr/bin") is None]
pytestmark = [pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount()),
              pytest.mark.skipif(PROGRAMS != [], reason="deploy/install-deps.sh --tests installs %s" % PROGRAMS)]

USER, OTHER, PASSWORD = "root", "daemon", "secret-1"
NFC, NFD = "\u00e9t\u00e9.mov", "e\u0301te\u0301.mov"  # one name to a reader, two to rozo
# Characters that Windows forbids: as a Mac sends them, and as they are on Linux.
MAC = {"\uf022": ":", "\uf025": "?", "\uf020": '"', "\uf021": "*", "\uf027": "|", "\uf009": "\t"}
NAMES = ["n" * 255, "\u00fc" * 127, "\U0001F3AC" * 63, NFC, NFD, " lead", ".dot", "a%b$c&d'e", "[z]{y}", "x,y=z+1",
         "take \uf022 1 \uf025 \uf021 \uf020", "tab\uf009\uf027"]
DENY = "ACL:%s:DENIED/0x0/FULL" % OTHER
# The raw client of smb2_client.py is nobody: it gets a share of its own.
LOCAL = "[locks]\n    copy = main\n    valid users =\n    guest ok = yes\n    force user = root\n"


def on_linux(name):
    return "".join(MAC.get(x, x) for x in name)


class Gateway:
    """An smbd on a mount, on an address of its own, since smbcacls asks port 445 only."""
    made = 0

    def __init__(self, folder, mnt, port=445, options=()):
        Gateway.made += 1
        self.dir, self.mnt, self.port, self.p = folder, mnt, port, None
        self.address = "127.%d.%d.%d" % (100 + os.getpid() // 250 % 100, os.getpid() % 250, Gateway.made)
        self.set_up(*options)
        with open(folder + "/local.conf", "a") as f:
            f.write(LOCAL)
        if not os.path.exists(folder + "/private/passdb.tdb"):
            for user in (USER, OTHER):
                self.run("smbpasswd", "-c", folder + "/smb.conf", "-s", "-a", user,
                         stdin="%s\n%s\n" % (PASSWORD, PASSWORD))

    def set_up(self, *options):
        rozo("gateway", "smb", "main", "--mount", self.mnt, "--dir", self.dir, "--listen", self.address + "/8",
             "--port", self.port, *options)

    def run(self, *argv, stdin=None, check=True):
        r = subprocess.run(argv, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        assert r.returncode == 0 or not check, "%s: exit %d\n%s\n%s" % (argv, r.returncode, r.stdout, self.log())
        return r.stdout

    def log(self):
        path = self.dir + "/log/smbd.log"
        if not os.path.exists(path):
            return ""
        with open(path, errors="replace") as f:
            return f.read()[-3000:]

    def start(self):
        with open(self.dir + "/log/out", "a") as log:
            self.p = subprocess.Popen(["/usr/sbin/smbd", "--foreground", "--no-process-group",
                                       "--configfile=%s/smb.conf" % self.dir], stdin=subprocess.DEVNULL, stdout=log,
                                      stderr=log, start_new_session=True)
        wait_for(lambda: self.p.poll() is None and "main" in self.client("quit"), "smbd to serve")
        return self

    def end(self):
        if self.p is not None and self.p.poll() is None:
            self.p.send_signal(signal.SIGTERM)
            try:
                self.p.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.p.pid, signal.SIGKILL)  # a session of its own
                self.p.wait()
        self.p = None
        end_samba(self.dir + "/smb.conf")

    def client(self, *commands, user=USER, check=True, share="main"):
        """Has smbclient run the commands; returns its output, which begins with the share's name."""
        out = self.run("smbclient", "//%s/%s" % (self.address, share), "-p", str(self.port), "-U",
                       "%s%%%s" % (user, PASSWORD), stdin="\n".join(commands) + "\n", check=False)
        wrong = re.findall(r"NT_STATUS_\w+.*", out)
        assert not (check and wrong), "%s: %s\n%s" % (commands, wrong, out)
        return "main\n" + out

    def acl(self, path, *change):
        return self.run("smbcacls", "//%s/main" % self.address, path, "-U", "%s%%%s" % (USER, PASSWORD), *change)


@pytest.fixture(scope="module")
def two_gateways(request):
    """(cluster, gateways): one smbd on each of two mounts. The second has the users of the first."""
    with shared(request, mounts=2) as c:
        made = []
        try:
            for mnt in c.mnts:
                folder = "%s/gateway%d" % (c.base, len(made) + 1)
                if made:
                    os.mkdir(folder)
                    shutil.copytree(made[0].dir + "/private", folder + "/private",
                                    ignore=shutil.ignore_patterns("msg.sock"))
                    shutil.copy(made[0].dir + "/gateway.json", folder)
                made.append(Gateway(folder, mnt))
            yield c, [g.start() for g in made]
        finally:
            for g in made:
                g.end()


def get(path):
    with open(path, "rb") as f:
        return f.read()


def put(path, data):
    with open(path, "wb") as f:
        f.write(data)


def test_copied_tree_is_equal_with_streams_and_odd_names(two_gateways, scratch):
    """Names, contents, streams and extended attributes come back through the other gateway as they were."""
    c, (one, two) = two_gateways
    src, back = scratch + "/src", scratch + "/back"
    files = {}
    for folder in ("", "/sub", "/sub/in " + NFD, "/sub/in " + NFC):
        os.makedirs(src + folder, exist_ok=True)
        for i, name in enumerate(NAMES):
            data = pattern(len(files), 1 + 37 * i if i else 3 << 20)
            files[folder + "/" + name] = data
            put(src + folder + "/" + name, data)
    one.client("lcd " + scratch, "prompt", "recurse", "mput src")
    # On Linux each name has its own bytes: NFC and NFD are two files.
    assert {on_linux(p): d for p, d in files.items()} == {
        os.path.join(at, name)[len(c.mnt + "/src"):]: get(os.path.join(at, name))
        for at, _, names in os.walk(c.mnt + "/src") for name in names}
    clip = "src/sub/in " + NFC
    info = struct.pack(">4sIII", b"AFP\0", 0x100, 0, 0) + bytes(8) + b"TEXTttxt" + bytes(28)
    streams = {"notes": b"n" * 60000, "AFP_AfpInfo": info, "e\u0301": b"1"}
    for i, (name, data) in enumerate(streams.items()):
        put("%s/stream%d" % (scratch, i), data)
        one.client('put %s/stream%d "%s/[z]{y}:%s"' % (scratch, i, clip, name))
    fork = pattern(7, 200000)  # larger than an extended attribute can be
    put(scratch + "/fork", fork)
    one.client('put %s/fork "%s/[z]{y}:AFP_Resource"' % (scratch, clip))
    one.client('setea "%s/[z]{y}" user.colour red' % clip)
    assert os.getxattr(c.mnts[1] + "/" + clip + "/[z]{y}", "user.user.colour") == b"red"
    os.mkdir(back)
    two.client("lcd " + back, "prompt", "recurse", "mget src")
    assert {p[len(back + "/src"):]: get(p) for p in
            (os.path.join(at, name) for at, _, names in os.walk(back + "/src") for name in names)} == files
    told = two.client('allinfo "%s/[z]{y}"' % clip)
    for i, (name, data) in enumerate(streams.items()):
        assert "[:%s:$DATA], %d bytes" % (name, len(data)) in told, told
        two.client('get "%s/[z]{y}:%s" %s/stream' % (clip, name, scratch))
        assert get(scratch + "/stream") == data, name
    two.client('get "%s/[z]{y}:AFP_Resource" %s/fork2' % (clip, scratch))
    assert get(scratch + "/fork2") == fork
    assert "red" in two.client('geteas "%s/[z]{y}"' % clip) or "72 65 64" in two.client('geteas "%s/[z]{y}"' % clip)
    # A rename takes the streams along; a removal takes them all.
    two.client('rename "%s/[z]{y}" "%s/moved"' % (clip, clip))
    one.client('get "%s/moved:notes" %s/stream' % (clip, scratch))
    assert get(scratch + "/stream") == streams["notes"]
    one.client('get "%s/moved:AFP_Resource" %s/fork3' % (clip, scratch))
    assert get(scratch + "/fork3") == fork
    # Names above 253 bytes leave no room for "._": vfs_fruit does not remove them, as docs/GATEWAYS.md says.
    assert "NT_STATUS_OBJECT_NAME_INVALID" in one.client('del "src/%s"' % NAMES[0], check=False)
    for at, _, names in os.walk(c.mnt + "/src"):
        for name in names:
            if len(name.encode()) > 253:
                os.unlink(os.path.join(at, name))
    one.client("deltree src")
    assert not os.path.exists(c.mnt + "/src")


def test_names_are_found_in_any_case_and_keep_theirs(two_gateways, scratch):
    c, (one, two) = two_gateways
    put(scratch + "/clip", b"frames")
    one.client("mkdir Case", "put %s/clip Case/Clip.MOV" % scratch, 'mkdir "Case/\u00c9T\u00c9"')
    two.client("get case/clip.mov %s/again" % scratch)
    assert get(scratch + "/again") == b"frames"
    assert "NT_STATUS_OBJECT_NAME_COLLISION" in two.client("mkdir CASE", check=False)
    two.client("rename Case/Clip.MOV Case/clip.mov", 'rename "Case/\u00c9T\u00c9" "Case/\u00e9t\u00e9"')
    assert sorted(os.listdir(c.mnt + "/Case")) == ["clip.mov", "\u00e9t\u00e9"]
    assert get(c.mnts[1] + "/Case/clip.mov") == b"frames"
    one.client("deltree Case")


def acl_lines(text):
    return sorted(line for line in text.splitlines() if line.startswith(("ACL:", "OWNER:", "GROUP:")))


def test_nt_acls_hold_at_both_gateways_and_survive_a_copy(two_gateways, scratch):
    c, (one, two) = two_gateways
    put(scratch + "/clip", b"frames")
    for mnt in c.mnts:
        let_others_in(mnt)
    one.client("mkdir acls", "put %s/clip acls/closed" % scratch, "put %s/clip acls/open" % scratch)
    one.acl("acls/closed", "-a", DENY)
    told = acl_lines(one.acl("acls/closed"))
    assert any(OTHER + ":DENIED" in line for line in told), told
    assert acl_lines(two.acl("acls/closed")) == told
    for g in (one, two):
        assert "NT_STATUS_ACCESS_DENIED" in g.client("get acls/closed %s/x" % scratch, user=OTHER, check=False)
        g.client("get acls/open %s/x" % scratch, user=OTHER)
    assert os.getxattr(c.mnt + "/acls/closed", "security.NTACL")
    subprocess.run(["cp", "-a", c.mnt + "/acls", c.mnts[1] + "/copy"], check=True)
    assert acl_lines(two.acl("copy/closed")) == told
    assert "NT_STATUS_ACCESS_DENIED" in one.client("get copy/closed %s/x" % scratch, user=OTHER, check=False)
    # A mode that a program sets counts.
    os.chmod(c.mnt + "/copy/closed", 0o604)
    assert not any(":DENIED" in line for line in acl_lines(two.acl("copy/closed")))
    # A folder hands its entries down.
    one.acl("acls", "-a", "ACL:%s:ALLOWED/OI|CI/READ" % OTHER)
    two.client("put %s/clip acls/below" % scratch)
    assert any(re.search(r"\b%s:ALLOWED/(I|0x0)/READ$" % OTHER, line) for line in acl_lines(one.acl("acls/below")))
    one.client("deltree acls", "deltree copy")


def fcntl_lock(path, offset, length, kind=fcntl.LOCK_EX):
    """Returns whether a program on the mount gets the lock."""
    with open(path, "r+b") as f:
        try:
            fcntl.lockf(f, kind | fcntl.LOCK_NB, length, offset)
        except BlockingIOError:
            return False
        return True


def test_byte_range_locks_of_two_gateways_and_fcntl_exclude(two_gateways):
    c, gateways = two_gateways
    one, two = (Smb2(g.address, g.port, "locks") for g in gateways)
    try:
        a, b = one.open("locked"), two.open("locked")
        one.write(a, b"0" * 100)
        one.lock(a, 10, 10)
        assert status_of(lambda: two.lock(b, 15, 1)) == NOT_GRANTED
        assert status_of(lambda: two.lock(b, 20, 10)) == 0
        assert status_of(lambda: one.lock(a, 29, 1)) == NOT_GRANTED
        # Such locks are mandatory to clients.
        assert status_of(lambda: two.read(b, 5, 12)) == CONFLICT
        assert status_of(lambda: two.write(b, b"1", 19)) == CONFLICT
        two.write(b, b"1", 25)
        assert one.read(a, 10, 10) == b"0" * 10
        for mnt in c.mnts:
            assert not fcntl_lock(mnt + "/locked", 12, 1) and not fcntl_lock(mnt + "/locked", 22, 1)
            assert fcntl_lock(mnt + "/locked", 0, 10)
        one.unlock(a, 10, 10)
        assert status_of(lambda: two.lock(b, 15, 1)) == 0
        one.lock(a, 50, 10, SHARED)
        two.lock(b, 50, 10, SHARED)
        assert fcntl_lock(c.mnts[1] + "/locked", 50, 10, fcntl.LOCK_SH) and not fcntl_lock(c.mnt + "/locked", 50, 10)
        # A lock of a program holds against clients of both.
        with open(c.mnt + "/locked", "r+b") as f:
            fcntl.lockf(f, fcntl.LOCK_EX, 10, 80)
            assert status_of(lambda: one.lock(a, 85, 1)) == status_of(lambda: two.lock(b, 85, 1)) == NOT_GRANTED
        assert status_of(lambda: two.lock(b, 85, 1)) == 0
        # A client that goes away leaves no lock.
        two.end()
        wait_for(lambda: status_of(lambda: one.lock(a, 85, 1)) == 0, "the lock of a client that is gone")
        one.close(a)
    finally:
        one.end()
        two.end()


def test_files_without_locks_cost_few_questions_about_them(two_gateways, scratch):
    """Samba tests for a lock before each read and write: the mount knows the answer after the first."""
    c, (one, _) = two_gateways

    def asked():
        return c.status()["exportd"]["requests"].get("lock_test", 0)

    data = os.urandom(64 << 20)
    put(scratch + "/clip", data)
    before = asked()
    one.client("put %s/clip clip" % scratch, "get clip %s/back" % scratch)
    assert get(scratch + "/back") == data
    assert asked() - before <= 3


def test_smbd_goes_on_while_a_storage_is_killed(two_gateways, scratch):
    c, (one, two) = two_gateways
    data = pattern(3, 8 << 20)
    put(scratch + "/clip", data)
    one.client("put %s/clip before" % scratch)
    killer = threading.Timer(0.2, c.kill, ("storaged-1",))
    killer.start()
    try:
        for i in range(6):
            one.client("put %s/clip during%d" % (scratch, i))
        killer.join()
        for i in range(6):
            two.client("get during%d %s/back" % (i, scratch))
            assert get(scratch + "/back") == data
        two.client("get before %s/back" % scratch)
        assert get(scratch + "/back") == data
        two.client("put %s/clip after" % scratch)
        assert get(c.mnt + "/after") == data
    finally:
        killer.join()
        c.restart("storaged-1")
        c.wait_all_up()


@pytest.mark.parametrize("profile", ["exclusive", "shared"])
def test_open_file_outlives_its_connection_with_exclusive_only(cluster, profile):
    c = cluster(layout=0, mount_options="noatime")
    g = Gateway(c.base + "/gateway", c.mnt, free_port(), ("--" + profile,))
    clients = []
    try:
        g.start()
        clients.append(Smb2(g.address, g.port, "locks"))
        if profile == "shared":  # other gateways would not know what the client caches
            with pytest.raises(AssertionError, match="no durable handle"):
                clients[0].open_durable("kept")
            return
        file = clients[0].open_durable("kept")
        clients[0].write(file, b"before")
        clients[0].lock(file, 0, 1)
        clients[0].end()
        clients.append(Smb2(g.address, g.port, "locks"))
        again = clients[1].open_again("kept", file)
        clients[1].write(again, b" and after", 6)
        assert clients[1].read(again, 100) == b"before and after"
        assert status_of(lambda: clients[1].unlock(again, 0, 1)) == 0  # its lock was kept
        clients[1].close(again)
        assert get(c.mnt + "/kept") == b"before and after"
    finally:
        for client in clients:
            client.end()
        g.end()


def test_gateway_is_shown_told_and_removed(cluster, scratch):
    """A share is added while smbd runs; the folder below a mount is never served; smbd ends with the gateway."""
    c = cluster(layout=0, mounts=2)
    g = Gateway(c.base + "/gateway", c.mnt, free_port())
    try:
        g.start()
        r = rozo("gateway", "smb", "main", "--mount", c.mnt, "--dir", c.base + "/other", "--listen", g.address + "/8",
                 "--port", g.port, check=False)
        assert r.returncode == 1 and "port %d" % g.port in r.stderr
        said = rozo("gateway", "status", "--dir", g.dir).stdout
        assert "running on port %d (pid %d)" % (g.port, g.p.pid) in said and c.mnt + "\n" in said
        rozo("gateway", "smb", "main", "--share", "second", "--mount", c.mnts[1], "--dir", g.dir)
        g.run("smbcontrol", "-s", g.dir + "/smb.conf", "smbd", "reload-config")
        wait_for(lambda: "blocks" in g.client("ls", share="second"), "the second share")
        put(scratch + "/clip", b"frames")
        subprocess.run(["umount", "-l", c.mnt], check=True)
        assert "NT_STATUS" in g.client("put %s/clip clip" % scratch, check=False)
        assert os.listdir(c.mnt) == []  # nothing was written beside rozo
        assert "NOT MOUNTED" in rozo("gateway", "status", "--dir", g.dir).stdout
        g.client("put %s/clip clip" % scratch, share="second")
        rozo("gateway", "remove", "smb", "--dir", g.dir)
        assert g.p.wait(5) is not None and get(c.mnts[1] + "/clip") == b"frames"
        wait_for(lambda: samba_processes(g.dir + "/smb.conf") == [], "all that smbd has started to end")
        assert os.path.exists(g.dir + "/private/passdb.tdb")
    finally:
        g.end()
