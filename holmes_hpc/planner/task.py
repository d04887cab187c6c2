"""What the planner reads of a configuration, and what it plans for."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holmes_hpc import registry
from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import ClusterDescription, Machine, read_cluster
from holmes_hpc.cluster.disturbed import at_step, under
from holmes_hpc.cluster.profiled import units_of
from holmes_hpc.config.rules import LAYER_SPLITS
from holmes_hpc.errors import ConfigurationError, PlanRefusedError
from holmes_hpc.planner.error_band import ErrorBand, error_band
from holmes_hpc.planner.known import KnownLayouts, KnownPrices, KnownVariants
from holmes_hpc.planner.software import ENGINE as OUR_SOFTWARE
from holmes_hpc.planner.software import Software
from holmes_hpc.values import Synchronization
from holmes_hpc.values.capabilities import ENGINE
from holmes_hpc.values.disturbances import Disturbance
from holmes_hpc.values.schedule_kinds import AUTO, ScheduleKind, compared_schedules, schedule_kind
from holmes_hpc.values.strategy_kinds import STRATEGY_KINDS, StrategyKind, strategy_kind

_BUCKET_MIB = 64.0
"""Large enough that NCCL reaches its rate over a dozen ranks (Megatron takes 160 MB of gradients)."""
_BUCKET_MIB_CPU = 2.0
"""Gloo reaches its rate from 1 to 4 MB on; small models need several buckets to hide any."""
RECOMPUTATIONS = ("none", "selective", "full")
_HERE = ("emulated", "local")
"""Modes whose ranks compute on this machine."""


@dataclass(frozen=True)
class PlanSettings:
    """The settings of a plan. None leaves the choice to the planner.

    `compiled`: layers are compiled whole (`train.compile`), so that the planner chooses nothing that looks into them.
    """

    strategy: str
    tensor: int | None
    pipeline: int | None
    data: int | None
    micro_batch_size: int | None
    schedule: ScheduleKind | None
    chunks: int
    search_chunks: bool
    turns: bool | None
    warmup_extra: int | None
    layer_split: str | tuple[int, ...]
    alpha: float
    two_level: bool
    recompute: str
    search_recompute: bool
    leave_nodes_out: bool
    plain: bool
    search_seconds: float | None
    sequence_parallel: bool
    precision: str
    optimizer: str
    sharded: bool
    overlap_grad_reduce: bool | None
    overlap_param_gather: bool | None
    bucket_mib: float | None
    global_batch_size: int
    pipelines: tuple[Mapping[str, Any], ...]
    compiled: bool

    @classmethod
    def from_config(cls, config: Any) -> PlanSettings:
        """Read the settings. Raises ConfigurationError or PlanRefusedError for what cannot be planned."""
        parallel = config.parallel
        known = (AUTO, *STRATEGY_KINDS, *registry.STRATEGIES)
        if parallel.strategy not in known:
            raise PlanRefusedError(f"parallel.strategy={parallel.strategy}: this version cannot plan it. "
                                   f"Set it to one of {', '.join(known)}.")
        if parallel.cross_fabric_dtype not in (None, *ENGINE.cross_fabric_dtypes):
            raise PlanRefusedError(
                f"parallel.cross_fabric_dtype={parallel.cross_fabric_dtype}: this version neither prices nor runs it. "
                f"Set parallel.cross_fabric_dtype to {' or '.join(ENGINE.cross_fabric_dtypes)} or null.")
        schedule = None if parallel.schedule == AUTO else schedule_kind(str(parallel.schedule))
        chunks = int(parallel.chunks or 1)
        open_split = parallel.layer_split == "adaptive"
        search_chunks = parallel.chunks is None and schedule is None and open_split
        if schedule is None and chunks > 1:
            schedule = compared_schedules(in_chunks=True)[0]
        return cls(
            strategy=str(parallel.strategy), tensor=parallel.tensor, pipeline=parallel.pipeline, data=parallel.data,
            micro_batch_size=parallel.micro_batch_size, schedule=schedule, chunks=chunks,
            search_chunks=search_chunks, turns=parallel.turns,
            warmup_extra=_warmup_extra(parallel.warmup_extra), layer_split=_layer_split(parallel.layer_split),
            alpha=float(parallel.alpha), two_level=parallel.two_level is not False,
            recompute="none" if parallel.recompute == "auto" else str(parallel.recompute),
            search_recompute=parallel.recompute == "auto", leave_nodes_out=bool(parallel.leave_nodes_out),
            plain=bool(parallel.plain),
            search_seconds=parallel.search_seconds, sequence_parallel=bool(parallel.sequence_parallel),
            precision=str(config.train.precision),
            optimizer=str(config.optimizer.name), sharded=bool(config.optimizer.sharded),
            overlap_grad_reduce=parallel.overlap_grad_reduce, overlap_param_gather=parallel.overlap_param_gather,
            bucket_mib=parallel.bucket_mib, global_batch_size=int(config.train.global_batch_size),
            pipelines=tuple(_plain(pipeline) for pipeline in parallel.pipelines or ()),
            compiled=bool(config.train.compile),
        )

    @property
    def compares_all(self) -> bool:
        """Whether the strategy is left open, so that all that search are compared."""
        return self.strategy == AUTO

    @property
    def strategy_kind(self) -> StrategyKind:
        """What the asked strategy is."""
        return strategy_kind(self.strategy)

    def first_schedule(self, chunks: int = 1) -> ScheduleKind:
        """Return the schedule with which a layout in so many chunks is looked at first: the asked one, if any."""
        return self.schedule or self.open_schedules(chunks)[0]

    def open_schedules(self, chunks: int = 1) -> tuple[ScheduleKind, ...]:
        """Return the schedules that are compared for so many chunks where none is asked for."""
        return tuple(kind for kind in compared_schedules(in_chunks=chunks > 1) if not (self.compiled and kind.splits))

    @property
    def recomputations(self) -> tuple[str, ...]:
        """The kinds of recomputation that are tried where it is left open, from the one that takes no time."""
        return tuple(kind for kind in RECOMPUTATIONS if not (self.compiled and kind == "selective"))

    def synchronization(self, strategy: str, *, on_cpu: bool) -> Synchronization:
        """Return how the ranks of a plan of `strategy` sum gradients."""
        by_default = strategy_kind(strategy).overlaps
        reduce, gather = self.overlap_grad_reduce, self.overlap_param_gather
        return Synchronization(
            sharded=self.sharded,
            overlap_grad_reduce=by_default if reduce is None else reduce,
            overlap_param_gather=self.sharded and (by_default if gather is None else gather),
            bucket_mib=self.bucket_mib or (_BUCKET_MIB_CPU if on_cpu else _BUCKET_MIB),
        )

    def replace(self, **changes: Any) -> PlanSettings:
        """Return a copy with some settings changed."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class Task:
    """Everything that a strategy is told, with what was worked out of it before.

    `software` is what will train: this project's engine, or another trainer as a value of its counts.
    A changed copy (`dataclasses.replace`) begins anew, but for the prices where its machine is the same.
    """

    settings: PlanSettings
    architecture: Architecture
    cluster: ClusterDescription
    machine: Machine
    software: Software = OUR_SOFTWARE
    prices: KnownPrices = field(default_factory=KnownPrices, compare=False, repr=False)
    layouts: KnownLayouts = field(init=False, default_factory=KnownLayouts, compare=False, repr=False)
    variants: KnownVariants = field(init=False, default_factory=KnownVariants, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.prices.machine is not self.machine:
            object.__setattr__(self, "prices", KnownPrices(self.machine))

    @functools.cached_property
    def error_band(self) -> ErrorBand:
        """How far predicted seconds of this task may be off."""
        kinds = {self.machine.gpu(node) for node in self.cluster.nodes}
        timed = {kind.name for kind in kinds if units_of(kind, self.architecture, self.settings.precision)}
        return error_band({kind.name for kind in kinds}, self.settings.precision, self.cluster.calibrated, timed)

    def synchronization(self, strategy: str) -> Synchronization:
        """Return how the ranks of a plan of `strategy` sum gradients and update parameters."""
        on_cpu = any(self.machine.gpu(node).name == "cpu" for node in self.cluster.nodes)
        return self.settings.synchronization(strategy, on_cpu=on_cpu)


def disturbed(task: Task, acting: Iterable[Disturbance]) -> Task:
    """Return a task of an undisturbed cluster on that cluster while these act."""
    cluster = under(task.cluster, acting)
    return dataclasses.replace(task, cluster=cluster, machine=task.machine.on(cluster))


def _warmup_extra(value: Any) -> int | None:
    if value is None or value == "auto":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"parallel.warmup_extra={value}: not a number of forwards. "
                                 "Set it to auto or to a whole number from 0.")
    return value


