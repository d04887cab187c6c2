"""The plan: who computes what, which process groups exist, and what time and memory that should take.

The planner makes it, the launcher ships it, the engine obeys it, the checkpoint stores it, the analysis joins on
it. It is made for slots (`ib/0`: a partition label and a number); `planner.bind` puts node names in at start.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holmes_hpc.foreign import parse_json
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
class Group:
    """A process group and the network that it uses.

    `kind` is `tensor`, `data`, `pipeline` (one edge between two stages), `embedding`, `turn` (ranks of a node that
    take turns on its slow NIC, in this order), or `world`. `network` is the family of a NIC kind (`ib`, `roce`,
    `ethernet`, ...), or `local` inside a node.
    """

    kind: str
    ranks: tuple[int, ...]
    network: str


@dataclass(frozen=True)
class Reduction:
    """How the gradients of some parameters are summed over every rank that owns them.

    `owns` names units of the architecture (`embedding`, `layers.3`, `head`; `embedding.token` for the token table
    alone) or slices of them; `values.owned` has the grammar. `owners` are all ranks that hold them. `inner` are
    indices into `Plan.groups`: groups that are disjoint and together hold all owners; each first sums inside itself.
    `outer`, when not empty, are groups that join the inner ones: with `sharded`, outer group j sums the j-th of
    `len(outer)` equal parts of the flat gradient between the j-th ranks of the inner groups, which then broadcast it
    inside; without, each outer group sums the whole gradient (Megatron's embedding groups).
    """

    owns: tuple[str, ...]
    owners: tuple[int, ...]
    inner: tuple[int, ...]
    outer: tuple[int, ...] = ()
    sharded: bool = False

    @property
    def divides(self) -> bool:
        """Whether its owners can share the optimizer's state: the sum is in shards before it is whole."""
        return len(self.owners) > 1 and bool(self.inner) and (self.sharded or not self.outer)


@dataclass(frozen=True)
class Synchronization:
    """How gradients are summed and parameters updated.

    `sharded`: of every reduction that `Reduction.divides`, each rank of an inner group keeps the optimizer's state of
    one shard, updates it, and gathers the others' (ZeRO-1). `overlap_grad_reduce`: a bucket of gradients is summed as
    soon as its last gradient of the step is there, while the backward goes on. `overlap_param_gather`: the next
    forward begins before all parameters are gathered, and waits for those that it uses. `bucket_mib` is the size of
    a bucket of float32 gradients, in 2^20 bytes; the last ones are smaller (`buckets.bucket_cuts`).
    """

    sharded: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    bucket_mib: float = 4.0


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
    """What the cost model expects of a plan. `machine` is `described` or `emulated`.

    `idle_fraction` is the share of the step that ranks, on average, do not compute, whatever they wait for; the
    measured `bubble_fraction` is the part of it in which they wait for other stages. `bytes_by_network` is known of
    the chosen plan only; what stays inside a node is not in it.
    """

    machine: str
    step_seconds: float
    tokens_per_second: float
    tflops_per_gpu: float
    memory_gib_per_rank: tuple[float, ...]
    idle_fraction: float | None = None
    bytes_by_network: tuple[NetworkBytes, ...] = ()


@dataclass(frozen=True)
class Rejected:
    """An alternative that was not chosen: its layout in words, its figures where it could be priced, the reason."""

    strategy: str
    layout: str
    reason: str
    predicted: Prediction | None = None


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
        plan = _build(cls, data | {"format_version": FORMAT_VERSION}, "plan")
        rejected = tuple(dataclasses.replace(each, strategy=present_name(each.strategy)) for each in plan.rejected)
        return dataclasses.replace(plan, strategy=present_name(plan.strategy), rejected=rejected)

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
    if hint is float and isinstance(item, int) and not isinstance(item, bool):
        return float(item)
    if not isinstance(item, hint) or (isinstance(item, bool) and hint is not bool):
        raise ValueError(f"{path}: expected {hint.__name__}, found {item!r}")
    return item
