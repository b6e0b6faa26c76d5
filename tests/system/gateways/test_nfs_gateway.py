"""`rozo gateway nfs`: what it writes, what it refuses, and that /etc/ganesha is not touched. No server is started."""
import json
import os
import shutil
import subprocess

import pytest

from conftest import ROZO, cannot_mount, rozo
from fake_systemd import Systemd
from mounts import alone

pytestmark = [pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount()),
              pytest.mark.skipif(shutil.which("ganesha.nfsd", path="/usr/sbin:/usr/bin") is None,
                                 reason="ganesha.nfsd is not installed (deploy/install-deps.sh --tests)")]


def refused_nfs(r, *words, status=1):
    """Checks the exit status and that the message has all words."""
    assert r.returncode == status, r.stdout + r.stderr
    assert r.stderr.startswith("rozo gateway") and all(w in r.stderr for w in words), r.stderr


def gateway(*args, check=False, **more):
    return rozo("gateway", *args, check=check, **more)


def content(folder):
    """Returns {path: bytes} of a folder."""
    found = {}
    for at, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(at, name), "rb") as f:
                found[os.path.join(at, name)] = f.read()
    return found


def conf_of(folder):
    """Returns the lines of ganesha.conf without their ends."""
    with open(folder + "/ganesha.conf") as f:
        return [line.strip().rstrip(";") for line in f]


def has_in_order(lines, *wanted):
    """Tells whether the lines come one after another, others between them."""
    rest = iter(lines)
    return all(w in rest for w in wanted)


@pytest.fixture
def other_mount(cluster_shared, scratch):
    """A mount of the export `other`, which is made."""
    c, mnt = cluster_shared, scratch + "/other"
    os.mkdir(mnt)
    if "other" not in [e["name"] for e in c.status()["exports"]]:
        c.admin("export", "create", "other")
    c.admin("mount", "other", mnt)
    return mnt


def test_ganesha_configuration_and_status(cluster_shared, other_mount, scratch):
    c, d = cluster_shared, scratch + "/gateway"
    etc = content("/etc/ganesha")
    said = gateway("nfs", "main", "--mount", c.mnt, "--dir", d, check=True).stdout
    assert "clients mount HOST:/main" in said and "rozo gateway run nfs --dir " + d in said
    uuid = os.getxattr(c.mnt, "rozo.fsid").decode().replace("-", "")
    lines = conf_of(d)
    assert has_in_order(lines, "NFS_Port = 2049", "Protocols = 3, 4", "Enable_NLM = true", 'RecoveryRoot = "%s"' % d,
                        "Grace_Period = 30", "EXPORT {", "Export_Id = 1", 'Path = "%s"' % c.mnt, 'Pseudo = "/main"',
                        "Filesystem_Id = %d.%d" % (int(uuid[:16], 16), int(uuid[16:], 16)), "Squash = root",
                        "Access_Type = RW", "Attr_Expiration_Time = 0", "Name = VFS")
    assert "CLIENT {" not in lines and not any("%include" in line for line in lines)
    # Another export: what is not given stays as it was set before.
    with open(d + "/local.conf", "w") as f:
        f.write("LOG { Default_Log_Level = EVENT; }\n")
    gateway("nfs", "other", "--mount", other_mount, "--dir", d, "--port", 3049, "--grace", 12, "--v4-only",
            "--read-only", "--clients", "10.0.0.0/8,*.example.org", "--squash", "all", "--pseudo", "/clips/b",
            check=True)
    gateway("nfs", "main", "--mount", c.mnt, "--dir", d, "--squash", "none", check=True)
    lines = conf_of(d)
    assert has_in_order(lines, "NFS_Port = 3049", "Protocols = 4", "Enable_NLM = false", "Grace_Period = 12",
                        "Export_Id = 1", "Squash = none", "Export_Id = 2", 'Pseudo = "/clips/b"', "Protocols = 4",
                        "Squash = all", "Access_Type = None", "CLIENT {", "Clients = 10.0.0.0/8,*.example.org",
                        "Access_Type = RO", '%%include "%s/local.conf"' % d)
    gateway("nfs", "main", "--mount", c.mnt, "--dir", d, "--v3", check=True)
    assert has_in_order(conf_of(d), "Protocols = 3, 4", "Enable_NLM = true")
    told = json.loads(gateway("status", "--json", "--dir", d, check=True).stdout)["nfs"]
    assert (told["running"], told["port"], told["grace_s"], told["v4_only"]) == (False, 3049, 12, False)
    main, other = told["exports"]
    assert main == {"export": "main", "mount": c.mnt, "fsid": os.getxattr(c.mnt, "rozo.fsid").decode(), "id": 1,
                    "pseudo": "/main", "clients": "", "squash": "root", "read_only": False, "problem": None}
    assert (other["id"], other["read_only"], other["clients"]) == (2, True, "10.0.0.0/8,*.example.org")
    # `rozo status` tells of it, too.
    env = {"ROZO_NFS_DIR": d}
    config = ("--config", c.dir + "/etc/rozo.yaml")
    assert json.loads(rozo("status", "--json", *config, env=env).stdout)["gateways"] == {"smb": None, "nfs": told}
    assert "DOWN  main" in rozo("status", *config, env=env).stdout
    assert "DOWN  main" not in rozo("status", *config, env={"ROZO_NFS_DIR": scratch + "/none"}).stdout
    # Removal.
    refused_nfs(gateway("remove", "nfs", "--export", "none", "--dir", d), "none")
    gateway("remove", "nfs", "--export", "main", "--dir", d, check=True)
    assert "Export_Id = 2" in conf_of(d) and "Export_Id = 1" not in conf_of(d)
    assert "Removed." in gateway("remove", "nfs", "--dir", d, check=True).stdout
    assert os.listdir(d) == ["local.conf"]
    assert json.loads(gateway("status", "--json", "--dir", d, check=True).stdout) == {"smb": None, "nfs": None}
    refused_nfs(gateway("remove", "nfs", "--dir", d), "no gateway of NFS")
    refused_nfs(gateway("run", "nfs", "--dir", d), "rozo gateway nfs EXPORT")
    gateway("nfs", "main", "--mount", c.mnt, "--dir", d, check=True)  # the folder of before is taken again
    assert content("/etc/ganesha") == etc


