"""The command line: every verb has --help, exit statuses 0/1/2, JSON that parses, useful errors."""
import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import signal
import stat
import subprocess

import pytest

from conftest import BIN, ROOT, cannot_mount, process_runs, rozo, wait_for

VERBS = ["status", "storage list", "storage add", "storage replace", "storage lost", "rebuild status",
         "rebuild start", "rebuild rate", "scrub start", "scrub stop", "scrub status", "fsck", "volume list",
         "volume create", "export list", "export create", "meta dump", "mount", "locate", "salvage", "key new",
         "bench codec", "bench fs", "dev up", "dev down", "dev status", "dev restart"]
NOWHERE = {"ROZO_EXPORTD": "", "ROZO_KEY": "", "ROZO_CONFIG": "/nowhere/rozo.yaml"}


@pytest.fixture(scope="module")
def c(cluster_shared):
    return cluster_shared


@contextlib.contextmanager
def installed(path, program):
    """Links the program for a while, unless one is installed; concurrent runs of these tests wait."""
    with open("/tmp/rozo-tests.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.lexists(path):
            yield
            return
        os.symlink(program, path)
        try:
            yield
        finally:
            os.unlink(path)


def fits(text):
    return all(len(line) <= 80 for line in text.splitlines())


def test_help_lists_every_verb():
    out = rozo("--help").stdout
    assert fits(out)
    for verb in VERBS:
        assert re.search(r"^  %s +\S" % verb, out, re.M), verb


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb):
    r = rozo(*verb.split(), "--help")
    assert "rozo " + verb in r.stdout and len(r.stdout.splitlines()) > 3
    assert fits(r.stdout), r.stdout


@pytest.mark.parametrize("program", ["exportd", "storaged", "rozomount", "rozo", "rozo-salvage"])
def test_programs_have_version_and_help(program):
    path = os.path.join(BIN, program)
    out = subprocess.run([path, "--version"], stdout=subprocess.PIPE, text=True, timeout=30, check=True)
    assert re.search(r"\b\d+\.\d+\.\d+\b", out.stdout)
    out = subprocess.run([path, "--help"], stdout=subprocess.PIPE, text=True, timeout=30, check=True)
    assert "sage:" in out.stdout and fits(out.stdout), out.stdout


@pytest.mark.parametrize("script", ["deploy/quickstart.sh", "deploy/install-deps.sh"])
def test_scripts_have_help_and_name_a_wrong_option(script):
    r = subprocess.run([os.path.join(ROOT, script), "--help"], capture_output=True, text=True, timeout=30, check=True)
    assert "Usage:" in r.stdout and fits(r.stdout), r.stdout
    r = subprocess.run([os.path.join(ROOT, script), "--nonsense"], capture_output=True, text=True, timeout=30)
    assert r.returncode == 2 and "--nonsense" in r.stderr and "--help" in r.stderr, r.stderr


@pytest.mark.parametrize("args", [
    [], ["nonsense"], ["--nonsense"], ["storage"], ["storage", "nonsense"], ["storage", "add"],
    ["storage", "add", "no-port"], ["storage", "add", ","], ["volume", "create"], ["export", "create"],
    ["export", "create", "a", "b"], ["export", "create", "x", "--layout", "3"],
    ["export", "create", "x", "--block-bytes", "5000"], ["mount"], ["mount", "main"],
    ["mount", "a/b", "/mnt"], ["locate"], ["salvage"], ["salvage", "/nowhere"], ["key", "new"], ["dev", "up"],
    ["dev", "down"], ["dev", "up", "--dir", "x", "--layout", "3"], ["dev", "up", "--dir", "x", "--codec", "nonsense"],
    ["dev", "up", "--dir", "x", "--storages", "0"], ["dev", "up", "--dir", "x", "--links", "-1"],
    ["dev", "up", "--dir", "x", "--log-level", "loud"], ["dev", "restart", "--dir", "x"],
    ["bench"], ["bench", "codec", "x"], ["bench", "codec", "--layout", "3"],
    ["bench", "codec", "--block-bytes", "5000"], ["status", "extra"], ["status", "--nonsense"],
    ["rebuild"], ["rebuild", "nonsense"], ["rebuild", "status", "extra"], ["rebuild", "status", "--storage", "x"],
    ["rebuild", "status", "--storage", "0"], ["rebuild", "start"], ["rebuild", "start", "x"], ["rebuild", "start", "0"],
    ["rebuild", "start", "1", "2"], ["rebuild", "rate"], ["rebuild", "rate", "0"], ["rebuild", "rate", "fast"],
    ["rebuild", "rate", "-1"], ["rebuild", "rate", "5x"], ["rebuild", "rate", "off", "2"],
    ["scrub"], ["scrub", "nonsense"],
    ["scrub", "start", "extra"], ["scrub", "start", "--storage", "-1"], ["scrub", "stop", "--watch"],
    ["scrub", "status", "--storage", "4294967296"], ["fsck", "extra"], ["fsck", "--nonsense"],
    ["storage", "replace"], ["storage", "replace", "x"], ["storage", "replace", "0"],
    ["storage", "replace", "1", "no-port"], ["storage", "lost"], ["storage", "lost", "x"],
    ["storage", "lost", "1", "2"], ["salvage", "--to"],
    ["salvage", "--export", "0", "/"], ["salvage", "--export", "x", "/"], ["salvage", "--list", "--to", "x", "/"]])
