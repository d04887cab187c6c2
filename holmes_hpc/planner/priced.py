"""From a layout to its price: its schedule, what a simulation of it says, and whether it can be used."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holmes_hpc.planner.groups import GroupRules, find_groups
from holmes_hpc.planner.memory import USABLE_FRACTION
from holmes_hpc.planner.predict import Layout, predict, price
from holmes_hpc.planner.schedules import slow_hops
from holmes_hpc.planner.settings import Task
from holmes_hpc.values import ActionKind, Pipeline, Prediction, ScheduleChoice
from holmes_hpc.values.capabilities import unable

WORTHWHILE = 0.99
"""Extra warm-up costs memory, so it has to save a hundredth of the step."""


@dataclass(frozen=True)
class Priced:
    """A layout with its schedule and what is predicted of it, on the nodes of `task`.

    `reason` says why it cannot be used, if so, and `missing` what the engine of this version lacks to run it.
    """

    strategy: str
    words: str
    task: Task
    layout: Layout
    rules: GroupRules
    schedule: ScheduleChoice
    predicted: Prediction
    reason: str = ""
    missing: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """The predicted seconds of a step."""
        return self.predicted.step_seconds


def price_layout(task: Task, strategy: str, words: str, pipelines: tuple[Pipeline, ...], size: int,
                 rules: GroupRules, warmup_extra: int | None = None) -> Priced:
    """Simulate a layout with the asked schedule and return its price."""
    groups, reductions = find_groups(task.architecture, task.cluster, pipelines, rules)
    layout = Layout(pipelines, groups, reductions, size)
    extra = (task.settings.warmup_extra or 0) if warmup_extra is None else warmup_extra
    return price_schedule(task, strategy, words, layout, rules, extra)


def price_schedule(task: Task, strategy: str, words: str, layout: Layout, rules: GroupRules,
                   warmup_extra: int) -> Priced:
    """Simulate a layout with so many extra warm-up forwards and return its price."""
    choice = ScheduleChoice(task.settings.schedule, warmup_extra)
    predicted = predict(task, layout, choice)
    degrees = [[len(stage.ranks) for stage in pipeline.stages] for pipeline in layout.pipelines]
    missing = tuple(unable(degrees, choice.name, task.settings.recompute))
    return Priced(strategy, words, task, layout, rules, choice, predicted, memory_problem(task, predicted), missing)


def with_warmup(priced: Priced, more: int = 0) -> list[Priced]:
    """Return the layout with k = ceil(2 D / (F + B)) extra warm-up forwards, if that pays and fits.

    D is the time of one message over the slowest hop, behind the others of its node; F and B are those of the
    longest stage. Up to `more` forwards beyond that are tried as long as each pays.
    """
    layout, task = priced.layout, priced.task
    hops = slow_hops(layout.pipelines, layout.groups)
    if not hops:
        return []
    first = _extra_forwards(task, layout, hops)
    found: list[Priced] = []
    for extra in range(first, first + 1 + more):
        warmer = price_schedule(task, priced.strategy, f"{priced.words}, warm-up +{extra}", layout, priced.rules, extra)
        if warmer.reason or warmer.seconds >= WORTHWHILE * (found[-1] if found else priced).seconds:
            break
        found.append(warmer)
    return found


def _extra_forwards(task: Task, layout: Layout, hops: set[tuple[int, int]]) -> int:
    prices = price(task, layout)
    delay = 0.0
    crowds: dict[tuple[int, str], int] = {}
    for p, s in hops:
        key = s, task.cluster.node_of(layout.pipelines[p].stages[s].ranks[0]).slot
        crowds[key] = crowds.get(key, 0) + 1
    for p, s in hops:
        pair = layout.pipelines[p].stages[s].ranks[0], layout.pipelines[p].stages[s + 1].ranks[0]
        traffic = prices.messages[pair]
        crowd = crowds[s, task.cluster.node_of(pair[0]).slot]
        delay = max(delay, traffic.latency_seconds
                    + max([traffic.seconds, *(crowd * busy for busy in traffic.busy.values())]))
    period = max(prices.compute[ActionKind.FORWARD, p, s] + prices.compute[ActionKind.BACKWARD, p, s]
                 for p, pipeline in enumerate(layout.pipelines) for s in range(len(pipeline.stages)))
    most = max(pipeline.microbatches for pipeline in layout.pipelines)
    return min(math.ceil(2 * delay / period), most)


def memory_problem(task: Task, predicted: Prediction) -> str:
    """Return why a layout does not fit into memory, naming the worst rank, or nothing."""
    worst, over = "", 0.0
    for node in task.cluster.nodes:
        has = task.machine.memory_gib(node) * USABLE_FRACTION
        for rank in task.cluster.ranks_of(node):
            need = predicted.memory_gib_per_rank[rank]
            if need - has > over:
                over = need - has
                worst = (f"memory: rank {rank} ({node.slot}, {task.machine.gpu(node).name}) needs {need:.1f} GiB and "
                         f"has {has:.1f}. Use more pipeline stages or nodes, a smaller parallel.micro_batch_size, or "
                         "a smaller model.")
    return worst
