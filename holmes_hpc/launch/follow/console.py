"""The console of a command that follows a run: it may go away before the run has ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast


@contextmanager
def lasting_output() -> Iterator[None]:
    """Let the body go on where its stdout or stderr takes nothing any more: what it writes there is dropped then.

    A pipe whose reader has ended, or a terminal that was closed, is no reason to lose a run; the run folder has all
    that is worth keeping.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _LastingStream(stream)) for stream in before)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


class _LastingStream:
    """A text stream whose `write` and `flush` raise no OSError.

    At the first one its descriptor becomes that of the null device, so that others who hold the stream, logging and
    Python's own end among them, do not meet the error either.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._drop()

    def _drop(self) -> None:
        with suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
