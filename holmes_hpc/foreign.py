"""Reading what this process did not write: files of other runs, of users, of Slurm, perhaps damaged or hostile.

Every reader is bounded in size and depth, opens regular files only, and raises one kind of error, which names the file
and the fact; callers add the remedy, or leave the file out.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from holmes_hpc.errors import ConfigurationError

MOST_BYTES = 256 * 2**20
"""A plan of 100,000 ranks is a tenth of it."""
MOST_DEPTH = 64
_MOST_VALUES = 1_000_000
"""Of a YAML text, its aliases written out: each may stand for a whole tree, so that few lines become gigabytes."""

_DECODER = json.JSONDecoder()


class ForeignError(ConfigurationError):
    """A file or text is not what it should be: unreadable, too large, too deep, of another kind."""


def read_bytes(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return what a regular file holds. Raises ForeignError for one that is none, missing, unreadable or larger."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise ForeignError(f"{path} cannot be read: {_words(error)}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ForeignError(f"{path}: it is no regular file")
        if status.st_size > most_bytes:
            raise ForeignError(f"{path}: it has {status.st_size:,} bytes, and at most {most_bytes:,} are read")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(most_bytes)
    except OSError as error:
        raise ForeignError(f"{path} cannot be read: {_words(error)}") from error
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises OSError, also for what is none, such as a pipe: nothing waits at it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_end(path: Path, most_bytes: int) -> str:
    """Return the last bytes of a regular file as text, however large it is. Raises OSError."""
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most_bytes))
        return file.read(most_bytes).decode(errors="replace")


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a file. Raises ForeignError as `read_bytes` does, and for text that is not UTF-8."""
    try:
        return read_bytes(path, most_bytes).decode()
    except UnicodeDecodeError as error:
        raise ForeignError(f"{path}: it is no UTF-8 text (byte {error.start})") from error


def read_json(path: Path, most_bytes: int = MOST_BYTES) -> Any:
    """Return the JSON value of a file. Raises ForeignError."""
    return parse_json(read_bytes(path, most_bytes), str(path))


def parse_json(text: str | bytes, name: str) -> Any:
    """Return the JSON value of a text; `name` says in messages what it is. Raises ForeignError."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ForeignError(f"{name}: it is nested deeper than {MOST_DEPTH} levels") from error
    except ValueError as error:
        raise ForeignError(f"{name}: it is no whole JSON ({error})") from error
    if not _is_flat(text) and is_too_deep(value):
        raise ForeignError(f"{name}: it is nested deeper than {MOST_DEPTH} levels")
    return value


def parse_object(text: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object of a text; None where it holds none."""
    # A whole line of metrics, of which runs have millions, is parsed without what json.loads does around it.
    if isinstance(text, str) and text.startswith("{") and text.endswith("}") and _is_flat(text):
        try:
            whole, end = _DECODER.raw_decode(text)
        except ValueError:
            return None
        return whole if end == len(text) else None
    try:
        value = parse_json(text, "")
    except ForeignError:
        return None
    return value if isinstance(value, dict) else None


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object of a file; None where the file is missing or holds none."""
    try:
        value = read_json(path)
    except ForeignError:
        return None
    return value if isinstance(value, dict) else None


def read_yaml(path: Path) -> Any:
    """Return the value of a YAML file, mappings, lists and scalars only. Raises ForeignError."""
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, name: str) -> Any:
    """Return the value of a YAML text; `name` says in messages what it is. Raises ForeignError."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    if _is_nested(text):
        raise ForeignError(f"{name}: it is nested deeper than {MOST_DEPTH} levels")
    try:
        value = _expanded(yaml.load(text, Loader=loader), name)  # noqa: S506
    except ForeignError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        reason = (str(error) or "nested too deeply").splitlines()[0]
        raise ForeignError(f"{name}: it is no YAML ({reason})") from error
    if is_too_deep(value):
        raise ForeignError(f"{name}: it is nested deeper than {MOST_DEPTH} levels")
    return value


def _is_nested(text: str) -> bool:
    """Say whether brackets alone nest so deep that a parser in C could run out of stack before it says so."""
    depth = 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}" and depth > 0)
        if depth > 16 * MOST_DEPTH:
            return True
    return False


def _expanded(value: Any, name: str) -> Any:
    """Return the value, once its aliases written out are seen to be few enough."""
    left = _MOST_VALUES
    stack = [value]
    while stack:
        each = stack.pop()
        left -= 1
        if left < 0:
            raise ForeignError(f"{name}: written out, its aliases are more than a million values")
        stack.extend(each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
    return value


def _is_flat(text: str | bytes) -> bool:
    """Say whether a text has too few brackets to be too deep, as a line of metrics, of which runs have millions."""
    if isinstance(text, bytes):
        return text.count(b"[") + text.count(b"{") <= MOST_DEPTH
    return text.count("[") + text.count("{") <= MOST_DEPTH


def is_too_deep(value: Any) -> bool:
    """Say whether mappings and lists are nested deeper than MOST_DEPTH."""
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [item for each in level if isinstance(each, dict | list)
                 for item in (each.values() if isinstance(each, dict) else each) if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def whole_number(value: Any, least: int = 0, most: int = 2**63 - 1) -> int | None:
    """Return a value that is a whole number within bounds, else None; true and false are none."""
    return value if type(value) is int and least <= value <= most else None


def number(value: Any) -> float | None:
    """Return a value that is a finite number, else None."""
    if type(value) is float:  # as almost all are, of millions
        return value if abs(value) < float("inf") else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) < float("inf") else None


def _words(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
