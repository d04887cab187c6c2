"""`holmes trace RUN --step N`: the recorded timeline of a step, of all ranks, for Perfetto or chrome://tracing."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holmes_hpc.config.folders import default_runs_folder
from holmes_hpc.errors import ConfigurationError, HolmesError
from holmes_hpc.foreign import parse_object, read_text
from holmes_hpc.paths import check_output
from holmes_hpc.program import report, run_program
from holmes_hpc.runs import read_result
from holmes_hpc.runs.circumstances import circumstances, is_busy
from holmes_hpc.runs.files import write_text_atomic
from holmes_hpc.runs.find import find_run
from holmes_hpc.runs.metrics import newest_actions
from holmes_hpc.runs.plans import read_plan
from holmes_hpc.values import Plan
from holmes_hpc.words import numbers

_WAITS = ("RA", "RG", "TT")
_MICROSECONDS = 1e6
_REDUCTION = re.compile(r"[A-Z]~([0-9]{1,9})(?![0-9])")
"""How the action of a sum or gather that is under way begins: with the number of its reduction."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="holmes trace", description=(
        "Write a step's recorded timeline as a trace, for ui.perfetto.dev or chrome://tracing."))
    parser.add_argument("run", metavar="RUN", help="a run folder, a job id, or a run's name (the newest of that name)")
    parser.add_argument("--step", type=int, help="a step whose timeline was recorded; default: the last one")
    parser.add_argument("--to", type=Path, metavar="FILE", help="default: trace-step-N.json in the run folder")
    parser.add_argument("--folder", type=Path, default=default_runs_folder(), help="where runs lie (%(default)s)")
    arguments = parser.parse_args(argv)
    try:
        return _trace(arguments)
    except HolmesError as error:
        return report("trace", error)


def _trace(arguments: argparse.Namespace) -> int:
    run = find_run(arguments.run, arguments.folder)
    plan = read_plan(run.plan_path)
    rows = {rank: newest_actions(_records(run.timeline_path(rank))) for rank in range(plan.world_size)}
    known = sorted({row["step"] for found in rows.values() for row in found})
    step = arguments.step if arguments.step is not None else (known[-1] if known else 0)
    if step not in known:
        steps = ", ".join(map(str, known)) or "none"
        raise ConfigurationError(f"{run.path} has no timeline of step {step}; it has those of {steps}. Steps are "
                                 "recorded every train.timeline_every, and at the end.")
    events = list(trace_events(plan, {rank: [row for row in found if row["step"] == step]
                                      for rank, found in rows.items()}))
    target = arguments.to or run.path / f"trace-step-{step}.json"
    check_output(target, "--to")
    how = circumstances(run)
    other = {"run": str(run.path), "step": step, **({"measured": how} if how else {}),
             **({"busy": "other programs held cores of this machine"} if is_busy(read_result(run) or {}) else {})}
    write_text_atomic(target, json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}))
    sys.stdout.write(f"{target}: step {step}{how and f' ({how})'}, {len(events)} events of {plan.world_size} ranks; "
                     "open it in ui.perfetto.dev\n")
    return 0


def trace_events(plan: Plan, rows: Mapping[int, Sequence[Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield the events of a step: a process for each rank, with a row for its actions and one for each sum under way.

    `rows` are those of the ranks' timelines. Times count from the step's begin on each rank, which all meet shortly
    before: a step ends with a collective of all.
    """
    for place in plan.ranks:
        name = f"rank {place.rank}, {place.node or place.slot}, {place.fabric}"
        yield {"ph": "M", "pid": place.rank, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": place.rank, "name": "process_sort_index", "args": {"sort_index": place.rank}}
        lanes: dict[str, int] = {}
        for row in rows.get(place.rank, ()):
            lane, network = _lane(plan, place.rank, row)
            number = lanes.setdefault(lane, len(lanes))
            details = {key: row[key] for key in ("pipeline", "stage", "microbatch") if row.get(key, -1) >= 0}
            yield {"ph": "X", "pid": place.rank, "tid": number, "ts": row["start"] * _MICROSECONDS,
                   "dur": max(0.0, row["end"] - row["start"]) * _MICROSECONDS, "name": row["action"],
                   "cat": network or ("wait" if row["kind"] in _WAITS else "compute"), "args": details}
        for lane, number in lanes.items():
            yield {"ph": "M", "pid": place.rank, "tid": number, "name": "thread_name", "args": {"name": lane}}
            yield {"ph": "M", "pid": place.rank, "tid": number, "name": "thread_sort_index",
                   "args": {"sort_index": number}}


def _lane(plan: Plan, rank: int, row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the row of a trace that a record belongs to, and the networks that it used."""
    if not row["kind"].endswith("~"):
        return "actions", ""
    is_sum = row["kind"].startswith("R")
    named = _REDUCTION.match(row["action"])
    if named is None or (index := int(named[1])) >= len(plan.reductions):
        return f"{'sums' if is_sum else 'gathers'} of a reduction that the plan does not have", ""
    reduction = plan.reductions[index]
    groups = {each for level in (reduction.levels if is_sum else reduction.gathers) for each in level.groups}
    own = [plan.groups[each] for each in sorted(groups) if rank in plan.groups[each].ranks]
    names = ", ".join(f"{group.kind} {numbers(group.ranks)} by {group.network}" for group in own)
    networks = sorted({group.network for group in own})
    return f"{'sums' if is_sum else 'gathers'} of reduction {index}: {names or 'this rank alone'}", ",".join(networks)


def _records(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a timeline's file; lines that are none are left out."""
    lines = read_text(path).splitlines() if path.is_file() else []
    return [record for line in lines if (record := parse_object(line)) is not None]


if __name__ == "__main__":
    sys.exit(run_program("trace", main))
