"""`holmes top RUN`: the ranks of a run, live on a terminal and once elsewhere: who computes, waits, and is slow."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from holmes_hpc.config.folders import default_runs_folder
from holmes_hpc.errors import HolmesError
from holmes_hpc.foreign import number, read_object
from holmes_hpc.program import report, run_program
from holmes_hpc.quoting import for_table
from holmes_hpc.runs import RunFolder, read_result
from holmes_hpc.runs.find import find_run
from holmes_hpc.runs.job import main_is_alive
from holmes_hpc.runs.ranks_seen import RankSeen, RanksSeen
from holmes_hpc.submit.board import planned_steps
from holmes_hpc.words import counted, numbers, seconds_words, size_words

LOOK_SECONDS = 1.0
SILENT_SECONDS = 10.0
"""A rank that gave no sign of life for so long is said to be silent; it gives one every few seconds."""
WIDTH = 100
_HEAD_LINES = 11
"""Lines of the terminal that are no ranks."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="holmes top", description=(
        "Show the ranks of a run by their step time, with what they wait for, their memory, and stragglers: live on a "
        "terminal until the run is over (Ctrl-C only stops looking), one table elsewhere."))
    parser.add_argument("run", metavar="RUN", help="a run folder, a job id, or a run's id or name (the newest of that "
                                                   "name)")
    parser.add_argument("--once", action="store_true", help="one table on a terminal too")
    parser.add_argument("--folder", type=Path, default=default_runs_folder(), help="where runs lie (%(default)s)")
    arguments = parser.parse_args(argv)
    try:
        _show(find_run(arguments.run, arguments.folder), once=arguments.once)
        return 0
    except HolmesError as error:
        return report("top", error)
    except KeyboardInterrupt:
        return 0


def _show(folder: RunFolder, *, once: bool) -> None:
    seen = RanksSeen(folder)
    seen.look(time.monotonic())
    is_terminal = sys.stdout.isatty()
    console = Console(width=None if is_terminal else WIDTH)
    if is_terminal and not once and not _is_over(folder):
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while not _is_over(folder):
                live.update(view(seen, max(1, console.height - _HEAD_LINES)), refresh=True)
                time.sleep(LOOK_SECONDS)
                seen.look(time.monotonic())
    console.print(view(seen, None if not is_terminal else max(1, console.height - _HEAD_LINES)))


def _is_over(folder: RunFolder) -> bool:
    return read_result(folder) is not None or main_is_alive(read_object(folder.job_path) or {}) is False


def view(seen: RanksSeen, most: int | None) -> Group:
    """Return what is known of a run: its newest step, networks and ranks, of which at most so many are shown."""
    rows = seen.by_step_time()
    shown = rows if most is None else rows[:most]
    lines = [_state(seen), *_step(seen), *_networks(seen), *_slow(rows)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for title in ("rank", "node", "fabric", "GPU", "computes", "waits", "sums", "GiB", "does"):
        table.add_column(title, justify="right" if title in ("rank", "computes", "waits", "sums", "GiB") else "left")
    for rank in shown:
        table.add_row(*map(for_table, _cells(rank)), style="bold red" if rank.is_straggler else None)
    below = []
    if len(shown) < len(rows):
        below.append(f"{counted(len(rows) - len(shown), 'rank')} more, which compute less")
    if not any(rank.step is not None for rank in rows):
        below.append("no step was recorded yet: train.timeline_every says which are")
    return Group(*map(for_table, lines), table, *map(for_table, below))


def _state(seen: RanksSeen) -> str:
    folder, row = seen.folder, seen.newest
    ended = read_result(folder)
    steps = planned_steps(folder)
    words = [f"{folder.name}/{folder.id}", str((ended or {}).get("status") or "not ended"),
             f"step {row.get('step', 0)}" + (f" of {steps}" if steps else "")]
    speed, loss = (number(row.get(name)) for name in ("tokens_per_second", "loss"))
    words += ["emulated, timed"] if row.get("timed") else []
    words += [] if speed is None else [f"{speed:,.0f} tokens/s"]
    words += [] if loss is None else [f"loss {loss:.3f}"]
    return "  ".join(words)


def _step(seen: RanksSeen) -> list[str]:
    names = "step_seconds", "bubble_fraction", "exposed_comm_seconds"
    step, bubble, exposed = (number(seen.newest.get(name)) for name in names)
    if step is None or step <= 0:
        return []
    waits = [] if bubble is None else [f"{100 * bubble:.0f} % for other stages"]
    waits += [] if exposed is None else [f"{100 * exposed / step:.0f} % for sums of gradients"]
    return [f"{seconds_words(step)} a step" + (f"; ranks wait {', '.join(waits)}" if waits else "")]


def _networks(seen: RanksSeen) -> list[str]:
    """Return what the NICs of all nodes sent in the newest step, and what that is for one node."""
    nodes = len({rank.node for rank in seen.ranks.values()}) or 1
    step = number(seen.newest.get("step_seconds"))
    lines = []
    for words, name in (("Ethernet", "bytes_ethernet"), ("fabrics", "bytes_fabric")):
        sent = number(seen.newest.get(name))
        if sent is not None:
            rate = f", {8 * sent / step / nodes / 1e9:.3g} Gbit/s" if step else ""
            lines.append(f"{words}: {size_words(sent)} a step; {size_words(sent / nodes)}{rate} a node, of "
                         f"{counted(nodes, 'node')}")
    return lines


def _slow(rows: Sequence[RankSeen]) -> list[str]:
    slow = [rank for rank in rows if rank.is_straggler]
    nodes = ", ".join(dict.fromkeys(rank.node for rank in slow))
    silent = [rank.rank for rank in rows if _is_silent(rank)]
    return ([f"straggler: rank {numbers(rank.rank for rank in slow)} on {nodes}"] if slow else []) + (
        [f"no sign of life for {SILENT_SECONDS:.0f} s or more: rank {numbers(silent)}"] if silent else [])


def _is_silent(rank: RankSeen) -> bool:
    return rank.silent_seconds >= SILENT_SECONDS and not (rank.beat is not None and rank.beat.ended)


def _cells(rank: RankSeen) -> tuple[str, ...]:
    known = rank.step is not None
    times = [seconds_words(value) if known else "-" for value in (rank.own_seconds, rank.wait_seconds,
                                                                  rank.sum_seconds)]
    memory = "-" if rank.memory_gib is None else f"{rank.memory_gib:.2f}"
    return str(rank.rank), rank.node, rank.fabric, rank.gpu, *times, memory, _does(rank)


def _does(rank: RankSeen) -> str:
    """Return what a rank did at its last sign of life."""
    if rank.beat is None:
        return "-"
    if rank.beat.ended:
        return "has ended"
    what = rank.beat.operation or rank.beat.action or "-"
    return f"step {rank.beat.step}: {what}" + (f", silent {rank.silent_seconds:.0f} s" if _is_silent(rank) else "")


if __name__ == "__main__":
    sys.exit(run_program("top", main))
