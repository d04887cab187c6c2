"""A plan as Megatron-LM lays ranks out: one grid of tensor, data and pipeline, or the reason why it is none.

In Megatron-core's default order (`tp-cp-ep-dp-pp`) the rank with tensor index i, data index d and stage s of a grid
t x D x p is i + t (d + D s); with `--use-tp-pp-dp-mapping` it is i + t (s + p d). Megatron takes its rank from the
environment, so any placement is a permutation of Slurm's ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.values import Pipeline, Plan
from holmes_hpc.words import counted

Place = tuple[int, int, int]
"""Tensor index, data index, pipeline stage on the ring (chunks of a rank share it)."""


@dataclass(frozen=True)
class Grid:
    """`ranks[slurm_rank]` is Megatron's rank; `places[slurm_rank]` its indices. `layers` are those of every chunk.

    `pipelines_first`: the order of `--use-tp-pp-dp-mapping`.
    """

    tensor: int
    data: int
    pipeline: int
    chunks: int
    layers: tuple[int, ...]
    microbatches: int
    places: tuple[Place, ...]
    ranks: tuple[int, ...]
    pipelines_first: bool

    @property
    def is_identity(self) -> bool:
        """Whether Slurm's ranks are Megatron's."""
        return self.ranks == tuple(range(len(self.ranks)))

    @property
    def layout(self) -> str | None:
        """The argument of `--pipeline-model-parallel-layout`; None: Megatron's even division is the plan's."""
        if len(set(self.layers)) == 1:
            return None
        return layout_string(self.layers)

    def groups(self, varies: str) -> list[tuple[int, ...]]:
        """Return the groups of Slurm's ranks in which only the named indices vary: of `tp`, `dp`, `pp`, with `-`.

        Members are in the order of their Megatron ranks.
        """
        fixed = [axis for axis, name in enumerate(("tp", "dp", "pp")) if name not in varies.split("-")]
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in sorted(range(len(self.ranks)), key=lambda rank: self.ranks[rank]):
            found.setdefault(tuple(self.places[rank][axis] for axis in fixed), []).append(rank)
        return [tuple(ranks) for ranks in found.values()]


def layout_string(layers: tuple[int, ...]) -> str:
    """Return stages in Megatron's layout language: E embedding, t a layer, L head and loss, | between stages."""
    parts = ["t" if count == 1 else f"t*{count}" for count in layers]
    return "E" + "|".join(parts) + "L"


def map_plan(plan: Plan) -> Grid:
    """Return the grid of a plan.

    Raises PlanRefusedError, with the reason and what to set, where Megatron-LM cannot express the plan.
    """
    _refuse_unlike(plan, *_DEPTH)
    chunks, depth = plan.schedule.chunks, len(plan.pipelines[0].stages)
    ring = depth // chunks
    _refuse_shared(plan, ring)
    for words, what, of in _ALIKE:
        _refuse_unlike(plan, words, what, of)
    _refuse_unlike_stages(plan)
    if chunks > 1 and plan.pipelines[0].microbatches % ring:
        raise _refusal(f"{counted(plan.pipelines[0].microbatches, 'micro-batch')} of a pipeline are no multiple of "
                       f"its {ring} "
                       "ranks, which Megatron's interleaved schedule asks for",
                       "Change train.global_batch_size or parallel.micro_batch_size, or set parallel.chunks=1")
    pipelines = sorted(plan.pipelines, key=lambda pipeline: pipeline.stages[0].ranks)
    places = {rank: (i, d, s) for d, pipeline in enumerate(pipelines) for s in range(ring)
              for i, rank in enumerate(pipeline.stages[s].ranks)}
    idle = [rank for rank in range(plan.world_size) if rank not in places]
    if idle:
        raise _refusal(f"rank {idle[0]} computes nothing, and every rank of Megatron's does",
                       "Leave its node out of the cluster")
    tensor, data = pipelines[0].stages[0].tensor, len(pipelines)
    ordered = tuple(places[rank] for rank in range(plan.world_size))

    def ranks(formula: Callable[[Place], int]) -> tuple[int, ...]:
        return tuple(formula(place) for place in ordered)

    usual = ranks(lambda place: place[0] + tensor * (place[1] + data * place[2]))
    other = ranks(lambda place: place[0] + tensor * (place[2] + ring * place[1]))
    identity = tuple(range(plan.world_size))
    pipelines_first = usual != identity and other == identity
    return Grid(tensor, data, ring, chunks, tuple(stage.num_layers for stage in pipelines[0].stages),
                pipelines[0].microbatches, ordered, other if pipelines_first else usual, pipelines_first)


