"""Takes up the training where a checkpoint left it: the newest that can be used, by all ranks alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from holmes_hpc.checkpoint.background import Background
from holmes_hpc.checkpoint.refusals import Refusals
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.engine.saving.saver import HEARTBEAT_SECONDS, Say
from holmes_hpc.engine.sharing import share_numbers, share_texts
from holmes_hpc.errors import CheckpointError

Loader = Callable[[Path], int]
"""Loads one checkpoint into this rank, or raises CheckpointError; returns the step that it was made after."""


def load_newest(candidates: Iterable[Path], load: Loader, communicator: Communicator, say: Say) -> int:
    """Load the first of rank 0's `candidates` that every rank can load; return its step, 0 where there are none.

    The next is asked for when the one before was refused, which is said with the reason. Raises CheckpointError when
    all are.
    """
    refused = Refusals()
    remaining = iter(candidates)
    while True:
        chosen = share_texts(str(next(remaining, "")) if communicator.rank == 0 else "", communicator)[0]
        if not chosen:
            break
        step, reason = _load_together(Path(chosen), load, communicator)
        if reason is None:
            if communicator.rank == 0:
                say(f"resuming after step {step} from {chosen}")
            return step
        words = refused.add(chosen, reason)
        if communicator.rank == 0:
            say(f"WARNING: checkpoint refused: {words}")
    if refused:
        raise CheckpointError(f"no checkpoint can be used. {refused}. Name another one by "
                              "train.resume=PATH, or start anew by train.resume=never")
    return 0


def _load_together(path: Path, load: Loader, communicator: Communicator) -> tuple[int, str | None]:
    """Load on all ranks; return the step, and why a rank refused it."""
    steps: list[int] = []

    def read() -> None:
        with communicator.activity.doing_beside(f"reading {path.name}"):
            steps.append(load(path))

    work = Background(read, "resume")
    while True:
        communicator.activity.begin("waiting for the checkpoint")
        work.wait(HEARTBEAT_SECONDS)
        if all(share_numbers(float(work.done), communicator)):
            break
    if work.error is not None and not isinstance(work.error, CheckpointError):
        raise work.error
    reasons = share_texts("" if work.error is None else str(work.error), communicator)
    failed = [rank for rank, reason in enumerate(reasons) if reason]
    if not failed:
        return steps[0], None
    more = f" (and {len(failed) - 1} other ranks)" if len(failed) > 1 else ""
    return 0, f"{reasons[failed[0]]} [rank {failed[0]}{more}]"
