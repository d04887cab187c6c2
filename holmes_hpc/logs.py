"""`holmes logs RUN [--rank N] [--follow]`: what a run's batch script and ranks wrote."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from holmes_hpc.config.folders import default_runs_folder
from holmes_hpc.errors import ConfigurationError, HolmesError
from holmes_hpc.paths import is_there, unreadable
from holmes_hpc.program import report, run_program
from holmes_hpc.runs import RunFolder, read_result
from holmes_hpc.runs.find import find_run

LOOK_SECONDS = 0.5
_MAIN_LOGS = ("batch.log", "srun.log", "rank-0.log")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(prog="holmes logs", description="Show what a run wrote.")
    parser.add_argument("run", metavar="RUN", help="a run folder, a job id, or a run's name (the newest of that name)")
    parser.add_argument("--rank", type=int, help="this rank's log; default: the batch script's, and rank 0's")
    parser.add_argument("--follow", action="store_true", help="go on until the run is over")
    parser.add_argument("--lines", type=int, metavar="N", help="only the last N lines of what is there")
    parser.add_argument("--folder", type=Path, default=default_runs_folder(), help="where runs lie (%(default)s)")
    arguments = parser.parse_args(argv)
    try:
        return _show(arguments, find_run(arguments.run, arguments.folder))
    except HolmesError as error:
        return report("logs", error)
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _show(arguments: argparse.Namespace, folder: RunFolder) -> int:
    wanted = [folder.logs / name for name in _MAIN_LOGS]
    if arguments.rank is not None:
        wanted = [folder.log_path(arguments.rank)]
        if not is_there(wanted[0]) and not (arguments.follow and read_result(folder) is None):
            known = sorted(path.name for path in folder.logs.iterdir())
            raise ConfigurationError(f"--rank {arguments.rank}: {folder.logs} has no log of it; it holds "
                                     f"{', '.join(known) or 'nothing'}")
    printer = _Printer([path for path in wanted if is_there(path) or arguments.follow], arguments.lines)
    while True:
        ended = read_result(folder) is not None  # asked before reading, so that the last lines are shown
        printed = printer.print_new()
        if not arguments.follow or (ended and not printed):
            return 0
        time.sleep(LOOK_SECONDS)


def _open(path: Path) -> IO[str]:
    try:
        return path.open(errors="replace")
    except OSError as error:
        raise unreadable(error) from None


class _Printer:
    """Prints what is new in several files, each part under the file's name when it is not the same as before."""

    def __init__(self, paths: list[Path], lines: int | None) -> None:
        self._paths, self._lines = paths, lines
        self._files: dict[Path, IO[str]] = {}
        self._current: Path | None = None

    def print_new(self) -> bool:
        """Print what the files have got since the last call; return whether there was anything."""
        printed = False
        for path in self._paths:
            first = path not in self._files
            if first and not is_there(path):
                continue
            if first:
                self._files[path] = _open(path)
            text = self._files[path].read()
            if first and self._lines is not None:
                text = "".join(text.splitlines(keepends=True)[-self._lines:] if self._lines > 0 else [])
            if not text:
                continue
            if path != self._current and len(self._paths) > 1:
                sys.stdout.write(f"==> {path} <==\n")
            self._current, printed = path, True
            sys.stdout.write(text)
            sys.stdout.flush()
        return printed


if __name__ == "__main__":
    sys.exit(run_program("logs", main))
