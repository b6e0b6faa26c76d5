"""`rozo gateway`: what it writes, what it refuses, and that nothing of another Samba is touched. No smbd is started."""
import json
import os
import shutil
import subprocess

import pytest

from conftest import ROZO, cannot_mount, rozo, tool
from fake_systemd import Systemd
from ports import free_port
from mounts import alone

pytestmark = [pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount()),
              pytest.mark.skipif(shutil.which("smbd", path="/usr/sbin:/usr/bin") is None,
                                 reason="smbd is not installed (deploy/install-deps.sh --tests)")]


def refused(r, *words, status=1):
    """Checks the exit status and that the message has all words; returns the message."""
    assert r.returncode == status, r.stderr
    assert r.stderr.startswith("rozo gateway") and all(w in r.stderr for w in words), r.stderr
    return r.stderr


def gateway(*args, check=False):
    return rozo("gateway", *args, check=check)


def content(folder):
    """Returns {path: (time, bytes)} of a folder."""
    found = {}
    for at, _, files in os.walk(folder):
        for name in files:
            path = os.path.join(at, name)
            with open(path, "rb") as f:
                found[path] = (os.stat(path).st_mtime_ns, f.read())
    return found


def parsed(conf):
    """Returns testparm's {section: {key: value}} of an smb.conf; it shows what is not a default."""
    r = subprocess.run(["testparm", "-s", conf], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=True)
    found, section = {}, None
    for line in r.stdout.splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif " = " in line:
            key, value = line.strip().split(" = ", 1)
            section[key] = value
    return found


def test_samba_configuration_of_both_profiles(cluster_shared, scratch):
    c, d, port = cluster_shared, scratch + "/gateway", free_port()
    etc = content("/etc/samba")
    said = gateway("smb", "main", "--mount", c.mnt, "--dir", d, "--port", port, "--users", "root,@daemon").stdout
    assert "main on %s, shared" % c.mnt in said and "smbpasswd -c %s/smb.conf -a root" % d in said
    assert "not in /etc/fstab" in said and "noatime" not in said and "/smbd --foreground" in said
    conf = parsed(d + "/smb.conf")
    share, top = conf["main"], conf["global"]
    assert share["path"] == c.mnt and share["valid users"] == "@daemon root" or share["valid users"] == "root @daemon"
    assert share["vfs objects"] == "catia fruit streams_xattr acl_xattr"
    # testparm leaves out what is a default: posix locking = yes.
    assert share["oplocks"] == share["durable handles"] == "No" and "posix locking" not in share
    assert "findmnt" in share["root preexec"] and share["root preexec close"] == "Yes"
    assert top["smb ports"] == str(port) and "interfaces" not in top
    for key in ("private dir", "state directory", "cache directory", "lock directory", "pid directory", "ncalrpc dir"):
        assert top[key].startswith(d + "/"), key
    gateway("smb", "main", "--mount", c.mnt, "--dir", d, "--share", "Cut", "--listen", "127.0.0.1,lo", check=True)
    refused(gateway("smb", "main", "--mount", c.mnt, "--dir", d, "--share", "cut", "--exclusive"), "main", "--shared")
    gateway("remove", "smb", "--share", "main", "--dir", d, check=True)
    said = gateway("smb", "main", "--mount", c.mnt, "--dir", d, "--share", "Cut", "--exclusive", check=True).stdout
    assert "without noatime" in said
    subprocess.run(["mount", "-i", "-o", "remount,noatime", c.mnt], check=True)
    said = gateway("smb", "main", "--mount", c.mnt, "--dir", d, "--share", "Cut", "--exclusive", check=True).stdout
    assert "noatime" not in said
    subprocess.run(["mount", "-i", "-o", "remount,relatime", c.mnt], check=True)
    conf = parsed(d + "/smb.conf")
    assert sorted(conf) == ["Cut", "global"] and conf["global"]["smb ports"] == str(port)  # as it was set before
    assert conf["global"]["interfaces"] == "127.0.0.1 lo" and conf["global"]["bind interfaces only"] == "Yes"
    assert conf["Cut"]["posix locking"] == "No"
    assert not {"oplocks", "durable handles", "valid users"} & set(conf["Cut"])  # yes by default; anybody
    told = json.loads(gateway("status", "--json", "--dir", d, check=True).stdout)["smb"]
    assert (told["running"], told["port"], told["listen"]) == (False, port, "127.0.0.1,lo")
    assert told["shares"] == [{"share": "Cut", "export": "main", "mount": c.mnt, "users": "", "profile": "exclusive",
                               "mounted": True}]
    # `rozo status` tells of it, too.
    env = {"ROZO_SMB_DIR": d}
    config = ("--config", c.dir + "/etc/rozo.yaml")
    assert json.loads(rozo("status", "--json", *config, env=env).stdout)["gateways"] == {"smb": told, "nfs": None}
    assert "SMB gateway of this machine: DOWN" in rozo("status", *config, env=env).stdout
    assert "SMB gateway" not in rozo("status", *config, env={"ROZO_SMB_DIR": scratch + "/none"}).stdout
    with open(d + "/local.conf", "a") as f:
        f.write("[Cut]\n    comment = ours\n")
    said = gateway("remove", "smb", "--dir", d, check=True).stdout
    assert "Removed" in said and not os.path.exists(d + "/smb.conf") and "ours" in open(d + "/local.conf").read()
    assert json.loads(gateway("status", "--json", "--dir", d, check=True).stdout) == {"smb": None, "nfs": None}
    refused(gateway("remove", "smb", "--dir", d), "no SMB gateway")
    gateway("smb", "main", "--mount", c.mnt, "--dir", d, "--share", "Cut", "--port", port, check=True)
    assert parsed(d + "/smb.conf")["Cut"]["comment"] == "ours"
    assert content("/etc/samba") == etc


