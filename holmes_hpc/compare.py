"""`holmes compare A B`: two plans side by side, each a plan's JSON file or a run folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from holmes_hpc.config.folders import default_runs_folder
from holmes_hpc.errors import ConfigurationError, HolmesError
from holmes_hpc.foreign import ForeignError, read_text
from holmes_hpc.paths import at_home, is_folder, is_there
from holmes_hpc.planner.telling.compare import Compared, render_comparison
from holmes_hpc.program import report, run_program
from holmes_hpc.runs import read_result
from holmes_hpc.runs.circumstances import circumstances, is_busy, speed_words
from holmes_hpc.runs.find import find_run
from holmes_hpc.runs.folder import RunFolder
from holmes_hpc.runs.result import disturbed_step_seconds, median_step_seconds
from holmes_hpc.values import Plan


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 2 for wrong arguments, and for files that are no plans."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="holmes compare",
                                     description="Two plans side by side, and what differs.")
    parser.add_argument("first", metavar="A", help=(
        "a plan (`holmes plan ... output=json > A.json`), or a run folder, a job id, or a run's id or name, of which "
        "the newest plan is taken"))
    parser.add_argument("second", metavar="B", help="another one")
    parser.add_argument("--folder", type=Path, default=default_runs_folder(), help="where runs lie (%(default)s)")
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        sides = [read(text, arguments.folder) for text in (arguments.first, arguments.second)]
    except HolmesError as error:
        return report("compare", error)
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 120).print(render_comparison(*sides))
    return 0


def read(text: str, base: Path) -> Compared:
    """Read a plan, or the newest plan of the run that `text` names, here or below `base`.

    Raises ConfigurationError for what is neither.
    """
    file, folder = at_home(text), None
    if not is_there(file) or is_folder(file):
        folder = _run(text, base)
        file = folder.plan_path
    try:
        plan = Plan.from_json(read_text(file))
        return Compared(text, plan) if folder is None else _of_run(text, plan, folder)
    except ValueError as error:
        if isinstance(error, ForeignError) and isinstance(error.__cause__, OSError):
            raise ConfigurationError(f"{error}; name a file that `holmes plan +cluster=NAME output=json` wrote, or a "
                                     "run folder.") from None
        raise ConfigurationError(f"{file}: no plan that this version reads: {error}. Name a file that `holmes plan "
                                 "+cluster=NAME output=json` wrote, or a run folder.") from None


def _of_run(text: str, plan: Plan, folder: RunFolder) -> Compared:
    """Return a run's side. A wind tunnel that has no speed has no measured step either."""
    result = read_result(folder) or {}
    no_speed = speed_words(result, None)
    parts = [circumstances(folder), no_speed or ("other programs held cores (busy)" if is_busy(result) else "")]
    return Compared(text, plan, None if no_speed else median_step_seconds(folder), disturbed_step_seconds(folder),
                    "; ".join(filter(None, parts)))


def _run(text: str, base: Path) -> RunFolder:
    try:
        return find_run(text, base)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}. Name a file that `holmes plan +cluster=NAME output=json` wrote, or a run."
                                 ) from None


if __name__ == "__main__":
    sys.exit(run_program("compare", main))
