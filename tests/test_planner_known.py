"""What a task carries of its search: worked out once, and never another task's answer."""

from __future__ import annotations

import dataclasses

from holmes_hpc.config.compose import compose
from holmes_hpc.planner import plan
from holmes_hpc.planner.known import Once, OncePerLayout
from holmes_hpc.planner.layout.node_kinds import on_nodes
from holmes_hpc.planner.simulation.predict import predict
from holmes_hpc.planner.simulation.prices import compute_cost
from holmes_hpc.planner.simulation.representatives import representatives, simulated
from holmes_hpc.planner.task import Task
from holmes_hpc.planner.telling.restore import restore
from holmes_hpc.planner.telling.slow_links import faster_ethernet, on_cluster

CONFIG = compose(["+cluster=mixed", "parallel=holmes", "parallel.pipeline=2"])


def test_a_value_is_made_at_the_first_question() -> None:
    made: list[str] = []
    once: Once[str, int] = Once()
    assert [once.of(key, lambda: made.append("x") or len(made)) for key in ("a", "b", "a")] == [1, 2, 1]
    layouts: OncePerLayout[int] = OncePerLayout()
    first, equal = [1], [1]
    assert [layouts.of(each, lambda: made.append("x") or len(made), what)
            for each, what in ((first, None), (equal, None), (first, "y"), (first, None))] == [3, 4, 5, 3]


def test_another_task_begins_anew_and_takes_over_the_prices_of_its_machine() -> None:
    chosen = plan(CONFIG, "slurm")
    task, layout = restore(CONFIG, chosen, "slurm")
    seconds = predict(task, layout, chosen.schedule).step_seconds
    assert predict(task, layout, chosen.schedule) is predict(task, layout, chosen.schedule)
    again: Task = dataclasses.replace(task, settings=task.settings.replace(recompute="full"))
    assert again.prices is task.prices and again.layouts is not task.layouts
    assert compute_cost(task) is compute_cost(task) and compute_cost(again) is not compute_cost(task)
    assert predict(again, layout, chosen.schedule).step_seconds > seconds, "the same layout, not the same answer"
    faster = on_cluster(task, faster_ethernet(task.cluster, 100.0))
    assert faster.prices is not task.prices and faster.prices.machine is faster.machine
    assert predict(faster, layout, chosen.schedule).step_seconds < seconds
    assert predict(task, layout, chosen.schedule).step_seconds == seconds
    some = on_nodes(task, ("ib/0", "ib/1"))
    assert on_nodes(task, ("ib/1", "ib/0")) is some and some.prices is not task.prices


def test_where_ranks_queue_for_cores_everyone_is_simulated() -> None:
    chosen = plan(CONFIG, "slurm")
    task, layout = restore(CONFIG, chosen, "slurm")
    assert simulated(task, layout) is representatives(task, layout)
    here, layout = restore(CONFIG, chosen, "emulated")
    machine = dataclasses.replace(here.machine, cores=2)
    few = dataclasses.replace(here, machine=machine)
    everyone = simulated(few, layout)
    assert everyone is simulated(few, layout) is not representatives(few, layout)
    assert everyone.folded(turns=False).pipelines == layout.pipelines
    assert dict(everyone.replicas.rank_like()) == {rank: rank for rank in range(8)}
    many = dataclasses.replace(here, machine=dataclasses.replace(here.machine, cores=8))
    assert simulated(many, layout) is representatives(many, layout)
