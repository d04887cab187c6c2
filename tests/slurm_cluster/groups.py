"""Control groups (version 1) for the nodes of a cluster: below one of the cluster's own, as if each node had the root.

A cgroup namespace shows a node its own group as the root, so that clusters that run at once do not meet in one group.
"""

from __future__ import annotations

import subprocess
import time
import zlib
from pathlib import Path

KINDS = "memory freezer cpuset devices cpu cpuacct"

HOLD = f"""\
for kind in {KINDS}; do
  mount -t cgroup -o $kind cgroup /mnt && mkdir -p /mnt/$1/$0 || exit
  if [ $kind = cpuset ]; then
    for file in cpuset.cpus cpuset.mems; do
      cat /mnt/$file > /mnt/$1/$file && cat /mnt/$file > /mnt/$1/$0/$file || exit
    done
  fi
  echo $$ > /mnt/$1/$0/cgroup.procs && umount /mnt || exit
done
exec unshare --cgroup sh -c '
  mount -t sysfs sysfs /sys && mount -t tmpfs cgroups /sys/fs/cgroup || exit
  for kind in {KINDS}; do
    mkdir /sys/fs/cgroup/$kind && mount -t cgroup -o $kind cgroup /sys/fs/cgroup/$kind || exit
  done
  hostname "$0" && mount -t tmpfs -o mode=1777 shm /dev/shm && echo ready && exec sleep infinity' "$0"
"""
"""A script that holds a node whose name is `$0`, in the cluster's group `$1`."""

_REMOVE = f"""\
for kind in {KINDS}; do
  mount -t cgroup -o $kind cgroup /mnt || exit
  [ ! -d /mnt/$0 ] || find /mnt/$0 -depth -type d -exec rmdir {{}} +
  umount /mnt
done
"""


def groups_of(shared: Path) -> str:
    """Return the name of the control group that holds those of the cluster with this shared folder."""
    return f"holmes-{zlib.crc32(str(shared.resolve()).encode()):08x}"


def remove_groups(shared: Path) -> None:
    """Remove the control groups of a cluster that has ended; its last processes may take a moment."""
    deadline = time.monotonic() + 5
    while _run(_REMOVE, groups_of(shared)).stderr and time.monotonic() < deadline:
        time.sleep(0.1)


def no_groups() -> str | None:
    """Return why no such groups can be made here, None where they can."""
    tried = _run("mount -t cgroup -o memory cgroup /mnt && mkdir -p /mnt/holmes-try && rmdir /mnt/holmes-try", "try")
    if tried.returncode == 0:
        return None
    return f"no control groups of version 1 with the controller `memory`: {tried.stderr.strip()}"


def _run(script: str, name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["unshare", "--mount", "sh", "-c", script, name], capture_output=True, text=True, check=False)
