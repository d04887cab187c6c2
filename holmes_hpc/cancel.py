"""`holmes cancel RUN|SWEEP ...`: cancel the jobs of runs, and keep what was not submitted yet from being submitted."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from holmes_hpc.cluster.slurm.states import is_final
from holmes_hpc.config.folders import default_runs_folder
from holmes_hpc.errors import HolmesError
from holmes_hpc.program import report, run_program
from holmes_hpc.runs import RunFolder, read_result, write_result
from holmes_hpc.runs.find import find_runs
from holmes_hpc.runs.sweeps import sweep_named
from holmes_hpc.submit.commands import run_command
from holmes_hpc.submit.job import submitted_run
from holmes_hpc.submit.lost import strangers
from holmes_hpc.submit.machines import has_begun
from holmes_hpc.submit.patience import patiently
from holmes_hpc.submit.states import JobStatus, read_states
from holmes_hpc.submit.watch import SubmittedRun

PATIENCE_SECONDS = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="holmes cancel", description=(
        "Cancel the Slurm jobs of runs or of a sweep; runs that are over are left as they are."))
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run folder, a folder of runs or of a sweep, a job "
                                                               "id, or a run's name")
    parser.add_argument("--folder", type=Path, default=default_runs_folder(), help="where runs lie (%(default)s)")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="holmes cancel: %(message)s", stream=sys.stderr)
    try:
        return _cancel(arguments.runs, arguments.folder)
    except HolmesError as error:
        return report("cancel", error)


def _cancel(names: Sequence[str], base: Path) -> int:
    folders, unmade = _runs(names, base)
    # A run on a machine has its job.json from the start; one that is to be submitted has none yet.
    kept_back = [folder for folder in folders if not has_begun(folder) and read_result(folder) is None]
    elsewhere = [folder for folder in folders if has_begun(folder) and submitted_run(folder) is None
                 and read_result(folder) is None]
    never = [folder for folder in folders if not has_begun(folder) and read_result(folder) is not None]
    unmarked = _mark(kept_back)
    runs = [run for folder in folders if (run := submitted_run(folder)) and not run.gone_on
            and not _is_complete(folder)]
    living = _cancel_living(runs)
    # A job of the sweep may have submitted one of them just now.
    living += _cancel_living([run for folder in kept_back if (run := submitted_run(folder))])
    kept_back = [folder for folder in kept_back if submitted_run(folder) is None]
    _say(living, len(folders) + unmade, {"{} more are not submitted": len(kept_back) + unmade,
                                         "{} were never submitted": len(never)}, elsewhere)
    for error in unmarked:
        report("cancel", error)
    return max((error.exit_status for error in unmarked), default=0)


def _mark(folders: Sequence[RunFolder]) -> list[HolmesError]:
    """Say in the folders of runs that they are cancelled; return why it could not be said, of those where it could not.

    One folder that was removed, or is another user's, keeps no job of the others alive.
    """
    refused = []
    for folder in folders:
        try:
            write_result(folder, "failed", error="cancelled before it was submitted", emulated=False)
        except HolmesError as error:
            refused.append(error)
    return refused


def _cancel_living(runs: Sequence[SubmittedRun]) -> list[SubmittedRun]:
    """Cancel those jobs that live, and return them."""
    asked = [run.known_as for run in runs]
    states = patiently(lambda left: read_states(asked, say=True), PATIENCE_SECONDS) if runs else {}
    living = [run for run in runs if _lives(states.get(run.known_as))]
    others = patiently(lambda left: strangers(living), PATIENCE_SECONDS) if living else set()
    living = [run for run in living if run.known_as not in others]
    by_cluster: dict[str | None, list[str]] = {}
    for run in living:
        by_cluster.setdefault(run.cluster, []).append(run.job_id)
    for cluster, jobs in by_cluster.items():  # those that wait for others first, so that none of them starts now
        words = ["scancel", *reversed(jobs)]
        patiently(lambda left, words=words, cluster=cluster: run_command(words, cluster=cluster),  # type: ignore[misc]
                  PATIENCE_SECONDS)
    return living


def _runs(names: Sequence[str], base: Path) -> tuple[list[RunFolder], int]:
    """Return the runs that are meant, and how many more of the sweeps among them have no folder yet."""
    found: dict[Path, RunFolder] = {}
    unmade = 0
    for name in names:
        sweep = sweep_named(name, base)
        of_name = list(sweep.folders.values()) if sweep is not None else find_runs([name], base)
        unmade += len(sweep.words) - len(sweep.folders) if sweep is not None else 0
        found |= {folder.path: folder for folder in of_name}
    return list(found.values()), unmade


def _lives(status: JobStatus | None) -> bool:
    return status is not None and not is_final(status.state, requeue=True)


def _is_complete(folder: RunFolder) -> bool:
    return (read_result(folder) or {}).get("status") == "completed"


def _say(cancelled: Sequence[SubmittedRun], count: int, others: Mapping[str, int], elsewhere: Sequence[RunFolder]
         ) -> None:
    jobs, told = ", ".join(run.job_id for run in cancelled), len(cancelled) + sum(others.values()) + len(elsewhere)
    words = [f"cancelled {len(cancelled)} of {count} runs" + (f" (jobs {jobs})" if jobs else ""),
             *(text.format(number) for text, number in others.items() if number),
             *(["the others are over"] if told < count else [])]
    sys.stdout.write("; ".join(words) + "\n")
    for folder in elsewhere:
        sys.stdout.write(f"{folder.path} is no job of Slurm: end it where it runs, by Ctrl-C or by SIGTERM to its "
                         "command\n")


if __name__ == "__main__":
    sys.exit(run_program("cancel", main))
