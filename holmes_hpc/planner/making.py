"""Making a plan from a configuration."""

from __future__ import annotations

import dataclasses
from typing import Any

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import ClusterDescription, Machine
from holmes_hpc.planner.predict import Layout
from holmes_hpc.planner.schedules import make_schedule, slow_hops
from holmes_hpc.planner.search import Priced, search
from holmes_hpc.planner.settings import PlanSettings, Task
from holmes_hpc.planner.traffic import loads, network_bytes
from holmes_hpc.values import NetworkBytes, Plan, RankPlace, Rejected

_HERE = ("emulated", "local")


def plan(config: Any, mode: str | None = None, cluster: ClusterDescription | None = None) -> Plan:
    """Return the plan for a composed configuration.

    `mode` is where the run will go (default: `config.launch.mode`): `emulated` and `local` price this machine,
    unless its compute is timed by the cost model, and `auto` and `slurm` the cluster as described. `cluster` stands for
    `config.cluster` where its nodes are known better: their order, or a NIC that failed.
    Raises ConfigurationError for settings that contradict one another, PlanRefusedError when no plan exists.
    """
    task = task_of(config, mode, cluster)
    return assemble(task, *search(task))


def task_of(config: Any, mode: str | None = None, cluster: ClusterDescription | None = None) -> Task:
    """Return what `plan` plans for; the arguments are its own."""
    cluster = cluster or ClusterDescription.from_config(config.cluster)
    machine = _machine(cluster, mode or str(config.launch.mode))
    return Task(PlanSettings.from_config(config), Architecture.from_config(config.model), cluster, machine)


def assemble(task: Task, best: Priced, rejected: tuple[Rejected, ...]) -> Plan:
    """Return the plan of a priced layout."""
    split = task.settings.layer_split
    words = split if isinstance(split, str) else "+".join(map(str, split))
    if best.strategy == "manual":
        words = "manual"
    elif best.strategy == "megatron" and task.settings.strategy == "auto" and split == "adaptive":
        words = "uniform"
    layout = best.layout
    widest = max(len(stage.ranks) for pipeline in layout.pipelines for stage in pipeline.stages)
    synchronization = task.synchronization(best.strategy)
    schedule = make_schedule(layout.pipelines, layout.groups, layout.reductions, best.schedule,
                             sharded=synchronization.sharded)
    return Plan(
        strategy=best.strategy,
        world_size=task.cluster.world_size,
        num_layers=task.architecture.num_layers,
        micro_batch_size=layout.micro_batch_size,
        global_batch_size=task.settings.global_batch_size,
        ranks=_places(task),
        pipelines=layout.pipelines,
        groups=layout.groups if best.schedule.turns else tuple(g for g in layout.groups if g.kind != "turn"),
        reductions=layout.reductions,
        schedule=dataclasses.replace(best.schedule, digest=schedule.digest()),
        predicted=dataclasses.replace(best.predicted, bytes_by_network=_bytes_by_network(task, layout)),
        rejected=rejected,
        tied_embeddings=task.architecture.tied_embeddings,
        layer_split=words,
        synchronization=synchronization,
        sequence_parallel=task.settings.sequence_parallel and widest > 1,
        recompute=task.settings.recompute,
        notes=_notes(task, best),
    )


def _bytes_by_network(task: Task, layout: Layout) -> tuple[NetworkBytes, ...]:
    sent = network_bytes(task, loads(task, layout))
    return tuple(NetworkBytes(network, round(sent[network])) for network in sorted(sent))


def _machine(cluster: ClusterDescription, mode: str) -> Machine:
    if mode in _HERE and cluster.compute != "timed":
        return Machine.emulated(cluster, shaped=mode == "emulated")
    return Machine.described(cluster)


def _places(task: Task) -> tuple[RankPlace, ...]:
    nodes = [task.cluster.node_of(rank) for rank in range(task.cluster.world_size)]
    return tuple(RankPlace(rank, node.slot, task.cluster.local_rank(rank), task.machine.gpu(node).name, node.fabric)
                 for rank, node in enumerate(nodes))


def _notes(task: Task, best: Priced) -> tuple[str, ...]:
    """Return what a reader should know beside the figures."""
    notes = []
    layout = best.layout
    if task.machine.label == "emulated":
        notes.append("predicted for this machine, which emulates the cluster")
    across = [layout.groups[i] for reduction in layout.reductions for i in (*reduction.inner, *reduction.outer)
              if layout.groups[i].network == "ethernet" and layout.groups[i].kind == "embedding"]
    if across and task.architecture.tied_embeddings:
        notes.append("the tied embedding's gradient crosses Ethernet in every step; model.tied_embeddings=false "
                     "avoids it")
    if best.schedule.turns:
        notes.append("turns: the pipelines of a node cross Ethernet for the first time one after another")
    if best.schedule.warmup_extra:
        hops = len({s for _, s in slow_hops(layout.pipelines, layout.groups)})
        notes.append(f"warm-up +{best.schedule.warmup_extra}: so many more forwards start upstream of each of the "
                     f"{hops} hop{'s' if hops > 1 else ''} over Ethernet, and their activations are kept")
    return tuple(notes)
