"""How a command runs as a program of its own, `holmes VERB` or `python -m`: its status, and how it says what is wrong.

Commands that compose no configuration need no more than this; the others come by `front`.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress

from holmes_hpc import early
from holmes_hpc.errors import FAILED, INTERRUPTED, HolmesError
from holmes_hpc.quoting import for_terminal
from holmes_hpc.redaction import redact


def open_streams() -> None:
    """Open the standard streams to nowhere that whoever started this process has closed.

    Else the next file that is opened, such as a checkpoint, gets the number of one of them, and what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def run_program(verb: str, act: Callable[[], int]) -> int:
    """Return the exit status of a command once all of its stdout is out.

    What the system refuses (a path that may not be read, a full disk) is one message, and status 1. A reader of its
    stdout that has gone, such as `head`, has what it wanted: that is no failure.
    """
    early.ready()
    open_streams()
    try:
        try:
            status = act()
        except SystemExit as end:  # argparse: --help, or arguments that are wrong
            status = status_of(end)
        return flushed(status)
    except OSError as error:
        return report_fault(verb, error)
    except KeyboardInterrupt:
        sys.stderr.write(f"{f'holmes {verb}'.strip()}: interrupted\n")
        return INTERRUPTED


def status_of(end: SystemExit) -> int:
    """Return the exit status that is meant: 0 where rich leaves since the reader of stdout has gone."""
    return 0 if isinstance(end.__context__, BrokenPipeError) else int(end.code or 0)


def flushed(status: int) -> int:
    """Return `status` once all of stdout is out, or its reader has gone. Raises OSError where its disk is full."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
    return status


@contextmanager
def redacted_output() -> Iterator[None]:
    """Hold back what is written to stdout inside, and write it at the end with its secrets hidden."""
    held = io.StringIO()
    try:
        with redirect_stdout(held):
            yield
    finally:
        sys.stdout.write(redact(held.getvalue()))


def report(verb: str, error: HolmesError) -> int:
    """Write an error's message to stderr and return its exit status; with HYDRA_FULL_ERROR=1 the traceback too."""
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        traceback.print_exception(error)
    sys.stderr.write(f"holmes {verb}: {for_terminal(redact(str(error)))}\n")
    return error.exit_status


def report_fault(verb: str, error: OSError) -> int:
    """Write what the system refused to stderr, in one message, and return the exit status.

    Nothing is said, and the status is 0, where the reader of our output, such as `head`, has gone. What cannot be
    written to stdout is dropped, since Python would complain of it once more at its end.
    """
    gone = isinstance(error, BrokenPipeError) and _reader_has_gone()
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        traceback.print_exception(error)
    try:
        sys.stdout.flush()
    except OSError:
        _drop_stdout()
    place = "stdout cannot be written" if error.errno == errno.ENOSPC else "the system refused it"
    if not isinstance(error, BrokenPipeError):
        with suppress(OSError):
            where = for_terminal(str(error.filename or place))
            sys.stderr.write(f"{f'holmes {verb}'.strip()}: {where}: {error.strerror or error} "
                             f"({type(error).__name__}); HYDRA_FULL_ERROR=1 shows where\n")
    return 0 if gone else FAILED


def _drop_stdout() -> None:
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reader_has_gone() -> bool:
    """Say whether stdout is a pipe that nobody reads any more: poll(2) tells that of its writing end as POLLERR."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return False
    return any(events & select.POLLERR for _, events in poll.poll(0))