def test_wrong_usage_is_exit_2(args):
    r = rozo(*args, check=False)
    assert r.returncode == 2, r.stderr
    assert r.stderr and not r.stdout
    assert not os.path.exists("x")


@pytest.mark.parametrize("verb", ["status", "storage list", "volume list", "export list", "rebuild status",
                                  "scrub status", "scrub start", "fsck"])
def test_verbs_without_a_cluster_name_what_is_missing(verb, scratch):
    r = rozo(*verb.split(), check=False, env=NOWHERE)
    assert r.returncode == 1 and "/nowhere/rozo.yaml" in r.stderr
    r = rozo(*verb.split(), "--exportd", "127.0.0.1:1", "--key", scratch + "/no.key", check=False)
    assert r.returncode == 1 and "no.key" in r.stderr
    rozo("key", "new", scratch + "/k")
    r = rozo(*verb.split(), "--exportd", "127.0.0.1:1", "--key", scratch + "/k", check=False)
    assert r.returncode == 1 and "127.0.0.1:1" in r.stderr and "refused" in r.stderr


def test_config_file_is_checked(scratch):
    path = scratch + "/rozo.yaml"
    with open(path, "w") as f:
        f.write("exportd: 127.0.0.1:1\nkay: /x\n")
    r = rozo("status", "--config", path, check=False)
    assert r.returncode == 1 and re.search(r"rozo\.yaml:2: kay", r.stderr), r.stderr


def test_wrong_key_is_named_in_the_error(c, scratch):
    rozo("key", "new", scratch + "/k")
    r = rozo("status", "--exportd", c.dev_status()["exportd"], "--key", scratch + "/k", check=False)
    assert r.returncode == 1 and "key" in r.stderr


def test_client_key_does_not_administer(c):
    r = rozo("status", "--exportd", c.dev_status()["exportd"], "--key", c.dir + "/etc/client.key",
             check=False)
    assert r.returncode == 1 and "key" in r.stderr


@pytest.mark.parametrize("verb", ["status", "storage add 127.0.0.1:1", "fsck"])
def test_a_storage_is_not_exportd(c, verb):
    address = "%s:%d" % c.addresses("storaged-1")[0]
    r = rozo(*verb.split(), "--exportd", address, "--key", c.dir + "/etc/node.key", check=False)
    assert r.returncode == 1 and address in r.stderr and "not exportd" in r.stderr, r.stderr


def test_a_storage_cannot_be_mounted(c, scratch):
    address = "%s:%d" % c.addresses("storaged-1")[0]
    r = rozo("mount", "main", scratch, "--exportd", address, "--key", c.dir + "/etc/client.key", check=False)
    assert r.returncode == 1 and address in r.stderr and "not exportd" in r.stderr, r.stderr


def test_exportd_does_not_join_as_a_storage(c):
    address = c.dev_status()["exportd"]
    r = c.admin("storage", "add", address, check=False)
    assert r.returncode == 1 and address in r.stderr and "not a storage" in r.stderr, r.stderr


