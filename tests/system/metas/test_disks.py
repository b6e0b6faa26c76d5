"""Disks of members that fail: each fault costs at most the member, never what was acknowledged.

The table of faults in docs/internals/metadata-quorum.md says which test is which fault.
"""
import contextlib
import errno
import json
import os
import shutil
import signal
import struct
import subprocess

import pytest

from conftest import process_runs, wait_for
from daemons import Daemon
from files import disk_of

NAMES = ["exportd-1", "exportd-2", "exportd-3"]

LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Returns whether this process has the fault: the test makes a file FAULTS_IN/FAULT-PID. */
static int has(const char *fault)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/%s-%d", getenv("FAULTS_IN"), fault, (int)getpid());
    return access(path, F_OK) == 0;
}

int fdatasync(int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    char link[64], path[512] = "";

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof(path) - 1) > 0 && strstr(path, "/quorum/") != NULL && has("eio")) {
        errno = EIO;
        return -1;
    }
    return real(fd);
}

static void shrink(struct statvfs *st)
{
    if (has("full"))
        st->f_bavail = (1 << 20) / st->f_frsize;
}

int statvfs(const char *path, struct statvfs *st)
{
    int (*real)(const char *, struct statvfs *) = (int (*)(const char *, struct statvfs *))dlsym(RTLD_NEXT, "statvfs");
    int rc = real(path, st);

    if (rc == 0)
        shrink(st);
    return rc;
}

