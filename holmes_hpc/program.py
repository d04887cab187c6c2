"""How a command runs as a program of its own, `holmes VERB` or `python -m`: its status, and what the system refused."""

from __future__ import annotations

import sys
from collections.abc import Callable


def run_program(verb: str, act: Callable[[], int]) -> int:
    """Return the exit status of a command once all of its stdout is out.

    What the system refuses (a path that may not be read, a full disk) is one message, and status 1.
    """
    try:
        try:
            status = act()
        except SystemExit as end:  # argparse: --help, or arguments that are wrong
            status = int(end.code or 0)
        sys.stdout.flush()
        return status
    except OSError as error:
        from holmes_hpc.front import report_fault

        return report_fault(verb, error)
