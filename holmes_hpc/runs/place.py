"""Whether a run folder can be made somewhere: asked before a plan is made, so that a wrong place costs nothing."""

from __future__ import annotations

import os
from pathlib import Path

from holmes_hpc.errors import ConfigurationError
from holmes_hpc.paths import MOST_NAME_BYTES, at_home, try_to_write
from holmes_hpc.runs.files import storage_error
from holmes_hpc.runs.private import umask

_TRIAL_BYTES = 65536
"""About what a run writes before its first step: configuration, plan, and the space kept for its result."""


def check_name(name: str) -> None:
    """Raise ConfigurationError for a name that is no single folder name."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ConfigurationError(f"run.name={name!r} cannot name a folder; use a word without `/`, "
                                 f"such as run.name=first_try")
    if (count := len(os.fsencode(name))) > MOST_NAME_BYTES:
        raise ConfigurationError(f"run.name={name[:20]}... has {count} bytes, and a folder's name has at most "
                                 f"{MOST_NAME_BYTES}; use a shorter one, such as run.name=first_try")


def check_place(base: Path, name: str) -> None:
    """Check that a run folder can be made in `base` and has room for a run's first files, and leave nothing there.

    Raises ConfigurationError.
    """
    check_name(name)
    wanted = at_home(base, "run.folder").absolute() / name
    try:
        try_to_write(wanted, _TRIAL_BYTES)
    except OSError as error:
        raise ConfigurationError(f"run.folder={base}: {storage_error(Path(error.filename), error)}") from error


def check_umask(*, group_readable: bool) -> None:
    """Raise ConfigurationError where results are to be open to the group, and files are made that it cannot read, or
    could write.
    """
    mask = umask()
    if group_readable and (mask & 0o050 or not mask & 0o020):
        can = "cannot read" if mask & 0o050 else "can write"
        raise ConfigurationError(f"run.group_readable=true: the umask of this shell, {mask:03o}, makes files that the "
                                 f"group {can}; type `umask 027` first, or set run.group_readable=false")


def missing_folders(path: Path) -> list[Path]:
    """Return the folders that must be made for `path` to exist, the innermost first. Raises OSError."""
    return [folder for folder in (path, *path.parents) if not folder.exists()]
