"""Runs `rozo gateway` where it finds a systemd, which is a script that notes what it is asked for."""
import os
import subprocess

from conftest import ROZO
from mounts import alone

UNDER_SYSTEMD = r"""
set -e
work=$1; shift
mount --make-rprivate /
mkdir -p "$work/lib" "$work/units" "$work/run" "$work/bin" /var/lib/rozo /etc/systemd/system
mount --bind "$work/lib" /var/lib/rozo
mount --bind "$work/units" /etc/systemd/system
mount --bind "$work/run" /run
mkdir -p /run/systemd/system
printf '#!/bin/sh\necho "$*" >>%s/systemctl.log\nexit $(cat %s/fails 2>/dev/null || echo 0)\n' "$work" "$work" \
    >"$work/bin/systemctl"
chmod +x "$work/bin/systemctl"
PATH=$work/bin:$PATH exec "$@"
"""


class Systemd:
    """folder: of its own; a file `fails` there has the status that systemctl ends with."""

    def __init__(self, c, folder):
        self.c, self.folder = c, folder
        os.mkdir(folder)

    def gateway(self, *args):
        """Returns the run of `rozo gateway`, and the words that systemctl got."""
        log, words = os.path.join(self.folder, "systemctl.log"), []
        r = subprocess.run(alone(self.c.base, "sh", "-c", UNDER_SYSTEMD, "sh", self.folder, ROZO, "gateway", *args),
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if os.path.exists(log):
            with open(log) as f:
                words = f.read().splitlines()
            os.unlink(log)
        return r, words

    def unit(self, name):
        """Returns the lines of a unit."""
        with open(os.path.join(self.folder, "units", name)) as f:
            return f.read().splitlines()
