"""Tables for a terminal, whose cells are text and no markup."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from holmes_hpc.quoting import for_table


class _PlainTable(Table):
    """A table whose cells are text: names such as `[red]` or `2 x [ib a100-80g 2]` are no markup."""

    def add_row(self, *cells: Any, **further: Any) -> None:
        """Add a row of texts."""
        super().add_row(*(for_table(cell) if isinstance(cell, str) else cell for cell in cells), **further)


def plain_table(title: str, *columns: str) -> Table:
    """Return an empty table of texts."""
    table = _PlainTable(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
