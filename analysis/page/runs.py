"""The part of the page that tells of one run, with links to the runs that belong to it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from omegaconf import OmegaConf
from rich.console import Console

from analysis.columns import Column, Row, formatted, is_busy, percent, significant, size, text_of
from analysis.page.run_axis import course, pauses_in_words, run_axis
from analysis.page.svg import figure
from analysis.page.tables import facts, sorted_table
from analysis.page.traffic import (
    Predicted,
    caption,
    cluster_drawing,
    measured_traffic,
    node_names,
    predicted_traffic,
)
from analysis.printing import rows_of
from analysis.reading import Run
from analysis.tables import COMPARABLE
from holmes_hpc.cluster import read_cluster
from holmes_hpc.config.kept import UNREADABLE
from holmes_hpc.errors import HolmesError
from holmes_hpc.planner import render
from holmes_hpc.quoting import for_html
from holmes_hpc.redaction import redact, redact_value
from holmes_hpc.values import Plan

WIDTH = 130
"""Columns of a plan."""
MOST_DRAWN = 12
"""Plans whose traffic is drawn: each is priced anew, which takes a tenth of a second."""
MOST_ALIKE = 8
MOST_RANKS = 256

_KNOWN = ("command", "folder", "host", "user", "job_id", "restarts", "versions", "git", "environment")
_RANK_COLUMNS = [
    Column("rank", "rank", text_of("rank")),
    Column("node", "node", text_of("node")),
    Column("GPU", "gpu", text_of("gpu")),
    Column("predicted GiB", "predicted_memory_gib", formatted("predicted_memory_gib", significant)),
    Column("measured GiB", "measured_memory_gib", formatted("measured_memory_gib", significant)),
    Column("measured / predicted", "measured_to_predicted", formatted("measured_to_predicted", significant)),
    Column("straggler in", "straggler_share", formatted("straggler_share", percent)),
]


class RunParts:
    """Writes the parts of all runs of a page; what the plans of several have in common is worked out once."""

    def __init__(self, found: Sequence[Run], rows: Sequence[Row], ranks: pd.DataFrame) -> None:
        """`rows` are those of `runs`' table, in the order of the runs; `ranks` is `by_rank`'s table of them."""
        self._found, self._rows = found, rows
        self._ranks = {str(run): table for run, table in ranks.groupby("run", sort=False)}
        self._places = {run.folder: number for number, run in enumerate(found)}
        self._ids = {run.folder.name: number for number, run in enumerate(found)}
        self._plans: dict[str, str] = {}
        self._traffic: dict[str, Predicted | None] = {}
        self._alike: dict[tuple[str, ...], list[int]] = {}
        for number, row in enumerate(rows):
            self._alike.setdefault(_comparable(row), []).append(number)

    def text(self, number: int) -> str:
        """Return the part of one run."""
        run, row = self._found[number], self._rows[number]
        parts = [f'<section><h2 id="{anchor(number)}">{for_html(run.name)}</h2>', self._ways(number),
                 self._facts(number)]
        if row["error"] and pd.notna(row["error"]):
            parts.append(f"<pre class=failed>{for_html(redact(str(row['error'])))}</pre>")
        if (found := course(run)) is not None:
            parts.append(figure(run_axis(found, run.name), pauses_in_words(found)))
        parts += [self._plan(run), self._drawn(run, str(row["machine"])), self._rank_table(run)]
        for title, content in (("configuration", _yaml(run.config)), ("environment", _environment(run))):
            parts.append(f"<details><summary>{title}</summary><pre>{for_html(content)}</pre></details>")
        return "\n".join([*parts, "</section>"])

    def _ways(self, number: int) -> str:
        ways = [('#top', "all runs")]
        ways += [(f"#{anchor(number - 1)}", "previous")] if number else []
        ways += [(f"#{anchor(number + 1)}", "next")] if number + 1 < len(self._found) else []
        return "<nav>" + " ".join(f'<a href="{target}">{words}</a>' for target, words in ways) + "</nav>"

    def _facts(self, number: int) -> str:
        run, row = self._found[number], self._rows[number]
        told = {"status": for_html(str(row["status"])), "folder": for_html(str(run.folder))}
        no_speed = row.get("no_speed")
        if isinstance(no_speed, str):
            told["no speed"] = for_html(no_speed)
        elif is_busy(row):
            told["busy machine"] = (f"other programs held {row['others_held_cores']:.1f} cores on average: this speed "
                                    "compares with no other")
        if row["damages"]:
            told["damaged"] = for_html(row["damages"])
        before = self._resumed(run)
        if before is not None:
            told["goes on from"] = self._link(before)
        after = [other for other, each in enumerate(self._found) if self._resumed(each) == number]
        if after:
            told["is gone on with by"] = ", ".join(map(self._link, after))
        if alike := self._faster_and_slower(number):
            told["alike runs"] = alike
        return facts(told)

    def _resumed(self, run: Run) -> int | None:
        """Return the number of the run whose checkpoint a run began from, where that is on the page."""
        named = (run.config.get("train") or {}).get("resume")
        if not isinstance(named, str) or named in ("", "auto"):
            return None
        path = Path(named)  # a run folder, one of its checkpoints, or a run's id
        places = (self._places.get(each, self._ids.get(each.name)) for each in (path, *path.parents[:2]))
        found = next((place for place in places if place is not None), None)
        return None if found is None or self._found[found] is run else found

    def _faster_and_slower(self, number: int) -> str:
        """Return links to runs whose speed compares with that of this one, the fastest first, each with its ratio."""
        row = self._rows[number]
        own = row["tokens_per_second"]
        others = [other for other in self._alike[_comparable(row)] if other != number]
        fair = [other for other in others if pd.notna(self._rows[other]["tokens_per_second"])
                and not is_busy(self._rows[other])]
        if pd.isna(own) or own <= 0 or is_busy(row) or not fair:
            return ""
        times = {other: self._rows[other]["tokens_per_second"] / own for other in fair}
        fair.sort(key=lambda other: -times[other])
        words = [f"{self._link(other)} {times[other]:.2f}x" for other in fair[:MOST_ALIKE]]
        return ", ".join(words) + (f" and {len(fair) - MOST_ALIKE} slower ones" if len(fair) > MOST_ALIKE else "")

    def _link(self, number: int) -> str:
        name, strategy = self._found[number].name, str(self._rows[number]["strategy"])
        return f'<a href="#{anchor(number)}">{for_html(name)}</a> ({for_html(strategy)})'

    def _plan(self, run: Run) -> str:
        key = json.dumps([run.plan, run.config.get("cluster")], default=str)
        if key not in self._plans:
            self._plans[key] = _plan(run)
        return self._plans[key]

    def _drawn(self, run: Run, measured_on: str) -> str:
        """Return the traffic of a run's plan, and what its network cards counted."""
        key = json.dumps([run.plan, run.config.get("cluster"), measured_on], default=str)
        if key not in self._traffic:
            if len(self._traffic) >= MOST_DRAWN:
                return f"<p class=note>traffic is drawn of {MOST_DRAWN} plans: make a page of this run alone</p>"
            self._traffic[key] = predicted_traffic(run, measured_on)
        predicted = self._traffic[key]
        if predicted is None:
            return ""
        by_node = measured_traffic(run, predicted.cluster)
        row = self._rows[self._places[run.folder]]
        counters = {"Ethernet": row["bytes_ethernet"], "fabrics": row["bytes_fabric"]}
        counted = [f"{words} {size(value)}" for words, value in counters.items() if pd.notna(value)]
        together = f"<p class=note>measured, all nodes together: {', '.join(counted)} a step</p>" if counted else ""
        return figure(cluster_drawing(predicted, by_node, node_names(run)), caption(by_node)) + together

    def _rank_table(self, run: Run) -> str:
        table = self._ranks.get(run.name)
        if table is None or not (table["measured_memory_gib"].notna() | (table["straggler_share"] > 0)).any():
            return ""
        left = len(table) - MOST_RANKS
        note = f"{left} more ranks: analysis.by_rank(RUN) in Python" if left > 0 else ""
        return ("<details><summary>ranks</summary>"
                f"{sorted_table('Ranks: memory, stragglers', _RANK_COLUMNS, rows_of(table.head(MOST_RANKS)), note)}"
                "</details>")


