#!/bin/sh
# soak.sh - run the simulations with new seeds, on all cores, until stopped or the time is over.
#
#     tests/sim/soak.sh BUILD_DIR [SECONDS] [FIRST_SEED] [FAILED_FILE]
#
# Commands that replay what was found wrong are added to FAILED_FILE (sim-failed.txt), with the words. The exit
# status is 1 when there was any.
set -u

build=${1:?usage: soak.sh BUILD_DIR [SECONDS] [FIRST_SEED] [FAILED_FILE]}
seconds=${2:-0}
first=${3:-$(date +%s)}
failed=${4:-sim-failed.txt}
blocks=$(find "$build" -type f -name rozo-sim-blocks | head -n 1)
cluster=$(find "$build" -type f -name rozo-sim | head -n 1)
end=$(($(date +%s) + seconds))

# one COMMAND...: run it, and note it when it fails
one() {
    words=$("$@" 2>&1 >/dev/null) && return 0
    printf '%s\n    %s\n' "$*" "$(echo "$words" | grep -a -m 1 -E 'VIOLATION|ssert|ERROR' | cut -c 1-300)" >>"$failed"
}

# worker SEED STEP
worker() {
    seed=$1
    while [ "$seconds" -eq 0 ] || [ "$(date +%s)" -lt "$end" ]; do
        for mode in calm net crash client late hang rot full power chaos; do
            one "$cluster" --mode "$mode" --seed "$seed" --quiet
            one "$cluster" --mode "$mode" --seed "$seed" --quiet --heal
        done
        for mode in budget calm chaos power; do
            for layout in 0 1 2; do
                one "$blocks" --mode "$mode" --layout "$layout" --seed "$seed" --steps 400
            done
            # the smallest cluster: no spares at all; and the other kinds of code
            one "$blocks" --mode "$mode" --layout 1 --storages 6 --seed "$seed"
            one "$blocks" --mode "$mode" --layout 0 --kind 2 --seed "$seed"
            one "$blocks" --mode "$mode" --layout 1 --kind 3 --seed "$seed"
            one "$blocks" --mode "$mode" --layout 2 --kind 4 --seed "$seed"
        done
        seed=$((seed + $2))
    done
}

touch "$failed"
before=$(wc -l <"$failed")
n=$(nproc)
i=0
while [ "$i" -lt "$n" ]; do
    worker $((first + i)) "$n" &
    i=$((i + 1))
done
wait
after=$(wc -l <"$failed")
echo "$(((after - before) / 2)) failed"
[ "$after" -eq "$before" ]
