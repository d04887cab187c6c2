"""The plan: who computes what, which process groups exist, and what time and memory that should take.

The planner makes it, the launcher ships it, the engine obeys it, the checkpoint stores it, the analysis joins on
it. It is made for slots (`ib/0`: a partition label and a number); `planner.bind` puts node names in at start.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from holmes_hpc.foreign import parse_json
from holmes_hpc.values.levels import GroupList, Sums, in_levels
from holmes_hpc.values.reductions import Group, Reduction
from holmes_hpc.values.schedule_kinds import ScheduleKind, schedule_kind
from holmes_hpc.values.strategy_kinds import present_name

FORMAT_VERSION = 2
_READ_VERSIONS = (1, 2)

Value = TypeVar("Value")


@dataclass(frozen=True)
class RankPlace:
    """Where one rank runs. `node` is None until the plan is bound to the nodes that were given."""

    rank: int
    slot: str
    local_rank: int
    gpu: str
    fabric: str
    node: str | None = None


@dataclass(frozen=True)
class Stage:
    """A contiguous range of layers on a tuple of ranks, which form its tensor-parallel group (in shard order).

    The first stage of a pipeline also holds the embedding, the last one the final norm and the head. `tensor` is the
    tensor-parallel degree, by default (0) the number of ranks. The ranks of a stage are the product of its degrees,
    and there is no other degree yet. Raises ValueError where they are not.
    """

    ranks: tuple[int, ...]
    first_layer: int
    num_layers: int
    tensor: int = 0

    def __post_init__(self) -> None:
        if not self.tensor:
            object.__setattr__(self, "tensor", len(self.ranks))
        elif self.tensor != len(self.ranks):
            raise ValueError(f"a stage of {len(self.ranks)} ranks with the tensor-parallel degree {self.tensor}: the "
                             "ranks of a stage are the product of its degrees, and this version has no other degree. "
                             f"Set tensor to {len(self.ranks)}, or give the stage {self.tensor} ranks")


@dataclass(frozen=True)
class Pipeline:
    """Stages in layer order, and the number of micro-batches of each step that flow through them."""

    microbatches: int
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Synchronization:
    """How gradients are summed and parameters updated.

    `sharded` is what was asked for, and what the reductions say: of every one that `Reduction.divides`, each rank of a
    copy keeps the optimizer's state of one shard, updates it, and gathers the others' (ZeRO-1). `overlap_grad_reduce`:
    a bucket of gradients is summed as soon as its last gradient of the step is there, while the backward goes on.
    `overlap_param_gather`: the next forward begins before all parameters are gathered, and waits for those that it
    uses. `bucket_mib` is the size of a bucket of float32 gradients, in 2^20 bytes; the last ones are smaller
    (`buckets.bucket_cuts`). The norm of the gradients, by which they are clipped, is taken over the ranks of the group
    `norm_group`, an index into `Plan.groups`: of all of them, over the world.
    """

    sharded: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    bucket_mib: float = 4.0
    norm_group: int = 0


@dataclass(frozen=True)
class ScheduleChoice:
    """Which schedule runs; `digest` is that of its action lists (`values.Schedule.digest`).

    `warmup_extra` forwards more run ahead upstream of every hop over Ethernet, or upstream of hop h of a pipeline as
    many as `hop_warmups` says. With `turns` the pipelines of a node cross Ethernet for the first time one after
    another. `stage_times` are the whole-number times of a stage's forward, backward and the weight part of its
    backward, and `hop_times` the delay of a message over the hop behind a stage and the time that it occupies the
    link; they need no unit, only each other, and decide the order where an order depends on times. Each of the three
    holds one row for every pipeline, one row that all share, or nothing: then stages take equally long, and hops no
    time.
    """

    name: str
    warmup_extra: int = 0
    chunks: int = 1
    digest: str = ""
    turns: bool = False
    hop_warmups: tuple[tuple[int, ...], ...] = ()
    stage_times: tuple[tuple[tuple[int, ...], ...], ...] = ()
    hop_times: tuple[tuple[tuple[int, ...], ...], ...] = ()

    @property
    def kind(self) -> ScheduleKind:
        """What this schedule is. Raises PlanRefusedError for one that this version does not know."""
        return schedule_kind(self.name)

    def for_pipelines(self, chosen: Sequence[int]) -> ScheduleChoice:
        """Return this choice for some of the pipelines: the rows that it has for each."""
        def pick(rows: tuple[Value, ...]) -> tuple[Value, ...]:
            return tuple(rows[p] for p in chosen) if len(rows) > 1 else rows

        return dataclasses.replace(self, hop_warmups=pick(self.hop_warmups), stage_times=pick(self.stage_times),
                                   hop_times=pick(self.hop_times))


@dataclass(frozen=True)
class NetworkBytes:
    """What all nodes together send over one network in a step."""

    network: str
    bytes: float


@dataclass(frozen=True)
class Prediction:
    """What the cost model expects of a plan. `machine` is `described`, `emulated` or `local`.

    `idle_fraction` is the share of the step that ranks, on average, do not compute, whatever they wait for; the
    measured `bubble_fraction` is the part of it in which they wait for other stages. `bytes_by_network` is known of
    the chosen plan only; what stays inside a node is not in it. About two thirds of measured steps lie within
    `error_percent` of `step_seconds`, by what the compute of the least known GPU kind rests on (`error_basis`: `prior`,
    `fitted`, `calibrated` or `profiled`).
    """

    machine: str
    step_seconds: float
    tokens_per_second: float
    tflops_per_gpu: float
    memory_gib_per_rank: tuple[float, ...]
    idle_fraction: float | None = None
    bytes_by_network: tuple[NetworkBytes, ...] = ()
    error_percent: float | None = None
    error_basis: str = ""

    @property
    def is_here(self) -> bool:
        """Whether it is for the machine that planned, with its CPUs for GPUs."""
        return self.machine in ("emulated", "local")


@dataclass(frozen=True)
class Rejected:
    """An alternative that was not chosen: its layout in words, its figures where it could be priced, the reason.

    `level`: it differs from the chosen one by less than predictions can tell.
    """

    strategy: str
    layout: str
    reason: str
    predicted: Prediction | None = None
    level: bool = False


@dataclass(frozen=True)
class Plan:
    """A complete plan. Layers are counted from 0; every layer is in exactly one stage of each pipeline.

    With `sequence_parallel` the tensor-parallel ranks of a stage hold shards of the sequence between its matrix
    products. `recompute` says what the backward computes again: `none`, `selective` (the attention core) or `full`
    (every layer from its input).
    """

    strategy: str
    world_size: int
    num_layers: int
    micro_batch_size: int
    global_batch_size: int
    ranks: tuple[RankPlace, ...]
    pipelines: tuple[Pipeline, ...]
    groups: tuple[Group, ...]
    reductions: tuple[Reduction, ...]
    schedule: ScheduleChoice
    predicted: Prediction
    rejected: tuple[Rejected, ...] = ()
    tied_embeddings: bool = False
    layer_split: str = "adaptive"
    synchronization: Synchronization = Synchronization()
    sequence_parallel: bool = False
    recompute: str = "none"
    notes: tuple[str, ...] = field(default=())
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """Return the plan as JSON text (two-space indent, keys in declaration order)."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan from JSON text, with the names that strategies have now.

        A plan of an older format is read as one of this. Raises ValueError when the text is no plan, names unknown
        fields, or is of a format version that is not known.
        """
        data = parse_json(text, "the plan")
        if not isinstance(data, dict):
            raise ValueError("not a plan: the JSON text holds no object")
        version = data.get("format_version")
        if version not in _READ_VERSIONS:
            raise ValueError(f"plan of format {version!r}: this version reads the formats "
                             f"{' and '.join(map(str, _READ_VERSIONS))}; make the plan anew")
        plan = _build(cls, (_upgraded(data) if version == 1 else data) | {"format_version": FORMAT_VERSION}, "plan")
        plan._check_indices()
        rejected = tuple(dataclasses.replace(each, strategy=present_name(each.strategy)) for each in plan.rejected)
        return dataclasses.replace(plan, strategy=present_name(plan.strategy), rejected=rejected)

    @property
    def cycle(self) -> int:
        """After how many steps the schedule repeats itself: 1 where every level is done in every step."""
        return math.lcm(*(level.every for reduction in self.reductions for level in reduction.levels))

    def _check_indices(self) -> None:
        used = {index for each in self.reductions for index in (*each.groups, *each.copies, *each.norm)}
        unknown = sorted(index for index in used | {self.synchronization.norm_group}
                         if not 0 <= index < len(self.groups))
        if unknown:
            raise ValueError(f"plan.reductions: group {unknown[0]} is not among the plan's {len(self.groups)}")

    def stages_of(self, rank: int) -> tuple[tuple[int, int], ...]:
        """Return the (pipeline, stage) indices that `rank` serves, in pipeline order."""
        return tuple(
            (p, s)
            for p, pipeline in enumerate(self.pipelines)
            for s, stage in enumerate(pipeline.stages)
            if rank in stage.ranks
        )

    def boundary_shards(self, pipeline: int, stage: int) -> int:
        """Return into how many shards of the sequence the activations after a stage are cut on their way.

        One, where every rank sends and receives them whole: without sequence parallelism, and between stages of
        unlike tensor degrees.
        """
        here, there = self.pipelines[pipeline].stages[stage:stage + 2]
        return here.tensor if self.sequence_parallel and here.tensor == there.tensor else 1


def _upgraded(data: dict[str, Any]) -> dict[str, Any]:
    """Return a plan of format 1 with the levels of its reductions; it had none inside nodes, which comm made itself."""
    try:
        groups = [_build(Group, each, "plan.groups") for each in data["groups"]]
        sharded = data.get("synchronization", {}).get("sharded", False)
        reductions = []
        for i, each in enumerate(data["reductions"]):
            old = _build(_OldReduction, each, f"plan.reductions[{i}]")
            sums = Sums(old.inner, old.outer, old.sharded)
            new = in_levels(old.owns, old.owners, sums, GroupList(groups), sharded=sharded)
            reductions.append(dataclasses.asdict(new))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"plan: no groups and reductions of format 1 ({type(error).__name__}: {error})") from None
    return data | {"reductions": json.loads(json.dumps(reductions))}


@dataclass(frozen=True)
class _OldReduction:
    """A reduction as format 1 had it: see `levels.Sums`."""

    owns: tuple[str, ...]
    owners: tuple[int, ...]
    inner: tuple[int, ...]
    outer: tuple[int, ...] = ()
    sharded: bool = False


def _build(kind: type[Value], data: Any, path: str) -> Value:
    """Build the dataclass `kind` from parsed JSON, naming the path of whatever does not fit."""
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected an object, found {type(data).__name__}")
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise ValueError(f"{path}: unknown fields {', '.join(unknown)}")
    values = {name: _convert(hints[name], item, f"{path}.{name}") for name, item in data.items()}
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def _convert(hint: Any, item: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if item is None:
            return None
        return _convert(next(a for a in arguments if a is not type(None)), item, path)
    if origin is tuple:
        if not isinstance(item, list):
            raise ValueError(f"{path}: expected a list, found {type(item).__name__}")
        return tuple(_convert(arguments[0], each, f"{path}[{i}]") for i, each in enumerate(item))
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), item, path)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(item)
        except ValueError:
            raise ValueError(f"{path}: {item!r} is none of {', '.join(each.value for each in hint)}") from None
    if hint is float and isinstance(item, int) and not isinstance(item, bool):
        return float(item)
    if not isinstance(item, hint) or (isinstance(item, bool) and hint is not bool):
        raise ValueError(f"{path}: expected {hint.__name__}, found {item!r}")
    return item
