"""The verbs of healing on real daemons: a disk is replaced, a storage is given up, what is where is looked through."""
import os
import shutil
import signal
import subprocess
import time

from conftest import ROZO, wait_for


def config(c):
    return os.path.join(c.dir, "etc", "rozo.yaml")


def storage(c, number):
    return [s for s in c.status()["storages"] if s["id"] == number][0]


def id_of(c, name):
    """The number exportd gave to this storage."""
    host, port = c.addresses(name)[0]
    address = "%s:%d" % (host, port)
    return [s["id"] for s in c.status()["storages"] if address in s["addresses"]][0]


def lose_disk(c, name):
    """The storage runs on, with an empty data directory."""
    c.kill(name)
    shutil.rmtree(c.data(name))
    c.up()


def start_by_hand(c, config_path, log_name):
    """A storaged that `rozo dev` does not know of."""
    with open(os.path.join(c.dir, "log", log_name + ".log"), "w") as log:
        p = subprocess.Popen([os.path.join(os.path.dirname(ROZO), "storaged"), "--config", config_path], stderr=log)
    wait_for(lambda: "listening" in c.log(log_name), "%s to listen" % log_name)
    return p


def end(process):
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()


def write_file(path, size):
    data = os.urandom(size)
    with open(path, "wb") as f:
        f.write(data)
        os.fsync(f.fileno())
    return data


def test_a_new_disk_takes_the_place_of_a_lost_one(cluster):
    c = cluster()
    number = id_of(c, "storaged-2")
    data = write_file(c.mnt + "/f", 300000)
    lose_disk(c, "storaged-2")
    wait_for(lambda: not storage(c, number)["up"], "exportd to notice")
    assert "rozo storage replace" in storage(c, number)["error"]
    out = c.admin("storage", "replace", number).stdout
    assert out == "storage %d has its new disk, which is being filled: rozo rebuild status\n" % number
    c.wait_all_up()
    assert len(c.status()["storages"]) == 4
    assert "has its place already" in c.admin("storage", "replace", number).stdout
    c.restart("exportd")  # it is durable
    c.wait_all_up()
    c.remount()
    with open(c.mnt + "/f", "rb") as f:
        assert f.read() == data


def test_a_storage_elsewhere_takes_the_place(cluster):
    c = cluster(storages=5)
    number = id_of(c, "storaged-3")
    # a sixth one, by hand: as storaged-5 but with a data directory and port of its own
    with open(os.path.join(c.dir, "etc", "storaged-5.yaml")) as f:
        text = f.read()
    host, port = c.addresses("storaged-5")[0]
    text = text.replace(c.data("storaged-5"), c.data("new")).replace(":%d" % port, ":%d" % (port + 10))
    path = os.path.join(c.dir, "etc", "new.yaml")
    with open(path, "w") as f:
        f.write(text)
    address = "%s:%d" % (host, port + 10)
    new, late = start_by_hand(c, path, "new"), None
    try:
        r = c.admin("storage", "replace", number, address, check=False)
        assert r.returncode == 1 and "is up: stop that first" in r.stderr
        c.kill("storaged-3")
        wait_for(lambda: not storage(c, number)["up"], "exportd to notice")
        r = c.admin("storage", "replace", number, c.addresses("storaged-1")[0][0] + ":%d" % c.addresses("storaged-1")[0][1],
                    check=False)
        assert r.returncode == 1 and "another storage of this cluster already" in r.stderr
        c.admin("storage", "replace", number, address)
        wait_for(lambda: storage(c, number)["up"] and storage(c, number)["addresses"] == [address], "the new one to be up")
        # the old one is back, with its data of then: too late
        late = start_by_hand(c, os.path.join(c.dir, "etc", "storaged-3.yaml"), "late")
        old = "%s:%d" % c.addresses("storaged-3")[0]
        r = c.admin("storage", "add", old, check=False)
        assert r.returncode == 1 and "its id belongs to another storage" in r.stderr
        new.send_signal(signal.SIGTERM)
        new.wait(timeout=20)
        wait_for(lambda: not storage(c, number)["up"], "exportd to notice")
        r = c.admin("storage", "replace", number, old, check=False)
        assert r.returncode == 1 and "empty data directory" in r.stderr
    finally:
        end(new)
        end(late)


def test_what_replace_refuses(cluster):
    c = cluster(mounts=0)
    other = cluster(mounts=0)
    theirs = "%s:%d" % other.addresses("storaged-1")[0]
    c.kill("storaged-1")
    number = id_of(c, "storaged-1")
    wait_for(lambda: not storage(c, number)["up"], "exportd to notice")
    r = c.admin("storage", "replace", number, theirs, check=False)  # another cluster has another key
    assert r.returncode == 1 and theirs in r.stderr
    r = c.admin("storage", "replace", number, check=False)
    assert r.returncode == 1 and "refused" in r.stderr
    r = c.admin("storage", "replace", 99, check=False)
    assert r.returncode == 1 and "there is no storage 99" in r.stderr
    for wrong in (["x"], [], ["1", "nohost"], ["1", "a:1", "b:2", "--volume", "x"]):
        assert c.admin("storage", "replace", *wrong, check=False).returncode == 2, wrong


def test_a_storage_is_given_up(cluster):
    c = cluster(storages=5)
    number = id_of(c, "storaged-4")
    r = c.admin("storage", "lost", number, check=False)
    assert r.returncode == 1 and "is up at" in r.stderr
    c.kill("storaged-4")
    wait_for(lambda: not storage(c, number)["up"], "exportd to notice")
    assert c.admin("storage", "lost", number).stdout == "storage %d is given up\n" % number
    assert storage(c, number)["lost"]
    assert "LOST" in c.admin("status").stdout
    c.restart("exportd")
    wait_for(lambda: storage(c, number)["lost"], "exportd to know it still")
    c.up()
    wait_for(lambda: storage(c, number)["up"] and not storage(c, number)["lost"], "it to be back")


def test_watching_ends_with_an_interrupt(cluster):
    """A hung storage makes it wait; ^C ends it within a moment, and it says nothing wrong."""
    c = cluster(mounts=0)
    c.kill("storaged-1", signal.SIGSTOP)
    p = subprocess.Popen([ROZO, "rebuild", "status", "--watch", "--config", config(c)], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    time.sleep(0.7)
    start = time.monotonic()
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=20)
    c.kill("storaged-1", signal.SIGCONT)
    assert time.monotonic() - start < 3
    assert "Assertion" not in err


def test_fsck_needs_exportd(cluster):
    c = cluster(mounts=0)
    c.kill("exportd")
    for verb in (["fsck"], ["rebuild", "status"], ["scrub", "start"], ["storage", "lost", "1"]):
        r = c.admin(*verb, check=False)
        assert r.returncode == 1 and "exportd" in r.stderr, verb
