"""`holmes logs RUN [--rank N] [--follow]`: what a run's batch script and ranks wrote, and how far its steps are."""

from __future__ import annotations

import argparse
import codecs
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from holmes_hpc.config.folders import default_runs_folder
from holmes_hpc.errors import ConfigurationError, HolmesError
from holmes_hpc.foreign import open_regular
from holmes_hpc.paths import is_there, unreadable
from holmes_hpc.program import report, run_program
from holmes_hpc.runs import RunFolder, last_metrics, read_result
from holmes_hpc.runs.find import find_run

LOOK_SECONDS = 0.5
STEP_SECONDS = 2.0
"""Shortest time between two lines about the steps of a run that is followed."""
_PIECE_BYTES = 1 << 20
_MOST_TAIL_BYTES = 64 << 20
_MAIN_LOGS = ("batch.log", "srun.log", "rank-0.log")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="holmes logs", description=(
        "Show what a run wrote, and its newest step."))
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
    if arguments.lines is not None and arguments.lines < 0:
        raise ConfigurationError(f"--lines {arguments.lines}: expected a whole number from 0")
    wanted = [folder.logs / name for name in _MAIN_LOGS]
    if arguments.rank is not None:
        wanted = [folder.log_path(arguments.rank)]
        if not is_there(wanted[0]) and not (arguments.follow and read_result(folder) is None):
            known = sorted(path.name for path in folder.logs.iterdir()) if is_there(folder.logs) else []
            raise ConfigurationError(f"--rank {arguments.rank}: {folder.logs} has no log of it; it holds "
                                     f"{', '.join(known) or 'nothing'}")
    printer = _Printer([path for path in wanted if is_there(path) or arguments.follow], arguments.lines)
    steps = _Steps(folder, printer) if arguments.rank is None else None
    while True:
        ended = read_result(folder) is not None  # asked before reading, so that the last lines are shown
        printed = printer.print_new()
        if steps is not None:
            steps.print_newest(at_once=ended)
        if not arguments.follow or (ended and not printed):
            if not printer.has_shown and arguments.lines != 0:
                who = f"rank {arguments.rank}" if arguments.rank is not None else folder.path
                sys.stderr.write(f"holmes logs: {who} wrote nothing{'' if ended else ' yet'}\n")
            return 0
        time.sleep(LOOK_SECONDS)


class _Printer:
    """Prints what is new in several files, each part under the file's name when it is not the same as before.

    They are read in pieces, since a log may be larger than the memory.
    """

    def __init__(self, paths: list[Path], lines: int | None) -> None:
        self._paths, self._lines = paths, lines
        self._files: dict[Path, BinaryIO] = {}
        self._decoders: dict[Path, codecs.IncrementalDecoder] = {}
        self._current: Path | None = None

    @property
    def has_shown(self) -> bool:
        """Whether anything was printed."""
        return self._current is not None

    def print_new(self) -> bool:
        """Print what the files have got since the last call; return whether there was anything."""
        printed = False
        for path in self._paths:
            if path not in self._files:
                if not is_there(path):
                    continue
                self._open(path)
            while piece := self._files[path].read(_PIECE_BYTES):
                self.show(path, self._decoders[path].decode(piece), named=len(self._paths) > 1)
                printed = True
        return printed

    def _open(self, path: Path) -> None:
        try:
            file = open_regular(path)
        except OSError as error:
            raise unreadable(error, path) from None
        if self._lines is not None:
            file.seek(_begin_of_last(file, self._lines))
        self._files[path], self._decoders[path] = file, codecs.getincrementaldecoder("utf-8")(errors="replace")

    def show(self, path: Path, text: str, *, named: bool) -> None:
        """Print what a file says, under its name if `named` and what was printed last is another file's."""
        if path != self._current and named:
            sys.stdout.write(f"==> {path} <==\n")
        self._current = path
        sys.stdout.write(text)
        sys.stdout.flush()


class _Steps:
    """Prints the newest step of a run now and then, which no log holds: the command of the run shows it itself."""

    def __init__(self, folder: RunFolder, printer: _Printer) -> None:
        self._folder, self._printer = folder, printer
        self._shown, self._at = "", float("-inf")

    def print_newest(self, *, at_once: bool) -> None:
        """Print the newest step if it is not printed yet, and the last one was printed long ago or `at_once`."""
        if not at_once and time.monotonic() - self._at < STEP_SECONDS:
            return
        from holmes_hpc.launch.follow.progress import describe

        row = last_metrics(self._folder)
        line = "" if row is None else f"step {row['step']}  {describe(row)}\n"
        if line != self._shown:
            self._printer.show(self._folder.metrics_path, line, named=True)
            self._shown, self._at = line, time.monotonic()


def _begin_of_last(file: BinaryIO, lines: int) -> int:
    """Return where the last `lines` lines of a file begin; of very long ones, what lies near the end."""
    end = file.seek(0, os.SEEK_END)
    begin, left = end, lines
    while lines > 0 and begin > max(0, end - _MOST_TAIL_BYTES):
        start = max(0, begin - _PIECE_BYTES)
        file.seek(start)
        piece = file.read(begin - start)
        at = len(piece) - (1 if begin == end and piece.endswith(b"\n") else 0)
        while (at := piece.rfind(b"\n", 0, at)) >= 0:
            left -= 1
            if not left:
                return start + at + 1
        begin = start
    return begin


if __name__ == "__main__":
    sys.exit(run_program("logs", main))
