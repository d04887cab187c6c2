"""Reading what was added to a file since the last look, however long the file is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from holmes_hpc.foreign import parse_object

MOST_BYTES = 64 << 20
"""What one look reads at most; the next one goes on there."""


class GrowingFile:
    """A file that others append whole lines to; each line is read once.

    A line without its end is left for the next look. A file that was replaced or shortened is read from its beginning.
    """

    def __init__(self, path: Path, *, skip: bool = False, last_bytes: int | None = None) -> None:
        """With `skip` begin behind what is there now, with `last_bytes` so far before its end, maybe inside a line."""
        self._path, self._offset, self._inode = path, 0, 0
        if last_bytes is not None:
            with suppress(OSError):
                status = os.stat(path)
                self._offset, self._inode = max(0, status.st_size - last_bytes), status.st_ino
        while skip and self.new_lines():
            pass

    def new_lines(self) -> list[bytes]:
        """Return the lines that were added, without their ends; [] where the file is missing or cannot be read."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe in its place has none
        except OSError:
            return []
        try:
            added = self._added(descriptor)
        except OSError:
            return []
        finally:
            os.close(descriptor)
        whole, end, _ = added.rpartition(b"\n")
        self._offset += len(whole) + len(end)
        return whole.split(b"\n") if end else []

    def _added(self, descriptor: int) -> bytes:
        status = os.fstat(descriptor)
        if status.st_ino != self._inode or status.st_size < self._offset:
            self._offset, self._inode = 0, status.st_ino
        count = min(status.st_size - self._offset, MOST_BYTES)
        added = os.pread(descriptor, count, self._offset) if status.st_size else b""
        if len(added) == MOST_BYTES and b"\n" not in added:
            self._offset += MOST_BYTES  # no line of ours is so long
            return b""
        return added

    def new_records(self) -> list[dict[str, Any]]:
        """Return the JSON objects among the lines that were added; others, as a killed writer leaves, are left out."""
        return [record for line in self.new_lines() if (record := parse_object(line)) is not None]
