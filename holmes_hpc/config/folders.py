"""Where configuration files lie: those of the package, and a user's own."""

import os
from pathlib import Path

from holmes_hpc.config.schema import Run
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.resources import folder


def package_folder() -> Path:
    """Return the folder of the configuration files that ship with the package."""
    return folder("conf")


def user_folder() -> Path | None:
    """Return the folder of a user's own configuration files, whether it exists or not; None for one without a home."""
    try:
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "holmes_hpc"
    except RuntimeError:  # no HOME and no entry for this user, as in a container
        return None


def own_place(option: str) -> Path:
    """Return the folder of a user's own files, to write there.

    Raises ConfigurationError without a home; `option` names the file instead.
    """
    folder = user_folder()
    if folder is None:
        raise ConfigurationError("you have no home folder here (HOME is not set), where your files would lie: set "
                                 f"XDG_CONFIG_HOME to a folder of yours, or name the file by {option}")
    return folder


def options(group: str, base: Path | None) -> list[str]:
    """Return the sorted names of the files of `group` in the folder `base`; none when there is no such folder."""
    return [] if base is None else sorted(path.stem for path in (base / group).glob("*.yaml"))


def default_runs_folder() -> Path:
    """Return where runs lie when `run.folder` is not set."""
    return Path(Run().folder)
