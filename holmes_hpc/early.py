"""Ctrl-C while a command still imports what it needs: it ends as later on, without a traceback.

The package does this first of all where it is imported for a command, `holmes` or `python -m holmes_hpc.VERB`; programs
that are no commands, and scripts that import the package, keep their own way.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_PROGRAM = "holmes"
_INTERRUPTED = 130
"""As in `errors`, which is not imported yet."""


def is_command() -> bool:
    """Say whether this process is a command that imports its first module now."""
    if sys.argv[:1] == ["-m"]:  # so it is while `python -m` looks for the module
        words = sys.orig_argv
        package, _, verb = words[words.index("-m") + 1].partition(".") if "-m" in words[:-1] else ("", "", "")
        return package == "holmes_hpc" and "." not in verb
    return bool(sys.argv) and os.path.basename(sys.argv[0]) == _PROGRAM


def guard() -> None:
    """Let an interruption end a command at once, until `ready`."""
    if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def ready() -> None:
    """Let an interruption raise KeyboardInterrupt again, since the command takes it from here on."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"holmes: interrupted\n")
    os._exit(_INTERRUPTED)
