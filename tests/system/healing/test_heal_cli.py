"""The verbs of healing on real daemons: replacement of a disk, loss of a storage, fsck, scrub and status."""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import termios
import threading
import time

from conftest import ROZO, lose_disk, process_runs, slow_healing, wait_for
from daemons import start_by_hand


def config(c):
    return os.path.join(c.dir, "etc", "rozo.yaml")


def storage(c, number):
    return [s for s in c.status()["storages"] if s["id"] == number][0]


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
    number = c.number_of("storaged-2")
    data = write_file(c.mnt + "/f", 300000)
    lose_disk(c, "storaged-2")
    wait_for(lambda: "rozo storage replace" in storage(c, number)["error"], "exportd to notice")
    out = c.admin("storage", "replace", number).stdout
    assert out == "storage %d has its new disk, which is being filled: rozo rebuild status\n" % number
    c.wait_all_up()
    assert len(c.status()["storages"]) == 4
    assert "has its place already" in c.admin("storage", "replace", number).stdout
    c.restart("exportd")  # the state is durable
    c.wait_all_up()
    c.remount()
    with open(c.mnt + "/f", "rb") as f:
        assert f.read() == data


def test_a_disk_that_was_replaced_is_used_by_nobody(cluster):
    """The replaced disk returns at the same address with its id and its data: no byte is written to it or
    read from it."""
    c = cluster()
    number = c.number_of("storaged-2")
    names = [c.mnt + "/f%d" % i for i in range(8)]
    for name in names:
        write_file(name, 100000)
    c.kill("storaged-2")
    os.rename(c.data("storaged-2"), c.data("old"))
    c.up()
    wait_for(lambda: "rozo storage replace" in storage(c, number)["error"], "exportd to notice")
    c.admin("storage", "replace", number)
    c.wait_all_up()
    c.remount()  # a mount asks for a new map every third of its lease: this one has it
    c.kill("storaged-2")
    os.rename(c.data("storaged-2"), c.data("new"))
    os.rename(c.data("old"), c.data("storaged-2"))
    c.up()
    wait_for(lambda: "another data directory" in storage(c, number)["error"], "exportd to notice")

    def projections():
        paths = [os.path.join(d, n)
                 for d, _, found in os.walk(os.path.join(c.data("storaged-2"), "objects")) for n in found]
        return sorted((path, os.stat(path).st_mtime_ns, os.stat(path).st_size) for path in paths)

    before = projections()
    assert before
    data = [write_file(name, 150000) for name in names]
    assert projections() == before
    c.kill("storaged-2")
    os.rename(c.data("storaged-2"), c.data("old"))
    os.rename(c.data("new"), c.data("storaged-2"))
    c.up()
    c.wait_all_up()
    c.remount()
    for name, bytes_of in zip(names, data):
        with open(name, "rb") as f:
            assert f.read() == bytes_of


def test_a_storage_elsewhere_takes_the_place(cluster):
    c = cluster(storages=5)
    number = c.number_of("storaged-3")
    # a sixth storage, started by hand: like storaged-5 but with its own data directory and port
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
        assert r.returncode == 1 and "is up: stop that one first" in r.stderr
        c.kill("storaged-3")
        wait_for(lambda: not storage(c, number)["up"], "exportd to notice")
        r = c.admin("storage", "replace", number,
                    c.addresses("storaged-1")[0][0] + ":%d" % c.addresses("storaged-1")[0][1], check=False)
        assert r.returncode == 1 and "another storage of this cluster already" in r.stderr
        c.admin("storage", "replace", number, address)
        wait_for(lambda: storage(c, number)["up"] and storage(c, number)["addresses"] == [address],
                 "the new one to be up")
        # the old storage returns, with its old data: too late
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


def test_refusals_of_storage_replace(cluster):
    c = cluster(mounts=0)
    other = cluster(mounts=0)
    theirs = "%s:%d" % other.addresses("storaged-1")[0]
    c.kill("storaged-1")
    number = c.number_of("storaged-1")
    wait_for(lambda: not storage(c, number)["up"], "exportd to notice")
    r = c.admin("storage", "replace", number, theirs, check=False)  # another cluster has another key
    assert r.returncode == 1 and theirs in r.stderr
    r = c.admin("storage", "replace", number, check=False)
    assert r.returncode == 1 and "refused" in r.stderr
    r = c.admin("storage", "replace", 99, check=False)
    assert r.returncode == 1 and "there is no storage 99" in r.stderr
    for wrong in (["x"], [], ["1", "nohost"], ["1", "a:1", "b:2", "--volume", "x"]):
        assert c.admin("storage", "replace", *wrong, check=False).returncode == 2, wrong