def test_nfs_changes_no_folder_that_is_not_its_own(cluster_shared):
    c = cluster_shared
    etc = content("/etc/ganesha")
    refused_nfs(gateway("nfs", "main", "--mount", c.mnt, "--dir", "/etc/ganesha"), "/etc/ganesha", "--dir")
    assert content("/etc/ganesha") == etc


def test_wrong_nfs_arguments_have_messages(cluster_shared, other_mount, scratch):
    c, d = cluster_shared, scratch + "/gateway"
    at = ("--mount", c.mnt, "--dir", d)
    for args, words in ((("main", "--squash", "some"), ["--squash"]), (("main", "--pseudo", "clips"), ["clips"]),
                        (("main", "--pseudo", '/a"b'), ['a"b']), (("main", "--clients", "a;b"), ["a;b"]),
                        (("main", "--v3", "--v4-only"), ["exclude"]), (("main", "--id", "65536"), ["id"]),
                        (("ma/in",), ["ma/in"]), (("main", "--grace", "1"), ["grace"]), ((), [])):
        refused_nfs(gateway("nfs", *args, *at), *words, status=2)
    refused_nfs(gateway("remove", "afp", "--dir", d), "afp", status=2)
    refused_nfs(gateway("run", "afp", "--dir", d), "afp", status=2)
    refused_nfs(gateway("nfs", "other", *at), "other is not mounted at " + c.mnt, "rozo mount other " + c.mnt)
    refused_nfs(gateway("nfs", "nowhere-mounted", "--dir", d), "not mounted", "rozo mount nowhere-mounted")
    refused_nfs(gateway("nfs", "main", *at, env={"PATH": "/nowhere"}), "apt-get install nfs-ganesha-vfs")
    assert not os.path.exists(d)
    gateway("nfs", "main", *at, check=True)
    other = ("other", "--mount", other_mount, "--dir", d)
    refused_nfs(gateway("nfs", *other, "--id", "1"), "main", "id 1")
    refused_nfs(gateway("nfs", *other, "--pseudo", "/main"), "main", "/main")
    r = subprocess.run(["setpriv", "--reuid", "daemon", "--clear-groups", ROZO, "gateway", "nfs", "main"],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if r.returncode not in (126, 127):
        refused_nfs(r, "root")


def test_a_mount_that_covers_another_one_is_not_taken_for_it(cluster_shared, scratch):
    c, at = cluster_shared, scratch + "/at"
    os.mkdir(at)
    c.admin("mount", "main", at)
    subprocess.run(["mount", "-t", "tmpfs", "none", at], check=True)
    refused_nfs(gateway("nfs", "main", "--mount", at, "--dir", scratch + "/gateway"), "not mounted at " + at)
    subprocess.run(["umount", at], check=True)
    gateway("nfs", "main", "--mount", at, "--dir", scratch + "/gateway", check=True)


def test_damaged_settings_are_named(cluster_shared, scratch):
    c, d = cluster_shared, scratch + "/gateway"
    gateway("nfs", "main", "--mount", c.mnt, "--dir", d, check=True)
    with open(d + "/gateway.json") as f:
        good = f.read()
    for bad in ("{", "[]", good.replace('"port": 2049', '"port": 0'), good.replace('"fsid"', '"fs"'),
                good.replace('"id": 1', '"id": 0')):
        assert bad != good
        with open(d + "/gateway.json", "w") as f:
            f.write(bad)
        for args in (("nfs", "main", "--mount", c.mnt), ("run", "nfs"), ("remove", "nfs")):
            refused_nfs(gateway(*args, "--dir", d), d + "/gateway.json")
        assert d + "/gateway.json" in gateway("status", "--dir", d).stdout
        assert d + "/gateway.json" in json.loads(gateway("status", "--json", "--dir", d).stdout)["nfs"]["problem"]


def test_only_the_export_that_was_set_up_is_run(cluster_shared, other_mount, scratch):
    """Nothing is served from the empty folder below a mount, nor from another export that is mounted there."""
    c, d = cluster_shared, scratch + "/gateway"
    gateway("nfs", "other", "--mount", other_mount, "--dir", d, check=True)
    subprocess.run(["umount", other_mount], check=True)
    refused_nfs(gateway("run", "nfs", "--dir", d), "other is not mounted at " + other_mount)
    assert "other is not mounted" in gateway("status", "--dir", d).stdout
    c.admin("mount", "main", other_mount)
    theirs = os.getxattr(other_mount, "rozo.fsid").decode()
    refused_nfs(gateway("run", "nfs", "--dir", d), "another export than other", theirs)


def test_systemd_runs_nfs_and_requires_its_mount(cluster_shared, scratch):
    c, d = cluster_shared, scratch + "/systemd"
    systemd = Systemd(c, d)

    def unit():
        return systemd.unit("rozo-nfs.service")

    r, words = systemd.gateway("nfs", "main", "--mount", c.mnt)
    assert r.returncode == 0 and "rozo-nfs.service runs" in r.stdout, r.stdout + r.stderr
    assert words == ["daemon-reload", "enable rozo-nfs.service", "restart rozo-nfs.service"]
    escaped = c.mnt.strip("/").replace("-", "\\x2d").replace("/", "-") + ".mount"
    for line in ("Requires=" + escaped, "After=" + escaped, "ExecStart=%s gateway run nfs" % ROZO, "Restart=on-failure",
                 "Wants=rpcbind.service rpc-statd.service", "Conflicts=nfs-ganesha.service nfs-server.service"):
        assert line in unit(), unit()
    if shutil.which("systemd-analyze") is not None:
        r = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no",
                            d + "/units/rozo-nfs.service"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert r.returncode == 0 and "nfs.service:" not in r.stdout, r.stdout
    r, words = systemd.gateway("nfs", "main", "--mount", c.mnt, "--v4-only")
    assert r.returncode == 0 and not any("rpcbind" in line for line in unit())
    with open(d + "/fails", "w") as f:
        f.write("1")
    r, _ = systemd.gateway("nfs", "main", "--mount", c.mnt)
    refused_nfs(r, "systemctl", "journalctl -u rozo-nfs.service")
    os.unlink(d + "/fails")
    r, words = systemd.gateway("remove", "nfs")
    assert r.returncode == 0, r.stderr
    assert words == ["disable --now rozo-nfs.service", "daemon-reload"] and os.listdir(d + "/units") == []
    # A gateway in another folder is none of systemd's.
    r, words = systemd.gateway("nfs", "main", "--mount", c.mnt, "--dir", scratch + "/other")
    assert r.returncode == 0 and words == [] and "rozo gateway run nfs" in r.stdout, r.stdout + r.stderr
