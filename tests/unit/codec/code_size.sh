#!/bin/bash
#
# code_size.sh - what codec/gen writes, for all instruction sets together, stays within its bound.
#
# In:     the bound in bytes, then object files. Out: what they take; exit status 1 beyond the bound.
#
set -euo pipefail

max=$1
shift
took=$(size "$@" | awk 'NR > 1 { sum += $1 } END { print sum }')
echo "straight lines of the codecs: $took bytes, at most $max"
[ "$took" -le "$max" ]
