"""Gradients of one rank: summed over all owners, bucket by bucket, while the backward goes on; norm and clipping."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.scratch import Scratch
from holmes_hpc.comm.sharding import Route
from holmes_hpc.comm.stepwise import Collective, Lane
from holmes_hpc.engine.flat import Bucket, FlatReduction, Segment
from holmes_hpc.engine.local_model import LocalModel
from holmes_hpc.engine.origin import OwnNumbers
from holmes_hpc.engine.pace import Pace
from holmes_hpc.engine.timeline import Timeline
from holmes_hpc.values import Action, ActionKind, Plan, Reduction
from holmes_hpc.values.schedule import BACKWARDS

NORM_GUARD = 1e-6
"""Added to the norm before dividing by it, so that gradients of zero stay zero."""

MakeFlat = Callable[[int, Reduction, LocalModel, Communicator, Scratch, float, torch.dtype], FlatReduction]


def flat_on(index: int, reduction: Reduction, model: LocalModel, communicator: Communicator, scratch: Scratch,
            bucket_mib: float, dtype: torch.dtype) -> FlatReduction:
    """Return the buffers of a reduction, to be exchanged as its levels say."""
    return FlatReduction(index, reduction, model, Route(reduction, communicator, scratch), bucket_mib, dtype)


class Gradients:
    """The gradients of one rank, in flat float32 buffers, one for each reduction that it takes part in.

    Losses are weighted by their share of the global batch before the backward, so the sum over owners is the gradient
    of the mean over all samples, however unlike the pipelines are.

    A bucket is ready when the last backward of the step, over all pipelines and stages of this rank, has finished the
    gradients of everything in it. Buckets begin in one order on all ranks: by reduction, then from the head backwards.
    One that is ready waits for those before it.
    """

    def __init__(self, plan: Plan, rank: int, model: LocalModel, communicator: Communicator,
                 actions: Sequence[Action], dtype: torch.dtype = torch.float32, pace: Pace | None = None,
                 make_flat: MakeFlat = flat_on) -> None:
        self._pace = pace or Pace()
        self._model, self._communicator, self._dtype = model, communicator, dtype
        self._overlap = plan.synchronization.overlap_grad_reduce
        self.scratch = Scratch(communicator.device, communicator.side_streams)
        self.own = OwnNumbers(communicator.device)
        self.flats = [
            make_flat(index, reduction, model, communicator, self.scratch, plan.synchronization.bucket_mib, dtype)
            for index, reduction in enumerate(plan.reductions)
            if rank in reduction.owners and model.pieces(reduction)
        ]
        self._by_index = {flat.index: flat for flat in self.flats}
        self._places: dict[str, list[tuple[FlatReduction, Segment, list[Bucket]]]] = {}
        for flat in self.flats:
            for segment in flat.segments:
                touched = [bucket for bucket in flat.buckets if segment in bucket.segments]
                self._places.setdefault(segment.piece.name, []).append((flat, segment, touched))
        missing = sorted(set(model.parameters) - set(self._places))
        if missing:
            raise ValueError(f"the plan reduces no gradient of {', '.join(missing)} on rank {rank}")
        self._last_uses = _last_uses(actions, model)
        self._closing: set[str] = set()
        self._order = [bucket for flat in self.flats for bucket in flat.buckets]
        self._next = 0
        self._sums: dict[tuple[int, int], Collective] = {}
        self._timeline = Timeline()
        self._lane = Lane(communicator.side_streams, communicator.progress, early=not self._shares_groups())

    def start(self, timeline: Timeline) -> None:
        """Begin a step: gradients are zero, and nothing is ready."""
        self._timeline, self._next = timeline, 0
        self._sums.clear()
        self.own.start()
        for flat in self.flats:
            flat.gradients.zero_()
        for bucket in self._order:
            bucket.missing = len(bucket.segments)

    def begin_backward(self, action: Action) -> None:
        """Note that this backward begins, which may be the last one of some parameters."""
        self._closing = set(self._last_uses.get(action, ()))

    def end_backward(self) -> None:
        """Note that the backward is over: what it used for the last time has its gradient, or got none."""
        for name in sorted(self._closing):
            self._complete(name)
        self._closing = set()
        self._lane.poll()

    @property
    def closing(self) -> bool:
        """Whether the backward under way is the last one of some parameters that have not got their gradient yet."""
        return bool(self._closing)

    @property
    def pending(self) -> bool:
        """Whether sums are under way."""
        return self._lane.pending

    def poll(self) -> None:
        """Let sums under way go on."""
        self._lane.poll()

    def finish(self, index: int) -> None:
        """Wait until the sums of reduction `index` are in the shards of this rank."""
        flat = self._by_index[index]
        if not self._overlap:
            self._begin(through=flat.buckets[-1])
        stuck = [bucket.number for bucket in flat.buckets if (index, bucket.number) not in self._sums]
        if stuck:
            raise RuntimeError(f"reduction {index}: buckets {stuck} never got all their gradients")
        self._lane.finish(self._sums[index, flat.buckets[-1].number])

    def local_norms(self) -> list[torch.Tensor]:
        """Return the float64 norms of this rank's shards, without waiting for them.

        The sum of their squares over all ranks is the squared norm: every shard counts on one of the ranks that hold
        it.
        """
        return [torch.linalg.vector_norm(bucket.shard_gradient, dtype=torch.float64)
                for flat in self.flats if flat.route.counts for bucket in flat.buckets]

    def scale(self, factor: float) -> None:
        """Multiply what this rank updates by `factor`."""
        if factor != 1.0:
            for bucket in self._order:
                bucket.shard_gradient.mul_(factor)

    def arrived(self, name: str, parameter: nn.Parameter) -> None:
        """Take a gradient that a backward has just finished, on a slow rank when that would have finished it."""
        self._pace.breathe()
        views = self._dtype == torch.float32
        for flat, segment, _ in self._places[name]:
            if parameter.grad is not None and not (views and segment.whole):
                segment.of(flat.gradients).add_(segment.piece.of(parameter.grad))
        if not (views and self._places[name][0][1].whole):
            parameter.grad = None
        self.complete(name)
        self._lane.poll()

    def complete(self, name: str) -> None:
        """Note that a parameter has its gradient of the backward under way, which may be its last one of the step."""
        if name in self._closing:
            self._closing.remove(name)
            self._complete(name)

    def _complete(self, name: str) -> None:
        scale = self._model.gradient_scale(name)
        for flat, segment, buckets in self._places[name]:
            if scale != 1.0:
                flat.scale_gradient(segment, scale)
            for bucket in buckets:
                bucket.missing -= 1
        if self._overlap:
            self._begin()

    def _begin(self, through: Bucket | None = None) -> None:
        """Begin the sums of the buckets that are ready, as far as the order allows."""
        while self._next < len(self._order) and self._order[self._next].missing == 0:
            bucket = self._order[self._next]
            self._next += 1
            self.own.note_gradients(bucket.gradients)
            self._sums[bucket.reduction, bucket.number] = sum_ = self._sum(bucket)
            self._lane.add(sum_)
            if bucket is through:
                return

    def _sum(self, bucket: Bucket) -> Collective:
        steps = self._by_index[bucket.reduction].route.reduce_steps(bucket.gradients)
        sum_ = Collective(steps, self._communicator, then=lambda: self._timeline.in_flight(
            ActionKind.REDUCE, bucket.reduction, bucket.number, sum_.began, sum_.ended))
        return sum_

    def _shares_groups(self) -> bool:
        """Return whether some group does a first step here and a later step there."""
        levels: dict[object, set[int]] = {}
        for flat in self.flats:
            for level, step in enumerate(flat.route.reduce_steps(flat.buckets[0].gradients)):
                if step is not None:
                    levels.setdefault(step.group, set()).add(level)
        return any(len(each) > 1 for each in levels.values())


def _last_uses(actions: Sequence[Action], model: LocalModel) -> dict[Action, set[str]]:
    """Return which parameters each backward uses for the last time in a step."""
    last: dict[str, Action] = {}
    for action in actions:
        if action.kind in BACKWARDS:
            for name, _ in model.stage(action.pipeline, action.stage).named_parameters():
                last[name] = action
    uses: dict[Action, set[str]] = {}
    for name, action in last.items():
        uses.setdefault(action, set()).add(name)
    return uses