def _degrees(pipeline: Pipeline) -> str:
    return "+".join(str(stage.tensor) for stage in pipeline.stages)


_DEPTH = ("{}", "number of stages", lambda pipeline: counted(len(pipeline.stages), "stage"))
_ALIKE: tuple[tuple[str, str, Callable[[Pipeline], object]], ...] = (
    ("layers {}", "division of the layers", lambda pipeline: "+".join(str(s.num_layers) for s in pipeline.stages)),
    ("tensor-parallel degrees {}", "tensor-parallel degree", _degrees),
    ("{}", "number of micro-batches", lambda pipeline: counted(pipeline.microbatches, "micro-batch")),
)


def _refuse_unlike(plan: Plan, words: str, what: str, of: Callable[[Pipeline], object]) -> None:
    """Refuse pipelines that differ from one another in what `of` says of each."""
    values = list(dict.fromkeys(of(pipeline) for pipeline in plan.pipelines))
    if len(values) > 1:
        raise _refusal(
            f"pipelines are unlike ({words.format(values[0])} beside {words.format(values[1])}), and Megatron has one "
            f"{what} for all pipelines",
            "Set parallel=holmes or parallel=megatron with parallel.data, on fabrics of equal size")


def _refuse_unlike_stages(plan: Plan) -> None:
    degrees = [stage.tensor for stage in plan.pipelines[0].stages]
    if len(set(degrees)) > 1:
        raise _refusal(f"stages have the tensor-parallel degrees {_degrees(plan.pipelines[0])}, and Megatron has one "
                       "for all stages", f"Set parallel.tensor={degrees[0]}")


def _refuse_shared(plan: Plan, ring: int) -> None:
    """Refuse ranks that serve several pipelines, which unequal data-parallel degrees need."""
    for pipeline in plan.pipelines:
        stages = pipeline.stages
        if any(stages[s].ranks != stages[s % ring].ranks for s in range(len(stages))):
            raise _refusal("the chunks of a pipeline do not go round its ranks", "Set parallel.chunks=1")
    widths = [len({pipeline.stages[s].ranks for pipeline in plan.pipelines}) for s in range(ring)]
    if len(set(widths)) > 1:
        raise _refusal(f"its stages have the data-parallel degrees {', '.join(map(str, widths))}, and Megatron has one "
                       "for all stages", "Use as many nodes of every fabric, or set parallel=megatron")
    seen: dict[int, int] = {}
    for p, pipeline in enumerate(plan.pipelines):
        for stage in pipeline.stages[:ring]:
            for rank in stage.ranks:
                if rank in seen:
                    where = (f"in pipelines {seen[rank]} and {p}" if seen[rank] != p
                             else f"in two stages of pipeline {p}")
                    raise _refusal(f"rank {rank} is {where}, and in Megatron each rank is in one stage of one pipeline",
                                   "Set parallel.data to the number of tensor-parallel groups of the smallest stage")
                seen[rank] = p


def _refusal(reason: str, remedy: str) -> PlanRefusedError:
    return PlanRefusedError(f"output=megatron: Megatron-LM cannot run this plan: {reason}. {remedy}.")
