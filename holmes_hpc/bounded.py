"""Running other programs whose answers are read, bounded in time and in size: what they print may have no end."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from holmes_hpc.errors import RunFailedError

MOST_BYTES = 128 * 2**20
"""`sinfo --json` of 10,000 nodes is half of it."""
_MOST_SAID_BYTES = 2**20
_CHUNK_BYTES = 2**16


class TooMuchOutputError(RunFailedError):
    """A program printed more than is read; it was ended."""


@dataclass(frozen=True)
class Answer:
    """How a program ended, what it printed, and the end of its error output."""

    status: int
    output: bytes
    said: bytes

    @property
    def text(self) -> str:
        """What it printed, as text of whatever bytes."""
        return self.output.decode(errors="replace")

    @property
    def said_text(self) -> str:
        """The end of its error output, as text of whatever bytes."""
        return self.said.decode(errors="replace")


def run_bounded(words: Sequence[str], timeout_seconds: float, *, most_bytes: int | None = None,
                env: Mapping[str, str] | None = None, word_seconds: float | None = None,
                word: Callable[[], None] = lambda: None, grace_seconds: float = 0.0) -> Answer:
    """Run a program without input and return its answer, whatever its status; after `word_seconds` `word` is called.

    What interrupts this process, as a signal does, leaves the program `grace_seconds` to end by itself.

    Raises TooMuchOutputError where it prints more than `most_bytes` (MOST_BYTES), subprocess.TimeoutExpired (with the
    end of its error output) where it takes too long, OSError where it cannot be started. It is ended in each case.
    """
    started = subprocess.Popen(list(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=None if env is None else dict(env))
    with started as process, _Reading(process, words, most_bytes or MOST_BYTES) as reading:
        try:
            if word_seconds is not None and word_seconds < timeout_seconds:
                if not reading.read_for(word_seconds):
                    word()
                timeout_seconds -= word_seconds
            if not reading.read_for(timeout_seconds):
                raise subprocess.TimeoutExpired(list(words), timeout_seconds, stderr=bytes(reading.said))
        except BaseException as error:
            try:
                if grace_seconds > 0 and not isinstance(error, Exception):
                    reading.read_for(grace_seconds)
            finally:
                process.kill()
            raise
    return Answer(process.returncode, bytes(reading.output), bytes(reading.said))


class _Reading:
    """What was read of a program so far."""

    def __init__(self, process: subprocess.Popen[bytes], words: Sequence[str], most_bytes: int) -> None:
        self._process, self._words, self._most_bytes = process, words, most_bytes
        self._selector = selectors.DefaultSelector()
        self.output, self.said = bytearray(), bytearray()
        for pipe, kept in ((process.stdout, self.output), (process.stderr, self.said)):
            if pipe is not None:
                self._selector.register(pipe, selectors.EVENT_READ, kept)

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(self, *error: object) -> None:
        """Forget the program's pipes, which it closes itself."""
        self._selector.close()

    def read_for(self, seconds: float) -> bool:
        """Read at most so long; return whether the program has closed its output and ended."""
        until = time.monotonic() + seconds
        while self._selector.get_map():
            left = until - time.monotonic()
            if left <= 0:
                return False
            for key, _ in self._selector.select(left):
                self._take(key)
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _take(self, key: selectors.SelectorKey) -> None:
        chunk = os.read(key.fd, _CHUNK_BYTES)
        if not chunk:
            self._selector.unregister(key.fileobj)
            return
        kept: bytearray = key.data
        kept += chunk
        del self.said[:-_MOST_SAID_BYTES]
        if len(self.output) > self._most_bytes:
            raise TooMuchOutputError(
                f"{' '.join(self._words)}: it printed more than {self._most_bytes:,} bytes, and no "
                f"more are read; see what `{self._words[0]}` is that the PATH leads to")
