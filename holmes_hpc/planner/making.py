"""Making a plan from a configuration."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from holmes_hpc.cluster import ClusterDescription, read_cluster
from holmes_hpc.cluster.host import count_gpus, speed_words
from holmes_hpc.cluster.measured import links_in_words
from holmes_hpc.cluster.profiled import units_of
from holmes_hpc.planner.cost.cpu import CPU
from holmes_hpc.planner.cost.network import Resource
from holmes_hpc.planner.search.candidate import Candidate
from holmes_hpc.planner.search.fewer_nodes import faster_on_fewer, left_out
from holmes_hpc.planner.search.search import Progress, search
from holmes_hpc.planner.simulation.traffic import Load, busy_seconds, loads, network_bytes, resource_words
from holmes_hpc.planner.task import Task, task_of
from holmes_hpc.planner.telling.decision import decide
from holmes_hpc.planner.telling.disturbed import forecasts, in_notes
from holmes_hpc.planner.telling.slow_links import limiting_link
from holmes_hpc.schedule.building import schedule_digest, slow_hops
from holmes_hpc.values import NetworkBytes, Plan, RankPlace, Rejected
from holmes_hpc.values.backend_kinds import BACKEND_KINDS
from holmes_hpc.words import counted, seconds_words

_RARE = (200_000, 50, 100)
"""Values made between two looks for cycles, by generation."""


def plan(config: Any, mode: str | None = None, cluster: ClusterDescription | None = None,
         progress: Callable[[str], None] | None = None) -> Plan:
    """Return the plan for a composed configuration.

    `mode` is where the run will go (default: `config.launch.mode`): `emulated` and `local` price this machine,
    unless its compute is timed by the cost model or a local run has a GPU here for each rank, and `auto` and `slurm`
    the cluster as described. `cluster` stands for `config.cluster` where that was read before, or its nodes are known
    better: their order, or a NIC that failed.
    `progress` is told in words what a long search is at.
    Raises ConfigurationError for settings that contradict one another, PlanRefusedError when no plan exists.
    """
    cluster = cluster or read_cluster(config.cluster)
    task = task_of(config, _priced_mode(config, mode, cluster), cluster)
    with _rare_collections():
        best, rejected = find_best(task, progress)
        made = assemble(task, best, rejected)
        found = forecasts(best.task, best.layout, best.schedule, int(config.train.steps))
        notes = (*made.notes, *_planned_for(config, task.cluster), *in_notes(found, made.predicted.step_seconds))
        made = dataclasses.replace(made, notes=notes)
        fewer = faster_on_fewer(task, made.predicted.step_seconds)
        return made if fewer is None else dataclasses.replace(made, notes=(*made.notes, _on_fewer(task, made, fewer)))


def _planned_for(config: Any, cluster: ClusterDescription) -> list[str]:
    """Return the note of a plan that is made for the cluster as disturbed in one step."""
    step = config.cluster.emulate.plan_for_step
    return [] if step is None else [f"planned for the cluster as it is in step {step}: "
                                    f"{'; '.join(each.words for each in cluster.acting) or 'undisturbed'} "
                                    "(cluster.emulate.plan_for_step)"]


def _priced_mode(config: Any, mode: str | None, cluster: ClusterDescription) -> str:
    """Return the mode, but for a local run whose ranks compute on this machine's GPUs one that prices those."""
    mode, backend = mode or str(config.launch.mode), BACKEND_KINDS.get(str(config.launch.backend))
    on_gpus = ((backend is None or backend.needs_gpus) and len(cluster.nodes) == 1 and cluster.nodes[0].gpu != CPU
               and count_gpus() >= cluster.world_size)
    return "slurm" if mode == "local" and on_gpus else mode


def find_best(task: Task, progress: Progress | None = None) -> tuple[Candidate, tuple[Rejected, ...]]:
    """Return the best layout that a search finds, and the best of the others; see `search` and `decide`."""
    return decide(search(task, progress))


def assemble(task: Task, best: Candidate, rejected: tuple[Rejected, ...]) -> Plan:
    """Return the plan of a candidate."""
    split = best.task.settings.layer_split
    words = split if isinstance(split, str) else "+".join(map(str, split))
    if task.settings.strategy_kind.is_written:
        words = best.strategy
    layout, whole, task = best.layout, task, best.task
    widest = max(stage.tensor for pipeline in layout.pipelines for stage in pipeline.stages)
    synchronization, sent = task.synchronization(best.strategy), loads(task, layout)
    digest = schedule_digest(layout.pipelines, layout.groups, layout.reductions, best.schedule)
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
        schedule=dataclasses.replace(best.schedule, digest=digest),
        predicted=dataclasses.replace(best.predicted, bytes_by_network=_bytes_by_network(task, sent)),
        rejected=rejected,
        tied_embeddings=task.architecture.tied_embeddings,
        layer_split=words,
        synchronization=synchronization,
        sequence_parallel=task.settings.sequence_parallel and widest > 1,
        recompute=task.settings.recompute,
        notes=_notes(whole, best, sent),
    )


def _bytes_by_network(task: Task, found: Sequence[Load]) -> tuple[NetworkBytes, ...]:
    sent = network_bytes(task, found)
    return tuple(NetworkBytes(network, round(sent[network])) for network in sorted(sent))


def _places(task: Task) -> tuple[RankPlace, ...]:
    nodes = [task.cluster.node_of(rank) for rank in range(task.cluster.world_size)]
    return tuple(RankPlace(rank, node.slot, task.cluster.local_rank(rank), task.machine.gpu(node).name, node.fabric)
                 for rank, node in enumerate(nodes))


