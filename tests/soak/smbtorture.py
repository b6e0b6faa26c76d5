#!/usr/bin/env python3
"""smbtorture.py - Samba's own tests of SMB2 on rozo and on ext4, by one configuration.

In:     see --help. Debian's samba, samba-testsuite; root; a release build.
Out:    for each profile the number of tests, and a table of those that pass on ext4 and not on rozo.
        Exit status 0: there are none; 1: there are.
Keeps:  nothing is left behind: the cluster, both smbd and their folders end with it.
"""
import argparse
import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "tools"))
from samba import end_samba  # noqa: E402
USER, PASSWORD = "daemon", "torture"  # not root, who may do everything
SUITE_MAX_S = 600
# Suites that are left out, each with its reason.
LEFT_OUT = {
    "smb2.scan": "looks for unknown requests, has no result",
    "smb2.bench": "measures",
    "smb2.maxfid": "opens 65,520 files, measures",
    "smb2.hold-oplock": "waits for another program",
    "smb2.hold-sharemode": "waits for another program",
    "smb2.check-sharemode": "needs options that name a file",
    "smb2.aio_delay": "needs a module of Samba that delays",
    "smb2.durable-v2-delay": "needs a module of Samba that delays",
    "smb2.change_notify_disabled": "needs a configuration without notifications",
    "smb2.create_no_streams": "needs a configuration without streams",
    "smb2.session-require-signing": "needs a configuration that requires signing",
    "smb2.kernel-oplocks": "needs kernel oplocks",
    "smb2.twrp": "needs snapshots",
    "smb2.multichannel": "needs several network interfaces",
    "smb2.samba3misc": "needs options that name a local path",
}


def listening(port):
    out = subprocess.run(["ss", "-Hltn", "sport = :%d" % port], stdout=subprocess.PIPE, text=True).stdout
    return bool(out.strip())


class Server:
    """An smbd on a folder."""

    def __init__(self, conf, port, log):
        with open(log, "ab") as out:
            self.p = subprocess.Popen(["smbd", "--foreground", "--no-process-group", "--configfile=" + conf],
                                      stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        self.conf, self.port = conf, port
        end = time.monotonic() + 30
        while not listening(port):
            if self.p.poll() is not None or time.monotonic() > end:
                sys.exit("smbtorture: smbd does not start, see %s" % log)
            time.sleep(0.1)

    def end(self):
        self.p.send_signal(signal.SIGTERM)
        self.p.wait(30)
        end_samba(self.conf)


def run_suite(server, suite, log):
    """Returns {test: (outcome, reason)}; outcome is success, failure, error or skip."""
    r = subprocess.run(["timeout", "-k", "5", str(SUITE_MAX_S), "smbtorture", "-p", str(server.port),
                        "--target=samba3", "--maximum-runtime=%d" % (SUITE_MAX_S - 10), "//127.0.0.1/torture",
                        "-U", USER + "%" + PASSWORD, suite], stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    with open(log, "w") as f:
        f.write(r.stdout)
    found = {}
    for m in re.finditer(r"^(success|failure|error|skip): ([^\n\[]+?) ?(?:\[\n(.*?)^\])?$", r.stdout, re.M | re.S):
        found["%s.%s" % (suite, m.group(2).strip())] = (m.group(1), (m.group(3) or "").strip().replace("\n", " "))
    begun = re.findall(r"^test: (.+)$", r.stdout, re.M)
    for name in begun:
        found.setdefault("%s.%s" % (suite, name.strip()), ("unfinished", "no result in %d s" % SUITE_MAX_S))
    return found


def free_ports(n):
    import socket
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in socks]
    for s in socks:
        s.close()
    return ports


def run(*argv, **kw):
    r = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw)
    if r.returncode != 0:
        sys.exit("smbtorture: %s: exit %d\n%s" % (" ".join(argv), r.returncode, r.stdout))
    return r.stdout


def servers(rozo, work, mnt, ext4, profile, n):
    """Starts smbd on a folder of rozo and on one of ext4; the configuration of the second is that of the first."""
    ports, name = free_ports(2), "%s-%d" % (profile, n)
    first, second = work + "/rozo-" + name, work + "/ext4-" + name
    for folder in (mnt + "/" + name, ext4 + "/" + name):
        os.mkdir(folder)
        shutil.chown(folder, USER)
    run(rozo, "gateway", "smb", "main", "--share", "torture", "--mount", mnt, "--dir", first, "--" + profile,
        "--listen", "127.0.0.1", "--port", str(ports[0]))
    run("smbpasswd", "-c", first + "/smb.conf", "-s", "-a", USER, input="%s\n%s\n" % (PASSWORD, PASSWORD))
    shutil.copytree(first, second)
    with open(first + "/smb.conf") as f:
        text = f.read().replace("path = " + mnt, "path = %s/%s" % (mnt, name))
    with open(first + "/smb.conf", "w") as f:
        f.write(text)
    text = text.replace(first, second).replace("path = " + mnt, "path = " + ext4)
    text = text.replace("smb ports = %d" % ports[0], "smb ports = %d" % ports[1])
    text = re.sub(r"^ *root preexec.*\n", "", text, flags=re.M)
    with open(second + "/smb.conf", "w") as f:
        f.write(text)
    return {"rozo": Server(first + "/smb.conf", ports[0], work + "/rozo.out"),
            "ext4": Server(second + "/smb.conf", ports[1], work + "/ext4.out")}


