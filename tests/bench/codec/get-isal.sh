#!/bin/bash
#
# get-isal.sh - build an ISA-L newer than Debian's, for comparison in the benchmark of the codec.
#
# In:     crate isal-sys 0.5.3 of crates.io, which contains the sources of ISA-L 2.31 (BSD licence). Needs
#         cargo, make, gcc and nasm.
# Out:    ${XDG_CACHE_HOME:-~/.cache}/rozo-bench/isal/lib/libisal.so.2, where the benchmark looks; prints
#         that path. Nothing of ISA-L becomes part of rozo.
# Keeps:  a second run finds the library there and uses no network.
# Yours:  any other ISA-L works as well: put it below a folder's lib/ and set ISAL_PREFIX to that folder.
#
set -euo pipefail

CRATE=isal-sys
CRATE_VERSION=0.5.3

die() { printf 'get-isal: %s\n' "$*" >&2; exit 1; }

prefix=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/rozo-bench/isal
library=$prefix/lib/libisal.so.2
[ $# = 0 ] || die "takes no arguments; builds $library"
if [ -e "$library" ]; then
    echo "$library"
    exit 0
fi
for program in cargo make gcc nasm; do
    command -v $program >/dev/null || die "$program is missing (Debian: apt-get install cargo make gcc nasm)"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >Cargo.toml <<TOML
[package]
name = "fetch"
version = "0.0.0"
edition = "2021"
[lib]
path = "lib.rs"
[dependencies]
$CRATE = "=$CRATE_VERSION"
TOML
touch lib.rs
cargo vendor --quiet vendor >fetch.log 2>&1 || { tail -n 5 fetch.log >&2; die "cargo could not fetch $CRATE"; }

cd "vendor/$CRATE/isa-l"
version=$(sed -n 's/^version *?= *//p' make.inc)
# -Bsymbolic: two ISA-Ls live in one process, and each must call its own kernels.
make -f Makefile.unx -j2 units="erasure_code raid" \
    LDFLAGS_so="-Wl,-z,noexecstack -Wl,-z,now -Wl,-soname,libisal.so.2 -Wl,-Bsymbolic" slib \
    >"$work/build.log" 2>&1 || { tail -n 10 "$work/build.log" >&2; die "could not build ISA-L $version"; }
mkdir -p "$prefix/lib"
minor=${version#*.}
install -m 0755 bin/libisal.so "$prefix/lib/libisal.so.2.0.${minor%%.*}"
ln -sf "libisal.so.2.0.${minor%%.*}" "$library"
echo "$library"
