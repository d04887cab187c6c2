"""`holmes sweep SWEEP --resume`: go on with a sweep whose command was interrupted, or whose runs failed."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from holmes_hpc.config.folders import default_runs_folder
from holmes_hpc.errors import INTERRUPTED, ConfigurationError, HolmesError
from holmes_hpc.paths import at_home, is_listed
from holmes_hpc.program import report, run_program
from holmes_hpc.runs.sweeps import sweep_named

_MOST_SECONDS = 1e9


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 1 where a run of the sweep failed."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="holmes sweep", description=(
        "Go on with a sweep: submit what is missing or has failed, never twice the same, and follow all its runs."))
    parser.add_argument("sweep", metavar="SWEEP", help="the folder of the sweep, such as runs/sweeps/STAMP")
    parser.add_argument("--resume", action="store_true", required=True, help="submit what is missing or has failed")
    parser.add_argument("--no-wait", action="store_true", help="submit, show the table, and return")
    parser.add_argument("--only-waiting", type=float, metavar="SECONDS", help=(
        "submit only what waits for room in the queue, and return; try for so long where none fits. A sweep's jobs do "
        "so as they end"))
    parser.add_argument("--job", metavar="ID", help=(
        "with --only-waiting: the sweep's last job, which goes on with a run itself where none fits"))
    parser.add_argument("--folder", type=Path, default=default_runs_folder(), help="where runs lie (%(default)s)")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        return _resume(arguments)
    except HolmesError as error:
        return report("sweep", error)
    except KeyboardInterrupt:
        return INTERRUPTED


def _resume(arguments: argparse.Namespace) -> int:
    from holmes_hpc.launch.follow.console import lasting_output
    from holmes_hpc.launch.sweep import resume_sweep, submit_what_waits

    for place in (at_home(arguments.sweep), arguments.folder / arguments.sweep):
        is_listed(place)  # one that may not be read is not one without a sweep
    found = sweep_named(arguments.sweep, arguments.folder)
    if found is None:
        raise ConfigurationError(f"{arguments.sweep} holds no sweep that was submitted to Slurm; name its folder, such "
                                 "as runs/sweeps/20261130-120000-ab12")
    if arguments.only_waiting is not None:
        if not 0 <= arguments.only_waiting <= _MOST_SECONDS:
            raise ConfigurationError(f"--only-waiting {arguments.only_waiting:g}: expected seconds from 0 up to "
                                     f"{_MOST_SECONDS:g}")
        submit_what_waits(found.place, arguments.only_waiting, arguments.job)
        return 0
    with lasting_output():
        outcomes = resume_sweep(found.place, wait=not arguments.no_wait)
    return int(any(status for status, _ in outcomes))


if __name__ == "__main__":
    sys.exit(run_program("sweep", main))
