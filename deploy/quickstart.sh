#!/bin/bash
#
# quickstart.sh - from a fresh Debian 12 machine to a mounted rozo file system, in one command.
#
# In:     options, see --help. Run as root.
# Out:    build/release; a one-machine cluster in /var/lib/rozo-quickstart, mounted on /mnt/rozo.
# Keeps:  data is never removed; a second run finds the cluster running and says so.
#
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dir=${ROZO_QUICKSTART_DIR:-/var/lib/rozo-quickstart}
mnt=${ROZO_QUICKSTART_MNT:-/mnt/rozo}
rozo=$root/build/release/bin/rozo

usage()
{
    cat <<USAGE
Usage: sudo deploy/quickstart.sh [--stop] [--help]

Installs what is needed, builds, starts a cluster on this machine (one exportd,
four storages, layout 0: any one storage may fail) in $dir
and mounts it on $mnt. A second run starts what does not run.

  --stop   unmount and stop it; the data stays, the next run finds it again
  --help   this text

ROZO_QUICKSTART_DIR and ROZO_QUICKSTART_MNT in the environment choose another
folder and mount point.

Exit status: 0 done, 1 failed, 2 wrong usage.
USAGE
}

die() { printf 'quickstart: %s\n' "$*" >&2; exit 1; }

stop=false
for arg in "$@"; do
    case $arg in
    --stop) stop=true ;;
    --help | -h) usage; exit 0 ;;
    *)
        printf 'quickstart: there is no option "%s"; see %s --help\n' "$arg" "$0" >&2
        exit 2
        ;;
    esac
done
[ "$(id -u)" = 0 ] || die "this installs packages and mounts; run it as root: sudo $0${*:+ $*}"

if $stop; then
    [ -f "$dir/etc/cluster.json" ] || { echo "There is no quickstart cluster in $dir."; exit 0; }
    [ -x "$rozo" ] || die "$rozo is not built; run $0 once, then --stop"
    "$rozo" dev down --dir "$dir"
    echo "Stopped. The data stays in $dir; run sudo $0 again to have it back."
    exit 0
fi

[ -e /dev/fuse ] || modprobe fuse 2>/dev/null || true
[ -e /dev/fuse ] || die "/dev/fuse is not there: this kernel or container has no FUSE"

exec 3>&2 # a build has its stderr in its log
trap 'die "interrupted; run it again to go on" 2>&3' INT

echo "1/3  installing what is needed"
"$root/deploy/install-deps.sh"

echo "2/3  building (some minutes, once)"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cd "$root"
{
    cmake --preset release && cmake --build --preset release --target exportd storaged rozomount rozo
} >"$log" 2>&1 </dev/null || {
    tail -n 30 "$log" >&2
    die "the build failed; the lines above say where"
}

echo "3/3  starting"
if [ -f "$dir/etc/cluster.json" ]; then
    # Layout and number of storages are those it was made with.
    "$rozo" dev up --dir "$dir" --mount "$mnt"
else
    "$rozo" dev up --dir "$dir" --layout 0 --storages 4 --mount "$mnt"
fi

cat <<WORDS

The file system is mounted on $mnt. Data lies in $dir/data,
logs in $dir/log. Three things to try:

  cp -a /usr/include $mnt/ && du -sh $mnt/include
      write real files
  $rozo locate $mnt/include/stdio.h
      see on which storages the projections of a file lie
  kill -9 \$(cat $dir/run/storaged-1.pid) && diff -r --no-dereference /usr/include $mnt/include && echo the same
      lose a storage and read everything back
      (run sudo $0 again to start it again)

Stop it, data kept:  sudo $0 --stop
WORDS
