"""Signs of life of a run on Slurm, as its folder shows them: they need no other clock than the reader's own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from holmes_hpc.runs.folder import RunFolder

_BEAT_BYTES = 512


class Life:
    """Looks at a run again and again: `silent_seconds` is for how long nothing in its folder has changed.

    What is looked at: the ranks' beats, the lengths of metrics and logs, and which starts and ends were written.
    """

    def __init__(self, folder: RunFolder, clock: Callable[[], float]) -> None:
        self._folder, self._clock = folder, clock
        self._seen, self._since = b"", clock()
        self.begun = False
        """whether a rank or the batch script has written anything"""

    def silent_seconds(self) -> float:
        """Look, and return for how long nothing has changed since the first look."""
        seen = self._signs()
        if seen != self._seen:
            self._seen, self._since = seen, self._clock()
        return self._clock() - self._since

    def _signs(self) -> bytes:
        digest = hashlib.sha256()
        beats = sorted(self._folder.ranks.glob("*.beat"))
        logs = sorted(self._folder.logs.glob("*.log"))
        starts = sorted(str(path) for path in self._folder.starts.glob("*/*"))
        self.begun = bool(beats or logs or starts)
        for path in beats:
            digest.update(_first_bytes(path))
        for path in (self._folder.metrics_path, *logs):
            digest.update(f"{path} {_size(path)}".encode())
        digest.update("\n".join(starts).encode())
        return digest.digest()


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_BEAT_BYTES)
    except OSError:
        return b""


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1
