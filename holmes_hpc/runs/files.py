"""Writing JSON so that a reader never sees half a file, and saying what to do when the disk refuses."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holmes_hpc import foreign
from holmes_hpc.errors import ConfigurationError, HolmesError, RunFailedError
from holmes_hpc.runs.private import replace_file
from holmes_hpc.runs.process_limits import file_size_words

_LEAST_BYTES = 8192
_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOENT,
            errno.ENAMETOOLONG, errno.ELOOP}


def storage_error(path: Path, error: OSError) -> HolmesError:
    """Return the error to raise when `path` in a run folder cannot be written.

    ConfigurationError where another `run.folder` is needed, RunFailedError where the disk is full or broken.
    """
    if error.errno in _FULL:
        return RunFailedError(f"{path} cannot be written: the disk or the quota is full ({error.strerror}); "
                              f"free space there or choose another place with run.folder=PATH")
    if error.errno in _REFUSED:
        return ConfigurationError(f"{path} cannot be written: {error.strerror}; set run.folder to a folder "
                                  f"that you may write, such as run.folder=~/runs")
    cause = file_size_words(error)
    if cause:
        return RunFailedError(f"{path} cannot be written: {error.strerror}; {cause}")
    return RunFailedError(f"{path} cannot be written: {error.strerror or error}; check the file system or "
                          f"choose another place with run.folder=PATH")


def is_full(folder: Path) -> bool:
    """Say whether hardly a block is left for files in `folder`."""
    try:
        left = os.statvfs(folder)
    except OSError:
        return False
    return left.f_bavail * left.f_frsize < _LEAST_BYTES


def write_json_atomic(path: Path, value: Any) -> None:
    """Write `value` as JSON in place of `path`, as `write_text_atomic` does.

    Numbers that JSON lacks (NaN, infinities) become null.
    """
    write_text_atomic(path, json.dumps(finite(value), indent=1) + "\n")


def write_text_atomic(path: Path, text: str) -> None:
    """Write `text` in place of `path`: readers see the old file or the new one, whole.

    One of PRIVATE_NAMES is for the user alone, whatever the umask. Raises as `storage_error` says.
    """
    try:
        replace_file(path, text)
    except OSError as error:
        raise storage_error(path, error) from error


def read_json(path: Path) -> Any | None:
    """Return what `path` holds, or None where it is missing, unreadable, no JSON, too large or too deep."""
    try:
        return foreign.read_json(path)
    except foreign.ForeignError:
        return None


def finite(value: Any) -> Any:
    """Return `value` with every NaN and infinity in it replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
