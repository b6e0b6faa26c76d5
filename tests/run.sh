#!/bin/bash
#
# run.sh - install, build and run every test of rozo; one line at the end says how it went.
#
# In:     options, see --help. ROZO_SYSTEM_TESTS: further arguments for pytest (-k, -x, files).
# Out:    build/PRESET; the last line is `N passed, N failed, N skipped`.
# Keeps:  no mount and no process is left behind, however it ends: everything that tests start
#         lives below one temporary folder, which is taken apart at the end.
#
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1

usage()
{
    cat <<'USAGE'
Usage: sudo tests/run.sh [--quick] [--no-install] [--help]

Installs what is missing, builds release, asan and tsan, runs the unit and
simulation tests on the first two, those with threads on the third, the system
tests (real daemons, real mounts) on the release build and some of them on the
asan build, most of them in three lanes at a time, since they mostly wait. Not
as root, or without /dev/fuse, the tests that mount are skipped.

  --quick        release only, and of the system tests only the short ones
  --no-install   take what is installed
  --help         this text

The last line is `N passed, N failed, N skipped`; the exit status is 0 when
nothing failed, 1 otherwise, 2 for wrong usage.
USAGE
}

quick=false
install=true
for arg in "$@"; do
    case $arg in
    --quick) quick=true ;;
    --no-install) install=false ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
    esac
done

# These promise how long a call may take, or measure: they have the machine for themselves.
alone_tests=(tests/system/test_faults.py tests/system/test_bench.py)
# The others are in lanes side by side: each test has a cluster, mounts and a folder of its own. The first lane has those
# below, the second the rest and asan, the third several mounts and the further codes.
first_lane_tests=(tests/system/test_trees.py tests/system/test_exportd.py tests/system/test_mount.py
    tests/system/test_bad_input.py tests/system/test_reexport.py tests/system/test_full.py
    tests/system/test_programs.py tests/system/test_salvage.py tests/system/test_starts.py
    tests/system/test_storms.py)
presets=(release asan tsan)
$quick && presets=(release)
# System tests that also run on the asan build: every daemon and verb, several mounts and their recalls, no long loads.
asan_tests=(tests/system/test_by_hand.py tests/system/test_cli.py tests/system/test_bad_input.py
    tests/system/test_starts.py tests/system/test_coherence.py::test_writers_in_two_halves
    "tests/system/test_linear.py::test_four_mounts_are_as_one[names-deaths]"
    "tests/system/test_linear.py::test_four_mounts_are_as_one[register-deaths]"
    "tests/system/test_linear.py::test_four_mounts_are_as_one[rename-none]")
quick_tests=(tests/system/test_dev.py tests/system/test_cli.py tests/system/test_bad_input.py
    tests/system/test_by_hand.py tests/system/test_starts.py tests/system/test_trees.py)
# In the third lane: several mounts of one cluster.
coherence_tests=(tests/system/test_coherence.py tests/system/test_fsx2.py tests/system/test_linear.py tests/system/test_sqlite.py)
# And on the release build with each further code: written, read, storages lost in all layouts, records damaged.
codecs=(mojette-finite rs mojette-nonsystematic)
codec_tests=(tests/system/test_faults.py::test_storages_that_missed_overwrites_serve_nothing_stale
    "tests/system/test_bad_input.py::test_projections_lost_under_a_running_cluster[1-2]")
# ThreadSanitizer looks at what has more than one thread: cores, codes and the simulation have one, and
# took minutes of it to say so.
tsan_tests='^unit\.(codec\.threads|common\.(env|rpc)|deploy\.process|rozomount\.(invalidator|recaller)|exportd\.(disk|kv|.*_leveldb)|.*\.shell)$'
system_max_s=2400 # the whole of pytest on one build; then something hangs

work=$(mktemp -d "${TMPDIR:-/tmp}/rozo-tests-XXXXXX") || exit 1
results=$work/results
mkdir -p "$results" "$work/tmp"
export TMPDIR=$work/tmp

# What this whole run may take on 2 cores, and where the time goes: seconds passed, and seconds of
# processors used so far by what has ended.
start_s=$SECONDS
stage='' stage_at=$SECONDS stages=() # the one at hand, since when; those before and how long they took
step()
{
    times >"$work/times"
    [ -z "$stage" ] || stages+=("$(printf '%5d s  %s' $((SECONDS - stage_at)) "$stage")")
    stage=$* stage_at=$SECONDS
    printf '\n==== %s (%d s, cpu %s) ====\n' "$*" $((SECONDS - start_s)) \
        "$(awk -F '[ms ]+' 'NR == 2 { printf "%d s", 60 * ($1 + $3) + $2 + $4 }' "$work/times")"
}

# Unmount and stop whatever a test has left below our folder.
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

