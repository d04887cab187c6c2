"""Where configuration files lie: those of the package, and a user's own."""

import os
from pathlib import Path

from holmes_hpc.config.schema import Run
from holmes_hpc.resources import folder


def package_folder() -> Path:
    """Return the folder of the configuration files that ship with the package."""
    return folder("conf")


def user_folder() -> Path:
    """Return the folder of a user's own configuration files, whether it exists or not."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "holmes_hpc"


def options(group: str, base: Path) -> list[str]:
    """Return the sorted names of the files of `group` in the folder `base`; none when there is no such folder."""
    return sorted(path.stem for path in (base / group).glob("*.yaml"))


def default_runs_folder() -> Path:
    """Return where runs lie when `run.folder` is not set."""
    return Path(Run().folder)
