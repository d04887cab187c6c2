"""Where the files that ship with the package lie: in a wheel, in an editable install, or in a checkout."""

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
