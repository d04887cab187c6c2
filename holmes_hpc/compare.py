"""`holmes compare A B`: two plans side by side, each a plan's JSON file or a run folder."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from holmes_hpc.errors import ConfigurationError, HolmesError
from holmes_hpc.front import report
from holmes_hpc.planner.compare import Compared, render_comparison
from holmes_hpc.runs.folder import RunFolder
from holmes_hpc.runs.metrics import read_json_lines
from holmes_hpc.values import Plan

_WARMUP_STEPS = 3
"""First steps that the median leaves out; half of them where a run has fewer than twice as many."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 2 for wrong arguments, and for files that are no plans."""
    parser = argparse.ArgumentParser(prog="holmes compare", description="Two plans side by side, and what differs.")
    parser.add_argument("first", metavar="A", type=Path, help="a plan (`holmes plan ... output=json > A.json`), or a "
                                                              "run folder, whose newest plan is taken")
    parser.add_argument("second", metavar="B", type=Path, help="another one")
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        sides = [read(path) for path in (arguments.first, arguments.second)]
    except HolmesError as error:
        return report("compare", error)
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 120).print(render_comparison(*sides))
    return 0


def read(path: Path) -> Compared:
    """Read a plan, or the newest plan of a run. Raises ConfigurationError for what is neither."""
    file, measured = path, None
    if path.is_dir():
        folder = RunFolder.open(path)
        file, measured = folder.plan_path, _median_seconds(folder.metrics_path)
    try:
        return Compared(str(path), Plan.from_json(file.read_text(encoding="utf-8")), measured)
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}; name a file that `holmes plan "
                                 "+cluster=NAME output=json` wrote, or a run folder.") from None
    except ValueError as error:
        raise ConfigurationError(f"{file}: no plan that this version reads: {error}. Name a file that `holmes plan "
                                 "+cluster=NAME output=json` wrote, or a run folder.") from None


def _median_seconds(metrics: Path) -> float | None:
    seconds = [row["step_seconds"] for row in read_json_lines(metrics) if row.get("step_seconds")]
    measured = seconds[min(_WARMUP_STEPS, len(seconds) // 2):]
    return statistics.median(measured) if measured else None


if __name__ == "__main__":
    sys.exit(main())
