"""`rozo bench codec`: a table, JSON, and pictures from that JSON. tests/bench/coherence, in small."""
import json
import os
import subprocess
import xml.etree.ElementTree

import pytest

from conftest import BIN, ROOT, cannot_mount, rozo


@pytest.mark.parametrize("args", [[], ["--cycles", "--isas", "--layout", "2"], ["--l2", "--block-bytes", "4096"]])
def test_table_of_codes(args):
    out = rozo("bench", "codec", *args).stdout
    assert all(len(line) <= 80 for line in out.splitlines()), out
    tables = out.split("\n\n")
    assert len(tables) == (1 if "--layout" in args else 3)
    for table in tables:
        codes = [line.split()[0] for line in table.splitlines()[2:]]
        assert {"mojette", "mojette-nonsys", "rs", "memcpy"} <= set(codes), table


def test_json_tells_every_operation():
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


@pytest.fixture(scope="module")
def coherence(tmp_path_factory):
    """test -> the one round of tests/bench/coherence, and its table."""
    if cannot_mount() is not None:
        pytest.skip("mounting: " + cannot_mount())
    figures = tmp_path_factory.mktemp("coherence") / "figures.json"
    r = subprocess.run([os.path.join(ROOT, "tests", "bench", "coherence"), "--bin", BIN, "--json", str(figures), "--rounds", "1",
                        "--files", "2000", "--cached", "100", "--turns", "100", "--creates", "100"],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    return {t["test"]: t["rounds"][0] for t in json.loads(figures.read_text())["tests"]}, r.stdout


def test_what_mounts_cost_each_other_is_told(coherence):
    rounds, table = coherence
    assert len(table.splitlines()) == 1 + len(rounds)
    assert all(r["figure"] > 0 for r in rounds.values())
    assert rounds["git status, first"]["kinds"]["readdir"] > 0


def test_a_mount_alone_asks_for_nothing_twice(coherence):
    rounds, _ = coherence
    assert rounds["stat cached"]["requests"] == 0, rounds["stat cached"]
    assert rounds["open, read cached"]["requests"] == 0, rounds["open, read cached"]
    assert rounds["git status, second"]["requests"] < 100, rounds["git status, second"]  # git reads young files again
    assert rounds["git status, fifth, no lock"]["requests"] == 0, rounds["git status, fifth, no lock"]


def test_writers_of_two_halves_soon_ask_for_nothing(coherence):
    assert coherence[0]["8k writes, 2 mounts"]["kinds"].get("token", 0) < 100, coherence[0]["8k writes, 2 mounts"]


def test_turns_in_one_block_are_never_stale(coherence):
    assert coherence[0]["4k read, write in turn"]["stale"] == 0
