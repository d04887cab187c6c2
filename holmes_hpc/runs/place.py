"""Whether a run folder can be made somewhere: asked before a plan is made, so that a wrong place costs nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

from holmes_hpc.errors import ConfigurationError
from holmes_hpc.runs.files import storage_error

_TRIAL_BYTES = 65536
"""About what a run writes before its first step: configuration, plan, and the space kept for its result."""


def check_name(name: str) -> None:
    """Raise ConfigurationError for a name that is no single folder name."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ConfigurationError(f"run.name={name!r} cannot name a folder; use a word without `/`, "
                                 f"such as run.name=first_try")


def check_place(base: Path, name: str) -> None:
    """Check that a run folder can be made in `base` and has room for a run's first files, and leave nothing there.

    Raises ConfigurationError.
    """
    check_name(name)
    wanted = Path(base).expanduser().absolute() / name
    try:
        existing = next(path for path in (wanted, *wanted.parents) if path.exists())
        with tempfile.TemporaryFile(dir=existing) as trial:
            trial.write(bytes(_TRIAL_BYTES))
            trial.flush()
    except OSError as error:
        raise ConfigurationError(f"run.folder={base}: {storage_error(existing, error)}") from error


def missing_folders(path: Path) -> list[Path]:
    """Return the folders that must be made for `path` to exist, the innermost first."""
    return [folder for folder in (path, *path.parents) if not folder.exists()]
