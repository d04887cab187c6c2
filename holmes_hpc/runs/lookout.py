"""Looking at a run folder on a thread of its own, so that a file system that hangs holds nobody else."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from holmes_hpc.troubles import Troubles

LOG = logging.getLogger(__name__)


class Lookout:
    """Calls `look` every so many seconds; `answer` is the first thing that it returned which is not None.

    Start it after the last fork of the process.
    """

    def __init__(self, look: Callable[[], str | None], every_seconds: float,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._look, self._every_seconds, self._clock = look, every_seconds, clock
        self._began: float | None = None
        self._troubles = Troubles("looking at the run")
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)
        self.answer: str | None = None

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self, wait_seconds: float) -> bool:
        """Look no more; say whether the last look is over, for which this waits at most so long."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(wait_seconds)
        return not self._thread.is_alive()

    def stuck_seconds(self) -> float:
        """Return for how long the present look takes already; 0 between two looks."""
        began = self._began
        return 0.0 if began is None else self._clock() - began

    def _run(self) -> None:
        while True:
            self._began, found = self._clock(), None
            with self._troubles.said():  # the next look may be luckier
                try:
                    found = self._look()
                except OSError as error:  # the file system that is looked at
                    LOG.debug("a look failed: %s", error)
            self._began = None
            self.answer = self.answer or found
            if self._end.wait(self._every_seconds):
                return
