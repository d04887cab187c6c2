"""Parse whole files of JSON lines in processes of their own, ahead of the one that uses what is in them.

A helper is this file alone, run by the same Python without any package: it starts in a few hundredths of a second. It
takes only what is well-formed throughout; anything else is left to the reader that names damages.
"""

from __future__ import annotations

import json
import marshal
import os
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Record = dict[str, Any]

LEAST_BYTES = 16 << 20
"""Less is parsed before a helper has begun."""
MOST_FILE_BYTES = 64 << 20
MOST_HELPERS = 4
_MOST_BRACKETS = 64
_SIZE = struct.Struct("<q")


class Ahead:
    """What helpers parse of some files; each file is asked for once, in the order in which they were given."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Start as many helpers as there are cores, where the files are large enough for that to be worth it."""
        self._states = {path: _state(path) for path in paths}
        sizes = {path: state[0] for path, state in self._states.items()}
        wanted = [path for path, size in sizes.items() if 0 < size <= MOST_FILE_BYTES]
        cores = len(os.sched_getaffinity(0))
        is_worth_it = cores > 1 and sys.executable and sum(sizes[path] for path in wanted) >= LEAST_BYTES
        count = min(cores, MOST_HELPERS, len(wanted)) if is_worth_it else 0
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._helper_of: dict[Path, subprocess.Popen[bytes]] = {}
        with suppress(OSError):  # no more processes, no room: the caller reads the rest itself
            for number in range(count):
                self._helpers.append(_started(wanted[number::count]))
                self._helper_of |= dict.fromkeys(wanted[number::count], self._helpers[-1])

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        """End the helpers."""
        for helper in self._helpers:
            helper.kill()
            if helper.stdout is not None:
                helper.stdout.close()
            helper.wait()

    def records(self, path: Path) -> list[Record] | None:
        """Return the objects of a file as it is now; None for one that is not whole, or that no helper parses.

        One that was written to since its helper began, as by a run that went on, is left to the reader too.
        """
        helper = self._helper_of.pop(path, None)
        if helper is None or helper.stdout is None:
            return None
        head = helper.stdout.read(_SIZE.size)
        size = _SIZE.unpack(head)[0] if len(head) == _SIZE.size else -1
        content = helper.stdout.read(size) if size >= 0 else b""
        if size < 0 or len(content) < size or _state(path) != self._states[path]:
            return None
        found: list[Record] = marshal.loads(content)  # noqa: S302  # of our own process
        return found


def parse_whole(path: str) -> list[Record] | None:
    """Return the objects of a file of JSON lines; None where anything in it is not well-formed."""
    try:
        text = _read(path)
        decoder = json.JSONDecoder()
        found = []
        for line in text.splitlines():
            if line.count("[") + line.count("{") > _MOST_BRACKETS or not line.startswith("{"):
                return None
            record, end = decoder.raw_decode(line)
            if end != len(line):
                return None
            found.append(record)
        return found
    except (OSError, ValueError):
        return None


def _read(path: str) -> str:
    """Return the text of a regular file. Raises OSError, and ValueError for what is none or not UTF-8."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_FILE_BYTES:
            raise ValueError(path)
        return file.read(MOST_FILE_BYTES).decode()


def _state(path: Path) -> tuple[int, int, int]:
    """Return the size of a file in bytes, 0 for none, and what else changes when it is written or replaced."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_size, status.st_mtime_ns, status.st_ino


@contextmanager
def _list_of(paths: Sequence[Path]) -> Iterator[Any]:
    """Give a file that names paths: a pipe would be full before the helper reads the first."""
    with tempfile.TemporaryFile() as file:
        file.write(b"\0".join(os.fsencode(path.resolve()) for path in paths))
        file.seek(0)
        yield file


def _started(paths: Sequence[Path]) -> subprocess.Popen[bytes]:
    with _list_of(paths) as names:
        return subprocess.Popen([sys.executable, "-I", "-S", str(Path(__file__).resolve())], stdin=names,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def main() -> int:
    """Parse the files that the input names, and write each as its size and content; the size is -1 for None."""
    for path in sys.stdin.buffer.read().split(b"\0"):
        found = parse_whole(os.fsdecode(path))
        content = b"" if found is None else marshal.dumps(found)
        sys.stdout.buffer.write(_SIZE.pack(-1 if found is None else len(content)) + content)
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        sys.exit(main())
