"""Signals that end a run which a command follows."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from holmes_hpc.emulation.context import ENDING_SIGNALS

_ALWAYS = (signal.SIGINT, signal.SIGTERM)
"""Taken whatever handled them before; the others are left to a handler of the caller's, such as a profiler's."""


class InterruptedRunError(BaseException):
    """The command was told to end; the message is the signal's name.

    No `Exception`, as KeyboardInterrupt is none: it may come in the middle of anything, and what catches every
    Exception, as logging does while it writes a line, would swallow it. No later signal would be taken then.
    """


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise InterruptedRunError in the body at the first signal that would end the process; later ones do nothing.

    People press Ctrl-C twice, and `make` and `timeout` pass on what the terminal sends too; what is to be done at the
    end must not be cut off by that, so after an interruption these signals do nothing up to the end of the process.
    One that was ignored stays so, as `nohup` has SIGHUP, and a handler of the caller's stays in its place.
    """
    interrupted = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            raise InterruptedRunError(signal.Signals(number).name)

    handled = [number for number in ENDING_SIGNALS
               if number in _ALWAYS or signal.getsignal(number) == signal.SIG_DFL]
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        # Python itself would put the default of a handler back at its end, and a late signal kill it there.
        for number, previous in before.items():
            signal.signal(number, signal.SIG_IGN if interrupted else previous)
