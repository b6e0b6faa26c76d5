#!/bin/bash
#
# soak_fsx.sh - what two mounts must agree on, for long.
#
# In:     operations of each fsx2 run (100000), seeds (10); ROZO_BIN, default build/release/bin.
# Out:    pytest's; the exit status is 0 when every byte, name and count was as it must be.
#
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export ROZO_FSX_OPS=${1:-100000} ROZO_FSX_SEEDS=${2:-10} ROZO_SQLITE_TRANSACTIONS=10000 ROZO_LINEAR_OPS=4000
ROZO_TEST_MAX_S=36000 exec python3 -m pytest -p no:cacheprovider -q \
    tests/system/test_fsx2.py tests/system/test_linear.py tests/system/test_sqlite.py
