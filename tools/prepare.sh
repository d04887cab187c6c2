#!/usr/bin/env bash
# Makes .venv with this project and its tools in it. `make` calls it; $PIP_ARGS goes to pip.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "prepare: $*" >&2; }

is_debian_root() { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; }

# Installs Debian packages quietly; names what it cannot install and goes on.
install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    local options=(-y -qq --no-install-recommends)
    apt-get install "${options[@]}" "$@" >/dev/null 2>&1 && return 0
    apt-get update -qq >/dev/null 2>&1 || true
    apt-get install "${options[@]}" "$@" >/dev/null 2>&1 || say "cannot install $*"
}

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return 0
        fi
    done
    return 1
}

has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

has_iproute2() { PATH="$PATH:/usr/sbin:/sbin" command -v ip >/dev/null && PATH="$PATH:/usr/sbin:/sbin" command -v tc >/dev/null; }

if ! python=$(find_python); then
    is_debian_root && install_packages python3 python3-venv
    if ! python=$(find_python); then
        say "no Python 3.11 or newer found (tried ${PYTHON:-python3, python3.13, python3.12, python3.11})."
        say "Install one, or name it: make PYTHON=/path/to/python3.12"
        exit 1
    fi
fi
if ! has_venv "$python"; then
    is_debian_root && install_packages python3-venv
    if ! has_venv "$python"; then
        say "$python has no venv or no ensurepip. On Debian and Ubuntu: apt-get install python3-venv"
        exit 1
    fi
fi
if ! has_iproute2; then
    is_debian_root && install_packages iproute2
    has_iproute2 || say "no ip and tc (package iproute2): clusters cannot be emulated, and runs here are plain local" \
        "processes whose NICs are all the loopback interface."
fi

[ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear .venv
say "installing into .venv with $("$python" --version) (the first time takes some minutes)"
# shellcheck disable=SC2086
.venv/bin/python -m pip install -q --disable-pip-version-check -e ".[dev]" -c constraints.txt ${PIP_ARGS:-}
touch .venv/prepared
