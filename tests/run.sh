#!/bin/bash
#
# run.sh - install, build and run every test of rozo; the last line is the summary.
#
# In:     options, see --help. ROZO_SYSTEM_TESTS: further arguments for pytest (-k, -x, files).
# Out:    build/PRESET; the last line is `N passed, N failed, N skipped`.
# Keeps:  no mount and no process is left behind, however it ends: everything that tests start
#         lives below one temporary folder, which is removed at the end.
#
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1

usage()
{
    cat <<'USAGE'
Usage: sudo tests/run.sh [--quick | --changed [REV] | --system] [--no-install]

Installs what is missing, builds release, asan and tsan, runs the unit and
simulation tests of each build, and beside that the system tests (real daemons,
real mounts): all on the release build, some on the asan build. Not as root, or
without /dev/fuse, the tests that mount are skipped.

  --quick        release only, and of the system tests only the short ones
  --changed      release only, and only tests that a change since REV can break
                 (default: what is not committed, and the commits that no remote
                 branch has, or else the last commit)
  --system       release only, and only the system tests
  --no-install   take what is installed
  --help         this text

The last line is `N passed, N failed, N skipped`; the exit status is 0 when
nothing failed, 1 otherwise, 2 for wrong usage.
USAGE
}

what=all
since=
install=true
while [ $# -gt 0 ]; do
    case $1 in
    --quick | --system) what=${1#--} ;;
    --changed)
        what=changed
        case ${2:-} in '' | -*) ;; *) since=$2; shift ;; esac ;;
    --no-install) install=false ;;
    --help | -h) usage; exit 0 ;;
    *)
        printf 'run.sh: there is no option "%s"; see %s --help\n' "$1" "$0" >&2
        exit 2
        ;;
    esac
    shift
done

# Tests that limit the time of a call: they run alone.
faults=tests/system/faults/test_faults.py
alone_tests=($faults::test_reads_and_writes_go_on_when_storages_are_killed
    $faults::test_reads_and_writes_go_on_when_storages_hang $faults::test_storages_down_before_the_first_read_or_write)
# The longest come first, so that all lanes end at about the same time; the other files
# follow.
long_tests=(tests/system/coherence/test_linear.py tests/system/coherence/test_coherence.py
    tests/system/data/test_programs.py tests/system/cli/test_bench.py tests/system/metadata/test_restart.py
    tests/system/healing/test_heal.py tests/system/faults/test_torn.py tests/system/metas/test_members.py
    tests/system/faults/test_storms.py tests/system/processes/test_mount.py tests/system/healing/test_heal_cli.py
    tests/system/processes/test_bad_input.py)
# System tests that also run on the asan build: every daemon and verb, several mounts and
# their recalls, no long loads.
asan_tests=(tests/system/cli/test_by_hand.py tests/system/cli/test_cli.py tests/system/processes/test_bad_input.py
    tests/system/metas/test_metas.py tests/system/metas/test_metas_begin.py tests/system/metas/test_init.py
    tests/system/processes/test_starts.py
    tests/system/coherence/test_coherence.py::test_writers_in_two_halves
    "tests/system/coherence/test_linear.py::test_four_mounts_are_as_one[names-deaths]"
    "tests/system/coherence/test_linear.py::test_four_mounts_are_as_one[register-deaths]"
    "tests/system/coherence/test_linear.py::test_four_mounts_are_as_one[rename-none]")
quick_tests=(tests/system/cli/test_dev.py tests/system/cli/test_cli.py tests/system/processes/test_bad_input.py
    tests/system/cli/test_by_hand.py tests/system/processes/test_starts.py tests/system/data/test_trees.py)
# The other codes, on the release build: write, read, lost storages in all layouts,
# damaged records.
codecs=(mojette-finite rs mojette-nonsystematic)
codec_tests=(tests/system/faults/test_faults.py::test_storages_that_missed_overwrites_serve_nothing_stale
    "tests/system/processes/test_bad_input.py::test_projections_lost_under_a_running_cluster[1-2]")
# ThreadSanitizer checks only programs with several threads: cores, codes and the simulation have one, and would cost
# minutes.
tsan_tests=(unit.codec.threads unit.common.env unit.common.rpc unit.common.rpc_names unit.deploy.process
    unit.rozomount.kernel_inval unit.rozomount.kernel_notify unit.exportd.disk unit.exportd.kv
    unit.exportd.attrs_leveldb unit.exportd.big_leveldb unit.exportd.names_leveldb)
job_max_s=1200 # limit of one pytest: beyond it something hangs
n_lanes=5      # system tests mostly wait

work=$(mktemp -d "${TMPDIR:-/tmp}/rozo-tests-XXXXXX") || exit 1
results=$work/results
mkdir -p "$results" "$work/tmp"
export TMPDIR=$work/tmp

