"""Where the files that ship with the package lie: in a wheel, in an editable install, or in a checkout."""

import importlib
import sys
from pathlib import Path
from types import ModuleType


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


def our_analysis() -> ModuleType:
    """Return the package `analysis` that lies beside this one, whatever else is called so.

    Raises ImportError where another module of that name was imported before: a process has one of a name.
    """
    beside = Path(__file__).resolve().parent.parent / "analysis" / "__init__.py"
    known = sys.modules.get("analysis")
    place = getattr(known, "__file__", None)
    if known is not None and (place is None or Path(place).resolve() != beside):
        raise ImportError(f"the module `analysis` of {place or 'a folder without __init__.py'} is imported already, "
                          "and holmes_hpc's has the same name; import holmes_hpc.analysis before it, or rename yours")
    put_analysis_first()
    return importlib.import_module("analysis")
