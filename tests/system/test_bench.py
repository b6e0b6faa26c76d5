"""`rozo bench codec`: a table, JSON, and pictures from that JSON."""
import json
import os
import subprocess
import xml.etree.ElementTree

import pytest

from conftest import ROOT, rozo


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
