"""`holmes report RUN...`: one HTML page of runs that can be kept or sent, with everything in it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from analysis.page.document import page
from analysis.reading import RUN_HELP, Run, named_runs, read_runs
from analysis.throughput import common_folder
from holmes_hpc.config.folders import default_runs_folder
from holmes_hpc.errors import ConfigurationError, HolmesError
from holmes_hpc.paths import unreadable
from holmes_hpc.program import report, run_program
from holmes_hpc.quoting import one_line
from holmes_hpc.runs.private import put_file


def main(argv: list[str] | None = None) -> int:
    """Run the command with `argv` (default: the process's) and return its exit status: 2, wrong arguments."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="holmes report", description=(
        "One HTML page of runs, finished or running: figures, pictures, plans, configurations and environments."))
    parser.add_argument("runs", nargs="+", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--output", type=Path, metavar="FILE", help=(
        "the page to write (default: report.html in the run's folder, of several runs in the folder that holds them)"))
    parser.add_argument("--folder", type=Path, default=default_runs_folder(), help="where runs lie (%(default)s)")
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        found = read_runs(*named_runs(arguments.runs, arguments.folder))
        path = arguments.output or common_folder([run.folder for run in found]) / "report.html"
        text = _page(found)
        path.parent.mkdir(parents=True, exist_ok=True)
        put_file(path, text)
    except HolmesError as error:
        return report("report", error)
    except OSError as error:
        return report("report", ConfigurationError(f"{error.filename}: cannot be written: {error.strerror}; name "
                                                   "another file by --output"))
    sys.stdout.write(f"wrote {one_line(str(path))}\n")
    return 0


def _page(found: list[Run]) -> str:
    """Return the page as `page` does; what of the runs may not be read is another fault than a page unwritten."""
    try:
        return page(found)
    except OSError as error:
        raise unreadable(error) from error


if __name__ == "__main__":
    sys.exit(run_program("report", main))
