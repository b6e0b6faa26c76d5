"""What smbd starts for itself: samba-dcerpcd and its workers, in sessions of their own, which outlive smbd."""
import contextlib
import glob
import os
import signal
import time


def samba_processes(conf):
    """Returns the pids of Samba's programs that run with this smb.conf."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            with open(path, "rb") as f:
                if b"--configfile=" + conf.encode() in f.read().split(b"\0"):
                    found.append(int(path.split("/")[2]))
    return found


def end_samba(conf, timeout=30):
    """Ends them all, after smbd."""
    end = time.monotonic() + timeout
    for pid in samba_processes(conf):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    while samba_processes(conf) and time.monotonic() < end:
        time.sleep(0.05)
    assert samba_processes(conf) == [], "what smbd has started does not end: %s" % samba_processes(conf)
