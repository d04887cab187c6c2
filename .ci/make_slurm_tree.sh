#!/bin/sh
# Make a Debian 13 tree with Slurm 24.11 beside the machine's own Slurm (as root, needs debootstrap).
# The tree lies at $HOLMES_SLURM_TREE, by default /var/tmp/holmes-slurm-24.11; where it exists nothing is done.
set -eu

tree="${HOLMES_SLURM_TREE:-/var/tmp/holmes-slurm-24.11}"
packages=slurmctld,slurmd,slurm-client,slurmdbd,mariadb-server,munge,iproute2,python3
if [ "$(id -u)" != 0 ]; then
    echo "make_slurm_tree.sh needs root: run it with sudo, or in a container" >&2
    exit 1
fi
[ ! -x "$tree/usr/sbin/slurmctld" ] || exit 0

# The mirror that this machine's apt uses, where it has one for Debian.
mirror=$(sed -nE 's/^(URIs:|deb) *(\[[^]]*\] *)?(https?:[^ ]*\/debian)\/?( .*)?$/\3/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
unfinished="$tree.unfinished"
rm -rf "$unfinished"
if ! debootstrap --variant=minbase --include="$packages" trixie "$unfinished" \
    "${mirror:-http://deb.debian.org/debian}" >"$tree.log" 2>&1; then
    tail -n 20 "$tree.log" >&2
    rm -rf "$unfinished"
    exit 1
fi
rm -rf "$unfinished/var/cache/apt" "$unfinished/var/lib/apt/lists" "$tree"
mv "$unfinished" "$tree"
rm -f "$tree.log"
