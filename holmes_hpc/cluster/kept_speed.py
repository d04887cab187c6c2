"""The CPU's measured speed, kept from one command to the next: plans that rest on it are then the same each time.

The file lies in the user's cache (`XDG_CACHE_HOME`, else `~/.cache`) under a name made from what the speed depends on,
since a home directory is shared by unlike machines.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from holmes_hpc.foreign import ForeignError, read_json
from holmes_hpc.paths import cache_folder

_MOST_BYTES = 65536
_RECIPE = 1
"""Part of the name: raise it when the measurement changes."""


def speed_file() -> Path | None:
    """Return the file for this machine, whether it exists or not; None where there is no home directory."""
    base = cache_folder()
    digest = hashlib.sha256(json.dumps(machine_identity()).encode()).hexdigest()[:12]
    return None if base is None else base / f"cpu-speed-{digest}.json"


def machine_identity() -> dict[str, str | int | None]:
    """Return what the speed depends on: the CPU, its cores, and what multiplies the matrices."""
    try:
        library = version("numpy")
    except PackageNotFoundError:
        library = ""
    return {"recipe": _RECIPE, "machine": platform.machine(), "cpu": _cpu_model(), "cores": os.cpu_count(),
            "numpy": library}


def read_speed(names: tuple[str, ...]) -> dict[str, float] | None:
    """Return the kept numbers of these names; None where there are none, or not all are numbers above zero."""
    path = speed_file()
    if path is None:
        return None
    try:
        kept = read_json(path, _MOST_BYTES)
        values = {name: float(kept[name]) for name in names}
    except (ForeignError, ValueError, OverflowError, TypeError, KeyError):
        return None
    return values if all(math.isfinite(value) and value > 0 for value in values.values()) else None


def keep_speed(values: Mapping[str, float]) -> None:
    """Keep numbers for later commands; where the file cannot be written, they are measured each time."""
    path = speed_file()
    if path is None:
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            json.dump({**machine_identity(), **values}, file, indent=1)
        Path(file.name).replace(path)


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("model name", "Processor", "cpu model")):
                return line.partition(":")[2].strip()
    return platform.processor()