# Times of the run on 2 cores: seconds passed, and processor seconds used so far by ended processes.
start_s=$SECONDS
stage='' stage_at=$SECONDS stages=() # the current stage and its start; the previous ones with their times
step()
{
    times >"$work/times"
    [ -z "$stage" ] || stages+=("$(printf '%5d s  %s' $((SECONDS - stage_at)) "$stage")")
    stage=$* stage_at=$SECONDS
    printf '\n==== %s (%d s, cpu %s) ====\n' "$*" $((SECONDS - start_s)) \
        "$(awk -F '[ms ]+' 'NR == 2 { printf "%d s", 60 * ($1 + $3) + $2 + $4 }' "$work/times")"
}

# Unmounts and stops whatever a test has left below our folder.
clean_up()
{
    local plan point pid

    for pid in "${lanes[@]}"; do
        kill -TERM -- "-$pid" 2>/dev/null
    done
    [ ${#lanes[@]} -eq 0 ] || wait "${lanes[@]}" 2>/dev/null
    find "$work" -xdev -path '*/etc/cluster.json' 2>/dev/null | while read -r plan; do
        [ -x build/release/bin/rozo ] &&
            timeout 120 build/release/bin/rozo dev down --dir "${plan%/etc/cluster.json}"
    done
    awk -v w="$work/" 'index($5, w) == 1 { print $5 }' /proc/self/mountinfo | sort -r |
        while read -r point; do
            umount -l "$point"
        done
    rm -rf --one-file-system "$work"
}
lanes=() # process groups that run tests
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Counts a failure outside of any test runner like a failed test.
failure() # NAME WORDS
{
    printf 'FAILED: %s: %s\n' "$1" "$2"
    printf '%s\t%s\n' "$1" "$2" >>"$results/failures"
}

build() # PRESET
{
    local targets=()

    cmake --preset "$1" >"$work/cmake.log" 2>&1 ||
        { tail -n 30 "$work/cmake.log"; failure "build.$1" "cmake --preset $1"; return 1; }
    # tsan builds only the programs that run: a test has the name of its program, or that
    # and a suffix.
    [ "$1" = tsan ] && targets=(--target "${tsan_tests[@]%_leveldb}")
    nice -n "$spare_nice" cmake --build --preset "$1" "${targets[@]}" >"$work/build.log" 2>&1 ||
        { grep -E 'error|FAILED|undefined' "$work/build.log" | head -n 40
          tail -n 10 "$work/build.log"; failure "build.$1" "cmake --build --preset $1"; return 1; }
}

unit() # PRESET [REGEX]
{
    local personality=() only=()

    [ $# -gt 1 ] && only=(-R "$2")
    # ThreadSanitizer of gcc 12 needs a fixed address layout.
    [ "$1" = tsan ] && personality=(setarch -R) only=(-R "^($(IFS='|'; echo "${tsan_tests[*]}"))\$")
    ASAN_OPTIONS=detect_leaks=1 TSAN_OPTIONS=halt_on_error=1 \
        nice -n "$spare_nice" "${personality[@]}" ctest --test-dir "build/$1" "${only[@]}" -j "$(nproc)" --timeout 300 \
        --output-on-failure --output-junit "$results/unit-$1.xml" >"$work/ctest.log" 2>&1
    # Prints the names only if something failed.
    if [ $? -eq 0 ]; then
        grep -E 'tests passed|No tests' "$work/ctest.log"
    else
        cat "$work/ctest.log"
        [ -s "$results/unit-$1.xml" ] || failure "unit.$1" "ctest did not run"
    fi
}

pytests() # PRESET NAME CODEC TEST...
{
    local preset=$1 name=$2 codec=$3
    shift 3
    [ -z "$codec" ] || export ROZO_TEST_CODEC=$codec
    # In the foreground of its lane, so that a signal to the lane reaches it.
    # shellcheck disable=SC2086
    ASAN_OPTIONS=detect_leaks=1 ROZO_BIN=$root/build/$preset/bin timeout --foreground --kill-after=30 "$job_max_s" \
        python3 -m pytest -p no:cacheprovider --basetemp="$work/pytest-$name" \
        --junit-xml="$results/$name.xml" -o junit_suite_name="$name" -rs --durations=3 -q \
        "$@" ${ROZO_SYSTEM_TESTS:-} </dev/null
    case $? in
    0 | 1 | 5) [ -s "$results/$name.xml" ] || failure "$name" "pytest left no results" ;;
    124 | 137) failure "$name" "pytest took longer than $job_max_s s" ;;
    *) failure "$name" "pytest could not run" ;;
    esac
}

