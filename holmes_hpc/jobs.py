"""`holmes jobs [RUN ...]`: submitted runs, from their folders and one question to Slurm; and those of machines."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from holmes_hpc.config.folders import default_runs_folder
from holmes_hpc.errors import HolmesError
from holmes_hpc.foreign import read_object
from holmes_hpc.paths import at_home
from holmes_hpc.program import report, run_program
from holmes_hpc.quoting import for_shell, for_terminal
from holmes_hpc.runs import RunFolder, read_result
from holmes_hpc.runs.find import SWEEP_FILE, find_runs, is_run_path
from holmes_hpc.runs.sweeps import Sweep, sweep_named
from holmes_hpc.submit.board import Board, Row, table, text
from holmes_hpc.submit.ending import failure
from holmes_hpc.submit.job import submitted_run
from holmes_hpc.submit.live import rows, show_until_over
from holmes_hpc.submit.lost import OwnStates
from holmes_hpc.submit.machines import has_begun, on_a_machine, show_machines_until_over
from holmes_hpc.submit.still_to_come import StillToCome
from holmes_hpc.submit.watch import NOT_SUBMITTED, SubmittedRun, Watch

SHOWN = 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="holmes jobs", description=(
        "State, step, tokens/s and loss of runs: of those that were submitted to Slurm, and of those on machines."))
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a run folder, a folder of runs or of a sweep, a job "
                                                              f"id, or a run's name; none: the newest {SHOWN}")
    parser.add_argument("--folder", type=Path, default=default_runs_folder(), help="where runs lie (%(default)s)")
    parser.add_argument("--watch", action="store_true", help="until all are over; Ctrl-C only stops watching")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="holmes jobs: %(message)s", stream=sys.stderr)
    try:
        return _show(arguments)
    except HolmesError as error:
        return report("jobs", error)
    except KeyboardInterrupt:
        return 0


def _show(arguments: argparse.Namespace) -> int:
    folders = find_runs(arguments.runs, arguments.folder)
    found = [run for folder in folders
             if (run := _submitted(folder)) and (arguments.runs or run.job_id != NOT_SUBMITTED)]
    sweeps = [sweep for name in arguments.runs if (sweep := sweep_named(name, arguments.folder))]
    here = [folder for folder in folders if _submitted(folder) is None and has_begun(folder)]
    if not arguments.runs:
        found = sorted(found, key=_number)[-SHOWN:]
    here = here if arguments.runs else here[-SHOWN:]
    for folder in [] if arguments.watch and not found else here:
        sys.stdout.write(f"{for_terminal(on_a_machine(folder))}\n")
    if found or (sweeps and arguments.watch):
        _show_submitted(found, arguments, sweeps)
    elif not here and not _to_be_submitted(sweeps):
        sys.stderr.write(f"holmes jobs: there is no run in {arguments.folder.absolute()}; --folder names another "
                         "folder of runs\n")
    _say_missing(_to_be_submitted(sweeps))
    if arguments.watch:
        show_machines_until_over(here, sys.stdout)
    return 0


def _show_submitted(found: Sequence[SubmittedRun], arguments: argparse.Namespace, sweeps: Sequence[Sweep]) -> None:
    states = OwnStates(found, say=not arguments.watch)
    watch, board = Watch(found, states), Board(_overrides(arguments.runs))
    if arguments.watch:
        show_until_over(watch, board, sys.stdout, StillToCome(watch, states, sweeps).look)
    else:
        watch.poll()
        _print(rows(watch, board))
        if watch.silence:
            sys.stderr.write(f"holmes jobs: Slurm does not tell of the jobs: {watch.silence}; shown is what the ranks "
                             "wrote\n")
    for watched in watch.runs:
        folder = watched.run.folder
        if watched.run.job_id == NOT_SUBMITTED:
            sys.stdout.write(f"{folder.name}/{folder.id} was not submitted: {for_terminal(failure(watched))}\n")
        elif watched.run.known_as in states.lost:
            sys.stdout.write(f"{folder.name}/{folder.id}: Slurm lost its job, and gave the number "
                             f"{watched.run.job_id} to another one, which is not shown\n")


def _say_missing(missing: Mapping[Path, int]) -> None:
    for place, count in missing.items():
        sys.stdout.write(f"{count} of the runs of {place} are not submitted yet; `holmes sweep "
                         f"{for_shell(str(place))} --resume` submits them, where no other command does\n")


def _to_be_submitted(sweeps: Sequence[Sweep]) -> dict[Path, int]:
    """Return how many runs of each sweep nobody has submitted yet."""
    now = [sweep for each in sweeps if (sweep := Sweep.read(each.place))]
    counts = {sweep.place: len(sweep.words) - sum(_submitted(folder) is not None for folder in sweep.folders.values())
              for sweep in now}
    return {place: count for place, count in counts.items() if count}


def _print(shown: list[Row]) -> None:
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(table(shown))
    else:
        sys.stdout.write(text(shown))


def _submitted(folder: RunFolder) -> SubmittedRun | None:
    run = submitted_run(folder)
    if run is None and not has_begun(folder) and read_result(folder):  # sbatch refused it
        return SubmittedRun(NOT_SUBMITTED, folder)
    return run


def _number(run: SubmittedRun) -> list[int]:
    return [int(number) for number in run.job_id.split("_")]


def _overrides(names: Sequence[str]) -> dict[Path, str]:
    """Return what distinguishes the runs of the sweeps among the names."""
    found: dict[Path, str] = {}
    for name in names:
        sweep = read_object(at_home(name) / SWEEP_FILE) or {}
        runs, overrides = sweep.get("runs"), sweep.get("overrides")
        if isinstance(runs, list) and isinstance(overrides, list):
            found |= {Path(run): words for run, words in zip(runs, overrides, strict=False)
                      if is_run_path(run) and isinstance(words, str)}
    return found


if __name__ == "__main__":
    sys.exit(run_program("jobs", main))
