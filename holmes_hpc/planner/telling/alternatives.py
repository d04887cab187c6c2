"""The alternatives to a chosen layout that a plan names: such as can be told apart, and how each differs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from holmes_hpc.planner.search.candidate import Candidate
from holmes_hpc.planner.search.plainest import is_level
from holmes_hpc.planner.simulation.representatives import replicas_of
from holmes_hpc.planner.telling.layouts import layout_words, schedule_words
from holmes_hpc.planner.telling.memory import memory_cause
from holmes_hpc.schedule.building import edge_ranks
from holmes_hpc.values import Pipeline, Rejected
from holmes_hpc.words import counted

Value = TypeVar("Value", bound=Hashable)
MOST_REJECTED = 10
_MOST_LOOKED_AT = 60
_MOST_DIFFERENCES = 3
_MOST_STAGES_TOLD = 8
_MOST_WORDINGS = 2
_AS_FAST = 5e-4
_SCHEDULE = "schedule"
_FOLLOWING = ("layers", "messages", "samples")
"""What differs anyway where the pipelines do."""


@dataclass(frozen=True)
class Facet:
    """One thing that layouts are told apart by: what is compared, and words for a person."""

    key: object
    words: str


def alternatives(best: Candidate, candidates: Sequence[Candidate],
                 refusals: Mapping[str, Sequence[str]]) -> tuple[Rejected, ...]:
    """Return the best alternatives with figures, then what could not be planned at all.

    Of layouts that differ in their schedule alone the best is named, and of those that differ in nothing that a person
    sees one. The best of every other strategy is among them even where ten are faster.
    """
    others = sorted((each for each in candidates if each is not best), key=lambda each: (not each.fits, each.seconds))
    own = facets(best)
    kept = _told_apart(own, others)
    firsts = {each.strategy: at for at, each in reversed(list(enumerate(others))) if each.strategy != best.strategy}
    firsts |= {others[at].strategy: at for at in reversed(kept) if others[at].strategy != best.strategy}
    needed = set(firsts.values())
    room = max(0, MOST_REJECTED - len(needed))
    chosen = sorted([*needed, *[at for at in kept if at not in needed][:room]])
    planned = {each.strategy for each in candidates}
    impossible = [Rejected(name, "", Counter(reasons).most_common(1)[0][0])
                  for name, reasons in refusals.items() if name not in planned and reasons]
    return (*(_rejected(best, others[at], own) for at in chosen[:MOST_REJECTED - len(impossible)]), *impossible)


def _told_apart(own: Mapping[str, Facet], others: Sequence[Candidate]) -> list[int]:
    """Return which of the others, the best first, differ from the chosen layout and from one another."""
    kept: list[int] = []
    seen: set[object] = set()
    for at, other in enumerate(others[:_MOST_LOOKED_AT]):
        told = facets(other)
        key = _unlike_schedules(told), bool(other.missing)
        if key not in seen and _differences(own, told):
            seen.add(key)
            kept.append(at)
        if len(kept) == MOST_REJECTED:
            break
    return kept


def _rejected(best: Candidate, other: Candidate, own: Mapping[str, Facet]) -> Rejected:
    reason = memory_cause(other) or _compared(best, other, _differences(own, facets(other)))
    level = other.fits and is_level(best.task, best.seconds, other.seconds)
    return Rejected(other.strategy, layout_words(other), reason, other.predicted, level)


def facets(candidate: Candidate) -> dict[str, Facet]:
    """Return what a person tells a layout by, the most telling first; where all agree, two look the same."""
    layout, cluster, chosen = candidate.layout, candidate.task.cluster, candidate.schedule
    networks = {group.ranks: group.network for group in layout.groups if group.kind == "pipeline"}
    names = _place_names(candidate)
    replicas = replicas_of(candidate.task, layout)
    counts = Counter(replicas.like)
    pipelines = [(pipeline, counts[place]) for place, pipeline in enumerate(replicas.picked)]

    def places(pipeline: Pipeline) -> list[str]:
        return ["+".join(dict.fromkeys(names[cluster.node_of(rank).slot] for rank in stage.ranks))
                for stage in pipeline.stages]

    def messages(pipeline: Pipeline) -> tuple[str, ...]:
        return tuple(networks.get(edge_ranks(pipeline, s), "local") for s in range(len(pipeline.stages) - 1))

    def alike(pipeline: Pipeline) -> str:
        degrees = [stage.tensor for stage in pipeline.stages]
        return _sum_words(degrees[:1] if len(set(degrees)) == 1 else degrees)

    depths = _weighted((len(pipeline.stages), count) for pipeline, count in pipelines)
    shapes = " and ".join(f"{counted(count, 'pipeline')} of {counted(depth, 'stage')}"
                          for depth, count in sorted(depths.items()))
    over = _weighted((messages(pipeline), count) for pipeline, count in pipelines)
    used = sorted({network for each in over for network in each})
    recompute, one = candidate.task.settings.recompute, candidate.rules.one_network
    return {
        "GPUs": Facet(cluster.world_size, f"on {counted(cluster.world_size, 'GPU')}"),
        "pipelines": Facet(shapes, shapes),
        "tensor": _facet(pipelines, "tensor degree", alike),
        "order": _facet(pipelines, "stages on", lambda p: ", then ".join(dict.fromkeys(places(p))), places),
        "layers": _facet(pipelines, "layers", lambda p: _sum_words([stage.num_layers for stage in p.stages])),
        "messages": Facet(frozenset(over.items()), f"messages over {', '.join(used)}" if used else "no messages"),
        "micro-batch": Facet(layout.micro_batch_size, f"micro-batches of {layout.micro_batch_size}"),
        "samples": _facet(pipelines, "micro-batches a pipeline:", lambda p: str(p.microbatches)),
        "networks": Facet(one, "all groups over one network" if one else "every group over its fastest network"),
        "recomputation": Facet(recompute, f"{recompute} recomputation"),
        _SCHEDULE: Facet((chosen.name, chosen.chunks, chosen.warmup_extra, chosen.turns),
                         schedule_words(chosen) or chosen.name),
    }


def _place_names(candidate: Candidate) -> dict[str, str]:
    """Return by slot the fabric, and the GPU where a fabric has several kinds."""
    gpus = {node.slot: candidate.task.machine.gpu(node).name for node in candidate.task.cluster.nodes}
    kinds = {fabric: len({gpus[node.slot] for node in nodes})
             for fabric, nodes in candidate.task.cluster.fabrics.items()}
    return {node.slot: node.fabric if kinds[node.fabric] == 1 else f"{node.fabric} {gpus[node.slot]}"
            for node in candidate.task.cluster.nodes}


def _facet(pipelines: Sequence[tuple[Pipeline, int]], label: str, words: Callable[[Pipeline], str],
           key: Callable[[Pipeline], Sequence[str]] | None = None) -> Facet:
    """Return a facet that every pipeline has; words that hold for several are told once."""
    told = list(dict.fromkeys(words(pipeline) for pipeline, _ in pipelines))
    compared = _weighted((tuple((key or words)(pipeline)), count) for pipeline, count in pipelines)
    more = f" and {len(told) - _MOST_WORDINGS} others" if len(told) > _MOST_WORDINGS else ""
    return Facet(frozenset(compared.items()), f"{label} {' and '.join(told[:_MOST_WORDINGS])}{more}")


def _weighted(counted_values: Iterable[tuple[Value, int]]) -> dict[Value, int]:
    found: dict[Value, int] = {}
    for value, count in counted_values:
        found[value] = found.get(value, 0) + count
    return found


def _sum_words(numbers: Sequence[int]) -> str:
    """Return `2+2+3`, and of long rows `12x4+3`."""
    if len(numbers) <= _MOST_STAGES_TOLD:
        return "+".join(map(str, numbers))
    return "+".join(f"{count}x{number}" if count > 1 else str(number)
                    for number, count in ((number, len(list(run))) for number, run in itertools.groupby(numbers)))


def _unlike_schedules(told: Mapping[str, Facet]) -> object:
    return tuple(facet.key for name, facet in told.items() if name != _SCHEDULE)


def _differences(own: Mapping[str, Facet], other: Mapping[str, Facet]) -> list[str]:
    """Return how another layout differs, the most telling first."""
    unlike = [name for name, facet in other.items() if facet.key != own[name].key]
    telling = {name for name in unlike if other[name].words != own[name].words}
    if {"pipelines", "tensor", "order"} & telling:
        unlike = [name for name in unlike if name not in _FOLLOWING]
    elif "micro-batch" in telling:
        unlike = [name for name in unlike if name != "samples"]
    words = [other[name].words for name in unlike if name in telling]
    return words[:_MOST_DIFFERENCES] or (["the stages otherwise on the nodes"] if unlike else [])


def _compared(best: Candidate, other: Candidate, differences: Sequence[str]) -> str:
    ratio = other.seconds / best.seconds - 1
    speed = (f"{100 * ratio:.1f} % slower" if ratio >= _AS_FAST else
             f"{-100 * ratio:.1f} % faster" if ratio < -_AS_FAST else "as fast")
    if is_level(best.task, best.seconds, other.seconds) and abs(ratio) >= _AS_FAST:
        speed += " (level: within the error)"
    if other.missing:
        return f"{speed}, and not yet runnable: the engine of this version lacks {' and '.join(other.missing)}"
    return f"{speed}: {', '.join(differences) or 'comes to the same layout'}"
