"""The signals before a job's end, taken by a thread of their own.

They are blocked from the first line of a rank on, so none ends it while it starts and none interrupts a system call of
torch; a thread waits for them. This module imports little, since what comes before `block_signals` can be ended.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

_POLL_SECONDS = 0.2
_TERMINATED = 128 + signal.SIGTERM


def block_signals(numbers: frozenset[int] = frozenset({signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM})) -> None:
    """Keep signals waiting for `Stopping`; call it before any thread is started."""
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)


class Stopping:
    """Knows whether this rank was told to save and stop.

    The configured signal and SIGTERM say so alike: Slurm sends SIGTERM at a time limit, and at the beginning of a
    preemption's time of grace where the site does not have it send the job's own signal. Until training starts SIGTERM
    ends the process at once, as there is nothing to save, and later as soon as `hopeless` says that no step will be
    finished any more. `leave(signal name)` is called before it ends so.
    """

    def __init__(self, name: str, hopeless: Callable[[], bool], leave: Callable[[str], None]) -> None:
        self._numbers = frozenset({int(signal.Signals[f"SIG{name}"]), int(signal.SIGTERM)})
        self._hopeless, self._leave = hopeless, leave
        self._training = False
        self.told: str | None = None
        """the first signal that was received"""
        block_signals(self._numbers)
        threading.Thread(target=self._watch, name="signals", daemon=True).start()

    def requested(self) -> bool:
        """Say whether this rank was told to stop; from the first question on it counts as training."""
        self._training = True
        return self.told is not None

    def _watch(self) -> None:
        terminated = False
        while True:
            received = signal.sigtimedwait(self._numbers, _POLL_SECONDS) if terminated else signal.sigwait(
                self._numbers)
            if received is not None:
                number = received if isinstance(received, int) else received.si_signo
                terminated = terminated or number == signal.SIGTERM
                self.told = self.told or signal.Signals(number).name
                with suppress(OSError, ValueError):  # a full disk: the state is saved or the process ends all the same
                    sys.stderr.write(f"received {signal.Signals(number).name}\n")
                    sys.stderr.flush()
            if terminated and (not self._training or self._hopeless()):
                try:
                    self._leave(signal.SIGTERM.name)
                finally:
                    os._exit(_TERMINATED)
