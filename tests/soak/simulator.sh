#!/bin/sh
# simulator.sh - run the simulations with new seeds, on all cores, until stopped or the time is over.
#
#     tests/soak/simulator.sh BUILD_DIR [SECONDS] [FIRST_SEED] [FAILED_FILE]
#
# Runs every mode of the whole cluster without and with healing, and with three exportds, with --torn where a power
# loss may tear writes, and the block engine alone. FAILED_FILE (sim-failed.txt) gets the command that repeats each
# failed run, with its message. The summary at the end, also after ^C: seeds, operations, findings, and a command for
# each. Exit status 1: findings.
set -u

build=${1:?usage: simulator.sh BUILD_DIR [SECONDS] [FIRST_SEED] [FAILED_FILE]}
seconds=${2:-0}
first=${3:-$(date +%s)}
failed=${4:-sim-failed.txt}
blocks=$(find "$build" -type f -name rozo-sim-blocks | head -n 1)
cluster=$(find "$build" -type f -name rozo-sim | head -n 1)
counts=$(mktemp -d)
begun=$(date +%s)
end=$((begun + seconds))
workers=
stopped=

# one FILE COMMAND...: runs it; appends its sums to FILE, and the message of a failure to
# FAILED_FILE
one() {
    file=$1
    shift
    words=$("$@" 2>&1)
    status=$?
    echo "$words" | grep -a -E '^([0-9]+ seeds|met:) ' >>"$file"
    [ "$status" -eq 0 ] && return 0
    [ "$status" -gt 128 ] && [ -e "$counts/stop" ] && return 0
    printf '%s\n    %s\n' "$*" \
        "$(echo "$words" | grep -a -m 1 -E 'VIOLATION|ssert|ERROR|WRONG' | cut -c 1-300)" >>"$failed"
}

# worker SEED STEP
worker() {
    seed=$1
    while [ ! -e "$counts/stop" ] && { [ "$seconds" -eq 0 ] || [ "$(date +%s)" -lt "$end" ]; }; do
        for mode in calm net crash few client late hang rot full power eio pages replace lost chaos; do
            for options in "" --torn "--torn --directories" --heal "--heal --torn" "--heal --torn --directories"; do
                [ -e "$counts/stop" ] && return
                # without healing, unsynced writes that a power loss tore stay torn
                case $mode$options in power | eio | pages | rot | chaos | crash) continue ;; esac
                [ "$mode" = lost ] && options="$options --ops 1500"
                # shellcheck disable=SC2086 # several words
                one "$counts/cluster.$1" "$cluster" --mode "$mode" --seed "$seed" --quiet $options
            done
        done
        for mode in calm net crash client late dead hang power rot pages eio replace lost old few full chaos; do
            for options in "--torn --kernel --strict" "--torn --shared --kernel --locks" "--torn --shared --inline" \
                "--heal --torn"; do
                [ -e "$counts/stop" ] && return
                # shellcheck disable=SC2086 # several words
                one "$counts/cluster.$1" "$cluster" --metas 3 --mode "$mode" --seed "$seed" --quiet $options
            done
        done
        for mode in budget calm chaos power; do
            [ -e "$counts/stop" ] && return
            for layout in 0 1 2; do
                one "$counts/blocks.$1" "$blocks" --mode "$mode" --layout "$layout" --seed "$seed" --steps 400
            done
            # the smallest cluster, without spares; and the other kinds of code
            one "$counts/blocks.$1" "$blocks" --mode "$mode" --layout 1 --storages 6 --seed "$seed"
            one "$counts/blocks.$1" "$blocks" --mode "$mode" --layout 0 --kind 2 --seed "$seed"
            one "$counts/blocks.$1" "$blocks" --mode "$mode" --layout 1 --kind 3 --seed "$seed"
            one "$counts/blocks.$1" "$blocks" --mode "$mode" --layout 2 --kind 4 --seed "$seed"
        done
        seed=$((seed + $2))
    done
}

touch "$failed"
before=$(wc -l <"$failed")
n=$(nproc)
i=0
trap 'stopped=1; touch "$counts/stop"' INT TERM
while [ "$i" -lt "$n" ]; do
    worker $((first + i)) "$n" &
    workers="$workers $!"
    i=$((i + 1))
done
for pid in $workers; do
    while kill -0 "$pid" 2>/dev/null; do
        wait "$pid"
    done
done

after=$(wc -l <"$failed")
findings=$(((after - before) / 2))
cat "$counts"/cluster.* /dev/null 2>/dev/null | awk -v s=$(($(date +%s) - begun)) '
    $1 == "met:" { pages += $2; worn += $5; doubts += $8; asked += $12; disks += $16; next }
    { seeds += $1; ops += $3; torn += $10 }
    END { printf "the whole cluster: %d seeds without a finding, %d operations, %d torn blocks, in %d s\n",
              seeds, ops, torn, s
          printf "met: %d pages spoiled, %d for good, %d doubts, %d questions in doubt, %d disks replaced\n",
              pages, worn, doubts, asked, disks }'
echo "$findings findings${stopped:+ (stopped)}"
tail -n "+$((before + 1))" "$failed" | grep -v '^    '
rm -r "$counts"
[ "$findings" -eq 0 ]