def test_key_new(scratch):
    path = scratch + "/k"
    rozo("key", "new", path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with open(path) as f:
        first = f.read()
    assert re.fullmatch(r"[0-9a-f]{64}\n", first)
    r = rozo("key", "new", path, check=False)
    assert r.returncode == 1 and path in r.stderr and "exists" in r.stderr and "another name" in r.stderr
    with open(path) as f:
        assert f.read() == first
    assert rozo("key", "new", scratch + "/no/k", check=False).returncode == 1


def test_status_and_lists(c):
    s = c.status()
    assert re.fullmatch(r"[0-9a-f]{32}", s["cluster_id"])
    assert [st["up"] for st in s["storages"]] == [True] * 4
    assert len({st["id"] for st in s["storages"]}) == 4
    assert all(0 < st["free_bytes"] <= st["total_bytes"] for st in s["storages"])
    assert [v["name"] for v in s["volumes"]] == ["default"]
    main = [e for e in s["exports"] if e["name"] == "main"]
    assert len(main) == 1 and main[0]["layout"] == 0 and main[0]["codec"] == c.codec
    assert main[0]["clients"] == 1
    assert json.loads(c.admin("storage", "list", "--json").stdout)[0].keys() == s["storages"][0].keys() - {"health"}
    assert json.loads(c.admin("volume", "list", "--json").stdout) == s["volumes"]
    assert json.loads(c.admin("export", "list", "--json").stdout)[0]["name"] == "main"
    for verb in (["status"], ["storage", "list"], ["volume", "list"], ["export", "list"]):
        out = c.admin(*verb).stdout
        assert out and fits(out), out


def test_a_storage_that_is_down_shows(c):
    c.kill("storaged-4")
    try:
        wait_for(lambda: [s["up"] for s in c.status()["storages"]].count(False) == 1,
                 "storaged-4 to be seen down")
        down = [s for s in c.status()["storages"] if not s["up"]][0]
        port = c.addresses("storaged-4")[0][1]
        assert down["addresses"] == ["127.0.0.1:%d" % port]
        assert "DOWN" in c.admin("storage", "list").stdout
    finally:
        c.restart("storaged-4")
        c.wait_all_up()


def test_export_and_volume_create(c, scratch):
    made = json.loads(c.admin("export", "create", "second", "--block-bytes", 4096, "--json").stdout)
    assert made["inline_max"] == 0
    assert made["name"] == "second" and made["block_bytes"] == 4096 and made["layout"] == 0
    r = c.admin("export", "create", "second", "--layout", 1, check=False)
    assert r.returncode == 1 and r.stderr
    r = c.admin("export", "create", "third", "--layout", 2, check=False)
    assert r.returncode == 1 and "storages" in r.stderr
    r = c.admin("export", "create", "third", "--codec", "nonsense", check=False)
    assert r.returncode == 1 and "nonsense" in r.stderr
    c.admin("volume", "create", "extra")
    assert [v["name"] for v in c.status()["volumes"]] == ["default", "extra"]
    r = c.admin("export", "create", "on-extra", "--volume", "extra", check=False)
    assert r.returncode == 1
    assert {e["name"] for e in c.status()["exports"]} == {"main", "second"}


def test_storage_add_again_is_harmless_and_dead_address_is_named(c):
    port = c.addresses("storaged-1")[0][1]
    again = json.loads(c.admin("storage", "add", "127.0.0.1:%d" % port, "--volume", "default",
                               "--json").stdout)
    assert again["id"] in [s["id"] for s in c.status()["storages"]]
    assert len(c.status()["storages"]) == 4
    r = c.admin("storage", "add", "127.0.0.1:1", "--volume", "default", check=False)
    assert r.returncode == 1 and "127.0.0.1:1" in r.stderr


def test_mount_verb(c, scratch):
    if cannot_mount():
        pytest.skip("mounting needs root and /dev/fuse: " + cannot_mount())
    mnt = scratch + "/m"
    os.mkdir(mnt)
    c.admin("mount", "main", mnt)
    try:
        with open(mnt + "/by-verb", "w") as f:
            f.write("hello")
        with open(c.mnt + "/by-verb") as f:
            assert f.read() == "hello"
    finally:
        subprocess.run(["umount", mnt], check=True)
    r = c.admin("mount", "no-such-export", mnt, check=False)
    assert r.returncode != 0 and "no-such-export" in r.stderr


def test_mount_helper_of_fstab(c, scratch):
    """mount -t fuse.rozomount works, as for a line of /etc/fstab."""
    if cannot_mount():
        pytest.skip("mounting needs root and /dev/fuse: " + cannot_mount())
    mnt, fstab = scratch + "/m", scratch + "/fstab"
    os.mkdir(mnt)
    with open(fstab, "w") as f:
        f.write("%s/main %s fuse.rozomount _netdev,key=%s/etc/client.key 0 0\n" %
                (c.dev_status()["exportd"], mnt, c.dir))
    # mount(8) gives its helpers no PATH: rozomount is found where cmake --install puts it.
    with installed("/usr/local/bin/rozomount", os.path.join(BIN, "rozomount")):
        r = subprocess.run(["mount", "--fstab", fstab, mnt], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=60)
    assert r.returncode == 0, r.stdout
    try:
        assert os.path.ismount(mnt)
        with open(mnt + "/by-fstab", "w") as f:
            f.write("x")
    finally:
        subprocess.run(["umount", mnt], check=True)


def flags_of(mnt):
    """Returns the flags of the mount and of its file system from the kernel's list; None if nothing is
    mounted."""
    flags = None
    with open("/proc/self/mountinfo") as f:
        for line in f:
            left, right = line.split(" - ")
            if left.split()[4] == mnt:
                flags = set(left.split()[5].split(",")), set(right.split()[2].split(","))
    return flags


def id_as_nobody(program):
    """Returns the effective user of a set-id program run by nobody, started in its folder: its parents may be
    closed to others."""
    folder, name = os.path.split(program)
    r = subprocess.run(["./" + name, "-u"], cwd=folder, user=65534, group=65534, extra_groups=[],
                       stdout=subprocess.PIPE, text=True)
    return int(r.stdout)


@contextlib.contextmanager
def fstab_mount(c, scratch, options):
    """Mounts by a line of fstab with these options; yields the mount point, and a function for more calls of
    mount(8)."""
    if cannot_mount():
        pytest.skip("mounting needs root and /dev/fuse: " + cannot_mount())
    mnt, fstab = scratch + "/m", scratch + "/fstab"
    os.chmod(scratch, 0o755)
    os.mkdir(mnt)
    with open(fstab, "w") as f:
        f.write("%s/main %s fuse.rozomount _netdev,key=%s/etc/client.key,%s 0 0\n" %
                (c.dev_status()["exportd"], mnt, c.dir, options))

    def mount(*args):
        return subprocess.run(["mount", "--fstab", fstab, *args, mnt], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=60)

    with installed("/usr/local/bin/rozomount", os.path.join(BIN, "rozomount")):
        r = mount()
        assert r.returncode == 0, r.stdout
        try:
            yield mnt, mount
        finally:
            subprocess.run(["umount", mnt], check=True)


def test_flags_of_mount_are_honoured_and_remount_changes_them(c, scratch):
    with fstab_mount(c, scratch, "nosuid,nodev,noatime") as (mnt, mount):
        os.chmod(mnt, 0o755)
        assert {"rw", "nosuid", "nodev", "noatime"} <= flags_of(mnt)[0] and "noexec" not in flags_of(mnt)[0]
        shutil.copy("/usr/bin/id", mnt + "/id")
        os.chmod(mnt + "/id", 0o4755)
        os.mknod(mnt + "/null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        assert id_as_nobody(mnt + "/id") == 65534
        with pytest.raises(PermissionError):
            open(mnt + "/null")
        assert mount("-o", "remount,suid,dev").returncode == 0
        assert not flags_of(mnt)[0] & {"nosuid", "nodev"} and "noatime" in flags_of(mnt)[0]
        assert id_as_nobody(mnt + "/id") == 0
        open(mnt + "/null").close()
        assert mount("-o", "remount,noexec").returncode == 0  # and the options of fstab
        assert {"nosuid", "nodev", "noexec"} <= flags_of(mnt)[0]
        with pytest.raises(PermissionError):
            subprocess.run([mnt + "/id"])
        os.unlink(mnt + "/id")
        os.unlink(mnt + "/null")


@pytest.mark.parametrize("first", ["rw", "ro"])
def test_remount_ro_and_rw(c, scratch, first):
    with fstab_mount(c, scratch, first) as (mnt, mount):
        def is_read_only():
            try:
                os.mkdir(mnt + "/d")
            except OSError as e:
                assert e.errno == errno.EROFS
                assert "ro" in flags_of(mnt)[0] | flags_of(mnt)[1]
                return True
            os.rmdir(mnt + "/d")
            return False

        assert is_read_only() == (first == "ro")
        assert mount("-o", "remount,rw").returncode == 0
        assert not is_read_only()
        with open(mnt + "/f", "wb") as f:
            f.write(b"x" * 100000)
            r = mount("-o", "remount,ro")
            assert r.returncode != 0 and "open for writing" in r.stdout
            assert not is_read_only()
        assert mount("-o", "remount,ro").returncode == 0
        assert is_read_only()
        with open(mnt + "/f", "rb") as f:
            assert f.read() == b"x" * 100000
        with pytest.raises(OSError):
            open(mnt + "/f", "ab")
        # Without a line in fstab, mount(8) uses the kernel's list.
        os.truncate(scratch + "/fstab", 0)
        r = mount("-o", "remount,rw,nosuid")
        assert r.returncode == 0, r.stdout
        assert not is_read_only() and "nosuid" in flags_of(mnt)[0]
        os.unlink(mnt + "/f")


def test_mount_of_fstab_replaces_a_dead_mount(c, scratch):
    with fstab_mount(c, scratch, "pid_file=%s/pid" % scratch) as (mnt, mount):
        with open(scratch + "/pid") as f:
            pid = int(f.read())
        assert mount().returncode != 0  # the mount lives
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not process_runs(pid), "the mount to be gone")
        r = mount()
        assert r.returncode == 0, r.stdout
        assert len(os.listdir(mnt)) == len(os.listdir(c.mnt))
        with open("/proc/self/mountinfo") as f:
            assert sum(line.split()[4] == mnt for line in f) == 1


def test_remount_wants_a_mount_of_ours(c, scratch):
    r = subprocess.run([os.path.join(BIN, "rozomount"), c.dev_status()["exportd"] + "/main", scratch,
                        "-o", "remount,ro"],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert r.returncode == 1 and "has no rozo export mounted" in r.stdout


def test_locate(c):
    path = c.mnt + "/located"
    with open(path, "wb") as f:
        f.write(os.urandom(1 << 20))
        os.fsync(f.fileno())
    where = c.locate(path)
    assert (where["layout"], where["k"], where["n"]) == (0, 2, 3)
    assert where["size"] == 1 << 20 and where["export"] == "main" and where["codec"] == c.codec
    assert where["ino"] == os.stat(path).st_ino
    assert len(where["storages"]) == 4 and all(s["reachable"] for s in where["storages"])
    assert [s["role"] for s in where["storages"]].count("home") == 3
    held = sorted(p for s in where["storages"] for p in s["projections"])
    assert held == [0, 1, 2]
    out = rozo("locate", path).stdout
    assert "any 2 of 3" in out and "home" in out and "NO" not in out
    assert json.loads(rozo("locate", "--json", path, path).stdout)[1]["file"] == path
    gone = [s for s in where["storages"] if s["projections"]][0]
    name = [n for n in c.names("storaged") if
            "127.0.0.1:%d" % c.addresses(n)[0][1] in gone["addresses"]][0]
    c.kill(name)
    try:
        wait_for(lambda: [s["id"] for s in c.locate(path)["storages"] if not s["reachable"]] == [gone["id"]],
                 "the killed storage to be unreachable")
    finally:
        c.restart(name)
        c.wait_all_up()


def test_locate_of_a_name_that_is_no_text(c):
    path = os.fsencode(c.mnt) + b"/\xff"
    with open(path, "wb") as f:
        f.write(b"x")
    r = subprocess.run([os.path.join(BIN, "rozo"), b"locate", b"--json", path], capture_output=True, check=True)
    assert json.loads(r.stdout)["file"] == c.mnt + "/\\xff"


def test_locate_of_other_things(c, scratch):
    for path in ("/etc/passwd", c.mnt, "/nowhere"):
        r = rozo("locate", path, check=False)
        assert r.returncode == 1 and path in r.stderr and not r.stdout


def test_errors_go_to_a_full_disk_too(c):
    with open("/dev/full", "w") as full:
        r = subprocess.run([os.path.join(BIN, "rozo"), "status", "--config", c.dir + "/etc/rozo.yaml"],
                           stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert r.returncode == 1 and "standard output" in r.stderr
