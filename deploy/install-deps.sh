#!/bin/bash
#
# install-deps.sh - install what building and testing rozo needs, on Debian 12.
#
# In:     options, see --help. Run as root (with --check anybody may).
# Out:    Debian packages; with --tests also two test programs from crates.io, built into
#         ${ROZO_TESTS_DIR:-${XDG_CACHE_HOME:-~/.cache}/rozo-tests}/bin.
# Keeps:  a second run finds everything, touches no network and is silent.
# Yours:  the lists below. One package a line, with the reason where it is not plain.
#
set -euo pipefail

BUILD_PACKAGES=(
    build-essential
    cmake
    ninja-build
    pkg-config
    python3 # writes the inner loops of codec/
    libfuse3-dev
    fuse3 # mount.fuse3 and fusermount3
    libuv1-dev
    libprotobuf-c-dev
    protobuf-c-compiler
    libleveldb-dev
    libisal-dev
    libssl-dev
    libcyaml-dev
    libyaml-dev # config.c walks the tree itself
    libjansson-dev # the JSON that rozo prints
    uthash-dev
    libcmocka-dev
    libsystemd-dev
)
# Older versions lose committed entries, and Debian 12 has one: there the package comes from its
# backports. exportd/quorum/raft/raft_core_in.h refuses any other version than 0.22.1.
RAFT_PACKAGE=libraft-dev
RAFT_WANT=0.22.1
TEST_PACKAGES=(
    ccache # a second clone, or another branch, builds in seconds
    ca-certificates # cargo fetches the crates over https
    python3-pytest
    fio
    git
    rsync
    sqlite3
    attr
    acl
    iproute2 # network namespaces and wires of a limited speed
    clang-format-16 # what the root .clang-format is written for
    samba # tests/system/gateways: smbd, smbpasswd, testparm
    samba-vfs-modules # catia, fruit, streams_xattr, acl_xattr
    smbclient # smbcacls, too
    nfs-ganesha-vfs # brings rpcbind and nfs-common
    libnfs-utils
    libnfs13
    runc # tests/system/processes/test_container.py
)
# The fuzz preset. Other builds replay the corpus and want none of it.
FUZZ_PACKAGES=(
    clang
    libclang-rt-14-dev # libFuzzer and the sanitizers' run time
)
# Units that come with these packages: installed for tests, they are neither started now nor at
# boot. A machine that has the package already keeps its settings.
TEST_UNITS=(smbd.service nmbd.service samba-ad-dc.service nfs-ganesha.service rpcbind.service rpcbind.socket)
# The test programs, as crate@version; their binaries have the crate's name.
CRATES=(pjdfstest@0.2.2 fsx@0.3.2)
CRATES_WANT_RUST=1.85

usage()
{
    cat <<'USAGE'
Usage: install-deps.sh [--tests] [--fuzz] [--check] [--help]

Installs the Debian packages that rozo is built with. Needs root. When all is
there already it does nothing and says nothing.

  --tests   also what only the tests need: packages, and the crates pjdfstest
            and fsx (built with cargo, kept in ~/.cache/rozo-tests)
  --fuzz    also what the preset "fuzz" is built with: clang and libFuzzer
  --check   install nothing; name what is missing and exit 1 if anything is
  --help    this text

Exit status: 0 all is there, 1 something could not be installed (a line says
what), 2 wrong usage, 3 only test programs from crates.io are missing.
USAGE
}

say() { printf 'install-deps: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

tests=false
fuzz=false
check=false
for arg in "$@"; do
    case $arg in
    --tests) tests=true ;;
    --fuzz) fuzz=true ;;
    --check) check=true ;;
    --help | -h) usage; exit 0 ;;
    *)
        printf 'install-deps: there is no option "%s"; see %s --help\n' "$arg" "$0" >&2
        exit 2
        ;;
    esac
done

# The packages of "$@" that are not installed, one a line.
missing_packages()
{
    local have

    have=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null |
        sed -n 's/^installed //p' || true)
    printf '%s\n' "$@" | grep -vxF "${have:-none}" || true
}

# True when libraft is here, and new enough.
raft_is_installed()
{
    [ -z "$(missing_packages "$RAFT_PACKAGE")" ] &&
        dpkg --compare-versions "$(dpkg-query -W -f '${Version}' "$RAFT_PACKAGE")" ge "$RAFT_WANT"
}

# Prints the release, such as bookworm-backports, from which apt would get the libraft that we want.
raft_release()
{
    apt-cache madison "$RAFT_PACKAGE" | sed -n "s/^[^|]*| *$RAFT_WANT-[^|]*| *[^ ]* \\([^ /]*\\).*/\\1/p" | grep -m 1 .
}

# Add Debian's backports for this release, from the machine's own mirror.
backports_add()
{
    local codename uri

    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $codename" | head -n 1)
    [ -n "$codename" ] && [ -n "$uri" ] ||
        die "apt knows no mirror of this release of Debian. Install $RAFT_PACKAGE $RAFT_WANT by other means."
    say "adds $codename-backports: /etc/apt/sources.list.d/rozo-backports.list"
    echo "deb $uri $codename-backports main" >/etc/apt/sources.list.d/rozo-backports.list
    apt_updated=false
    apt_update
}