def test_storage_is_declared_lost_and_is_up_again(cluster):
    c = cluster(storages=5)
    number = c.number_of("storaged-4")
    r = c.admin("storage", "lost", number, check=False)
    assert r.returncode == 1 and "is up at" in r.stderr
    on_it, n = {}, 0  # inode -> does it have that storage; both occur
    while set(on_it.values()) != {True, False}:
        n += 1
        path = "%s/f%d" % (c.mnt, n)
        with open(path, "w") as f:
            f.write("x")
        on_it[os.stat(path).st_ino] = number in [s["id"] for s in c.locate(path)["storages"]]
    assert fsck(c)[1]["few_candidates"] == []
    c.kill("storaged-4")
    wait_for(lambda: not storage(c, number)["up"], "exportd to notice")
    assert c.admin("storage", "lost", number).stdout == "storage %d is marked as lost\n" % number
    assert storage(c, number)["lost"]
    assert "LOST" in c.admin("status").stdout
    few = fsck(c)[1]["few_candidates"]
    assert {f["ino"]: f["candidates"] for f in few} == {ino: 3 for ino, on in on_it.items() if on}
    assert "than their layout wants: %d\n" % len(few) in c.admin("fsck", check=False).stdout
    c.restart("exportd")
    wait_for(lambda: storage(c, number)["lost"], "exportd to know it still")
    c.up()
    wait_for(lambda: storage(c, number)["up"] and not storage(c, number)["lost"], "it to be back")


def test_watching_ends_with_an_interrupt(cluster):
    """A hung storage delays the report; ^C ends it within a moment, without an error message."""
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


class Terminal:
    """A command on a terminal 80 columns wide; `text` is all of its output so far."""

    def __init__(self, c, *args):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen([ROZO, *args, "--config", config(c)], stdin=theirs, stdout=theirs,
                                        stderr=theirs, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))  # ^C reaches it
        os.close(theirs)
        self.fd, self.text = ours, ""

    def reads(self, pattern):
        """Tells whether this has been printed."""
        while select.select([self.fd], [], [], 0.05)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # the terminal was closed
                break
            if not data:
                break
            self.text += data.decode()
        return re.search(pattern, self.text, re.M)

    def close(self):
        end(self.process)
        os.close(self.fd)


def test_a_rebuild_is_watched_on_a_terminal_and_as_json(cluster):
    c = cluster()
    for i in range(64):
        write_file(c.mnt + "/f%d" % i, 1 << 20)
    number = c.number_of("storaged-2")
    slow_healing(c, "storaged-2", 1)
    lose_disk(c, "storaged-2")
    wait_for(lambda: "rozo storage replace" in storage(c, number)["error"], "exportd to notice")
    assert c.admin("rebuild", "rate", "1", check=False).returncode == 1  # one storage cannot be reached
    c.admin("storage", "replace", number)
    wait_for(lambda: c.admin("rebuild", "rate", "1", "--storage", number), "it to take the limit")
    watched, left = Terminal(c, "rebuild", "status", "--watch"), Terminal(c, "rebuild", "status", "--watch")
    try:
        row = r"^ *%d +\[=*-*\] +\d+%%.* \d+/\d+ .*/s +(\d+ ?[a-z]+[ \d a-z]*|-)" % number
        wait_for(lambda: watched.reads(row), "a bar")
        wait_for(lambda: watched.reads(r"=.*\] +[1-9]\d?%.*/s +\d"), "it to grow, and the time that is left")
        wait_for(lambda: left.reads(row), "a bar")
        # ^C ends the one, as a terminal sends it
        os.write(left.fd, b"\x03")
        wait_for(lambda: left.process.poll() is not None, "^C to end it", timeout=3)
        told = c.health_of(number)["rebuild"]
        assert told["state"] == "running"
        assert told["files"] >= told["files_done"] and told["bytes"] >= told["bytes_done"]
        assert told["seconds"] >= 0 and (told["left_s"] is None or told["left_s"] >= 0)
        assert re.search(r"running +\d+%", c.admin("rebuild", "status").stdout)  # no progress bar for a script
        c.admin("rebuild", "rate", "off")
        wait_for(lambda: watched.process.poll() is not None, "the other to see the end", timeout=60)
        assert watched.process.returncode == 0 and watched.reads(r"^ *%d +done" % number)
    finally:
        watched.close()
        left.close()
    for text in (watched.text, left.text):
        drawn = re.sub("\033\\[[HJK]", "", text)
        assert "Assertion" not in drawn
        rows = [line for line in re.split("[\r\n]", drawn) if not line.startswith("storage ")]  # these are sentences
        assert all(len(row) <= 80 for row in rows), drawn
    assert rebuild_state(c, number) == "done"


