"""Tables of the page: every column sorts, one field filters the rows of all tables of a section alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.columns import SPEED, STEP, WHAT_RAN, Column, Row
from analysis.printing import machine_note, prediction_note
from holmes_hpc.quoting import for_html

_LEFT = {"run", "cluster", "model", "measured on", "status", "strategy", "layout", "layers", "schedule", "for", "node",
         "GPU"}


def runs_tables(rows: Sequence[Row], anchors: Sequence[str]) -> str:
    """Return the three tables of runs, which sort and filter together; `anchors` name the runs' own parts."""
    run, further = WHAT_RAN[0], WHAT_RAN[1:]
    parts = [("Runs", further, "steps: done (of these, first ones left out of the medians below)"),
             ("Speed: medians over the measured steps", SPEED, machine_note(list(rows))),
             ("Step time, networks, loss", STEP, prediction_note(list(rows)))]
    tables = [sorted_table(title, [run, *columns], rows, caption or "", anchors) for title, columns, caption in parts]
    return (f'<div class=together data-what=runs><p class=filter hidden><label>filter: <input type=search '
            f'placeholder="words, such as: completed mixed"></label> <output></output></p>{"".join(tables)}</div>')


def sorted_table(title: str, columns: Sequence[Column], rows: Sequence[Row], caption: str = "",
                 anchors: Sequence[str] = ()) -> str:
    """Return a table with a heading for each column that sorts by it; the first column links to `anchors`."""
    head = "".join(f"<th scope=col{_side(column)}><button type=button class=sort>{for_html(column.title)}</button></th>"
                   for column in columns)
    body = []
    for index, row in enumerate(rows):
        cells = [_cell(column, row) for column in columns]
        if anchors:
            name = for_html(columns[0].cell(row))
            cells[0] = f'<th scope=row data-v="{name}"><a href="#{anchors[index]}">{name}</a></th>'
        body.append(f"<tr data-row={index}>{''.join(cells)}</tr>")
    below = f"<p class=note>{for_html(caption)}</p>" if caption else ""
    return (f"<div class=wide tabindex=0 role=region aria-label=\"{for_html(title)}\"><table>"
            f"<caption>{for_html(title)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
            f"</div>{below}")


def _cell(column: Column, row: Row) -> str:
    value = for_html(_sorted_as(row.get(column.sorted_by)))
    return f'<td{_side(column)} data-v="{value}">{for_html(column.cell(row))}</td>'


def _sorted_as(value: Any) -> str:
    """Return what a cell is sorted by: nothing where the figure is not known, which stands last."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _side(column: Column) -> str:
    return " class=left" if column.title in _LEFT else ""


def facts(found: Mapping[str, str]) -> str:
    """Return names and what is said of them, as a list; values are text of a page already."""
    return "<dl>" + "".join(f"<dt>{for_html(name)}</dt><dd>{value}</dd>" for name, value in found.items()) + "</dl>"
