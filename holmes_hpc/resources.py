"""Where the files that ship with the package lie: in a wheel, in an editable install, or in a checkout."""

import sys
from pathlib import Path


def folder(name: str) -> Path:
    """Return the folder `name` (`conf` or `sbatch_templates`) that ships with the package.

    Raises FileNotFoundError when the installation is incomplete.
    """
    package = Path(__file__).resolve().parent
    for base in (package / "_data", package.parent):
        if (base / name).is_dir():
            return base / name
    raise FileNotFoundError(f"{name}: not found beside {package}; reinstall holmes-hpc")


def put_analysis_first() -> None:
    """Let `import analysis` find the package beside this one, whatever else in the current folder is called so."""
    beside = str(Path(__file__).resolve().parent.parent)
    if sys.path[:1] != [beside]:
        sys.path.insert(0, beside)