def test_fsck_needs_exportd(cluster):
    c = cluster(mounts=0)
    c.kill("exportd")
    for verb in (["fsck"], ["rebuild", "status"], ["scrub", "start"], ["storage", "lost", "1"]):
        r = c.admin(*verb, check=False)
        assert r.returncode == 1 and "exportd" in r.stderr, verb


# ---- with storages that heal ----

def projections(c, name):
    """Returns {path below the data directory: size} of a storage's projection files."""
    found = {}
    for folder, _, names in os.walk(os.path.join(c.data(name), "objects")):
        for n in names:
            path = os.path.join(folder, n)
            if n.rsplit(".", 1)[-1].isdigit():
                found[os.path.relpath(path, c.data(name))] = os.path.getsize(path)
    return found


def rebuild_state(c, number):
    s = json.loads(c.admin("rebuild", "status", "--storage", number, "--json").stdout)["storages"][0]
    return s["health"]["rebuild"]["state"]


def fsck(c, *options):
    r = c.admin("fsck", "--json", *options, check=False)
    return r.returncode, json.loads(r.stdout)


def restart_with(c, name, change):
    """Stops a storage cleanly, changes its directory, and starts it again."""
    pid = c.pid(name)
    c.kill(name, signal.SIGTERM)
    wait_for(lambda: not process_runs(pid), name + " to be gone")
    change()
    c.up()
    c.wait_all_up()


def test_a_replaced_disk_is_rebuilt(cluster):
    c = cluster()
    data = {}
    os.mkdir(c.mnt + "/dir")
    for i in range(20):
        path = c.mnt + "/dir/f%d" % i
        data[path] = write_file(path, 1000 + 30000 * i)
    number = c.number_of("storaged-2")
    had = len(projections(c, "storaged-2"))
    lose_disk(c, "storaged-2")
    wait_for(lambda: not storage(c, number)["up"], "exportd to notice")
    c.admin("storage", "replace", number)
    wait_for(lambda: rebuild_state(c, number) == "done", "the rebuild", timeout=60)
    assert len(projections(c, "storaged-2")) >= had * 3 // 4  # copies on a spare are not rebuilt
    wait_for(lambda: fsck(c)[0] == 0, "fsck to be content")
    c.kill("storaged-1")  # the peer that it was rebuilt for
    c.remount()
    for path, want in data.items():
        with open(path, "rb") as f:
            assert f.read() == want, path


def test_spares_are_filled_for_a_lost_storage(cluster):
    c = cluster()
    data = {}
    for i in range(10):
        data[c.mnt + "/f%d" % i] = write_file(c.mnt + "/f%d" % i, 1000 + 30000 * i)
    number = c.number_of("storaged-1")
    others = ["storaged-2", "storaged-3", "storaged-4"]
    numbers = [c.number_of(n) for n in others]
    c.kill("storaged-1")
    wait_for(lambda: not storage(c, number)["up"], "exportd to notice")
    c.admin("storage", "lost", number)

    def there():
        return {os.path.basename(p) for n in others for p in projections(c, n)}  # FILE.PROJECTION
    wait_for(lambda: len(there()) == 3 * len(data), "the spares to have them", timeout=60)
    wait_for(lambda: all(rebuild_state(c, n) != "running" for n in numbers), "the rebuilds to end", timeout=60)
    assert fsck(c)[0] == 0
    c.kill("storaged-2")  # a second loss, which files would not survive otherwise
    c.remount()
    for path, want in data.items():
        with open(path, "rb") as f:
            assert f.read() == want, path


