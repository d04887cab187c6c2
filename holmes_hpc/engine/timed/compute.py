"""A device that waits: forwards and backwards take the simulator's seconds, and messages have their scaled lengths."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from holmes_hpc.architecture import Architecture
from holmes_hpc.engine.compute import Batches
from holmes_hpc.engine.gradients import Gradients
from holmes_hpc.engine.pace import Pace
from holmes_hpc.engine.parameters import Gatherer
from holmes_hpc.engine.receives import Place
from holmes_hpc.engine.timed.clock import DeviceClock
from holmes_hpc.values import Action, ActionKind, Plan
from holmes_hpc.values.timed import TimedPrices

_STAMP = struct.Struct("d")
"""When a message inside a node left, in its first bytes: what it takes is a wait of its receiver."""
_STAMPED_BYTES = 16

Part = tuple[tuple[str, ...], float]
"""The parameters of a part of a stage, and the fraction of the stage's time that it takes."""


class TimedCompute:
    """The `Compute` of the wind tunnel. There is no loss."""

    def __init__(self, plan: Plan, rank: int, prices: TimedPrices, gradients: Gradients, gatherer: Gatherer,
                 clock: DeviceClock, architecture: Architecture, names: Sequence[str], dtype: torch.dtype,
                 pace: Pace | None = None) -> None:
        self._pace = pace or Pace()
        self._plan, self._rank, self._prices = plan, rank, prices
        self._gradients, self._gatherer, self._clock = gradients, gatherer, clock
        self._architecture, self._dtype = architecture, dtype
        self._parts = {place: tuple(_parts(architecture, prices, place, set(names))) for place in plan.stages_of(rank)}
        self._slots = [place.slot for place in plan.ranks]
        self.loss_scale = 1.0
        self._loss = torch.zeros(())
        clock.poll, clock.pending = self._poll, lambda: gradients.pending or gatherer.pending

    @property
    def loss(self) -> Tensor:
        """Zero: nothing is computed."""
        return self._loss

    def begin(self, actions: Sequence[Action], batches: Batches, *, training: bool) -> None:
        """Go on where the device ended."""

    def forward(self, place: Place, incoming: Tensor | None) -> Tensor | None:
        """Wait for a stage's forward, part by part where parameters are still being gathered."""
        pipeline, stage, _ = place
        seconds = self._seconds(ActionKind.FORWARD, pipeline, stage)
        if self._gatherer.pending:
            for names, share in self._parts[pipeline, stage]:
                self._wait_for(names)
                self._clock.run(seconds * share)
        else:
            self._clock.run(seconds)
        last = stage == len(self._plan.pipelines[pipeline].stages) - 1
        return None if last else self._outgoing(pipeline, stage, stage + 1)

    def backward(self, action: Action, incoming: Tensor | None) -> Tensor | None:
        """Wait for a backward, or for its input part."""
        self._gatherer.finish()
        self._back(action)
        return self._outgoing(action.pipeline, action.stage, action.stage - 1) if action.stage else None

    def backward_weight(self, action: Action) -> None:
        """Wait for the weight part of a backward."""
        self._back(action)

    def message(self, action: Action) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the scaled length of what a neighbour sends."""
        there = action.stage - 1 if action.kind is ActionKind.RECEIVE_ACTIVATION else action.stage + 1
        return (self._length(action.pipeline, there, action.stage),), self._dtype

    def arrived(self, action: Action, tensor: Tensor, waited_seconds: float) -> None:
        """Let the device wait for a message: from another node until now, inside the node for as long as it takes."""
        if tensor.nbytes != _STAMPED_BYTES:
            self._clock.waited(waited_seconds)
        else:
            seconds = self._prices.local_messages.get((action.peer, self._rank), 0.0)
            left, = _STAMP.unpack(bytes(tensor.view(torch.uint8)[:_STAMP.size].tolist()))
            self._clock.not_before(left + self._prices.dilated(seconds))

    def waited(self, seconds: float) -> None:
        """Let the device have been idle while the host waited for others."""
        self._clock.waited(seconds)

    def _seconds(self, kind: ActionKind, pipeline: int, stage: int) -> float:
        return self._pace.factor * self._prices.dilated(self._prices.compute[kind, pipeline, stage])

    def _poll(self) -> None:
        self._gradients.poll()
        self._gatherer.poll()

    def _wait_for(self, names: Sequence[str]) -> None:
        self._clock.waited(self._gatherer.before(names))

    def _back(self, action: Action) -> None:
        """Wait for what an action takes; where it is a parameter's last use, tell of it when its part is over."""
        seconds = self._seconds(action.kind, action.pipeline, action.stage)
        self._gradients.begin_backward(action)
        if self._gradients.closing:
            for names, share in reversed(self._parts[action.pipeline, action.stage]):
                self._clock.run(seconds * share)
                for name in reversed(names):
                    self._gradients.complete(name)
        else:
            self._clock.run(seconds)
        self._gradients.end_backward()

    def _outgoing(self, pipeline: int, stage: int, there: int) -> Tensor:
        length = self._length(pipeline, stage, there)
        tensor = torch.zeros(length, dtype=self._dtype)
        if tensor.nbytes == _STAMPED_BYTES:
            stamp = torch.frombuffer(bytearray(_STAMP.pack(self._clock.free or 0.0)), dtype=torch.uint8)
            tensor.view(torch.uint8)[:_STAMP.size] = stamp
        return tensor

    def _length(self, pipeline: int, here: int, there: int) -> int:
        """Return how many elements go from one stage to another: inside a node only when they left."""
        before = min(here, there)
        stages = self._plan.pipelines[pipeline].stages
        nodes = {self._slots[rank] for stage in (here, there) for rank in stages[stage].ranks}
        if len(nodes) == 1:
            return _STAMPED_BYTES // self._dtype.itemsize
        tokens = self._architecture.sequence_length // self._plan.boundary_shards(pipeline, before)
        count = self._plan.micro_batch_size * tokens * self._architecture.hidden_size
        return max(2 * _STAMPED_BYTES, math.ceil(count / self._prices.scale))


def _parts(architecture: Architecture, prices: TimedPrices, place: tuple[int, int], held: set[str]) -> Iterator[Part]:
    """Yield the parts of a stage in the order of its forward, with the parameters that this rank holds of them."""
    names: dict[str, list[str]] = {}
    for info in architecture.parameters():
        if info.name in held:
            names.setdefault(info.unit, []).append(info.name)
    for unit, begin, end in prices.spans[place]:
        yield tuple(names.get(unit, ())), end - begin