def anchor(number: int) -> str:
    """Return the name by which the part of a run is linked to."""
    return f"run-{number + 1}"


def _comparable(row: Row) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in COMPARABLE)


def _plan(run: Run) -> str:
    try:
        cluster = read_cluster(OmegaConf.create({"cluster": run.config["cluster"]})["cluster"])
        shown = render(Plan.from_json(json.dumps(run.plan)), cluster)
    except (HolmesError, *UNREADABLE) as error:
        return f"<p>The plan is missing or of another version: {for_html((str(error).splitlines() or ['?'])[0])}</p>"
    console = Console(record=True, width=WIDTH, file=io.StringIO(), color_system=None)
    console.print(shown)
    return console.export_html(code_format="<pre>{code}</pre>", inline_styles=True)


def _environment(run: Run) -> str:
    return _yaml({name: run.job[name] for name in _KNOWN if name in run.job})


def _yaml(value: Mapping[str, Any]) -> str:
    """Return settings as YAML; lines of shell in them may hold secrets, and the page may be sent to others."""
    return str(yaml.dump(redact_value(dict(value)), Dumper=_Dumper, sort_keys=False, allow_unicode=True))


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes texts that a reader of settings takes for numbers, such as `5e3`, in quotes."""


def _represent(dumper: Any, text: str) -> Any:
    style = "'" if re.fullmatch(r"[-+.\d][\d_.:]*(e[-+]?\d+)?", text, re.IGNORECASE) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent)