int fstatvfs(int fd, struct statvfs *st)
{
    int (*real)(int, struct statvfs *) = (int (*)(int, struct statvfs *))dlsym(RTLD_NEXT, "fstatvfs");
    int rc = real(fd, st);

    if (rc == 0)
        shrink(st);
    return rc;
}
"""


@pytest.fixture
def faults(scratch, monkeypatch):
    """Lets daemons that start from now on have faults; returns the folder of the files that say which."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = os.path.join(scratch, "faults")
    os.mkdir(folder)
    with open(folder + "/faults.c", "w") as f:
        f.write(LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder + "/faults.so", folder + "/faults.c", "-ldl"], check=True)
    monkeypatch.setenv("FAULTS_IN", folder)
    monkeypatch.setenv("ASAN_OPTIONS", os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0")
    monkeypatch.setenv("LD_PRELOAD", folder + "/faults.so")
    return folder


def others(name):
    return [n for n in NAMES if n != name]


def number_of(name):
    return NAMES.index(name) + 1


def volumes(c):
    return {v["name"] for v in json.loads(c.admin("volume", "list", "--json").stdout)}


def have_the_same(c):
    """Tells whether all members take part and have applied all entries."""
    m = c.metas()["members"]
    return (all(x["answers"] and not x["seeding"] for x in m) and
            len({x["last"] for x in m} | {x["applied"] for x in m}) == 1)


def store(c, name, number=None):
    """Returns the folder of a member's store, or of its damaged one with this number."""
    return os.path.join(c.data(name), "kv" if number is None else "kv.damaged-%d" % number)


def stored(c, name, kind):
    return sorted(f for f in os.listdir(store(c, name)) if kind in f)


def scribble(path, at, n):
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(b"\xa5" * n)


def damage_at_start(c, name):
    """The store does not open any more."""
    for f in stored(c, name, "MANIFEST"):
        scribble(os.path.join(store(c, name), f), 0, 32)


def largest_table(c, name):
    c.restart(name)  # LevelDB writes its log into a table
    c.kill(name)
    return max((os.path.join(store(c, name), f) for f in stored(c, name, ".ldb")), key=os.path.getsize)


def damage_at_work(c, name):
    """The store opens, and its member starts, but what a leader reads first is damaged."""
    scribble(largest_table(c, name), 8, 32)


def damage_of_the_place(c, name):
    """The store opens, but the member cannot read how far it is complete."""
    largest_table(c, name)
    for f in stored(c, name, ".ldb"):
        scribble(os.path.join(store(c, name), f), 8, 32)


def make_and_lose(c, damage, n=3):
    """Makes volumes, damages the store of a member that is down, makes more. Returns (member, volumes)."""
    for i in range(n):
        c.admin("volume", "create", "before-%02d-%s" % (i, "x" * 50))
    wait_for(lambda: have_the_same(c), "all members to have the same")
    name = others(c.serving())[0]
    c.kill(name)
    damage(c, name)
    for i in range(3):
        c.admin("volume", "create", "away-%d" % i)
    return name, volumes(c)


def leads_with(c, name, made):
    """Lets a member lead, and compares what it has."""
    wait_for(lambda: have_the_same(c), "%s to copy" % name)

    def it_leads():  # a member that has just started may be too far behind for an instant
        c.admin("meta", "transfer", number_of(name), check=False)
        return c.metas()["serving"] == number_of(name)

    wait_for(it_leads, "%s to lead" % name)
    assert volumes(c) == made


def test_a_store_damaged_at_a_start_is_moved_aside(cluster):
    c = cluster(metas=3, mounts=0)
    name, made = make_and_lose(c, damage_at_start)
    damaged = sorted(os.listdir(store(c, name)))
    config = os.path.join(c.dir, "etc", name + ".yaml")
    with open(config) as f:
        text = f.read()
    with open(config, "w") as f:  # members have other addresses than when the quorum began
        for n in others(name):
            assert ":%d" % c.addresses(n)[1][1] in text
            text = text.replace(":%d" % c.addresses(n)[1][1], ":%d" % number_of(n))
        f.write(text)
    c.restart(name)
    leads_with(c, name, made)
    assert sorted(os.listdir(store(c, name, 1))) == damaged  # nothing is removed
    assert "is damaged and is kept as %s" % store(c, name, 1) in c.log(name)
    assert "the metadata store is complete up to entry" in c.log(name)
    c.restart(name)
    leads_with(c, name, made)
    assert not os.path.exists(store(c, name, 2))


def test_a_store_found_damaged_at_work_is_moved_aside(cluster):
    """A leader that cannot read its store ends; another one leads, and the next start copies."""
    c = cluster(metas=3, mounts=0)
    name, made = make_and_lose(c, damage_at_work, 70)  # several blocks of a table
    c.restart(name)
    pid = c.pid(name)
    wait_for(lambda: have_the_same(c), "%s to catch up" % name)

    def it_has_ended():
        c.admin("meta", "transfer", number_of(name), check=False)
        return not process_runs(pid)

    wait_for(it_has_ended, "%s to end" % name)
    assert "the next start moves it aside" in c.log(name)
    assert c.serving() != name and volumes(c) == made
    c.admin("volume", "create", "without-it")
    c.restart(name)
    leads_with(c, name, made | {"without-it"})
    assert os.path.exists(store(c, name, 1))
    assert not os.path.exists(os.path.join(c.data(name), "quorum", "store-damaged"))


def test_a_store_whose_place_is_damaged_is_moved_aside_at_the_next_start(cluster):
    c = cluster(metas=3, mounts=0)
    name, made = make_and_lose(c, damage_of_the_place)
    assert c.up(check=False).returncode != 0
    assert "the next start moves it aside" in c.log(name)
    c.restart(name)
    leads_with(c, name, made)
    assert os.path.exists(store(c, name, 1))


@pytest.mark.parametrize("is_renamed", [False, True])
def test_moving_aside_goes_on_after_a_crash(cluster, is_renamed):
    """The new store is there, under its first name: the damaged one still has its name, or not."""
    c = cluster(metas=3, mounts=0)
    name, made = make_and_lose(c, damage_at_start)
    c.restart(name)
    wait_for(lambda: have_the_same(c), "%s to copy" % name)
    c.kill(name)
    shutil.rmtree(store(c, name, 1))
    if is_renamed:
        os.rename(store(c, name), os.path.join(c.data(name), "kv.new"))
    else:
        shutil.copytree(store(c, name), os.path.join(c.data(name), "kv.new"))
        damage_at_start(c, name)
    c.restart(name)
    leads_with(c, name, made)
    assert not os.path.exists(os.path.join(c.data(name), "kv.new"))


def test_a_store_of_no_member_is_refused(cluster, scratch):
    """A part of a copy is accepted, which its mark shows; a store without a place in the log is not."""
    c = cluster(metas=3, mounts=0)
    wait_for(lambda: have_the_same(c), "all members to have the same")
    name = others(c.serving())[0]
    alone = Daemon(scratch, "exportd")
    with alone.running():
        pass
    c.kill(name)
    os.rename(store(c, name), scratch + "/kept")
    shutil.copytree(os.path.join(alone.data, "kv"), store(c, name))
    assert c.up(check=False).returncode != 0
    assert "is not the store of a member of a quorum" in c.log(name)
    shutil.rmtree(store(c, name))
    os.rename(scratch + "/kept", store(c, name))
    c.restart(name)
    wait_for(lambda: have_the_same(c), "%s to take part" % name)


def test_a_copy_that_waits_survives_restarts_and_names_whom_it_waits_for(cluster):
    c = cluster(metas=3, mounts=0)
    c.admin("volume", "create", "kept")
    wait_for(lambda: have_the_same(c), "all members to have the same")
    name = others(c.serving())[0]
    alive, down = others(name)
    for n in NAMES:
        c.kill(n)
    damage_at_start(c, name)
    c.restart(name)
    c.restart(alive)
    for _ in range(2):
        wait_for(lambda: c.metas()["members"][NAMES.index(name)]["seeding"], "%s to copy" % name)
        c.restart(name)  # a part of a copy, or an empty one
    said = "member %d at %s:%d " % ((number_of(down),) + c.addresses(down)[1])
    wait_for(
        lambda: any(
            "cannot take part again before" in line and said in line for line in c.log(name).splitlines()
        ),
        "%s to name %s" % (name, down),
    )
    c.restart(down)
    leads_with(c, name, {"default", "kept"})


def test_an_error_of_the_log_ends_the_process(cluster, faults):
    c = cluster(metas=3, mounts=0)
    wait_for(lambda: have_the_same(c), "all members to have the same")
    for name in (others(c.serving())[0], c.serving()):
        pid = c.pid(name)
        open("%s/eio-%d" % (faults, pid), "w").close()
        c.admin("volume", "create", "v-" + name, check=False)  # a leader may end before it answers
        wait_for(lambda: not process_runs(pid), "%s to end" % name)
        assert "this member of the quorum cannot go on" in c.log(name)
        assert c.serving() != name
        c.admin("volume", "create", "w-" + name)
        c.restart(name)
        wait_for(lambda: have_the_same(c), "%s to catch up" % name)
        assert "w-" + name in volumes(c)


def image_take(c, name, scratch):
    """Copies the data of a member, which starts again."""
    c.kill(name)
    shutil.copytree(c.data(name), scratch + "/image")
    c.restart(name)


def image_restore(c, name, scratch):
    """Puts the copy in the place of what a member that is down has now."""
    shutil.rmtree(c.data(name))
    shutil.copytree(scratch + "/image", c.data(name))


def remembered(c, n, name):
    """Returns the last entry that a member remembers of another one (docs/FORMATS.md)."""
    with open(c.data(n) + "/quorum/heard", "rb") as f:
        page = f.read()
    rows = struct.iter_unpack("<QQQ", page[24:24 + 24 * struct.unpack_from("<I", page, 20)[0]])
    return max((index for number, _, index in rows if number == NAMES.index(name) + 1), default=0)


def test_an_older_image_of_a_member_gets_what_it_lacks(cluster, scratch):
    """The leader knows that the member had more: it votes for nobody before it has that again."""
    c = cluster(metas=3, mounts=0)
    wait_for(lambda: have_the_same(c), "all members to have the same")
    name = others(c.serving())[0]
    image_take(c, name, scratch)
    for i in range(5):
        c.admin("volume", "create", "v%d" % i)
    made = volumes(c)

    def is_noticed():
        return any("has lost entries that it had" in c.log(n) for n in others(name))

    for _ in range(5):  # one that has just been elected does not know
        wait_for(lambda: have_the_same(c), "all members to have the same")
        c.kill(name)
        image_restore(c, name, scratch)
        c.restart(name)
        wait_for(lambda: is_noticed() or have_the_same(c), "%s to get what it lacks" % name)
        if is_noticed():
            break
    leads_with(c, name, made)
    assert "it has lost its vote, too" in c.log(name)


def test_an_older_image_is_noticed_though_all_were_down(cluster, scratch):
    """No leader knows of it, but the others remember what the member had."""
    c = cluster(metas=3, mounts=0)
    wait_for(lambda: have_the_same(c), "all members to have the same")
    name = others(c.serving())[0]
    image_take(c, name, scratch)

    def is_noticed():
        return "knows that this member had more on its disk" in c.log(name)

    def all_stop():
        pids = [c.pid(n) for n in NAMES]
        for n in NAMES:
            c.kill(n, signal.SIGTERM)
        wait_for(lambda: not any(process_runs(p) for p in pids), "all members to end")

    def others_remember():
        return min(remembered(c, n, name) for n in others(name)) > had

    had = c.metas()["members"][NAMES.index(name)]["last"]
    c.admin("volume", "create", "v")
    wait_for(lambda: have_the_same(c), "all members to have the same")
    made = volumes(c)
    wait_for(others_remember, "the others to note what %s has" % name)  # it says so once a second
    all_stop()
    image_restore(c, name, scratch)
    c.restart(*NAMES)
    wait_for(lambda: is_noticed() or have_the_same(c), "%s to get what it lacks" % name)
    assert is_noticed()
    leads_with(c, name, made)


def test_a_full_disk_of_a_minority_is_felt_by_nobody(cluster, faults):
    """Growth is refused when a majority has no space; removals work; a leader without space hands over."""
    c = cluster(metas=3, mounts=1)
    name = c.serving()
    full = {n: "%s/full-%d" % (faults, c.pid(n)) for n in NAMES}
    open(full[name], "w").close()
    wait_for(lambda: c.metas()["serving"] not in (None, number_of(name)), "another one to serve")
    other = c.serving()
    with open(c.mnt + "/made", "w") as f:
        f.write("x")
    for n in NAMES:
        open(full[n], "w").close()

    def is_refused():
        try:
            os.close(os.open(c.mnt + "/more", os.O_CREAT | os.O_WRONLY))
        except OSError as e:
            return e.errno == errno.ENOSPC
        os.unlink(c.mnt + "/more")
        return False

    wait_for(is_refused, "a file to be refused")
    os.rename(c.mnt + "/made", c.mnt + "/still-made")
    os.unlink(full[name])
    os.unlink(full[other])
    wait_for(lambda: not is_refused(), "files to be made again")
    assert "still-made" in os.listdir(c.mnt)
    for n in NAMES:
        assert process_runs(c.pid(n))


def test_a_member_whose_store_has_no_space_ends_and_comes_back(cluster, scratch):
    c = cluster(metas=3, mounts=1)
    wait_for(lambda: have_the_same(c), "all members to have the same")
    name = others(c.serving())[0]
    disk = disk_of(scratch, 400)  # the log takes 256 MiB when it is made
    c.kill(name)
    shutil.move(c.data(name), disk + "/data")
    os.symlink(disk + "/data", c.data(name))
    c.restart(name)
    wait_for(lambda: have_the_same(c), "%s to have the same" % name)
    pid = c.pid(name)
    with open(disk + "/filler", "wb", buffering=0) as f:
        with contextlib.suppress(OSError):
            while True:
                f.write(bytes(1 << 20))

    def write_until_it_has_ended():
        with contextlib.suppress(OSError):  # it may lead by chance, and refuse growth
            path = "%s/f%d" % (c.mnt, len(os.listdir(c.mnt)))
            open(path, "w").close()
            os.setxattr(path, "user.large", bytes(60000))
        return not process_runs(pid)

    wait_for(write_until_it_has_ended, "%s to end" % name)
    assert "No space left on device; this member of the quorum cannot go on" in c.log(name)
    os.unlink(disk + "/filler")
    c.restart(name)
    wait_for(lambda: have_the_same(c), "%s to catch up" % name)
