"""Gathers the parameters that other ranks updated, under the next forward."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.stepwise import Collective, Lane
from holmes_hpc.engine.flat import Bucket, FlatReduction, Segment
from holmes_hpc.engine.local_model import LocalModel
from holmes_hpc.engine.timeline import Timeline
from holmes_hpc.values import Action, ActionKind, Plan

_TIED_TABLE = "embedding.token.weight"


class Gatherer:
    """Gathers buckets in the order in which the next forward uses them.

    With `overlap_param_gather` a gather goes on under the next forward, and every part of the model (a layer, the
    embedding, the head) waits before it runs for the buckets of its parameters.
    """

    def __init__(self, plan: Plan, rank: int, model: LocalModel, flats: list[FlatReduction],
                 communicator: Communicator) -> None:
        self._model, self._communicator = model, communicator
        self._overlap = plan.synchronization.overlap_param_gather
        self._flats = {flat.index: flat for flat in flats}
        self._lane = Lane(communicator.streams, communicator.progress)
        self._pending: dict[tuple[int, int], Collective] = {}
        self._buckets: dict[str, list[Bucket]] = {}
        self._timeline = Timeline()
        for flat in flats:
            for bucket in flat.buckets:
                for segment in bucket.segments:
                    self._buckets.setdefault(segment.piece.name, []).append(bucket)
        if self._overlap:
            stages = dict.fromkeys(model.stage(p, s) for p, s in plan.stages_of(rank))
            for stage in stages:
                self._watch(stage)

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
        if not self._overlap:
            self._lane.finish()

    def updated(self) -> None:
        """Note that the optimizer has updated this rank's shards: write out those that nobody gathers."""
        for flat in self._flats.values():
            if not flat.route.gathers:
                for segment in flat.segments:
                    flat.copy_out(segment, self._model.parameters)

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

    def _watch(self, stage: nn.Module) -> None:
        for prefix, part in _parts(stage):
            names = [f"{prefix}.{name}" for name, _ in part.named_parameters()]
            if prefix == "head" and _TIED_TABLE in dict(stage.named_parameters()):
                names.append(_TIED_TABLE)
            part.register_forward_pre_hook(functools.partial(self._before, names))

    def _before(self, names: list[str], module: nn.Module, arguments: Any) -> None:
        if not self._pending:
            return
        self._lane.poll()
        waiting = {key for name in names for key in self._waiting(name)}
        # The order of use is the order in which they were begun, so waiting for one waits for those before it.
        for key in [key for key in self._pending if key in waiting]:
            collective = self._pending.get(key)
            if collective is not None:
                with self._timeline.record(Action(ActionKind.GATHER, reduction=key[0])):
                    self._lane.finish(collective)

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


def _parts(stage: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the parts of a stage that run one after the other: the embedding, every layer, the head."""
    parts: list[tuple[str, nn.Module]] = []
    for name, child in stage.named_children():
        if isinstance(child, nn.ModuleDict | nn.ModuleList):
            parts += [(f"{name}.{key}", each) for key, each in child.named_children()]
        else:
            parts.append((name, child))
    return parts
