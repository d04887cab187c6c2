"""The state of a rank as entries of a checkpoint: by global name and rectangle, each part written by one owner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from holmes_hpc.checkpoint.entries import Entry
from holmes_hpc.checkpoint.model import MODEL_PREFIX, check_optimizer_state
from holmes_hpc.engine.local_model import LocalModel, Piece
from holmes_hpc.values import Plan

RANDOM = "random/"


class SavedState(Protocol):
    """A part of the training that a checkpoint holds: tensors as entries, the rest as JSON.

    A save asks for `state` and `state_entries`; a resume calls `load_state`, fills `state_entries`, and, when every
    rank has come so far, calls `loaded`. The first two of them run on another thread and use no process group.
    """

    def state(self) -> dict[str, Any]:
        """Return what is no tensor; it must be equal on all ranks and pass through JSON unchanged."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` returned. Raises CheckpointError when it does not belong here."""

    def state_entries(self) -> list[Entry]:
        """Return the tensors of this rank, to be saved, or filled after `load_state`.

        The optimizer is asked first: where it still gathers parameters, it waits for them here.
        """

    def loaded(self) -> None:
        """Learn that the tensors, the parameters too, have been filled on every rank."""


@dataclass(frozen=True)
class _OwnedPiece:
    piece: Piece
    written: bool


class ParameterPieces:
    """The pieces of one rank's parameters, and which of them it writes.

    The owners of a reduction hold the same pieces; each goes to the owner that has the fewest bytes so far, so every
    owner finds the same answer without asking, and the load is spread.
    """

    def __init__(self, plan: Plan, rank: int, model: LocalModel) -> None:
        self._model = model
        self._pieces = list(_owned_pieces(plan, rank, model))

    def entries(self, prefix: str, tensors: Mapping[str, Tensor]) -> list[Entry]:
        """Return entries for tensors shaped as the local parameters, by the parameters' names."""
        return [self._entry(prefix, owned, tensors[owned.piece.name]) for owned in self._pieces
                if owned.piece.name in tensors]

    def _entry(self, prefix: str, owned: _OwnedPiece, tensor: Tensor) -> Entry:
        piece = owned.piece
        offsets, _ = self._model.rectangle(piece.name)
        part = piece.of(tensor.detach())
        if piece.dim is not None:
            offsets = (*offsets[:piece.dim], offsets[piece.dim] + piece.begin, *offsets[piece.dim + 1:])
        return Entry(prefix + piece.name, self._model.global_shape(piece.name), tuple(offsets), tuple(part.shape), part,
                     owned.written)


def _owned_pieces(plan: Plan, rank: int, model: LocalModel) -> Iterator[_OwnedPiece]:
    for number, reduction in enumerate(plan.reductions):
        if rank not in reduction.owners:
            continue
        load = [0] * len(reduction.owners)
        first = number % len(load)  # small reductions do not all fall to the same owner
        for piece in model.pieces(reduction):
            writer = min(range(len(load)), key=lambda i: (load[i], (i - first) % len(load)))
            load[writer] += piece.of(model.parameters[piece.name]).numel()
            yield _OwnedPiece(piece, reduction.owners[writer] == rank)


class ModelState:
    """The parameters of one rank.

    With `written` false a resume fills them, and a save leaves them to another part, which has them more exactly: in
    lower precision the optimizer's float32 masters are saved under the same keys.
    """

    def __init__(self, model: LocalModel, pieces: ParameterPieces, *, written: bool = True) -> None:
        self._model, self._pieces, self._written = model, pieces, written

    def state(self) -> dict[str, Any]:
        """Return nothing: parameters are tensors."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up nothing."""

    def state_entries(self) -> list[Entry]:
        """Return the parameters."""
        entries = self._pieces.entries(MODEL_PREFIX, dict(self._model.parameters))
        return entries if self._written else [replace(entry, written=False) for entry in entries]

    def loaded(self) -> None:
        """Do nothing: the parameters themselves were filled."""


class ShardedState:
    """The state of an optimizer whose owners each keep a shard of it, and its numbers.

    `entries` gives what this rank keeps; `numbers` and `load_numbers` are JSON, the latter is called when everything
    is filled; `wait_for_parameters` waits for parameters that are still being gathered.
    """

    def __init__(self, name: str, entries: Callable[[], Iterable[Entry]], numbers: Callable[[], dict[str, float]],
                 load_numbers: Callable[[dict[str, float]], None], wait_for_parameters: Callable[[], None]) -> None:
        self._name, self._entries, self._wait_for_parameters = name, entries, wait_for_parameters
        self._numbers, self._load_numbers = numbers, load_numbers
        self._loading: dict[str, float] = {}

    def state(self) -> dict[str, Any]:
        """Return the optimizer's name and numbers."""
        numbers = self._numbers()
        return {"name": self._name, "steps": int(numbers.get("optimizer.steps", 0)), "numbers": numbers}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Keep the numbers until the tensors are filled. Raises CheckpointError when they are another optimizer's."""
        check_optimizer_state(state, self._name)
        self._loading = self._numbers() | dict(state.get("numbers", {}))

    def state_entries(self) -> list[Entry]:
        """Return the moments, and in lower precision the masters under the parameters' keys."""
        self._wait_for_parameters()
        return list(self._entries())

    def loaded(self) -> None:
        """Take up the numbers, now that the tensors are there."""
        self._load_numbers(self._loading)


class RandomState:
    """The states of torch's random generators of one rank.

    They are taken up where the checkpoint was made by as many ranks; on another layout they keep their seeds, which
    nothing in the training depends on: the weights exist, and the data order is a function of seed and step.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._to_fill: list[Entry] | None = None

    def state(self) -> dict[str, Any]:
        """Return on how many ranks which generators have states."""
        return {"world_size": self._world_size, "devices": list(self._states())}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Make room for the states, where each of this rank's is there."""
        self._to_fill = None
        self._to_fill = self.state_entries() if state == self.state() else []

    def state_entries(self) -> list[Entry]:
        """Return copies of the generators' states; after `load_state` the room for them."""
        if self._to_fill is not None:
            return self._to_fill
        return [Entry(f"{RANDOM}{device}/{self._rank}", tuple(state.shape), (0,), tuple(state.shape), state)
                for device, state in self._states().items()]

    def loaded(self) -> None:
        """Set the generators to the filled states."""
        for entry in self._to_fill or ():
            if entry.key.startswith(f"{RANDOM}cuda/"):
                torch.cuda.set_rng_state(entry.tensor)
            else:
                torch.set_rng_state(entry.tensor)
        self._to_fill = None

    def _states(self) -> dict[str, Tensor]:
        states = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            states["cuda"] = torch.cuda.get_rng_state()
        return states
