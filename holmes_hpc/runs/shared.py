"""Whether the nodes of a job can see a folder, as far as this machine can know."""

from __future__ import annotations

from pathlib import Path

from holmes_hpc.paths import at_home

_OF_THIS_MACHINE = ("tmpfs", "ramfs", "devtmpfs", "proc", "sysfs")


def memory_file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Return the kind of file system (`tmpfs`) where a path lies in the memory of this machine, else None.

    Disks cannot be judged so: that of a login node may be the one that it exports to its nodes.
    """
    try:
        lines = [line.split() for line in mounts.read_text(errors="replace").splitlines()]
    except OSError:
        return None
    place = at_home(path).absolute().resolve()
    found = [(len(Path(where).parts), kind) for _, where, kind, *_ in lines if place.is_relative_to(where)]
    # The last mount of the longest path holds it.
    kind = max(enumerate(found), key=lambda item: (item[1][0], item[0]))[1][1] if found else ""
    return kind if kind in _OF_THIS_MACHINE else None
