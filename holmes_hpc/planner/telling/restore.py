"""From a plan back to what the simulator takes: the task and the layout."""

from __future__ import annotations

import dataclasses
from typing import Any

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.layout.node_kinds import on_nodes
from holmes_hpc.planner.task import Task, task_of
from holmes_hpc.values import Plan
from holmes_hpc.values.levels import for_nodes
from holmes_hpc.words import counted


def restore(config: Any, plan: Plan, mode: str | None = None, cluster: ClusterDescription | None = None
            ) -> tuple[Task, Layout]:
    """Return the task and the layout of a plan that was made for a configuration.

    `mode` and `cluster` are as in `planner.plan`, but that the plan's own machine stands for no mode. The plan says
    which nodes are used, in which order, and what it chose itself. Raises ConfigurationError where the plan is not of
    this cluster and model.
    """
    task = task_of(config, mode or (plan.predicted.machine if plan.predicted.is_here else "slurm"), cluster)
    known = {node.slot: node for node in task.cluster.nodes}
    slots = tuple(dict.fromkeys(place.slot for place in plan.ranks))
    missing = [slot for slot in slots if slot not in known]
    if missing or plan.num_layers != task.architecture.num_layers:
        what = f"slot {missing[0]}" if missing else f"{counted(plan.num_layers, 'layer')}"
        raise ConfigurationError(f"the plan has {what}, and the configuration has not: they do not belong together. "
                                 "Give the configuration that the plan was made for.")
    # Fewer nodes are another machine too: fewer ranks share the cores of an emulation.
    task = on_nodes(task, slots)
    cluster = dataclasses.replace(task.cluster, nodes=tuple(known[slot] for slot in slots))
    settings = task.settings.replace(sequence_parallel=plan.sequence_parallel, recompute=plan.recompute,
                                     global_batch_size=plan.global_batch_size)
    task = dataclasses.replace(task, settings=settings, cluster=cluster,
                               machine=dataclasses.replace(task.machine, cluster=cluster))
    # The prediction is for the task's machine, whatever library the run used.
    nodes = (lambda rank: plan.ranks[rank].slot) if task.machine.uses_gloo else None
    groups, reductions = for_nodes(plan.groups, plan.reductions, nodes)
    return task, Layout(plan.pipelines, groups, reductions, plan.micro_batch_size, plan.synchronization)