def one_run(both, profile, suites, n, logs):
    """Returns {file system: {test: (outcome, reason)}}."""
    found = {"rozo": {}, "ext4": {}}
    for suite in suites:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            jobs = {fs: pool.submit(run_suite, server, suite, "%s/%s-%s-%s-%d.log" % (logs, profile, fs, suite, n))
                    for fs, server in both.items()}
        for fs, job in jobs.items():
            found[fs].update(job.result())
        print(".", end="", file=sys.stderr, flush=True)
    return found


def torture(rozo, work, mnt, ext4, profile, suites, runs, at_once, logs):
    """Returns {file system: {test: [(outcome, reason) of each run]}}."""
    all_found = {"rozo": {}, "ext4": {}}
    pairs = [servers(rozo, work, mnt, ext4, profile, n + 1) for n in range(runs)]
    try:
        with concurrent.futures.ThreadPoolExecutor(runs if at_once else 1) as pool:
            jobs = [pool.submit(one_run, both, profile, suites, n + 1, logs) for n, both in enumerate(pairs)]
            for job in jobs:
                for fs, tests in job.result().items():
                    for test, told in tests.items():
                        all_found[fs].setdefault(test, []).append(told)
    finally:
        for both in pairs:
            for server in both.values():
                server.end()
    print(file=sys.stderr)
    return all_found


def report(profile, found, runs):
    """Prints the figures and the table of a profile; returns the tests that pass on ext4 and not on rozo."""
    passes = {fs: {t for t, told in tests.items() if len(told) == runs and all(o == "success" for o, _ in told)}
              for fs, tests in found.items()}
    worse = sorted(passes["ext4"] - passes["rozo"])
    better = sorted(passes["rozo"] - passes["ext4"])
    print("%s: %d tests, %d runs; pass in all runs: %d on ext4, %d on rozo" % (
        profile, len(set(found["ext4"]) | set(found["rozo"])), runs, len(passes["ext4"]), len(passes["rozo"])))
    for test in worse:
        told = [t for t in found["rozo"].get(test, []) if t[0] != "success"] or [("missing", "")]
        print("  not on rozo: %s (%d of %d runs): %s: %s" % (test, len(told), runs, told[0][0], told[0][1][:200]))
    for test in better:
        print("  not on ext4: %s" % test)
    return worse


def main():
    left_out = "; ".join("%s (%s)" % x for x in LEFT_OUT.items())
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog="Suites that are left out: " + left_out)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--at-once", action="store_true", help="all runs at the same time, each with its own smbd")
    parser.add_argument("--profile", choices=("shared", "exclusive"), help="only this one")
    parser.add_argument("--suite", action="append", help="only this one, such as smb2.lock")
    parser.add_argument("--ext4", default="/var/tmp", help="a folder on ext4 (default: /var/tmp)")
    parser.add_argument("--logs", default="soak-failed/smbtorture", help="folder for the output of each suite")
    args = parser.parse_args()
    for sig in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):  # the shell may have set the last one to be ignored
        signal.signal(sig, lambda *_: sys.exit("smbtorture: interrupted"))
    rozo = os.path.join(os.environ.get("ROZO_BIN", os.path.join(ROOT, "build/release/bin")), "rozo")
    if os.geteuid() != 0:
        sys.exit("smbtorture: run it as root")
    for program in ("smbtorture", "smbd", "smbpasswd", "findmnt"):
        if shutil.which(program) is None:
            sys.exit("smbtorture: no %s; apt-get install samba samba-vfs-modules samba-testsuite" % program)
    if run("findmnt", "-no", "FSTYPE", "-T", args.ext4).strip() != "ext4":
        sys.exit("smbtorture: %s is not on ext4; name a folder that is by --ext4" % args.ext4)
    os.makedirs(args.logs, exist_ok=True)
    suites = args.suite or [s.strip() for s in run("smbtorture", "--list-suites").split()
                            if s.startswith("smb2.") and s not in LEFT_OUT]
    work, ext4 = tempfile.mkdtemp(prefix="rozo-smb-"), tempfile.mkdtemp(prefix="rozo-smb-", dir=args.ext4)
    worse = []
    try:
        mnt = work + "/mnt"
        run(rozo, "dev", "up", "--dir", work + "/c", "--mount", mnt, "--mount-options", "noatime")
        for folder in (work, ext4, mnt):
            os.chmod(folder, 0o777 if folder != work else 0o755)
        for folder in (ext4, mnt):
            shutil.chown(folder, USER)
        for profile in [args.profile] if args.profile else ["shared", "exclusive"]:
            found = torture(rozo, work, mnt, ext4, profile, suites, args.runs, args.at_once, args.logs)
            worse += report(profile, found, args.runs)
    finally:
        subprocess.run([rozo, "dev", "down", "--dir", work + "/c"], stdout=subprocess.DEVNULL)
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(ext4, ignore_errors=True)
    print("pass on ext4 and not on rozo: %s" % (", ".join(worse) or "none"))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
