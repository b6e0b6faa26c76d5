#!/bin/sh
# soak.sh - run the simulations with new seeds until one fails or the time is over.
#
#     tests/sim/soak.sh BUILD_DIR [SECONDS] [FIRST_SEED]
set -eu

build=${1:?usage: soak.sh BUILD_DIR [SECONDS] [FIRST_SEED]}
seconds=${2:-3600}
seed=${3:-$(date +%s)}
end=$(($(date +%s) + seconds))
sim=$(find "$build" -type f -name rozo-sim-blocks | head -n 1)
n=0

while [ "$(date +%s)" -lt "$end" ]; do
    for mode in budget calm chaos power torn wreck; do
        for layout in 0 1 2; do
            nice "$sim" --mode "$mode" --layout "$layout" --seed "$seed" --steps 400 >/dev/null || {
                echo "failed after $n runs" >&2
                exit 1
            }
            n=$((n + 1))
        done
        # the smallest cluster: no spares at all; and the other kinds of code
        nice "$sim" --mode "$mode" --layout 1 --storages 6 --seed "$seed" >/dev/null
        nice "$sim" --mode "$mode" --layout 0 --kind 2 --seed "$seed" >/dev/null
        nice "$sim" --mode "$mode" --layout 1 --kind 3 --seed "$seed" >/dev/null
        nice "$sim" --mode "$mode" --layout 2 --kind 4 --seed "$seed" >/dev/null
        n=$((n + 4))
    done
    seed=$((seed + 1))
done
echo "$n runs, none failed"