# A failure of ours, outside any test runner, counted like a failed test.
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
    # Of tsan only what is run: a test has the name of its program, or that and a suffix.
    [ "$1" = tsan ] && mapfile -t targets < <(echo --target; ctest --test-dir build/tsan -N -R "$tsan_tests" |
        sed -n 's/^ *Test *#[0-9]*: *//p' | sed 's/_leveldb$//' | sort -u)
    cmake --build --preset "$1" "${targets[@]}" >"$work/build.log" 2>&1 ||
        { grep -E 'error|FAILED|undefined' "$work/build.log" | head -n 40
          tail -n 10 "$work/build.log"; failure "build.$1" "cmake --build --preset $1"; return 1; }
}

unit() # PRESET
{
    local personality=() only=()

    # ThreadSanitizer of gcc 12 wants addresses where it expects them.
    [ "$1" = tsan ] && personality=(setarch -R) only=(-R "$tsan_tests")
    ASAN_OPTIONS=detect_leaks=1 TSAN_OPTIONS=halt_on_error=1 \
        "${personality[@]}" ctest --test-dir "build/$1" "${only[@]}" -j "$(nproc)" --timeout 300 \
        --output-on-failure --output-junit "$results/unit-$1.xml" >"$work/ctest.log" 2>&1
    # The names only when all is well.
    if [ $? -eq 0 ]; then
        grep -E 'tests passed|No tests' "$work/ctest.log"
    else
        cat "$work/ctest.log"
        [ -s "$results/unit-$1.xml" ] || failure "unit.$1" "ctest did not run"
    fi
}

pytests() # PRESET NAME TEST...
{
    local preset=$1 name=$2
    shift 2
    # In the foreground of its lane, so that a signal to the lane reaches it.
    # shellcheck disable=SC2086
    ASAN_OPTIONS=detect_leaks=1 ROZO_BIN=$root/build/$preset/bin timeout --foreground --kill-after=30 "$system_max_s" \
        python3 -m pytest -p no:cacheprovider --basetemp="$work/pytest-$name" \
        --junit-xml="$results/$name.xml" -o junit_suite_name="$name" -rs --durations=10 -q \
        "$@" ${ROZO_SYSTEM_TESTS:-} </dev/null
    case $? in
    0 | 1 | 5) [ -s "$results/$name.xml" ] || failure "$name" "pytest left no results" ;;
    124 | 137) failure "$name" "pytest took longer than $system_max_s s" ;;
    *) failure "$name" "pytest could not run" ;;
    esac
}

# Run a function beside what else runs; what it says comes when lanes_wait() gets to it.
lane() # FUNCTION ARG...
{
    local log=$work/lane-${#lanes[@]}

    set -m # a process group of its own
    { "$@"; echo $((SECONDS - stage_at)) >"$log.s"; } >"$log.log" 2>&1 &
    lanes+=($!)
    set +m
}

lanes_wait()
{
    local i took

    for i in "${!lanes[@]}"; do
        wait "${lanes[$i]}"
        took=$(cat "$work/lane-$i.s" 2>/dev/null) || failure "lane.$((i + 1))" "did not get to its end"
        stages+=("$(printf '%5d s  lane %d of what follows' "${took:-0}" "$((i + 1))")")
        printf '\n---- lane %d, took %d s ----\n' "$((i + 1))" "${took:-0}"
        cat "$work/lane-$i.log"
    done
    lanes=()
}

lane_rest() # ALSO_ASAN
{
    local skip=" ${alone_tests[*]} ${first_lane_tests[*]} ${coherence_tests[*]} " rest=() file

    for file in tests/system/test_*.py; do
        [[ $skip == *" $file "* ]] || rest+=("$file")
    done
    pytests release system-2 "${rest[@]}"
    $1 && pytests asan system-asan "${asan_tests[@]}"
}

lane_codecs()
{
    local codec

    pytests release system-coherence "${coherence_tests[@]}"
    for codec in "${codecs[@]}"; do
        ROZO_TEST_CODEC=$codec pytests release "system-$codec" "${codec_tests[@]}"
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

built=()
for preset in "${presets[@]}"; do
    step "build $preset"
    build "$preset" && built+=("$preset")
done
for preset in "${built[@]}"; do
    step "unit and simulation tests, $preset"
    unit "$preset"
done
has() # PRESET
{
    [[ " ${built[*]} " == *" $1 "* ]]
}

if has release; then
    step "rules of the source"
    pytests release rules tests/unit
fi
if has release && $quick; then
    step "system tests, release"
    pytests release system "${quick_tests[@]}"
elif has release; then
    step "system tests that time calls, release"
    pytests release system-alone "${alone_tests[@]}"
    step "system tests, release, further codes and asan"
    lane pytests release system-1 "${first_lane_tests[@]}"
    lane lane_rest "$(has asan && echo true || echo false)"
    lane lane_codecs
    lanes_wait
elif has asan; then
    step "system tests, asan"
    pytests asan system-asan "${asan_tests[@]}"
fi

step "results"
printf '%s\n' "${stages[@]}" "$(printf '%5d s  in all' $((SECONDS - start_s)))"
summary=$(python3 tests/results.py "$results")
status=$?
clean_up # before the last line, should it have something to say
trap - EXIT
printf '%s\n' "$summary"
exit $status