# Jobs are runs of pytest that may run concurrently: each test has its own cluster, mounts and folder. Lanes take them
# in this order, each job when its build is ready.
jobs=() # "PRESET NAME CODEC|- TEST..."; no test has a space in its name
job() # PRESET NAME CODEC|- TEST...
{
    jobs+=("$*")
}

job_each() # PRESET TEST...: a job for each file
{
    local preset=$1 test name

    shift
    for test; do
        name=${test##*/test_}
        job "$preset" "system-$(tr -c 'a-z0-9\n' - <<<"${name/.py/}")-$preset" - "$test"
    done
}

# State of a build, for which lanes wait: a file that contains "yes" or "no".
built() # PRESET yes|no
{
    echo "$2" >"$work/built-$1"
}

lane()
{
    local left=true i preset name codec tests

    while $left; do
        left=false
        for i in "${!jobs[@]}"; do
            read -r preset name codec tests <<<"${jobs[$i]}"
            if [ ! -e "$work/built-$preset" ]; then
                left=true
                continue
            fi
            [ "$(cat "$work/built-$preset")" = yes ] && mkdir "$work/job-$i" 2>/dev/null || continue
            [ "$codec" = - ] && codec=
            # shellcheck disable=SC2086
            (SECONDS=0; pytests "$preset" "$name" "$codec" $tests; echo "$SECONDS" >"$work/job-$i/s") \
                >"$work/job-$i/log" 2>&1
        done
        $left && sleep 1
    done
}

lanes_start()
{
    local i

    set -m # each lane is a process group of its own
    for ((i = 0; i < n_lanes; i++)); do
        lane &
        lanes+=($!)
    done
    set +m
    spare_nice=10 # builds and unit tests use the time that the lanes leave
}

lanes_wait()
{
    local i name took

    [ ${#lanes[@]} -eq 0 ] || wait "${lanes[@]}"
    lanes=()
    for i in "${!jobs[@]}"; do
        read -r _ name _ <<<"${jobs[$i]}"
        [ -d "$work/job-$i" ] || continue # its build failed, which was counted already
        took=$(cat "$work/job-$i/s" 2>/dev/null) || failure "$name" "did not get to its end"
        printf '\n---- %s, took %s s ----\n' "$name" "${took:-?}"
        cat "$work/job-$i/log"
    done
}

if $install; then
    step "install"
    deploy/install-deps.sh --tests
    case $? in
    0) ;;
    3) echo "the tests that need those programs will be skipped" ;;
    *) failure install "deploy/install-deps.sh --tests" ;;
    esac
fi

spare_nice=0
step "build release"
if build release; then
    built release yes
else
    built release no
    what=none
fi

units_of_change='$^'
case $what in
changed)
    tests/changed.py build/release ${since:+"$since"} >"$work/changed" || failure changed "tests/changed.py"
    units_of_change=$(sed -n 's/^unit //p' "$work/changed" | sed 's/[.]/\\./g' | paste -s -d '|')
    mapfile -t of_change < <(sed -n 's/^system //p' "$work/changed")
    job_each release "${of_change[@]}"
    alone_tests=() ;;
quick)
    job_each release "${quick_tests[@]}"
    alone_tests=() ;;
all | system)
    first=" $faults ${long_tests[*]} "
    job release system-faults - "$faults" "${alone_tests[@]/#/--deselect=}"
    job_each release "${long_tests[@]}"
    for file in tests/system/*/test_*.py; do
        [[ $first == *" $file "* ]] || job_each release "$file"
    done
    for codec in "${codecs[@]}"; do
        job release "system-$codec" "$codec" "${codec_tests[@]}"
    done
    [ $what = system ] || job_each asan "${asan_tests[@]}" ;;
none)
    alone_tests=() ;;
esac

lanes_start
case $what in
all)
    for preset in asan tsan; do
        step "build $preset"
        build $preset && built $preset yes || built $preset no
    done
    for preset in release asan tsan; do
        [ "$(cat "$work/built-$preset")" = yes ] || continue
        step "unit and simulation tests, $preset"
        unit $preset
    done ;;
quick)
    step "unit and simulation tests, release"
    unit release ;;
changed)
    step "unit and simulation tests, release"
    unit release "^($units_of_change)\$" ;;
esac
if [ $what != system ] && [ $what != none ]; then
    step "rules of the source"
    pytests release rules "" tests/unit
fi
step "system tests"
lanes_wait
if [ ${#alone_tests[@]} -gt 0 ]; then
    step "system tests that time calls"
    pytests release system-alone "" "${alone_tests[@]}"
fi

step "results"
printf '%s\n' "${stages[@]}" "$(printf '%5d s  in all' $((SECONDS - start_s)))"
summary=$(python3 tests/results.py "$results")
status=$?
clean_up # before the last line, because it may print
trap - EXIT
printf '%s\n' "$summary"
exit $status
