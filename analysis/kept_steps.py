"""The steps of ended runs, as Parquet in the user's cache where pyarrow is installed: long files are parsed once.

Not beside the runs: those of others may not be written to, and what lies in their folders is not to be trusted.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from holmes_hpc.paths import cache_folder

Record = dict[str, Any]

LEAST_BYTES = 1 << 18
"""Shorter files are parsed as fast as they are looked up."""
MOST_KEPT_BYTES = 1 << 30
_FORM = 1
"""Part of the name: raise it when what is kept of a line changes."""


def are_kept(path: Path) -> bool:
    """Say whether the steps of a metrics file as it is now were kept."""
    place = place_of(path)
    return place is not None and place.exists()


def kept_steps(place: Path | None) -> list[Record] | None:
    """Return the steps that were kept at a place of `place_of`; None where there are none."""
    if place is None or not place.exists():
        return None
    try:
        import pyarrow.parquet as parquet

        found: list[Record] = parquet.ParquetFile(place).read().to_pylist()
    except Exception:  # no pyarrow, or whatever is wrong with a file that can be written again
        return None
    return found


def keep_steps(place: Path | None, steps: list[Record]) -> None:
    """Keep the steps of a whole metrics file at the place that it had before it was read.

    Nothing is kept where there is no place, or pyarrow is missing or would change a value.
    """
    if place is None or not steps:
        return
    try:
        import pyarrow
        import pyarrow.parquet as parquet

        columns = {name: [step.get(name) for step in steps] for name in dict.fromkeys(chain.from_iterable(steps))}
        table = pyarrow.table(columns)
        if table.to_pydict() != columns:
            return
        buffer = io.BytesIO()
        parquet.write_table(table, buffer)
    except Exception:  # no pyarrow, or what Parquet does not hold: unlike values, empty mappings
        return
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _prune(place.parent)
        with tempfile.NamedTemporaryFile(dir=place.parent, suffix=".new", delete=False) as file:
            file.write(buffer.getvalue())
        Path(file.name).replace(place)


def place_of(path: Path) -> Path | None:
    """Return where the steps of a file as it is now are kept, by its path, size and time; None where it is too short.

    Ask before the file is read: what is written to it meanwhile gives it another place.
    """
    base = cache_folder()
    try:
        status = path.stat()
    except OSError:
        return None
    if base is None or status.st_size < LEAST_BYTES:
        return None
    identity = [_FORM, os.fsdecode(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino]
    return base / "steps" / f"{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]}.parquet"


def _prune(folder: Path) -> None:
    """Remove what was kept longest ago, until there is room."""
    kept = sorted(((path.stat().st_mtime, path.stat().st_size, path) for path in folder.iterdir()), reverse=True)
    whole = 0
    for _, size, path in kept:
        whole += size
        if whole > MOST_KEPT_BYTES:
            path.unlink(missing_ok=True)
