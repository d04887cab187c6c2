"""Starts the ranks of a run on this machine and watches them; runs as their parent."""

from __future__ import annotations

import gc
import mmap
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holmes_hpc.emulation.cores import bind_to_cores
from holmes_hpc.emulation.disturber import Disturber
from holmes_hpc.emulation.network import EmulatedNetwork
from holmes_hpc.emulation.world import WorldContext
from holmes_hpc.launch.rank.settings import RankSettings
from holmes_hpc.launch.rank.torch_log import errors_only

GRACE_SECONDS = 1.5
"""How long other ranks may report their own errors after the first one ended; then they are killed."""


def supervise(context: WorldContext, ranks: Sequence[RankSettings], network: EmulatedNetwork | None = None) -> int:
    """Fork all ranks, wait for them, and return 0, or 1 when any of them failed.

    A `network` that is disturbed gets a process of its own for that.

    torch is imported once, here, with what it would import later, so that a rank starts by a fork alone. Every rank's
    start and end is sent to the command as an event.
    """
    errors_only(os.environ)
    import torch

    torch.set_num_threads(1)
    from holmes_hpc.launch.rank.late_imports import import_late_modules
    from holmes_hpc.launch.rank.rank import run_rank

    if ranks and ranks[0].timed is None:
        import_late_modules(ranks[0].plan)
    # A rank's first look for cycles would write to every object that it shares with the others, and so copy them all.
    gc.freeze()
    running: dict[int, RankSettings] = {}
    helper, wait_for_links = _disturb(context, ranks, network)
    through = mmap.mmap(-1, max(1, len(ranks)))  # shared with the ranks: a byte each, set where its training is over
    for number, settings in enumerate(ranks):
        def function(settings: RankSettings = settings, number: int = number) -> int:
            bind_to_cores(number, len(ranks))
            telling = replace(settings, wait_for_links=wait_for_links,
                              tell=lambda report: _tell(context, settings.rank, report))
            status = run_rank(telling, lambda *progress: _report_progress(context, settings.rank, *progress),
                              lambda text: _say(context, text))
            through[number] = 1
            return status

        pid = context.fork_rank(settings.rank, settings.node, function, settings.log_path)
        running[pid] = settings
    context.send({"event": "started", "ranks": [
        {"rank": settings.rank, "node": settings.node, "pid": pid} for pid, settings in running.items()
    ]})
    numbers = {pid: number for number, pid in enumerate(running)}
    return _watch(context, running, lambda pid: through[numbers[pid]] == 1, helper)


def _disturb(context: WorldContext, ranks: Sequence[RankSettings], network: EmulatedNetwork | None
             ) -> tuple[int | None, Callable[[int, float], None]]:
    """Start what disturbs a network; return its pid, if it needs any, and what ranks wait by for changed links."""
    if network is None or not network.disturbances or context.node_networks is None:
        return None, lambda step, timeout_seconds: None
    disturber = Disturber(network, len(ranks))
    return disturber.start(context, context.node_networks), disturber.wait_for_links


def _report_progress(context: WorldContext, rank: int, done: int, total: int, description: str) -> None:
    if rank == 0:
        context.send({"event": "progress", "done": done, "total": total, "description": description})


def _tell(context: WorldContext, rank: int, report: Mapping[str, Any]) -> None:
    """Send what a rank ends with: it may be unable to write it down."""
    context.send({"event": "error", "rank": rank, "report": dict(report)})


def _say(context: WorldContext, text: str) -> None:
    sys.stdout.write(f"{text}\n")  # the rank's log
    sys.stdout.flush()
    context.send({"event": "said", "text": text})


def _watch(context: WorldContext, running: dict[int, RankSettings], is_through: Callable[[int], bool],
           helper: int | None = None) -> int:
    """Wait for the ranks; return 0, or 1 where one failed. `is_through` says whether the training of a pid is over.

    A rank that leaves with status 0 before that has failed as well: something in its process ended it. So has the run
    when the pid `helper` ends, which said why.
    """
    failed_at: float | None = None
    while running:
        if failed_at is not None and time.monotonic() - failed_at > GRACE_SECONDS:
            context.end_ranks(grace_seconds=0.0)
            return 1
        ended = context.wait(timeout_seconds=GRACE_SECONDS / 10 if failed_at else None)
        if ended is not None and ended[0] == helper:
            failed_at = failed_at or time.monotonic()
        if ended is None or ended[0] not in running:
            continue
        pid, status = ended
        settings = running.pop(pid)
        if status != 0 or not is_through(pid):
            context.send({"event": "ended", "rank": settings.rank, "node": settings.node, "slot": settings.slot,
                          "status": status})
            failed_at = failed_at or time.monotonic()
    return 0 if failed_at is None else 1