def test_fsck_finds_a_missing_projection_and_has_it_repaired(cluster):
    c = cluster()
    data = write_file(c.mnt + "/kept", 100000)
    name, other = [n for n in c.names("storaged") if projections(c, n)][:2]
    number, gone = c.number_of(name), sorted(projections(c, name))[0]
    assert fsck(c)[0] == 0
    restart_with(c, name, lambda: os.unlink(os.path.join(c.data(name), gone)))
    status, found = fsck(c)
    assert status == 4 and len(found["lacking"]) == 1
    assert found["lacking"][0]["path"] == "kept" and found["lacking"][0]["missing_on"] == [number]
    assert not found["lacking"][0]["unreadable"]
    out = c.admin("fsck", check=False)
    assert out.returncode == 4 and "missing on storage %d" % number in out.stdout
    assert fsck(c, "--repair")[1]["being_healed"] == 1
    wait_for(lambda: fsck(c)[0] == 0, "it to be made again")
    assert gone in projections(c, name)
    c.kill(other)
    c.remount()
    with open(c.mnt + "/kept", "rb") as f:
        assert f.read() == data


def test_fsck_removes_strays_with_repair_only(cluster):
    c = cluster()
    write_file(c.mnt + "/f", 50000)
    name = next(n for n in c.names("storaged") if projections(c, n))
    left = sorted(projections(c, name))[0]
    saved = os.path.join(c.base, "saved")
    shutil.copyfile(os.path.join(c.data(name), left), saved)
    os.unlink(c.mnt + "/f")
    wait_for(lambda: not projections(c, name), "the file to be removed everywhere", timeout=60)

    def put_back():
        os.makedirs(os.path.dirname(os.path.join(c.data(name), left)), exist_ok=True)
        shutil.copyfile(saved, os.path.join(c.data(name), left))
    restart_with(c, name, put_back)
    status, found = fsck(c)
    assert status == 4 and [s["kind"] for s in found["strays"]] == ["orphan"]
    assert left in projections(c, name)  # only read, not removed
    assert fsck(c, "--repair")[1]["removed"] == 1
    assert left not in projections(c, name)
    assert fsck(c)[0] == 0


