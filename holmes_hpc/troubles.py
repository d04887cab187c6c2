"""What goes wrong on a thread of ours: said, once for each kind, and no end of the thread."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

LOG = logging.getLogger(__name__)


class Troubles:
    """Takes what the turns of a thread raise, so that the next one comes all the same; `who` names the thread.

    Nobody waits for such a thread, so that an error would end it unseen, and what it watches would be watched no more.
    """

    def __init__(self, who: str, say: Callable[[str], None] = LOG.warning) -> None:
        self._who, self._say = who, say
        self._said: set[tuple[type[BaseException], str]] = set()

    @contextmanager
    def said(self) -> Iterator[None]:
        """Run the body; say what it raises, where it has not raised that in the same place before."""
        try:
            yield
        except Exception as error:
            kind = (type(error), place(error))
            if kind not in self._said:
                self._said.add(kind)
                with suppress(Exception):  # the log may lie where nothing can be written
                    self._say(f"{self._who}: {described(error)}; it goes on")


def described(error: BaseException) -> str:
    """Return an error in a line, with its place."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{f': {lines[0]}' if lines else ''} ({place(error)})"


def place(error: BaseException) -> str:
    """Return in which file and line an error was raised."""
    trace = traceback.extract_tb(error.__traceback__)
    return f"{trace[-1].filename}, line {trace[-1].lineno}" if trace else "of no place"