# One apt-get update before the first package, and one after a source was added.
apt_updated=false
apt_update()
{
    [ "$(id -u)" = 0 ] || die "packages are missing: ${missing[*]}. Run again as root."
    if ! $apt_updated; then
        say "apt-get update"
        apt-get update -qq >/dev/null || say "apt-get update failed; trying with the lists that are here"
        apt_updated=true
    fi
}

# Let no installed package start its services, and enable none of TEST_UNITS, until services_release().
policy_file=/usr/sbin/policy-rc.d
held=false
masked=()
services_hold()
{
    local unit

    if [ ! -e "$policy_file" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy_file"
        chmod 755 "$policy_file"
        held=true
    fi
    for unit in "${TEST_UNITS[@]}"; do
        if [ ! -e "/lib/systemd/system/$unit" ] && [ ! -e "/etc/systemd/system/$unit" ]; then
            mkdir -p /etc/systemd/system
            ln -s /dev/null "/etc/systemd/system/$unit"
            masked+=("$unit")
        fi
    done
}

# A mask of a unit that was not installed goes; one that was stays, and is told.
services_release()
{
    local unit

    if $held; then
        rm -f "$policy_file"
        held=false
    fi
    for unit in "${masked[@]}"; do
        if [ -e "/lib/systemd/system/$unit" ]; then
            say "$unit is masked, since only tests want it. To use it: systemctl unmask $unit"
        else
            rm -f "/etc/systemd/system/$unit"
        fi
    done
    masked=()
}

# Install packages, or apt-get's options and packages.
apt_install()
{
    apt_update
    say "apt-get install $*"
    services_hold
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends --no-remove "$@" \
        >"$apt_log" 2>&1 </dev/null ||
        { tail -n 20 "$apt_log" >&2; die "apt-get could not install: $*. See the lines above."; }
    services_release
}

# True when cargo is here and compiles with at least CRATES_WANT_RUST.
rust_is_new_enough()
{
    local have

    command -v cargo >/dev/null && have=$(rustc --version 2>/dev/null | awk '{print $2}') &&
        [ -n "$have" ] &&
        [ "$(printf '%s\n' "$CRATES_WANT_RUST" "$have" | sort -V | head -n 1)" = "$CRATES_WANT_RUST" ]
}

# True when crate $1 of version $2 is installed under $crates_dir.
crate_is_installed()
{
    [ -x "$crates_dir/bin/$1" ] && grep -q "^\"$1 $2 " "$crates_dir/.crates.toml" 2>/dev/null
}

missing_crates()
{
    local crate

    for crate in "${CRATES[@]}"; do
        crate_is_installed "${crate%@*}" "${crate#*@}" || echo "$crate"
    done
}

command -v dpkg-query >/dev/null ||
    die "this is no Debian system. Install by other means: ${BUILD_PACKAGES[*]}"

apt_log=$(mktemp)
trap 'rm -f "$apt_log"; services_release' EXIT
crates_dir=${ROZO_TESTS_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/rozo-tests}

wanted=("${BUILD_PACKAGES[@]}")
if $tests; then
    wanted+=("${TEST_PACKAGES[@]}")
fi
if $fuzz; then
    wanted+=("${FUZZ_PACKAGES[@]}")
fi
mapfile -t missing < <(missing_packages "${wanted[@]}")
others=("${missing[@]}")
raft_is_installed || missing+=("$RAFT_PACKAGE ($RAFT_WANT)")
crates=()
if $tests; then
    mapfile -t crates < <(missing_crates)
fi

if $check; then
    [ ${#missing[@]} = 0 ] || die "missing packages: ${missing[*]}"
    [ ${#crates[@]} = 0 ] || { say "missing test programs: ${crates[*]}"; exit 3; }
    exit 0
fi

if [ ${#others[@]} != 0 ]; then
    apt_install "${others[@]}"
fi
if ! raft_is_installed; then
    apt_update
    raft_release >/dev/null || backports_add
    release=$(raft_release) || die "apt finds no $RAFT_PACKAGE $RAFT_WANT. Install it by other means."
    apt_install -t "$release" "$RAFT_PACKAGE"
fi
[ ${#crates[@]} = 0 ] && exit 0

# Debian's own rustc is older than the crates want; rustc-web is the newer one it keeps for browsers.
if ! rust_is_new_enough; then
    apt_install rustc-web cargo-web
    hash -r
    rust_is_new_enough || {
        say "pjdfstest and fsx want Rust $CRATES_WANT_RUST or newer, here is: $(rustc --version 2>&1 || true)"
        exit 3
    }
fi
mkdir -p "$crates_dir"
say "cargo install ${crates[*]} (some minutes, once)"
if ! CARGO_TARGET_DIR="$crates_dir/target" cargo install --locked --quiet --root "$crates_dir" \
    "${crates[@]}" >"$crates_dir/install.log" 2>&1 </dev/null; then
    tail -n 10 "$crates_dir/install.log" >&2
    say "could not build ${crates[*]}; the whole story is in $crates_dir/install.log"
    exit 3
fi
rm -rf "$crates_dir/target"
