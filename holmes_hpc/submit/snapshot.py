"""Keeps the code of a submission: what it is, and with `launch.snapshot` a copy that the job runs from."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from holmes_hpc.errors import ConfigurationError
from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.code import Code, code_root, listed_files
from holmes_hpc.runs.files import storage_error
from holmes_hpc.runs.private import open_folder
from holmes_hpc.words import counted, size_words

LOG = logging.getLogger(__name__)

PACKAGE = "holmes_hpc"
MOST_BYTES = 512 * 2**20
"""Of a copy; a checkout that is larger holds data, which does not belong into every run folder."""
_CODE = frozenset({".py", ".pyi", ".yaml", ".yml", ".toml", ".cfg", ".j2", ".json", ".txt", ".sh"})
"""Of files that git does not track those that may be code or its settings; others are data and results."""


def keep_code(config: Any, folders: Sequence[RunFolder], place: Path) -> Path | None:
    """Write into run folders which code they are submitted with; return the copy to run from where one is asked for.

    The copy is made once in the folder `place`; one that is there is used again. Raises ConfigurationError for a
    checkout that is too large, and as `storage_error` says.
    """
    code = Code.now(config.get("plugins") or ())
    for folder in folders:
        code.keep(folder)
    if not config.launch.snapshot:
        return None
    copy = place / "code"
    if not (copy / PACKAGE / "__init__.py").is_file():
        copy_code(code_root(), copy)
    return copy


def copy_code(root: Path, copy: Path) -> None:
    """Copy a checkout: its tracked files as they are now, and new ones that are code and not ignored.

    Outside of git, as where the package is installed, the package alone is copied. Raises as `keep_code` does.
    """
    names = _names(root)
    size = sum((root / name).stat().st_size for name in names)
    if size > MOST_BYTES:
        raise ConfigurationError(f"launch.snapshot=true would copy {size / 2**20:,.0f} MiB of {root}, and at most "
                                 f"{MOST_BYTES / 2**20:,.0f} are copied; take data out of the checkout")
    partial = copy.with_name(f".{copy.name}.{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        open_folder(partial, to_group=False)
        for name in names:
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, partial / name, follow_symlinks=False)
        partial.rename(copy)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise storage_error(copy, error) from error
    LOG.info("copied the code of %s (%s, %s) to %s", root, counted(len(names), "file"), size_words(size), copy)


def import_path(code: Path | None = None) -> str:
    """Return a PYTHONPATH by which the ranks import what this process imports, wherever they start.

    Relative entries would mean another folder in the job, and a checkout that was found by the working directory would
    not be found by a Python that starts elsewhere. With `code`, a copy, the package comes from there; what else this
    process finds in its working directory is found there still, after the copy.
    """
    own = str(code_root())
    given = [str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if code is not None:
        here = [os.getcwd()] if "" in sys.path or os.getcwd() in sys.path else []
        return os.pathsep.join(dict.fromkeys([str(code), *given, *here]))
    installed = any(part in ("site-packages", "dist-packages") for part in Path(own).parts)
    return os.pathsep.join(dict.fromkeys(given if installed else [own, *given]))


def _names(root: Path) -> list[str]:
    """Return the paths below `root` that a copy consists of."""
    tracked = listed_files(root, untracked=False)
    if tracked is None or not any(name.startswith(f"{PACKAGE}/") for name in tracked):
        return list(_of_package(root))
    new = [name for name in listed_files(root, untracked=True) or () if Path(name).suffix in _CODE]
    return [name for name in dict.fromkeys([*tracked, *new]) if _is_copied(root / name)]


def _of_package(root: Path) -> Iterator[str]:
    for path in sorted((root / PACKAGE).rglob("*")):
        if "__pycache__" not in path.parts and _is_copied(path):
            yield str(path.relative_to(root))


def _is_copied(path: Path) -> bool:
    """Say whether a file is there to be copied: a tracked one may have been removed, or be a submodule's folder."""
    return path.is_file()