def test_strays_are_removed_without_a_command(cluster):
    """Files of a deleted inode at storages are removed with it; exportd finds those that a power loss brings
    back."""
    c = cluster()
    c.configure(strays_s=1)
    c.wait_all_up()
    fd = os.open(c.mnt + "/cut", os.O_CREAT | os.O_RDWR)
    os.ftruncate(fd, 1234567)
    os.ftruncate(fd, 567)
    os.close(fd)
    fd = os.open(c.mnt + "/reserved", os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(fd, 0, 100000)
    os.close(fd)
    write_file(c.mnt + "/f", 50000)
    os.sync()
    name = next(n for n in c.names("storaged") if projections(c, n))
    saved = os.path.join(c.base, "saved")
    shutil.copytree(os.path.join(c.data(name), "objects"), saved)
    for f in ("cut", "reserved", "f"):
        os.unlink(c.mnt + "/" + f)
    wait_for(lambda: not any(projections(c, n) for n in c.names("storaged")), "all to be removed", timeout=60)
    restart_with(c, name, lambda: shutil.copytree(saved, os.path.join(c.data(name), "objects"), dirs_exist_ok=True))
    wait_for(lambda: not projections(c, name), "exportd to find them", timeout=60)
    assert fsck(c)[0] == 0


def test_files_newer_than_a_restored_backup_are_kept(cluster):
    c = cluster()
    write_file(c.mnt + "/old", 50000)
    saved = os.path.join(c.base, "backup")

    def stop(name):
        pid = c.pid(name)
        c.kill(name, signal.SIGTERM)
        wait_for(lambda: not process_runs(pid), name + " to be gone")
    stop("exportd")
    shutil.copytree(c.data("exportd"), saved)
    c.up()
    c.wait_all_up()
    write_file(c.mnt + "/new", 50000)
    stop("mount-1")
    stop("exportd")
    shutil.rmtree(c.data("exportd"))
    shutil.copytree(saved, c.data("exportd"))
    c.up()
    c.wait_all_up()
    assert os.listdir(c.mnt) == ["old"]
    status, found = fsck(c, "--repair")
    assert status == 4 and len(found["strays"]) == 3 and {s["kind"] for s in found["strays"]} == {"unknown"}
    assert found["removed"] == 0
    assert fsck(c, "--repair-unknown")[1]["removed"] == 3
    assert fsck(c)[0] == 0


class Held:
    """A proxy to exportd that can hold requests back after the first answers."""

    def __init__(self, target, free_bytes):
        self.free_bytes, self.held, self.go = free_bytes, threading.Event(), threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.target = target
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.n_answered = 0
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            client = self.listener.accept()[0]
            server = socket.create_connection(self.target)
            threading.Thread(target=self.pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self.pump, args=(server, client, False), daemon=True).start()

    def pump(self, source, to, asks):
        while True:
            data = source.recv(65536)
            if not data:
                break
            if asks and self.n_answered > self.free_bytes:
                self.held.set()
                self.go.wait(60)
            if not asks:
                self.n_answered += len(data)
            to.sendall(data)
        to.close()


def test_an_export_made_meanwhile_is_not_unknown(cluster):
    """fsck knows the exports; then a new one is created and gets files, which storages report to fsck."""
    c = cluster()
    held = Held(c.addresses("exportd")[0], 400)
    p = subprocess.Popen([ROZO, "fsck", "--json", "--repair-unknown", "--exportd", held.address, "--config", config(c)],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    mnt = os.path.join(c.base, "second")
    os.mkdir(mnt)
    try:
        assert held.held.wait(20)
        c.admin("export", "create", "second")
        subprocess.run([ROZO, "mount", "second", mnt, "--config", config(c)], check=True, timeout=60)
        write_file(mnt + "/f", 50000)
        held.go.set()
        out, err = p.communicate(timeout=60)
    finally:
        end(p)
        subprocess.run(["umount", mnt], check=False, stderr=subprocess.DEVNULL)
    assert p.returncode == 0 and json.loads(out)["removed"] == 0, out + err
    assert fsck(c)[0] == 0


def test_scrub_finds_and_heals_a_flipped_bit(cluster):
    c = cluster()
    data = write_file(c.mnt + "/f", 500000)
    name = next(n for n in c.names("storaged") if projections(c, n))
    number = c.number_of(name)
    path = os.path.join(c.data(name), sorted(projections(c, name))[0])

    def flip():
        with open(path, "r+b") as f:
            f.seek(-1000, os.SEEK_END)
            byte = f.read(1)
            f.seek(-1000, os.SEEK_END)
            f.write(bytes([byte[0] ^ 1]))
    restart_with(c, name, flip)

    def scrub():
        c.admin("scrub", "start")

        def done():
            answers = json.loads(c.admin("scrub", "status", "--json").stdout)["storages"]
            return all(s["health"]["scrub"]["state"] in ("done", "incomplete") for s in answers)
        wait_for(done, "the scrubs to end", timeout=60)
        return {s["id"]: s["health"]["scrub"]
                for s in json.loads(c.admin("scrub", "status", "--json").stdout)["storages"]}
    def heals_it():
        found = scrub()[number]
        return found["found"] >= 1 and found["healed"] == found["found"] and found["findings"]
    wait_for(heals_it, "the bit to be found", timeout=60)  # not while better informed storages are still connecting
    assert all(s["found"] == 0 for s in scrub().values())
    c.remount()
    with open(c.mnt + "/f", "rb") as f:
        assert f.read() == data


def test_status_shows_missed_writes_until_they_are_healed(cluster):
    c = cluster()
    for i in range(8):
        write_file(c.mnt + "/f%d" % i, 100000)
    c.kill("storaged-2")
    wait_for(lambda: not all(s["up"] for s in c.status()["storages"]), "exportd to notice")
    for i in range(8):
        write_file(c.mnt + "/f%d" % i, 150000)
    missed = sum(s["health"]["missed_ranges"] for s in c.status()["storages"] if s["health"])
    assert missed > 0 and "others missed" in c.admin("status").stdout
    c.up()
    c.wait_all_up()
    wait_for(lambda: all(s["health"]["missed_ranges"] == 0 and s["health"]["unhealed"] == 0
                         for s in c.status()["storages"]),
             "healing to end", timeout=60)
    wait_for(lambda: fsck(c)[0] == 0, "fsck to be content")
