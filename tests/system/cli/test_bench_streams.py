"""`rozo bench streams`: frames are counted, late ones too, and what is read is compared."""
import glob
import json
import os
import signal
import subprocess
import threading

from conftest import ROZO, rozo, wait_for

MB = 1000000


def play(path, *args, check=True):
    """Plays in small; it must leave nothing behind."""
    r = rozo("bench", "streams", path, "--file-size", "4", *args, check=check)
    assert not glob.glob(os.path.join(path, "rozo-bench-*"))
    assert all(len(line) <= 80 for line in r.stdout.splitlines()), r.stdout
    return r


def test_each_frame_of_two_mounts_is_counted_once(cluster, scratch):
    c = cluster(layout=0, mounts=2)
    r = play(c.mnt, "--clients", c.mnts[1], "--streams", "3", "--write", "2", "--rate", "2.097152", "--frame", "256K",
             "--seconds", "3", "--read-ahead", "5s", "--live", "--json", scratch + "/streams.json")
    with open(scratch + "/streams.json") as f:
        told = json.load(f)
    trial, = told["trials"]
    assert (trial["held"], told["holds"], told["mounts"]) == (True, 3, c.mnts)
    assert (trial["read"]["frames"], trial["written"]["frames"]) == (3 * 24, 2 * 24)
    assert all(trial[kind]["late"] == trial[kind]["failed"] == 0 for kind in ("read", "written"))
    assert all(0 < trial[kind]["p50_us"] <= trial[kind]["p99_us"] <= trial[kind]["max_us"] < 5e6 and
               0 < trial[kind]["spare_s"] < 5 for kind in ("read", "written"))
    lines = [line.split() for line in r.stdout.split("\n\n")[0].splitlines()]
    assert lines[0] == ["SECOND", "FRAMES", "LATE", "FAILED", "SPARE"]
    assert 0 < sum(int(line[1]) for line in lines[1:]) <= 5 * 24


def test_frames_are_late_while_storages_are_stopped(cluster):
    """Three of four storages stop: nothing can be read or written, and the player has 0.5 s in memory. Files are
    larger than what the mount has of them in memory."""
    c = cluster(layout=0)
    stopped = ["storaged-1", "storaged-2", "storaged-3"]
    bench = subprocess.Popen([ROZO, "bench", "streams", c.mnt, "--streams", "2", "--write", "1", "--rate", "2.097152",
                              "--frame", "256K", "--seconds", "8", "--read-ahead", "500ms", "--file-size", "32",
                              "--live"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [bench.stdout.readline() for _ in range(2)]  # heads, and the first second
    for name in stopped:
        c.kill(name, signal.SIGSTOP)
    try:
        late = 0
        while late <= 8 and len(lines) < 30:  # the written stream has 8 frames a second
            lines.append(bench.stdout.readline())
            late = int((lines[-1].split() + ["0"] * 3)[2])
        lines.append(bench.stdout.readline())  # they are late while they hang, not only once they come
    finally:
        for name in stopped:
            c.kill(name, signal.SIGCONT)
    rest, err = bench.communicate(timeout=120)
    assert late > 8 and int(lines[-1].split()[2]) > 8, lines
    table = {line.split()[1]: line.split() for line in rest.splitlines() if " read  " in line or " written  " in line}
    n_late = int(table["read"][3]) + int(table["written"][3])
    assert (table["read"][2], table["written"][2]) == ("128", "64"), rest  # 8 a second, each counted once
    assert int(table["read"][3]) >= 8 and table["read"][-2:] == ["0.00", "s"], rest
    assert "%d of 192 frames were late" % n_late in err
    assert bench.returncode == 1
    assert not glob.glob(c.mnt + "/rozo-bench-*")


def test_a_stream_of_other_bytes_fails(scratch):
    done = threading.Event()

    def spoil():
        while not done.is_set():
            for path in glob.glob(scratch + "/rozo-bench-*/read-1"):
                with open(path, "r+b") as f:
                    f.seek(3 << 20)
                    f.write(b"x" * 512)
            done.wait(0.05)

    spoiler = threading.Thread(target=spoil)
    spoiler.start()
    try:
        r = play(scratch, "--streams", "2", "--write", "0", "--seconds", "100", check=False)
    finally:
        done.set()
        spoiler.join()
    assert r.returncode == 1
    assert "read-1 in" in r.stderr and "holds other bytes than were written, from byte 3145728 on" in r.stderr


def test_a_written_stream_that_others_change_fails(scratch):
    """Written frames are read back after the last one."""
    bench = subprocess.Popen([ROZO, "bench", "streams", scratch, "--streams", "0", "--write", "1", "--rate", "1",
                              "--seconds", "3"], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any(os.stat(p).st_size > 0 for p in glob.glob(scratch + "/rozo-bench-*/written-0-0")), "a frame")
    with open(glob.glob(scratch + "/rozo-bench-*/written-0-0")[0], "r+b") as f:
        f.write(b"x" * 512)
    assert "written-0 in" in bench.communicate(timeout=60)[1]
    assert bench.returncode == 1


def test_the_highest_number_of_streams_is_found(scratch):
    args = ("--streams", "2", "--write", "0", "--seconds", "1", "--read-ahead", "100ms", "--find", "--json", "-")
    told = json.loads(play(scratch, *args, "--rate", "300", check=False).stdout)
    held = [t["streams"] for t in told["trials"] if t["held"]]
    broke = [t["streams"] for t in told["trials"] if not t["held"]]
    assert told["holds"] == (max(held) if held else None)
    assert broke and (not held or max(held) < min(broke))
    r = play(scratch, *args[:-2], "--rate", "90000", check=False)
    assert r.returncode == 1 and "No number of streams holds." in r.stdout


def test_interrupted_streams_count_what_was_due(scratch):
    bench = subprocess.Popen([ROZO, "bench", "streams", scratch, "--streams", "1", "--write", "0", "--rate", "5",
                              "--seconds", "3000", "--file-size", "4", "--live"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert bench.stdout.readline().split()[0] == "SECOND" and bench.stdout.readline().split()[0] == "1"
    bench.send_signal(signal.SIGINT)
    out, err = bench.communicate(timeout=60)
    assert bench.returncode == 1 and "interrupted; these are the figures so far" in err
    assert 3 <= int(out.split("1 read")[1].split()[0]) < 3000
    assert not os.listdir(scratch)


def test_streams_that_cannot_be_played_are_refused(scratch):
    with open(scratch + "/file", "w"):
        pass
    for args, status, words in (((scratch + "/file",), 1, "file is no folder"),
                                ((scratch, "--clients", "/proc"), 1, "they are not mounts of one file system"),
                                ((scratch, "--streams", "0", "--write", "0"), 2, "nothing to play"),
                                ((scratch, "--streams", "512"), 2, "more than 512 streams"),
                                ((scratch, "--rate", "0"), 2, "--rate wants MB per second"),
                                ((scratch, "--rate", "nan"), 2, "--rate wants MB per second"),
                                ((scratch, "--frame", "5000"), 2, "a multiple of 4K"),
                                ((scratch, "--read-ahead", "2h"), 2, "--read-ahead wants a time"),
                                ((scratch, "--live", "--json", "-"), 2, "both print to standard output"),
                                ((), 2, "PATH is missing")):
        r = rozo("bench", "streams", *args, check=False)
        assert r.returncode == status and words in r.stderr, (args, r.stderr)
    assert os.listdir(scratch) == ["file"]
