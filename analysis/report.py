"""`holmes report RUN...`: one HTML page of runs that can be kept or sent, with everything in it."""

from __future__ import annotations

import argparse
import base64
import io
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console, RenderableType

from analysis.by_rank import by_rank_table
from analysis.printing import print_ranks, print_runs
from analysis.reading import RUN_HELP, Run, named_runs, read_runs
from analysis.tables import runs_table
from analysis.throughput import common_folder, draw_pictures
from holmes_hpc import __version__
from holmes_hpc.cluster import read_cluster
from holmes_hpc.config.folders import default_runs_folder
from holmes_hpc.config.kept import UNREADABLE
from holmes_hpc.errors import ConfigurationError, HolmesError
from holmes_hpc.paths import unreadable
from holmes_hpc.planner import render
from holmes_hpc.program import report, run_program
from holmes_hpc.quoting import for_html, one_line
from holmes_hpc.redaction import redact, redact_value
from holmes_hpc.runs.private import replace_file
from holmes_hpc.values import Plan

WIDTH = 130
"""Columns of the tables."""

_PRE = "<pre>{code}</pre>"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2024; background: #fff; max-width: 1180px; margin: 2em auto;
  padding: 0 1em }
pre { font: 12px/1.35 ui-monospace, Menlo, Consolas, monospace; overflow-x: auto }
img { max-width: 100%; display: block; margin: 1em 0 }
summary { cursor: pointer; color: #0b5a9c }
.failed { color: #a4262c }
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command with `argv` (default: the process's) and return its exit status: 2, wrong arguments."""
    parser = argparse.ArgumentParser(prog="holmes report", description=(
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
        _write(path, text)
    except HolmesError as error:
        return report("report", error)
    except OSError as error:
        return report("report", ConfigurationError(f"{error.filename}: cannot be written: {error.strerror}; name "
                                                   "another file by --output"))
    sys.stdout.write(f"wrote {one_line(str(path))}\n")
    return 0


def _write(path: Path, text: str) -> None:
    if path.exists() and not path.is_file():  # such as /dev/stdout
        path.write_text(text, encoding="utf-8")
    else:
        replace_file(path, text)


def _page(found: list[Run]) -> str:
    """Return the page as `page` does; what of the runs may not be read is another fault than a page unwritten."""
    try:
        return page(found)
    except OSError as error:
        raise unreadable(error) from error


def page(found: list[Run]) -> str:
    """Return the page of some runs; it needs no other file and no network."""
    names = ", ".join(run.name for run in found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    title = for_html(f"holmes_hpc: {names}")
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts = [f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{title}</title>"
             f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p>made {made} by holmes_hpc {__version__}</p>",
             _tables(found), *_pictures(found), *(_run(run) for run in found), "</body></html>\n"]
    return "\n".join(parts)


def _tables(found: list[Run]) -> str:
    console = _console()
    print_runs(console, runs_table(found))
    print_ranks(console, by_rank_table(found))
    return _exported(console)


def _pictures(found: list[Run]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        notes = draw_pictures(found, Path(folder))
        drawn = [path for name in ("throughput", "timeline", "loss") if (path := Path(folder) / f"{name}.png").exists()]
        images = [f'<img alt="{path.stem}" src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}">'
                  for path in drawn]
    return [*images, *(f"<p>{for_html(note)}</p>" for note in notes if not note.startswith("wrote "))]


def _run(run: Run) -> str:
    status = str(run.result.get("status") or "not ended")
    error = run.result.get("error")
    lines = [f"<h2>{for_html(run.name)}</h2><p>{for_html(status)}, {for_html(str(run.folder))}</p>"]
    if error:
        lines.append(f"<pre class=failed>{for_html(redact(str(error)))}</pre>")
    lines.append(_plan(run))
    for title, content in (("configuration", _configuration(run)), ("environment", _environment(run))):
        lines.append(f"<details><summary>{title}</summary><pre>{for_html(content)}</pre></details>")
    return "\n".join(lines)


def _plan(run: Run) -> str:
    try:
        cluster = read_cluster(OmegaConf.create(run.config)["cluster"])
        shown: RenderableType = render(Plan.from_json(json.dumps(run.plan)), cluster)
    except (HolmesError, *UNREADABLE) as error:
        return f"<p>The plan is missing or of another version: {for_html((str(error).splitlines() or ['?'])[0])}</p>"
    console = _console()
    console.print(shown)
    return _exported(console)


def _configuration(run: Run) -> str:
    """Return the configuration; lines of shell in it may hold secrets, and the page may be sent to others."""
    return OmegaConf.to_yaml(OmegaConf.create(redact_value(run.config)))


def _environment(run: Run) -> str:
    known = ("command", "folder", "host", "user", "job_id", "restarts", "versions", "git", "environment")
    return OmegaConf.to_yaml(OmegaConf.create(redact_value({name: run.job[name] for name in known if name in run.job})))


def _console() -> Console:
    return Console(record=True, width=WIDTH, file=io.StringIO(), color_system=None)


def _exported(console: Console) -> str:
    return console.export_html(code_format=_PRE, inline_styles=True)


if __name__ == "__main__":
    sys.exit(run_program("report", main))
