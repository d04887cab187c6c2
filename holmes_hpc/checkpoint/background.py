"""Work that a thread does while the rank trains."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """A function that runs on a thread of its own; `error` says how it failed, once it is done."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the function has ended, by itself or by an error."""
        return not self._thread.is_alive()

    def wait(self, seconds: float) -> bool:
        """Wait at most so long and return `done`."""
        self._thread.join(seconds)
        return self.done

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # whatever it is, the rank that started it has to know
            self.error = error
