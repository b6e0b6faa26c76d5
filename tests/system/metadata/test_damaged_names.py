"""`rozo fsck` finds names that do not fit their index, their place or their inode, says them by path, and repairs what
other keys prove. The keys are damaged in a dump of the metadata, which is then loaded."""
import errno
import json
import os
import struct
import subprocess

import pytest

from conftest import BIN, cannot_mount
from dumps import dump_read, dump_write, ino_key
from mounts import end, mount

pytestmark = pytest.mark.skipif(cannot_mount() is not None, reason="mounting: %s" % cannot_mount())

EXPORT = "fold"
ASK = b"glusterfs.get_real_filename:"


def fsck(c, *options):
    r = c.admin("fsck", "--json", *options, check=False)
    return r.returncode, json.loads(r.stdout)


def load(c, path):
    """Replaces the metadata by those of the dump."""
    config = os.path.join(c.dir, "etc", "exportd.yaml")
    c.kill("exportd")
    os.rename(c.data("exportd"), os.path.join(c.base, "before"))
    r = subprocess.run([os.path.join(BIN, "exportd"), "--config", config, "--load", path], stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert r.returncode == 0, r.stdout
    c.restart("exportd")


def told(found):
    """Returns (kind, path of the directory, name, was repaired) of each fault."""
    return sorted((f["kind"], f["dir_path"], f["name"], f["repaired"]) for f in found["names_wrong"])


def test_damaged_names_are_told_and_repaired(cluster):
    c = cluster(layout=0, mounts=0)
    number = json.loads(c.admin("export", "create", EXPORT, "--names", "fold", "--json").stdout)["id"]
    mnt, dump = os.path.join(c.base, "fold"), os.path.join(c.base, "dump")
    process = mount(c, mnt, export=EXPORT)
    assert process.poll() is None, end(process)
    os.makedirs(mnt + "/Scene 1/takes")
    os.mkdir(mnt + "/Scene 2")
    folder = os.stat(mnt + "/Scene 1").st_ino
    for path in ("Scene 1/Clip.mov", "Scene 1/Other.mov", "Scene 2/Lost.mov"):
        with open(os.path.join(mnt, path), "wb") as f:
            f.write(path[8:].encode() * 10000)
    lost = os.stat(mnt + "/Scene 2/Lost.mov").st_ino
    process.terminate()
    end(process)
    assert fsck(c)[0] == 0 and fsck(c)[1]["names"] >= 5
    c.admin("meta", "dump", dump)
    head, items = dump_read(dump)

    def dentry(name):
        return ino_key("D", number, folder, name.encode())

    def cookie(name):
        return struct.unpack_from("<Q", items[dentry(name)], 13)[0]

    index = [k for k in items if k.startswith(ino_key("J", number, folder))]
    of_clip = next(k for k in index if k.endswith(struct.pack(">Q", cookie("Clip.mov"))))
    del items[of_clip]                                                     # a name that the index lacks
    items[of_clip[:-8] + struct.pack(">Q", cookie("Other.mov"))] = b""      # and it leads to another inode
    items[ino_key("J", number, folder, struct.pack(">QQ", 5, 999))] = b""   # an entry without a name
    del items[ino_key("O", number, folder, struct.pack(">Q", cookie("Other.mov")))]
    del items[ino_key("I", number, lost)]
    dump_write(dump, head, items)
    load(c, dump)

    status, found = fsck(c)
    assert status == 4 and not found["clean"]
    faults = [("folded_nameless", "Scene 1", "", False), ("folded_nameless", "Scene 1", "", False),
              ("folded_nameless", "Scene 1", "", False), ("name_of_nothing", "Scene 2", "Lost.mov", False),
              ("name_unfolded", "Scene 1", "Clip.mov", False), ("name_unlisted", "Scene 1", "Other.mov", False)]
    assert told(found) == faults
    said = c.admin("fsck", check=False).stdout
    assert "%s: Scene 1/Clip.mov: the index of folded names lacks it" % EXPORT in said
    assert "%s: Scene 2/Lost.mov: its inode is lost (inode %d); not repaired" % (EXPORT, lost) in said
    assert {s["kind"] for s in found["strays"]} == {"named"}
    assert told(fsck(c)[1]) == faults, "fsck without --repair has changed something"

    status, found = fsck(c, "--repair-unknown")
    assert status == 4 and found["removed"] == 0, "data to which a name leads were removed"
    assert told(found) == [("folded_nameless", "Scene 1", "", True), ("folded_other", "Scene 1", "Other.mov", True),
                           ("name_of_nothing", "Scene 2", "Lost.mov", False),
                           ("name_unfolded", "Scene 1", "Clip.mov", True),
                           ("name_unlisted", "Scene 1", "Other.mov", True)]
    c.restart("exportd")
    status, found = fsck(c)
    assert status == 4 and told(found) == [("name_of_nothing", "Scene 2", "Lost.mov", False)]
    process = mount(c, mnt, export=EXPORT)
    assert process.poll() is None, end(process)
    try:
        assert sorted(os.listdir(mnt + "/Scene 1")) == ["Clip.mov", "Other.mov", "takes"]
        for name in ("Clip.mov", "Other.mov"):
            assert os.getxattr(mnt + "/Scene 1", ASK + name.upper().encode()) == name.encode() + b"\0"
            with open("%s/Scene 1/%s" % (mnt, name), "rb") as f:
                assert f.read() == name.encode() * 10000
        with pytest.raises(OSError) as e:
            os.stat(mnt + "/Scene 2/Lost.mov")
        assert e.value.errno == errno.EIO
    finally:
        process.terminate()
        end(process)
