"""A rank that leaves with status 0 before its training is over has failed, and is the one that is named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holmes_hpc.comm.causes import first_line
from holmes_hpc.launch.follow.failure import FailureReport
from holmes_hpc.launch.here import supervisor
from holmes_hpc.runs import RunFolder


def watch(ended: Sequence[tuple[int, int]], through: set[int]) -> tuple[int, list[dict[str, Any]]]:
    """Return the status and the events of ranks 0, 1, ... of pids 10, 11, ... that end in this order."""
    events: list[dict[str, Any]] = []
    endings = iter(ended)
    context = SimpleNamespace(send=events.append, wait=lambda timeout_seconds=None: next(endings, None),
                              end_ranks=lambda grace_seconds: None)
    running = {10 + rank: SimpleNamespace(rank=rank, node=f"ib-{rank}", slot=f"ib/{rank}")
               for rank in range(len(ended))}
    return supervisor._watch(context, running, lambda pid: pid in through), events


def message(folder: RunFolder, events: Sequence[dict[str, Any]]) -> str:
    report = FailureReport(folder)
    for event in events:
        report.add(event)
    return report.message()


@pytest.mark.parametrize("first", [[(11, 0), (10, 1)], [(10, 1), (11, 0)]])
def test_a_rank_that_leaves_with_status_0_is_named_and_not_who_lost_it(first: list[tuple[int, int]],
                                                                       tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "mixed")
    folder.rank_error_path(0).write_text(json.dumps(
        {"type": "NetworkError", "message": "rank 0: Connection closed by peer", "ours": True}))
    status, events = watch(first, through=set())
    assert status == 1
    assert message(folder, events) == ("rank 1 on node ib-1 (slot ib/1) ended with status 0 before its training was "
                                       f"over; log: {folder.log_path(1)}")


def test_the_only_rank_that_leaves_with_status_0_has_not_completed(tmp_path: Path) -> None:
    status, events = watch([(10, 0)], through=set())
    assert status == 1 and "rank 0 on node ib-0" in message(RunFolder.create(tmp_path, "mixed"), events)


def test_ranks_whose_training_is_over_have_completed() -> None:
    assert watch([(10, 0), (11, 0)], through={10, 11}) == (0, [])


@pytest.mark.parametrize(("said", "cause"), [
    ("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer [10.0.0.2]:4711: GLHF! "
     "\U0001f3d6\ufe0f\nand more", "Connection closed by peer [10.0.0.2]:4711"),
    ("Read error [::1]:99: Verbindung zur\u00fcckgesetzt", "Read error [::1]:99: Verbindung zur\u00fcckgesetzt"),
    ("", "RuntimeError"),
])
def test_a_cause_has_no_source_paths_and_no_pictures(said: str, cause: str) -> None:
    assert first_line(RuntimeError(said)) == cause
