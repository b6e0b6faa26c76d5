"""results.py DIR - add up what the runners of tests/run.sh left in DIR: junit XML and failures.

Prints why each test was skipped and which failed, then `N passed, N failed, N skipped` as the
last line. Exit status: 0 nothing failed and something passed, 1 otherwise.
"""
import collections
import glob
import os
import sys
import xml.etree.ElementTree as ElementTree


def cases(path):
    """(name, outcome, reason) of every test of one file, of ctest or of pytest."""
    suite = os.path.basename(path)[:-len(".xml")]
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = case.get("name", "?")
        if case.get("classname", name) != name:
            name = case.get("classname").replace("tests.", "") + "." + name
        name = "%s: %s" % (suite, name)
        bad = [e for tag in ("failure", "error") for e in case.findall(tag)]
        skipped = case.findall("skipped")
        if bad or case.get("status") == "fail":
            yield name, "failed", bad[0].get("message", "") if bad else ""
        elif skipped or case.get("status") in ("notrun", "disabled"):
            reason = skipped[0].get("message", "") if skipped else "not run"
            yield name, "skipped", reason
        else:
            yield name, "passed", ""


def main(folder):
    outcomes = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.xml"))):
        try:
            for name, outcome, reason in cases(path):
                # pytest reports a test that fails and whose fixtures then fail twice.
                if outcomes.get(name, ("",))[0] != "failed":
                    outcomes[name] = (outcome, reason)
        except ElementTree.ParseError as e:
            outcomes[os.path.basename(path)] = ("failed", "its results cannot be read: %s" % e)
    failures = os.path.join(folder, "failures")
    if os.path.exists(failures):
        with open(failures) as f:
            for line in f:
                name, _, words = line.rstrip("\n").partition("\t")
                outcomes[name] = ("failed", words)
    for name, (outcome, reason) in outcomes.items():
        if outcome != "passed":
            print("%s %s: %s" % (outcome.upper(), name, " ".join(reason.split())[:300]))
    n = collections.Counter(outcome for outcome, _ in outcomes.values())
    print("%d passed, %d failed, %d skipped" % (n["passed"], n["failed"], n["skipped"]))
    return 0 if n["failed"] == 0 and n["passed"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
