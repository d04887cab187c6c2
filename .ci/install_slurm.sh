#!/bin/sh
# Install the packages that the tests' real Slurm cluster needs (Debian or Ubuntu, as root).
# Quiet, idempotent, and starts no service: policy-rc.d answers 101 while dpkg configures the packages.
set -eu

if [ "$(id -u)" != 0 ]; then
    echo "install_slurm.sh needs root: run it with sudo, or in a container" >&2
    exit 1
fi

missing=""
need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
PATH="$PATH:/usr/sbin:/sbin"
need slurmctld slurmctld
need slurmd slurmd
need sinfo slurm-client
need munged munge
need slurmdbd slurmdbd
need mariadbd mariadb-server
need ip iproute2
need unshare util-linux
[ "${HOLMES_SLURM_TREE:-}" = no ] || need debootstrap debootstrap
[ -n "$missing" ] || exit 0

policy=/usr/sbin/policy-rc.d
made_policy=""
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    made_policy=yes
fi
trap '[ -z "$made_policy" ] || rm -f "$policy"' EXIT

log=$(mktemp)
install_packages() {
    apt-get update -qq &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
}
if ! install_packages >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
rm -f "$log"