def _layer_split(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str):
        if value not in LAYER_SPLITS:
            raise ConfigurationError(f"parallel.layer_split={value}: unknown. "
                                     f"Set it to {', '.join(LAYER_SPLITS)}, or a list of layer counts by stage.")
        return value
    try:
        return tuple(value)
    except TypeError:
        raise ConfigurationError(f"parallel.layer_split={value}: not a layer split. "
                                 f"Set it to {', '.join(LAYER_SPLITS)}, or a list of layer counts.") from None


def _plain(value: Any) -> Any:
    """Return a configuration node as plain dicts and lists."""
    if hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return value
    return [_plain(item) for item in value]


def task_of(config: Any, mode: str | None = None, cluster: ClusterDescription | None = None) -> Task:
    """Return what `plan` plans for; the arguments are its own."""
    cluster = at_step(cluster or read_cluster(config.cluster), config.cluster.emulate.plan_for_step)
    machine = _machine(cluster, mode or str(config.launch.mode))
    return Task(PlanSettings.from_config(config), Architecture.from_config(config.model), cluster, machine)


def _machine(cluster: ClusterDescription, mode: str) -> Machine:
    if mode in _HERE and cluster.compute != "timed":
        return Machine.emulated(cluster, shaped=mode == "emulated")
    return Machine.described(cluster)
