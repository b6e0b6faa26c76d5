#!/bin/bash
#
# run.sh - build the codecs for 64-bit ARM and run test_any_kn.c there, in an emulator.
#
# In:     aarch64-linux-gnu-gcc, qemu-aarch64 and python3 (Debian: gcc-aarch64-linux-gnu,
#         qemu-user). The only argument is WORK, a folder that the script creates.
# Out:    0 on success, 1 on failure, 77 and the reason if a tool is missing.
# Keeps:  the 16-byte loops are NEON there. Reed-Solomon and crc32c are left out, since isa-l
#         for ARM is seldom available.
#
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: run.sh WORK" >&2; exit 2; }
work=$1
cd "$(dirname "${BASH_SOURCE[0]}")/../../../.."

for tool in aarch64-linux-gnu-gcc qemu-aarch64 python3; do
    if ! command -v "$tool" >/dev/null; then
        echo "skipped: $tool is not installed"
        exit 77
    fi
done
mkdir -p "$work"
python3 -B codec/gen/generate.py --isa 128 --out "$work"
compile=(aarch64-linux-gnu-gcc -std=gnu17 -D_GNU_SOURCE -O1 -Wall -Wextra
    -Wno-unused-parameter -Werror -I. "-I$work")
for source in codec/codec.c codec/finite.c codec/isa.c codec/kernel_ref.c codec/mojette.c \
    tests/unit/codec/neon/no_isal.c tests/unit/codec/mojette_ref.c \
    tests/unit/codec/test_any_kn.c "$work"/kernels_128_*.c; do
    "${compile[@]}" -Itests/unit/codec/neon -c "$source" -o "$work/$(basename "$source" .c).o"
done
"${compile[@]}" -O2 -DKERNEL_TABLE=kernels_128 '-DKERNEL_GENERATED="kernels_128.h"' \
    -c codec/kernel.c -o "$work/kernel.o"
aarch64-linux-gnu-gcc -static "$work"/*.o -lpthread -o "$work/test_any_kn"
qemu-aarch64 "$work/test_any_kn"