def test_gateway_changes_no_folder_that_is_not_its_own(cluster_shared, scratch):
    c = cluster_shared
    etc = content("/etc/samba")
    refused(gateway("smb", "main", "--mount", c.mnt, "--dir", "/etc/samba"), "/etc/samba/smb.conf", "--dir")
    assert content("/etc/samba") == etc
    full = scratch + "/full"
    os.mkdir(full)
    with open(full + "/something", "w"):
        pass
    refused(gateway("smb", "main", "--mount", c.mnt, "--dir", full), full, "not empty")
    assert os.listdir(full) == ["something"]
    refused(gateway("smb", "main", "--mount", c.mnt, "--dir", scratch + "/with a blank"), "cannot be named")


def test_wrong_gateway_arguments_have_messages(cluster_shared, scratch):
    c, d = cluster_shared, scratch + "/gateway"
    at = ("--mount", c.mnt, "--dir", d)
    refused(gateway("smb", "main", "--shared", "--exclusive", *at), "exclude each other", status=2)
    refused(gateway("smb", "main", "--share", "a b", *at), "a b", "--share", status=2)
    refused(gateway("smb", "main", "--share", "homes", *at), "homes", status=2)
    refused(gateway("smb", "main", "--port", "0", *at), "port", status=2)
    refused(gateway("smb", "main", "--listen", "a b", *at), "a b", status=2)
    refused(gateway("smb", "ma/in", *at), "ma/in", status=2)
    refused(gateway("smb"), status=2)
    refused(gateway("remove", "afp"), "afp", status=2)
    refused(gateway("smb", "main", "--users", "no-such-user", *at), "no-such-user", "adduser")
    refused(gateway("smb", "main", "--users", "@no-such-group", *at), "no-such-group", "addgroup")
    refused(gateway("smb", "other", "--mount", c.mnt, "--dir", d), "other", "rozo mount other " + c.mnt)
    refused(gateway("smb", "nowhere-mounted", "--dir", d), "not mounted", "rozo mount nowhere-mounted")
    assert not os.path.exists(d)
    r = subprocess.run(["setpriv", "--reuid", "daemon", "--clear-groups", ROZO, "gateway", "smb", "main"],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    refused(r, "root") if r.returncode != 126 and r.returncode != 127 else pytest.skip("nobody else can run " + ROZO)


def test_a_damaged_gateway_is_named(cluster_shared, scratch):
    c, d, port = cluster_shared, scratch + "/gateway", free_port()
    gateway("smb", "main", "--mount", c.mnt, "--dir", d, "--port", port, check=True)
    with open(d + "/gateway.json") as f:
        good = f.read()
    for bad in ("{", "[]", good.replace('"port": %d' % port, '"port": 0'), good.replace(c.mnt, "/a b"),
                good.replace('"share": "main"', '"share": "global"')):
        assert bad != good
        with open(d + "/gateway.json", "w") as f:
            f.write(bad)
        refused(gateway("smb", "main", "--mount", c.mnt, "--dir", d), d + "/gateway.json", "damaged")
        assert "damaged" in gateway("status", "--dir", d).stdout
        assert "damaged" in json.loads(gateway("status", "--json", "--dir", d).stdout)["smb"]["error"]


def test_a_configuration_that_testparm_refuses_is_not_installed(cluster_shared, scratch):
    c, d = cluster_shared, scratch + "/gateway"
    gateway("smb", "main", "--mount", c.mnt, "--dir", d, "--port", free_port(), check=True)
    before = content(d)
    with open(d + "/local.conf", "a") as f:
        f.write("[main]\n    oplock = 3\n")
    refused(gateway("smb", "main", "--mount", c.mnt, "--dir", d, "--exclusive"), "testparm", "oplock", "local.conf")
    after = content(d)
    after[d + "/local.conf"] = before[d + "/local.conf"]
    assert {n: after[n] for n in before if ".tdb" not in n} == {n: before[n] for n in before if ".tdb" not in n}


def test_missing_samba_has_a_message(cluster_shared, scratch):
    c = cluster_shared
    built = subprocess.run(["/usr/sbin/smbd", "-b"], stdout=subprocess.PIPE, text=True).stdout
    modules = built.split("MODULESDIR: ")[1].split()[0]
    for hidden, package in ((shutil.which("smbd", path="/usr/sbin:/usr/bin"), "apt-get install samba"),
                            (modules + "/vfs/fruit.so", "apt-get install samba-vfs-modules")):
        hide = "mount --bind /dev/null %s" % hidden if "smbd" in hidden else "mount -t tmpfs none %s/vfs" % modules
        r = subprocess.run(alone(c.base, "sh", "-c", hide + ' && exec "$@"', "sh", ROZO, "gateway", "smb", "main",
                                 "--mount", c.mnt, "--dir", scratch + "/gateway"),
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        refused(r, package)
    assert not os.path.exists(scratch + "/gateway")


def test_systemd_runs_the_gateway_and_requires_its_mount(cluster_shared, scratch):
    c, d, port = cluster_shared, scratch + "/systemd", str(free_port())
    tool("unshare")
    systemd = Systemd(c, d)
    r, words = systemd.gateway("smb", "main", "--mount", c.mnt, "--port", port)
    assert r.returncode == 0 and "rozo-smb.service runs" in r.stdout, r.stdout + r.stderr
    assert words == ["daemon-reload", "enable rozo-smb.service", "reload-or-restart rozo-smb.service"]
    unit = systemd.unit("rozo-smb.service")
    escaped = c.mnt.strip("/").replace("-", "\\x2d").replace("/", "-") + ".mount"
    for line in ("BindsTo=" + escaped, "After=" + escaped, "AssertPathIsMountPoint=" + c.mnt,
                 "ExecStart=/usr/sbin/smbd --foreground --no-process-group --configfile=/var/lib/rozo/smb/smb.conf"):
        assert line in unit, unit
    assert not any("@" in line for line in unit)
    with open(d + "/fails", "w") as f:
        f.write("1")
    r, _ = systemd.gateway("smb", "main", "--mount", c.mnt, "--share", "second")
    refused(r, "systemctl", "journalctl -u rozo-smb.service")
    os.unlink(d + "/fails")
    r, words = systemd.gateway("remove", "smb")
    assert r.returncode == 0, r.stderr
    assert words == ["disable --now rozo-smb.service", "daemon-reload"] and os.listdir(d + "/units") == []
    # A gateway in another folder is none of systemd's.
    r, words = systemd.gateway("smb", "main", "--mount", c.mnt, "--dir", scratch + "/other", "--port", port)
    assert r.returncode == 0 and words == [] and "/smbd --foreground" in r.stdout, r.stdout + r.stderr
