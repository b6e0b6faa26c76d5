"""`rozo bench codec` and `fs`: tables, JSON, pictures, clear errors. And tests/bench/coherence in small."""
import glob
import json
import os
import signal
import subprocess
import threading
import xml.etree.ElementTree

import pytest

import kernel_caches
from conftest import BIN, ROOT, ROZO, cannot_mount, rozo, wait_for


@pytest.mark.parametrize("args", [[], ["--cycles", "--isas", "--layout", "2"], ["--l2", "--block-bytes", "4096"]])
def test_table_of_codes(args):
    out = rozo("bench", "codec", *args).stdout
    assert all(len(line) <= 80 for line in out.splitlines()), out
    tables = out.split("\n\n")
    assert len(tables) == (1 if "--layout" in args else 3)
    for table in tables:
        codes = [line.split()[0] for line in table.splitlines()[2:]]
        assert {"mojette", "mojette-nonsys", "rs", "memcpy"} <= set(codes), table


def test_json_of_bench_codec_has_every_operation():
    case, = json.loads(rozo("bench", "codec", "--json", "--layout", "1").stdout)
    assert (case["n"], case["k"], case["block_bytes"], case["place"]) == (6, 4, 8192, "l1")
    ours = {(f["op"], f["lost"], f["copy"]): f for f in case["figures"] if f["code"] == "mojette"}
    assert set(ours) == {(op, lost, copy) for copy in (False, True)
                         for op, lost in (("encode", 0), ("decode", 0), ("decode", 1), ("decode", 2))}
    assert ours["decode", 2, False]["patterns"] == 6
    assert all(f["worst"] >= f["cycles"] > 0 and f["gb_s"] > 0 for f in ours.values())


def test_pictures_are_drawn(scratch):
    with open(scratch + "/codec.json", "w") as f:
        f.write(rozo("bench", "codec", "--json").stdout)
    plot = os.path.join(ROOT, "tests", "bench", "codec", "plot.py")
    subprocess.run([plot, scratch + "/codec.json", scratch], check=True, timeout=60)
    for name, n_groups in (("codec-encode.svg", 3), ("codec-decode-8k.svg", 2 + 3 + 5)):
        root = xml.etree.ElementTree.parse(os.path.join(scratch, name)).getroot()
        dashed = [e for e in root.iter() if e.tag.endswith("line") and "stroke-dasharray" in e.attrib]
        assert len(dashed) == n_groups + 1, name  # and the legend


SMALL = ("--size", "4", "--seconds", "1", "--files", "200", "--rounds", "1", "--tree",
         os.path.join(ROOT, "tests", "unit", "deploy"))


def bench_fs(path, *args, check=True):
    """Runs `rozo bench fs` in small; it must leave nothing behind."""
    r = rozo("bench", "fs", path, *SMALL, *args, check=check)
    assert not glob.glob(os.path.join(path, "rozo-bench-*"))
    assert all(len(line) <= 80 for line in r.stdout.splitlines()), r.stdout
    return r


def test_every_load_of_a_mount_is_measured(cluster, scratch):
    c = cluster(layout=0, mounts=2)
    bench_fs(c.mnt, "--cluster", c.dir, "--mounts", c.mnts[1], "--json", scratch + "/fs.json")
    with open(scratch + "/fs.json") as f:
        told = json.load(f)
    names = [line.split(None, 1)[1] for line in rozo("bench", "fs", "--list").stdout.splitlines()]
    tests = {t["test"]: t for t in told["tests"]}
    assert set(tests) == ({n for n in names if not n.startswith("clients")} |
                          {"%s, %d" % (n, i) for n in names if n.startswith("clients") for i in (1, 2)})
    assert all(t["median"] > 0 and len(t["rounds"]) == 1 for t in tests.values())
    assert set(tests["write 1M"]["cpu"]) == {"exportd", "storaged", "mount", "bench"}
    assert all(told["peak_bytes"]["path"][kind] > 0 for kind in ("exportd", "storaged", "mount"))


def test_bench_fs_compares_two_places_in_turn(scratch):
    for name in "ab":
        os.mkdir(os.path.join(scratch, name))
    a, b = scratch + "/a", scratch + "/b"
    told = json.loads(bench_fs(a, "--vs", b, "--rounds", "3", "--only", "create", "--only", "write 1M",
                               "--json", "-").stdout)
    assert {(t["place"], t["path"]) for t in told["tests"]} == {("path", a), ("vs", b)}
    assert all(len(t["rounds"]) == 3 for t in told["tests"])
    assert "write 1M" in told["ratios"] and "create x4" in told["ratios"]
    assert not os.listdir(b)
    assert "RATIO" in bench_fs(a, "--vs", b, "--only", "create", "--plot", scratch + "/plot.svg").stdout
    root = xml.etree.ElementTree.parse(scratch + "/plot.svg").getroot()
    assert sum(e.tag.endswith("rect") for e in root.iter()) == 1 + 2 + 2 * 2  # background, legend, bars


def test_report_in_the_form_of_iozone(scratch):
    out = rozo("bench", "fs", scratch, "--report", "iozone", "--size", "1").stdout
    assert not os.listdir(scratch)
    reports = out.split("\n\n")[1:]
    assert [r.splitlines()[0] for r in reports if r.strip()] == [
        '"%s report"' % name for name in ("Writer", "Re-writer", "Reader", "Re-Reader", "Random Read", "Random Write")]
    for report in reports[:6]:
        lines = [line.split() for line in report.splitlines()[1:]]
        assert lines[0] == ['"%d"' % (4 << i) for i in range(9)]
        assert [line[0] for line in lines[1:]] == ['"64"', '"128"', '"256"', '"512"', '"1024"']
        assert [len(line) for line in lines[1:]] == [6, 7, 8, 9, 10]  # no record is larger than its file
        assert all(int(cell) > 0 for line in lines[1:] for cell in line[1:])


