"""`python -m analysis.throughput RUN...`: tables and pictures of finished or running runs.

`holmes throughput` calls `main` here. It is safe from a folder named `analysis` in the user's current folder:
a console script has its own folder, not the current one, at the head of `sys.path`, so `analysis` is the
installed package. `python -m` puts the current folder first: there a local `analysis/__init__.py` would win,
and `holmes throughput` is the way.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from holmes_hpc.config.folders import default_runs_folder
from holmes_hpc.errors import ConfigurationError, HolmesError
from holmes_hpc.program import run_program
from holmes_hpc.quoting import for_terminal, one_line

if TYPE_CHECKING:
    import pandas as pd

    from analysis.reading import Run
    from analysis.timeline import Panel

TIMELINE_RUNS = 4
"""How many runs the picture of the timelines holds."""
ALIKE = ", or --by COLUMN puts alike ones together"


def main(argv: list[str] | None = None) -> int:
    """Run the command with `argv` (default: the process's) and return its exit status: 2, wrong arguments."""
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        return _report(arguments)
    except HolmesError as error:
        Console(stderr=True, soft_wrap=True).print(for_terminal(str(error)), markup=False, highlight=False)
        return error.exit_status


def _parser() -> argparse.ArgumentParser:
    from analysis.reading import RUN_HELP

    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="holmes throughput" if Path(sys.argv[0]).name == "holmes" else "python -m analysis.throughput",
        description="How fast runs were, and why: tables, and pictures of throughput, timeline and loss.",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help=RUN_HELP,
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where pictures go; default: the run's folder, of several runs the nearest folder that holds them all",
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the table of runs as CSV")
    parser.add_argument(
        "--json", action="store_true", help="print the table of runs as JSON, and nothing else"
    )
    parser.add_argument(
        "--by",
        metavar="COLUMN",
        help="put runs together that are alike in this column of the table, such as strategy or layout",
    )
    parser.add_argument(
        "--step", type=int, metavar="N", help="the step of the timeline; default: the last recorded"
    )
    parser.add_argument("--no-pictures", action="store_true", help="only tables")
    parser.add_argument("--folder", type=Path, default=default_runs_folder(), help="where runs lie (%(default)s)")
    return parser


def _report(arguments: argparse.Namespace) -> int:
    from analysis.by_rank import by_rank_table
    from analysis.disturbed import disturbed_table
    from analysis.printing import (
        MOST_RUNS,
        MOST_RUNS_WITH_RANKS,
        print_disturbed,
        print_groups,
        print_ranks,
        print_runs,
    )
    from analysis.reading import named_runs, read_runs
    from analysis.tables import grouped, runs_table

    found = read_runs(*named_runs(arguments.runs, arguments.folder))
    table = runs_table(found)
    groups = None
    if arguments.by:
        if arguments.by not in table.columns:
            raise ConfigurationError(
                f"--by {arguments.by}: no such column; columns: {', '.join(table.columns)}"
            )
        groups = grouped(table, arguments.by)
    shown = table if groups is None else groups
    if arguments.csv:
        _write_csv(shown, arguments.csv)
    console = Console(width=None if sys.stdout.isatty() else 100)
    if arguments.json:
        sys.stdout.write(shown.to_json(orient="records", indent=2, force_ascii=False) + "\n")
    elif groups is None:
        print_runs(console, table, MOST_RUNS)
        print_ranks(console, by_rank_table(found), MOST_RUNS_WITH_RANKS)
        print_disturbed(console, disturbed_table(found), MOST_RUNS_WITH_RANKS)
    else:
        print_groups(console, groups, arguments.by)
    if not arguments.no_pictures:
        notes = Console(stderr=True, soft_wrap=True) if arguments.json else Console(soft_wrap=True)
        out = arguments.out or common_folder([run.folder for run in found])
        for line in draw_pictures(found, out, shown, arguments.by, arguments.step):
            notes.print(one_line(line), markup=False, highlight=False)
    return 0


def draw_pictures(found: list[Run], out: Path, shown: pd.DataFrame | None = None, by: str | None = None,
                  step: int | None = None) -> list[str]:
    """Draw the pictures that the runs have records for into a folder; return the lines that say where they lie.

    `shown` is the table of runs, put together by the column `by` if given; `step` is the one of the timeline. Raises
    ConfigurationError where the folder cannot be written, and for a step that no run recorded.
    """
    from analysis.loss import loss_picture, lowest_losses
    from analysis.pictures import fastest_rows, throughput_picture
    from analysis.tables import runs_table, steps_table

    shown = runs_table(found) if shown is None else shown
    measured = sum(bool(run.metrics) for run in found)
    lines: list[str] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        lines += _draw_timeline(found, out / "timeline.png", step)
        if measured and len(shown):
            bars, curves = fastest_rows(shown), lowest_losses(found)
            throughput_picture(bars, out / "throughput.png", by)
            lines.append(f"wrote {out / 'throughput.png'}"
                         f"{_part('fastest', len(bars), len(shown), '' if by else ALIKE)}")
            if any(record.get("timed") is None for run in curves for record in run.metrics):
                loss_picture(steps_table(curves), out / "loss.png")
                lines.append(f"wrote {out / 'loss.png'}{_part('of lowest loss', len(curves), measured)}")
            else:
                lines.append("a wind tunnel has no loss: no picture of it")
        else:
            lines.append("no step was measured yet: no picture of throughput and loss")
        return lines
    except OSError as error:
        raise ConfigurationError(
            f"{out}: cannot write pictures there: {error.strerror}; name a folder by --out"
        ) from None


def _part(which: str, drawn: int, known: int, further: str = "") -> str:
    """Say that a picture holds a part of the runs, and how to choose another."""
    return "" if drawn == known else f" (the {drawn} {which} of {known}; name fewer runs to choose{further})"


def common_folder(folders: list[Path]) -> Path:
    """Return the nearest folder that holds all; of one folder itself."""
    return folders[0] if len(folders) == 1 else Path(os.path.commonpath([folder.absolute() for folder in folders]))


def _draw_timeline(found: list[Run], path: Path, step: int | None) -> list[str]:
    import pandas as pd

    from analysis.tables import actions_table
    from analysis.timeline import recorded_steps, timeline_picture

    names: list[str] = []
    tables: list[pd.DataFrame] = []
    recorded: set[int] = set()
    # What a rank recorded is much to read: of the runs that are not drawn it is not.
    for run in found:
        actions = actions_table([run])
        steps = recorded_steps(actions)
        recorded.update(steps)
        if steps and (step is None or step in steps):
            names.append(run.name)
            tables.append(actions if step is None else actions[actions["step"] == step])
        if len(names) == TIMELINE_RUNS:
            break
    if step is not None and not names:
        known = ", ".join(map(str, sorted(recorded))) or "none"
        raise ConfigurationError(f"--step {step}: no run recorded it; recorded: {known} (set by train.timeline_every)")
    if not names:
        return ["no timeline was recorded: set train.timeline_every, or wait for the first one"]
    timeline_picture(pd.concat(tables, ignore_index=True), path, step, _predictions(found, names))
    note = f" (the first {TIMELINE_RUNS} runs with one; name fewer to choose)" if run is not found[-1] else ""
    return [f"wrote {path}{note}"]


def _predictions(found: list[Run], drawn: list[str]) -> dict[str, Panel]:
    """Return the predicted step of every drawn run whose prediction is for the machine that measured."""
    from analysis.predicted import run_panel
    from analysis.tables import describe

    panels = {run.name: run_panel(run, describe(run)["machine"]) for run in found if run.name in drawn}
    return {name: panel for name, panel in panels.items() if panel is not None}


def _write_csv(table: pd.DataFrame, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(path, index=False)
    except OSError as error:
        raise ConfigurationError(f"--csv {path}: cannot be written: {error.strerror or error}") from None


if __name__ == "__main__":
    sys.exit(run_program("throughput", main))
