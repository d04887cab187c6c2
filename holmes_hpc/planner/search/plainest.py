"""Which of layouts that the predictions do not tell apart is chosen: the plainest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holmes_hpc.planner.search.candidate import Candidate
from holmes_hpc.planner.task import Task

_AS_FAST = 1.005
"""Fewer groups and stages are worth so much of the step."""


def is_level(task: Task, first: float, second: float) -> bool:
    """Whether two predicted steps of a task differ by less than the error of such a comparison."""
    return max(first, second) <= (1 + task.error_band.layout_percent / 100) * min(first, second)


def plainest(best: Candidate, fitting: Sequence[Candidate]) -> Candidate:
    """Return the plainest of the layouts that are level with the fastest one, which is `best`.

    Alike pipelines are plainer than unlike ones, and ranks in one pipeline than shared ones; of those that are equal
    in that and about as fast, the one with fewer groups and stages. What runs on fewer nodes is no plainer for it.
    """
    level = [each for each in fitting if bool(each.missing) == bool(best.missing)
             and is_level(best.task, best.seconds, each.seconds)]
    kind = min(map(_exotic, level))
    alike = [each for each in level if _exotic(each) == kind]
    fastest = min(alike, key=lambda each: each.seconds)
    if kind == _exotic(best):
        fastest = best
    near = [each for each in alike if each.seconds <= _AS_FAST * fastest.seconds
            and each.task.cluster.world_size == fastest.task.cluster.world_size]
    return min(near, key=lambda each: (_size(each), each.seconds))


def _exotic(candidate: Candidate) -> tuple[bool, bool]:
    """Return whether pipelines are unlike, and whether ranks are shared between pipelines."""
    pipelines = candidate.layout.pipelines
    shapes = {tuple((stage.tensor, stage.num_layers) for stage in pipeline.stages) for pipeline in pipelines}
    served = Counter(rank for pipeline in pipelines for rank in {rank for stage in pipeline.stages
                                                                 for rank in stage.ranks})
    return len(shapes) > 1, max(served.values()) > 1


def _size(candidate: Candidate) -> tuple[int, int]:
    return len(candidate.layout.groups), max(len(pipeline.stages) for pipeline in candidate.layout.pipelines)