def test_a_file_system_that_returns_other_bytes_fails(scratch):
    """Another process writes into the file while the benchmark reads it at random."""
    done = threading.Event()

    def spoil():
        while not done.is_set():
            for path in glob.glob(scratch + "/rozo-bench-*/random"):
                with open(path, "r+b") as f:
                    f.write(b"x" * 65536)
            done.wait(0.05)

    spoiler = threading.Thread(target=spoil)
    spoiler.start()
    try:
        r = bench_fs(scratch, "--seconds", "100", "--only", "rand read 8K buf", check=False)
    finally:
        done.set()
        spoiler.join()
    assert r.returncode == 1
    assert "random holds other bytes than were written" in r.stderr


def test_interrupted_benchmark_prints_the_figures_so_far(scratch):
    bench = subprocess.Popen([ROZO, "bench", "fs", scratch, *SMALL, "--seconds", "3000", "--only", "write 1M",
                              "--only", "write 8K fsync"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: glob.glob(scratch + "/rozo-bench-*/sync-0"), "the second load")
    bench.send_signal(signal.SIGINT)
    out, err = bench.communicate(timeout=60)
    assert bench.returncode == 1
    assert "write 1M" in out and "fsync" not in out
    assert "interrupted; these are the figures so far" in err
    assert not os.listdir(scratch)


def test_bench_fs_names_the_reason_when_it_cannot_measure(scratch):
    with open(scratch + "/file", "w"):
        pass
    for args, status, words in (((scratch + "/file",), 1, "file is no folder"),
                                ((scratch + "/none",), 1, "none: No such file or directory"),
                                ((scratch, "--only", "nothing"), 1, "no load has such a name"),
                                ((scratch, "--mounts", "/proc"), 1, "they are not mounts of one file system"),
                                ((scratch, "--cluster", scratch), 1, "holds no cluster of rozo dev"),
                                ((scratch, "--rounds", "0"), 2, "--rounds wants a number"), ((), 2, "PATH is missing")):
        r = rozo("bench", "fs", *args, check=False)
        assert r.returncode == status and words in r.stderr, (args, r.stderr)
    assert os.listdir(scratch) == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="not run as root")
def test_bench_fs_reports_a_full_file_system(scratch):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", scratch], check=True)
    try:
        r = bench_fs(scratch, "--only", "write 1M", check=False)
    finally:
        subprocess.run(["umount", scratch], check=True)
    assert r.returncode == 1 and "No space left on device" in r.stderr


def test_bench_states_reports_ratios_of_each_state(scratch):
    if cannot_mount() is not None:
        pytest.skip("mounting: " + cannot_mount())
    r = subprocess.run([os.path.join(ROOT, "tests", "bench", "states"), "--build", os.path.dirname(BIN), "--layout",
                        "0", "--rounds", "1", "--size", "4", "--seconds", "1", "--fill", "8",
                        "--only", "rand read 8K d1", "--json", scratch + "/states.json"],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    with open(scratch + "/states.json") as f:
        told = json.load(f)
    assert set(told) == {"dead", "late", "rebuild"}
    assert all(set(t["ratios"]) == {"rand read 8K d1", "rand read 8K d16"} for t in told.values())


@pytest.fixture(scope="module")
def coherence(tmp_path_factory):
    """Returns test -> the one round of tests/bench/coherence, and its table."""
    if cannot_mount() is not None:
        pytest.skip("mounting: " + cannot_mount())
    figures = tmp_path_factory.mktemp("coherence") / "figures.json"
    with kernel_caches.kept():
        r = subprocess.run([os.path.join(ROOT, "tests", "bench", "coherence"), "--bin", BIN, "--json", str(figures),
                            "--rounds", "1", "--files", "500", "--cached", "100", "--turns", "100", "--creates", "100"],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    return {t["test"]: t["rounds"][0] for t in json.loads(figures.read_text())["tests"]}, r.stdout


def test_coherence_bench_counts_requests_of_each_round(coherence):
    rounds, table = coherence
    assert len(table.splitlines()) == 1 + len(rounds)
    assert all(r["figure"] > 0 for r in rounds.values())
    assert rounds["git status, first"]["kinds"]["readdir"] > 0


def asked(result):
    """Returns the requests that a round needed, less those that may belong to earlier work: a mount reports closes
    and access times later, many in one request."""
    return result["requests"] - sum(min(result["kinds"].get(kind, 0), 1) for kind in ("close", "atimes"))


def test_a_mount_alone_asks_for_nothing_twice(coherence):
    rounds, _ = coherence
    assert asked(rounds["stat cached"]) == 0, rounds["stat cached"]
    assert asked(rounds["open, read cached"]) == 0, rounds["open, read cached"]
    assert rounds["git status, second"]["requests"] < 100, rounds["git status, second"]  # git reads new files again
    assert asked(rounds["git status, fifth, no lock"]) == 0, rounds["git status, fifth, no lock"]


def test_writers_of_two_halves_soon_ask_for_nothing(coherence):
    assert coherence[0]["8k writes, 2 mounts"]["kinds"].get("token", 0) < 100, coherence[0]["8k writes, 2 mounts"]


def test_turns_in_one_block_are_never_stale(coherence):
    assert coherence[0]["4k read, write in turn"]["stale"] == 0
