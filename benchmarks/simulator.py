"""How long the planner takes to simulate one step, by the number of ranks, and what schedules win over a slow hop.

    python -m benchmarks.simulator [--most RANKS]

Prints two tables. Times are seconds of this process, the best of three, and hold everything from the layout to its
prediction: prices, action lists, simulation.
"""

from __future__ import annotations

import argparse
import math
import time

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import Machine, read_cluster
from holmes_hpc.config.compose import compose
from holmes_hpc.planner.cost.network import Traffic
from holmes_hpc.planner.layout.groups import GroupRules, find_groups
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.layout.pipelines import build_pipelines
from holmes_hpc.planner.simulation.events import Prices, simulate
from holmes_hpc.planner.simulation.predict import predict
from holmes_hpc.planner.task import PlanSettings, Task
from holmes_hpc.schedule.building import make_schedule
from holmes_hpc.values import ActionKind, Group, Pipeline, ScheduleChoice, Stage

SHAPES = ((8, 8, 1), (8, 8, 2), (4, 8, 1), (1, 8, 1), (8, 16, 1))
"""Tensor degree, ranks of a pipeline over tensor degree, chunks."""
DELAYS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
SECONDS = {ActionKind.FORWARD: 1.0, ActionKind.BACKWARD: 2.0, ActionKind.BACKWARD_INPUT: 1.0,
           ActionKind.BACKWARD_WEIGHT: 1.0}


def layout_of(ranks: int, tensor: int, depth: int, chunks: int) -> tuple[Task, Layout]:
    """Return a GPT of 39 billion parameters on half InfiniBand and half RoCE nodes of 8 A100."""
    config = compose(["+cluster=mixed", "model=gpt_39_1b", "train.precision=bfloat16",
                      f"train.global_batch_size={ranks}",
                      *(f"cluster.partitions.{name}.{key}" for name in ("ib", "roce")
                        for key in (f"nodes={ranks // 16}", "gpus_per_node=8"))])
    cluster = read_cluster(config.cluster)
    task = Task(PlanSettings.from_config(config), Architecture.from_config(config.model), cluster,
                Machine.described(cluster))
    width = ranks // depth
    stages = [[tuple(range(s * width + k, s * width + k + tensor)) for k in range(0, width, tensor)]
              for s in range(depth)] * chunks
    layers = task.architecture.num_layers // len(stages)
    pipelines = build_pipelines(stages, [layers] * len(stages), ranks)
    groups, reductions = find_groups(task.architecture, cluster, pipelines, GroupRules())
    return task, Layout(pipelines, groups, reductions, 1)


def choices_of(chunks: int) -> list[ScheduleChoice]:
    """Return the schedules to time."""
    if chunks > 1:
        return [ScheduleChoice("interleaved", chunks=chunks)]
    return [ScheduleChoice("1f1b", 1), ScheduleChoice("1f1b", 1, turns=True), ScheduleChoice("zero_bubble", 1)]


def speed(most: int) -> None:
    """Print the seconds of a prediction."""
    print("| ranks | tensor | stages | pipelines | micro-batches each | schedule | seconds |")
    print("|---|---|---|---|---|---|---|")
    ranks = 64
    while ranks <= most:
        for tensor, depth, chunks in SHAPES:
            if ranks % (tensor * depth):
                continue
            task, layout = layout_of(ranks, tensor, depth, chunks)
            for choice in choices_of(chunks):
                best = min(_timed(task, layout, choice) for _ in range(3))
                words = choice.name + (", turns" if choice.turns else "")
                print(f"| {ranks} | {tensor} | {depth * chunks} | {len(layout.pipelines)} | "
                      f"{layout.pipelines[0].microbatches} | {words} | {best:.2f} |")
        ranks *= 4


def _timed(task: Task, layout: Layout, choice: ScheduleChoice) -> float:
    start = time.process_time()
    predict(task, layout, choice)
    return time.process_time() - start


def efficiency(delay: float, name: str, extra: int, depth: int = 4, microbatches: int = 32) -> float:
    """Return ideal compute over the step, for F = 1, B = 2 and one hop in the middle that takes `delay`."""
    chunks, cut = (2 if name == "interleaved" else 1), depth // 2 - 1
    pipeline = Pipeline(microbatches, tuple(Stage((s % depth,), s, 1) for s in range(depth * chunks)))
    edges = {tuple(sorted((s % depth, (s + 1) % depth))) for s in range(depth * chunks - 1)}
    slow = {(cut, cut + 1), (0, depth - 1)} if chunks > 1 else {(cut, cut + 1)}
    groups = tuple(Group("pipeline", edge, "ethernet" if edge in slow else "ib") for edge in sorted(edges))
    hop = round(1000 * delay)
    choice = ScheduleChoice(name, extra, chunks, stage_times=(((1000, 2000, 1000),) * depth,),
                            hop_times=(tuple((hop, hop // 2) if s == cut else (0, 0) for s in range(depth - 1)),))
    half = {edge: delay / 2 if edge in slow else 0.0 for edge in edges}
    messages = {pair: Traffic(half[edge], half[edge]) for edge in edges for pair in (edge, edge[::-1])}
    compute = {(kind, 0, s): seconds / chunks for kind, seconds in SECONDS.items() for s in range(depth * chunks)}
    prices = Prices(compute, messages, (), dict.fromkeys(range(depth), 0.0))
    return 3 * microbatches / simulate(make_schedule((pipeline,), groups, (), choice), (), prices).step_seconds


def schedules() -> None:
    """Print the efficiency of every schedule by the delay of the slow hop."""
    print("| D/F | 1F1B | 1F1B +k | GPipe | interleaved | zero bubble | zero bubble +k | k |")
    print("|---|---|---|---|---|---|---|---|")
    for delay in DELAYS:
        extra = math.ceil(2 * delay / 3)
        row = [efficiency(delay, name, k) for name, k in (
            ("1f1b", 0), ("1f1b", extra), ("gpipe", 0), ("interleaved", 0), ("zero_bubble", 0),
            ("zero_bubble", extra))]
        print(f"| {delay:g} | " + " | ".join(f"{each:.3f}" for each in row) + f" | {extra} |")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--most", type=int, default=1024, help="ranks of the largest layout")
    arguments = parser.parse_args()
    schedules()
    print()
    speed(arguments.most)


if __name__ == "__main__":
    main()
