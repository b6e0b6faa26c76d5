#!/bin/bash
#
# soak_storms.sh - test_storms.py for long: storages die at random under load.
#
# In:     minutes in all (30), shared by the layouts; ROZO_BIN, default build/release/bin; ROZO_STORM_SEED to
#         have the same storm again (as far as real processes repeat themselves).
# Out:    pytest's; the exit status is 0 when nothing was lost and all was healed.
#
set -euo pipefail

minutes=${1:-30}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seconds=$((minutes * 60))
ROZO_STORM_S=$((seconds / 2)) ROZO_TEST_MAX_S=$((2 * seconds + 600)) \
    exec python3 -m pytest -p no:cacheprovider -q -s tests/system/test_storms.py
