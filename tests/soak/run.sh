#!/bin/bash
#
# run.sh - search for faults for hours: the tests of tests/run.sh with more work each, and new seeds.
#
# In:     options, see --help. A release build (cmake --preset release && cmake --build --preset release).
# Out:    a line for each part at its end, with what it covered; logs of failed parts in ./soak-failed.
# Keeps:  no mount and no process is left behind, as with tests/run.sh.
#
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root" || exit 1

usage()
{
    cat <<'USAGE'
Usage: sudo tests/soak/run.sh [--hours N] [PART...]

Runs each part once; those that search at random share N hours (default 4).

  simulator   all mutants; the whole cluster and the block engine, new seeds, all fault modes
  storms      storages are killed at random under load, layouts 0 and 1; clients while they write
  metas       200 kills of three exportds, storages and mounts under load, and what was acknowledged is compared;
              then fsx, histories, sqlite and git for 10 minutes each while the leader dies every 10 s
  coherence   fsx through one mount and two, histories of four mounts, sqlite
  programs    git, sqlite, fio, builds and trees of this machine, at full size
  streams     an editing room: no frame is late while storages are killed, hung, slow and rebuilt and exportd restarts
  gateways    smbtorture on rozo and on ext4, both profiles, three runs (needs Debian's samba-testsuite)
  containers  the image and the command line of docs/CONTAINERS.md (needs podman, runc and debootstrap)
  units       all unit tests, with all seeds of those that search at random
  loaded      every system test 20 times while two busy loops run beside it

Exit status: 0 nothing was found, 1 something was, 2 wrong usage.
USAGE
}

hours=4
parts=()
while [ $# -gt 0 ]; do
    case $1 in
    --hours) hours=${2:-}; shift ;;
    --help | -h) usage; exit 0 ;;
    simulator | storms | metas | coherence | programs | streams | gateways | containers | units | loaded)
        parts+=("$1")
        ;;
    *)
        printf 'soak: there is no option or part "%s"; see %s --help\n' "$1" "$0" >&2
        exit 2
        ;;
    esac
    shift
done
[[ $hours =~ ^[1-9][0-9]*$ ]] || { usage >&2; exit 2; }
[ ${#parts[@]} -gt 0 ] || parts=(units programs coherence gateways containers metas streams loaded storms simulator)
[ -x build/release/bin/rozo ] || { echo "soak: build the preset \"release\" first" >&2; exit 1; }

n_searches=0 # parts that run as long as their share of time
for part in "${parts[@]}"; do
    case $part in simulator | storms) n_searches=$((n_searches + 1)) ;; esac
done
share_s=$((hours * 3600 / (n_searches > 0 ? n_searches : 1)))
failed_dir=$root/soak-failed
log=$(mktemp)
trap 'rm -f "$log"' EXIT

system_tests() # TEST...
{
    ROZO_TEST_MAX_S=36000 python3 -m pytest -p no:cacheprovider -q "$@"
}

part_simulator()
{
    mkdir -p "$failed_dir"
    tests/sim/mutants build/release --all || return 1
    tests/soak/simulator.sh build/release "$share_s" "$(date +%s)" "$failed_dir/simulator.txt"
}

part_storms()
{
    ROZO_STORM_S=$((share_s / 2)) ROZO_TORN_KILLS=100 \
        system_tests -s tests/system/faults/test_storms.py tests/system/faults/test_torn.py
}

part_metas()
{
    ROZO_META_KILLS=200 ROZO_META_PROGRAMS_S=600 ROZO_META_PAUSE_S=10 \
        system_tests -s tests/system/metas/test_kills.py tests/system/metas/test_programs_under_kills.py
}

part_coherence()
{
    ROZO_FSX_OPS=100000 ROZO_FSX_SEEDS=10 ROZO_SQLITE_TRANSACTIONS=10000 ROZO_LINEAR_OPS=4000 \
        system_tests tests/system/coherence/test_fsx2.py tests/system/coherence/test_linear.py \
        tests/system/coherence/test_sqlite.py tests/system/posix/test_posix.py
    ROZO_TOKEN_FILES=1000000 system_tests tests/system/coherence/test_coherence.py -k test_more_files_than_tokens
}

part_programs()
{
    ROZO_PROGRAMS_LONG=1 ROZO_TREES=/usr/share/doc ROZO_DIRECTORY_ENTRIES=1000000 \
        system_tests tests/system/data/test_programs.py tests/system/data/test_trees.py
}

part_streams()
{
    tests/soak/streams --build build/release --phase 60
}

part_gateways()
{
    tests/soak/smbtorture.py --at-once --logs "$failed_dir/smbtorture"
}

part_containers()
{
    tests/soak/container_line.py
}

part_units()
{
    ROZO_UNIT_LONG=1 REPAIR_SEEDS=400 ctest --test-dir build/release -R '^unit\.' --timeout 7200 --output-on-failure
}

part_loaded()
{
    local busy=() round status=0

    for _ in 1 2; do
        sh -c 'while :; do :; done' &
        busy+=($!)
    done
    for round in $(seq "${ROZO_LOADED_ROUNDS:-20}"); do
        echo "round $round"
        tests/run.sh --no-install --system || status=1
    done
    kill "${busy[@]}"
    wait "${busy[@]}" 2>/dev/null
    return $status
}

status=0
for part in "${parts[@]}"; do
    begun=$SECONDS
    "part_$part" >"$log" 2>&1 </dev/null
    if [ $? -eq 0 ]; then
        outcome="nothing found"
    else
        status=1
        mkdir -p "$failed_dir"
        cp "$log" "$failed_dir/$part.log"
        outcome="FOUND SOMETHING, see soak-failed/$part.log"
    fi
    printf '%-10s %6d s  %s\n' "$part" $((SECONDS - begun)) "$outcome"
    grep -aE -e '^[0-9]+ (passed|failed)|[0-9]+ passed|tests passed|^(the whole cluster|met|storm|seed|[0-9]+ kills)' \
        -e '^(shared|exclusive|pass on ext4)' "$log" |
        tail -n 8 | sed 's/^/            /'
done
exit $status
