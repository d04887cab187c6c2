"""What a long search is at, in one line on a stream; nothing of a short one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

QUIET_SECONDS = 2.0
"""A search that takes no longer says nothing."""
LINE_SECONDS = 10.0
"""Shortest time between two lines where the stream is no terminal."""
_ERASE = "\r\x1b[2K"


@contextmanager
def search_progress(stream: TextIO, clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[str], None]]:
    """Yield what `plan` may be given as `progress`: one line that changes on a terminal, a line now and then elsewhere.

    `clock` tells seconds. The line on a terminal is erased at the end.
    """
    progress = _Progress(stream, clock)
    try:
        yield progress.tell
    finally:
        progress.end()


class _Progress:
    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self.stream, self.clock = stream, clock
        self.live = stream.isatty()
        self.next_line = clock() + QUIET_SECONDS
        self.shown = False

    def tell(self, words: str) -> None:
        now = self.clock()
        if now < self.next_line:
            return
        if self.live:
            self.stream.write(f"{_ERASE}{words}")
        else:
            self.next_line = now + LINE_SECONDS
            self.stream.write(f"{words}\n")
        self.stream.flush()
        self.shown = True

    def end(self) -> None:
        if self.live and self.shown:
            self.stream.write(_ERASE)
            self.stream.flush()
