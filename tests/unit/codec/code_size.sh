#!/bin/bash
#
# code_size.sh - checks that the code which codec/gen generates, for all instruction sets
# together, stays within a bound.
#
# In:     the bound in bytes, then object files.
# Out:    their size; exit status 1 if it is above the bound.
#
set -euo pipefail

max=$1
shift
took=$(size "$@" | awk 'NR > 1 { sum += $1 } END { print sum }')
echo "straight lines of the codecs: $took bytes, at most $max"
[ "$took" -le "$max" ]
