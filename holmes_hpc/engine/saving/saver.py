"""Saves the training state while it goes on: all ranks together, one save at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holmes_hpc.checkpoint.background import Background
from holmes_hpc.checkpoint.entries import Entry
from holmes_hpc.checkpoint.index import read_index
from holmes_hpc.checkpoint.naming import probe, remove_older
from holmes_hpc.checkpoint.staging import Staging
from holmes_hpc.checkpoint.writing import Attempt, abandon, commit, storage_error, write_part
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.engine.sharing import share_numbers, share_texts
from holmes_hpc.errors import CheckpointError

Say = Callable[[str], None]

HEARTBEAT_SECONDS = 2.0
"""How often ranks that wait for a save tell each other that they live, so that no timeout ends them."""

_BUSY, _DONE, _FAILED = 0.0, 1.0, 2.0


@dataclass
class _Save:
    """A save in progress: first every rank writes its part, then rank 0 commits."""

    attempt: Attempt
    extra: Mapping[str, Any]
    work: Background | None
    committing: bool = False
    began: float = field(default_factory=time.monotonic)


class Saver:
    """Writes checkpoints into a folder. All ranks call its methods at the same points of the training.

    `keep` checkpoints stay; `goes_on` decides what a failed save does: say so and train on, or raise. With `hashed`
    they get SHA-256, and that of the manifest is said.
    """

    def __init__(self, folder: Path, communicator: Communicator, *, token: str, keep: int, goes_on: bool,
                 say: Say, texts: Mapping[str, str], hashed: bool = False) -> None:
        self._folder, self._communicator, self._token = folder, communicator, token
        self._keep, self._goes_on, self._say, self._texts = keep, goes_on, say, texts
        self._hashed, self._staging = hashed, Staging()
        self._save: _Save | None = None

    def probe(self) -> None:
        """See that checkpoints can be written. Raises CheckpointError, or says so, when not."""
        problem = ""
        if self._communicator.rank == 0:
            try:
                probe(self._folder, self._token)
            except OSError as error:
                problem = str(storage_error(error, self._folder))
        problem = share_texts(problem, self._communicator)[0]
        if problem:
            self._fail(f"checkpoints cannot be written: {self._who(0)}: {problem}")

    def save(self, step: int, entries: Sequence[Entry], extra: Mapping[str, Any]) -> None:
        """Begin to save the state after `step`, once the save before is done; training may go on at once.

        The `extra` of rank 0 is written. Raises CheckpointError when the save before failed.
        """
        self.finish()
        rank = self._communicator.rank
        attempt = Attempt(self._folder, step, self._communicator.world_size, self._token, self._hashed)
        staged = self._staging.copy(entries)

        def write() -> None:
            with self._communicator.activity.doing_beside(f"writing step-{step:06d}"):
                write_part(attempt, rank, staged)

        self._save = _Save(attempt, extra, Background(write, f"checkpoint-{step}"))

    def poll(self) -> None:
        """Bring a save on without waiting for it. Raises CheckpointError when it failed (see `goes_on`)."""
        save = self._save
        if save is None:
            return
        states = share_numbers(self._state(save), self._communicator)
        if _BUSY in states:
            return
        if _FAILED in states:
            self._abandon(save)
        elif not save.committing:
            save.committing = True
            save.work = self._commit(save) if self._communicator.rank == 0 else None
        else:
            self._save = None

    def finish(self) -> None:
        """Wait until no save is in progress. Raises as `poll`."""
        while self._save is not None:
            self._communicator.activity.begin("waiting for the checkpoint")
            if self._save.work is not None:
                self._save.work.wait(HEARTBEAT_SECONDS)
            self.poll()

    def _commit(self, save: _Save) -> Background:
        def work() -> None:
            with self._communicator.activity.doing_beside(f"completing step-{save.attempt.step:06d}"):
                path = commit(save.attempt, save.extra, self._texts)
            manifest = f"; its manifest has the SHA-256 {read_index(path).manifest}" if self._hashed else ""
            self._say(f"checkpoint {path} written in {time.monotonic() - save.began:.1f} s{manifest}")
            stuck = remove_older(self._folder, save.attempt.step, self._keep, self._token)
            if stuck:
                self._say(f"older checkpoints could not be removed: {', '.join(map(str, stuck))}")

        return Background(work, f"commit-{save.attempt.step}")

    def _state(self, save: _Save) -> float:
        if save.work is None:
            return _DONE
        if not save.work.done:
            return _BUSY
        return _DONE if save.work.error is None else _FAILED

    def _abandon(self, save: _Save) -> None:
        error = save.work.error if save.work is not None else None
        messages = share_texts("" if error is None else _describe(error), self._communicator)
        if self._communicator.rank == 0:
            abandon(save.attempt)
        self._save = None
        rank, message = next((rank, text) for rank, text in enumerate(messages) if text)
        self._fail(f"the checkpoint of step {save.attempt.step} was not written: {self._who(rank)}: {message}")

    def _who(self, rank: int) -> str:
        place = self._communicator.plan.ranks[rank]
        return f"rank {rank} on node {place.node or place.slot}"

    def _fail(self, problem: str) -> None:
        if not self._goes_on:
            error = CheckpointError(f"{problem}; or train on without it by train.on_save_error=continue")
            error.names_rank = True
            raise error
        if self._communicator.rank == 0:
            self._say(f"WARNING: {problem}; training goes on (train.on_save_error=continue)")


def _describe(error: BaseException) -> str:
    return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
