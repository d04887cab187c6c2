"""Gathers the parameters that other ranks updated, under the next forward."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

from torch import nn

from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.stepwise import Collective, Lane
from holmes_hpc.engine.flat import Bucket, FlatReduction, Segment
from holmes_hpc.engine.local_model import LocalModel
from holmes_hpc.engine.timeline import Timeline
from holmes_hpc.values import Action, ActionKind, Plan

TIED_TABLE = "embedding.token.weight"


class Gatherer:
    """Gathers buckets in the order in which the next forward uses them.

    With `overlap_param_gather` a gather goes on under the next forward, and every part of the model (a layer, the
    embedding, the head) waits before it runs for the buckets of its parameters.
    """

    def __init__(self, plan: Plan, model: LocalModel, flats: Sequence[FlatReduction],
                 communicator: Communicator) -> None:
        self._model, self._communicator = model, communicator
        self.overlaps = plan.synchronization.overlap_param_gather
        self._flats = {flat.index: flat for flat in flats}
        self._lane = Lane(communicator.side_streams, communicator.progress)
        self._pending: dict[tuple[int, int], Collective] = {}
        self._buckets: dict[str, list[Bucket]] = {}
        self._timeline = Timeline()
        for flat in flats:
            for bucket in flat.buckets:
                for segment in bucket.segments:
                    self._buckets.setdefault(segment.piece.name, []).append(bucket)

    def start(self, timeline: Timeline) -> None:
        """Begin a step, whose waits belong into `timeline`."""
        self._timeline = timeline

    def gather(self, index: int) -> None:
        """Begin to gather the parameters of reduction `index`; without overlap, end it too."""
        flat = self._flats.get(index)
        if flat is None:
            return
        for bucket in reversed(flat.buckets):
            collective = Collective(flat.route.gather_steps(bucket.values), self._communicator,
                                    then=functools.partial(self._done, flat, bucket))
            if collective.length:
                self._pending[index, bucket.number] = collective
                self._lane.add(collective)
        if not self.overlaps:
            self._lane.finish()

    def updated(self) -> None:
        """Note that the optimizer has updated this rank's shards: write out those that nobody gathers."""
        for flat in self._flats.values():
            if not flat.route.gathers:
                for segment in flat.segments:
                    flat.copy_out(segment, self._model.parameters)

    @property
    def pending(self) -> bool:
        """Whether gathers are under way."""
        return self._lane.pending

    def poll(self) -> None:
        """Let gathers under way go on."""
        self._lane.poll()

    def finish(self) -> None:
        """Wait for everything."""
        if self._pending:
            with self._timeline.record(Action(ActionKind.GATHER, reduction=next(iter(self._pending))[0])):
                self._lane.finish()

    def check(self, stage: nn.Module) -> None:
        """Raise RuntimeError when a stage ran with parameters that are not gathered yet."""
        if self._pending:
            late = [name for name, _ in stage.named_parameters() if self._waiting(name)]
            if late:
                raise RuntimeError(f"a forward used parameters before they were gathered: {', '.join(late)}")

    def before(self, names: Sequence[str]) -> float:
        """Wait for the parameters of these names, which are about to be used; return for how many seconds."""
        if not self._pending:
            return 0.0
        began = time.perf_counter()
        self._lane.poll()
        waiting = {key for name in names for key in self._waiting(name)}
        # The order of use is the order in which they were begun, so waiting for one waits for those before it.
        for key in [key for key in self._pending if key in waiting]:
            collective = self._pending.get(key)
            if collective is not None:
                with self._timeline.record(Action(ActionKind.GATHER, reduction=key[0])):
                    self._lane.finish(collective)
        return time.perf_counter() - began

    def _waiting(self, name: str) -> list[tuple[int, int]]:
        keys = [(bucket.reduction, bucket.number) for bucket in self._buckets.get(name, ())]
        return [key for key in keys if key in self._pending]

    def _done(self, flat: FlatReduction, bucket: Bucket) -> None:
        collective = self._pending.pop((flat.index, bucket.number))
        self._timeline.in_flight(ActionKind.GATHER, flat.index, bucket.number, collective.began, collective.ended)
        for segment in bucket.segments:
            if not segment.whole and not self._still_missing(segment, flat):
                flat.copy_out(segment, self._model.parameters)

    def _still_missing(self, segment: Segment, flat: FlatReduction) -> bool:
        return any(key[0] == flat.index and segment in flat.buckets[key[1]].segments for key in self._pending)

