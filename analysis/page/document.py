"""The whole page."""

from __future__ import annotations

import base64
import hashlib
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path

import pandas as pd

from analysis.by_rank import by_rank_table
from analysis.columns import Row
from analysis.page.runs import RunParts, anchor
from analysis.page.scaling import curves, scaling
from analysis.page.step_parts import step_parts
from analysis.page.svg import figure
from analysis.page.tables import runs_tables
from analysis.printing import rows_of
from analysis.reading import Run
from analysis.tables import runs_table
from analysis.throughput import draw_pictures
from holmes_hpc import __version__
from holmes_hpc.quoting import for_html
from holmes_hpc.redaction import redact


def page(found: list[Run]) -> str:
    """Return the page of some runs; it needs no other file and no network."""
    table = runs_table(found)
    rows = rows_of(table)
    names = ", ".join(run.name for run in found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    parts = RunParts(found, rows, by_rank_table(found))
    body = [runs_tables(rows, [anchor(number) for number in range(len(rows))]), _remarks(rows), *_drawings(rows),
            *_pictures(found, table), *(parts.text(number) for number in range(len(found)))]
    return "\n".join([_head(f"holmes_hpc: {names}"), *body, f"<script>{_asset('page.js')}</script></body></html>\n"])


def _head(title: str) -> str:
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    digest = base64.b64encode(hashlib.sha256(_asset("page.js").encode()).digest()).decode()
    # Whatever a run's files say: nothing is fetched or sent, and no script runs but ours.
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (f'<!doctype html><html lang=en><head><meta charset=utf-8><title>{for_html(title)}</title>'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<meta name=viewport content="width=device-width, initial-scale=1"><style>{_asset("page.css")}</style>'
            f"</head><body><h1 id=top>{for_html(title)}</h1><p>made {made} by holmes_hpc {__version__}</p>")


def _remarks(rows: Sequence[Row]) -> str:
    """Return what is to be said of single runs: how they failed, and what is wrong with their folders."""
    said = [(number, f" {row['status']}: {redact(str(row['error']))}") for number, row in enumerate(rows)
            if pd.notna(row["error"])]
    said += [(number, f" is damaged: {row['damages']}") for number, row in enumerate(rows) if row["damages"]]
    lines = [f'<li><a href="#{anchor(number)}">{for_html(rows[number]["run"])}</a>{for_html(words)}</li>'
             for number, words in said]
    return f"<ul>{''.join(lines)}</ul>" if lines else ""


def _drawings(rows: Sequence[Row]) -> list[str]:
    found = (("Step time by cause: medians, means over ranks", step_parts(rows)), ("Scaling", scaling(curves(rows))))
    return [f"<h3>{title}</h3>{figure(*each)}" for title, each in found if each is not None]


def _pictures(found: list[Run], table: pd.DataFrame) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        notes = draw_pictures(found, Path(folder), table)
        drawn = [path for name in ("throughput", "timeline", "loss") if (path := Path(folder) / f"{name}.png").exists()]
        notes = [note.partition(" (")[2].removesuffix(")") if note.startswith("wrote ") else note for note in notes]
        images = [f'<figure><button class=zoom type=button aria-label="enlarge: {path.stem}"><img alt="{path.stem}" '
                  f'src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"></button></figure>'
                  for path in drawn]
    return [*images, *(f"<p class=note>{for_html(note)}</p>" for note in notes if note)]


@cache
def _asset(name: str) -> str:
    return files("analysis.page").joinpath(name).read_text(encoding="utf-8")