def _notes(whole: Task, best: Candidate, sent: Sequence[Load]) -> tuple[str, ...]:
    """Return what a reader should know beside the figures."""
    notes = []
    layout, task = best.layout, best.task
    if task.machine.is_here:
        notes.append("predicted for this machine, which "
                     + ("emulates the cluster" if task.machine.shaped else "runs all ranks as plain processes"))
    on_cpus = any(kind.name == "cpu" for kind in task.machine.gpus.values())
    if on_cpus:
        notes.append(speed_words())
    if not (task.machine.is_here or on_cpus) and task.settings.precision == "float32" and any(
            task.machine.gpu(node).peak_tflops.get("float16") for node in task.cluster.nodes):
        notes.append("priced in float32; train.precision=bfloat16 (float16 on GPUs without it) is several times faster")
    across = [layout.groups[i] for reduction in layout.reductions for i in reduction.groups
              if layout.groups[i].network == "ethernet" and layout.groups[i].whole_kind == "embedding"]
    if across and task.architecture.tied_embeddings:
        notes.append("the tied embedding's gradient crosses Ethernet in every step; model.tied_embeddings=false "
                     "avoids it")
    notes += [*_measured(whole), *_unused(whole), *_slow_link(task, best, busy_seconds(sent))]
    left_out = whole.cluster.world_size - task.cluster.world_size
    if left_out:
        kept = {node.slot for node in task.cluster.nodes}
        names = ", ".join(node.slot for node in whole.cluster.nodes if node.slot not in kept)
        notes.append(f"{counted(left_out, 'GPU')} {'is' if left_out == 1 else 'are'} "
                     f"left out ({names}): the others are faster without them")
    if best.missing:
        notes.append(f"the engine of this version cannot run it: it lacks {' and '.join(best.missing)}")
    if best.schedule.turns:
        notes.append("turns: the pipelines of a node cross Ethernet for the first time one after another")
    if best.schedule.warmup_extra:
        hops = len({s for _, s in slow_hops(layout.pipelines, layout.groups)})
        notes.append(f"warm-up +{best.schedule.warmup_extra}: so many more forwards start upstream of each of the "
                     f"{hops} hop{'s' if hops > 1 else ''} over Ethernet, and their activations are kept")
    return tuple(notes)


def _measured(task: Task) -> list[str]:
    """Return which links have measured rates in place of described ones, and where they were measured."""
    used = [] if task.machine.is_here else [link for link in task.cluster.measured if task.cluster.has_link(link)]
    return [f"rates as measured, not as described: {links_in_words(used)}; {task.cluster.measured_where}"
            ] if used else []


def _unused(task: Task) -> list[str]:
    """Return what of the files of measured links and calibrated GPUs says nothing of this cluster and precision."""
    cluster, precision, notes = task.cluster, task.settings.precision, []
    other = [link for link in cluster.measured if not cluster.has_link(link)]
    if other and not task.machine.is_here:
        notes.append(f"cluster.measured: not used, since the cluster has no such link: {links_in_words(other)}; its "
                     f"fabrics are {', '.join(cluster.fabrics)}")
    kinds = task.machine.gpus.values()
    if cluster.calibrated and not any(precision in kind.slowdowns for kind in kinds):
        found = ", ".join(f"{each.gpu} in {each.precision}" for each in cluster.calibrated)
        notes.append(f"cluster.calibrated: not used, since it has {found}, and this run computes on "
                     f"{', '.join(sorted({kind.name for kind in kinds}))} in {precision}")
    if cluster.profiled and not any(units_of(kind, task.architecture, precision) for kind in kinds):
        found = ", ".join(sorted({f"{each.gpu} in {each.precision}" for each in cluster.profiled}))
        notes.append(f"cluster.profiled: not used, since it has {found}, and not the layers of this model in "
                     f"{precision} on {', '.join(sorted({kind.name for kind in kinds}))}")
    return notes


def _on_fewer(task: Task, made: Plan, fewer: Candidate) -> str:
    """Return the note of a plan that is much slower than one on some of its nodes."""
    step = made.predicted.step_seconds
    return (f"without {left_out(task, fewer.task)} a step takes {seconds_words(fewer.seconds)} instead of "
            f"{seconds_words(step)}: they slow the others down. Leave them out with parallel.leave_nodes_out=true; "
            "for a job of Slurm, which would hold them, take them out of the cluster file")


def _slow_link(task: Task, best: Candidate, busy: Mapping[Resource, float]) -> list[str]:
    """Return a note where the link between fabrics is what limits the simulated step: the shares are its own."""
    seconds, idle = best.predicted.step_seconds, best.predicted.idle_fraction
    link = limiting_link(task, best.layout, best.schedule, busy, seconds, 1 - (idle or 0.0))
    if link is None:
        return []
    settings = task.settings
    remedies = [*["parallel=auto may find a better layout"] * (not settings.compares_all), "a faster link helps",
                *["fewer nodes may (parallel.leave_nodes_out=true)"] * (not settings.leave_nodes_out)]
    return [f"the link between fabrics is too slow for this plan: {resource_words(link.resource, task.cluster)}, is "
            f"busy for {100 * link.busy_share:.0f} % of the step, which would take "
            f"{seconds_words(link.seconds_without)} instead of {seconds_words(seconds)} if that link took no time: "
            f"{', '.join(remedies)}; else only compression or local steps between synchronisations would help, and "
            "neither is built yet"]


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for cycles rarely inside: a search makes hardly any, and on 512 GPUs a fifth of its time went there.

    What was set before is set again afterwards; a collector that was switched off stays so.
    """
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(*map(max, before, _RARE))
    try:
        yield
    finally:
        gc.set_threshold(*before)
