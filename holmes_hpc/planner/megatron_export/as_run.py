"""What Megatron-LM makes of a plan, as the planner sees it: its schedule, its groups, one network for each kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.layout.groups import GroupRules, find_groups
from holmes_hpc.planner.megatron_export.arguments import ACTIVATIONS, NORMALIZATIONS, unknown_to_megatron
from holmes_hpc.planner.megatron_export.communicators import ETHERNET
from holmes_hpc.planner.simulation.predict import predict
from holmes_hpc.planner.telling.restore import restore
from holmes_hpc.values import Group, Plan, Prediction, ScheduleChoice
from holmes_hpc.values.schedule_kinds import AUTO, SCHEDULE_KINDS

_KINDS = {"tensor": "tp", "pipeline": "pp", "data": "dp", "embedding": "embd"}


def within_megatron(config: Any) -> Any:
    """Return the configuration with what it leaves open limited to what Megatron-LM has.

    That is 1F1B (interleaved where there are chunks) without extra warm-up and turns, and sums of gradients in one
    level. Raises PlanRefusedError where it asks for something else, or for a layer that a plug-in added.
    """
    for key, known in (("normalization", NORMALIZATIONS), ("activation", ACTIVATIONS)):
        if config.model[key] not in known:
            raise PlanRefusedError(f"output=megatron: model.{key}={config.model[key]}: Megatron-LM has no argument "
                                   f"for it. Set it to {' or '.join(known)}.")
    unknown = unknown_to_megatron(config.model)
    if unknown is not None:
        raise PlanRefusedError(f"output=megatron: {unknown}. Use another model, or run it here.")
    limited = config.copy()
    parallel = limited.parallel
    known_schedules = [kind for kind in SCHEDULE_KINDS.values() if kind.in_megatron]
    names = [AUTO, *(kind.name for kind in known_schedules)]
    if parallel.schedule not in names:
        raise PlanRefusedError(f"output=megatron: parallel.schedule={parallel.schedule}: Megatron-LM has no such "
                               f"schedule. Set it to {', '.join(names[:-1])} or {names[-1]}.")
    if parallel.warmup_extra not in ("auto", 0):
        raise PlanRefusedError(f"output=megatron: parallel.warmup_extra={parallel.warmup_extra}: Megatron-LM's warm-up "
                               "has no extra forwards. Set it to auto or 0.")
    for key, what in (("turns", "turns on the slow NIC"), ("two_level", "sums of gradients in two levels like ours")):
        if parallel[key]:
            raise PlanRefusedError(f"output=megatron: parallel.{key}=true: Megatron-LM has no {what}. "
                                   f"Set it to null or false.")
    if parallel.schedule == AUTO:
        in_chunks = (parallel.chunks or 1) > 1
        parallel.schedule = next(kind.name for kind in known_schedules if kind.in_chunks == in_chunks)
    parallel.warmup_extra, parallel.turns, parallel.two_level = 0, False, False
    return limited


def predict_as_run(config: Any, cluster: ClusterDescription, plan: Plan,
                   networks: Mapping[str, Mapping[str, str]]) -> Prediction:
    """Return what is predicted of a plan when Megatron-LM runs it; `networks` is that of `kind_networks`."""
    task, layout = restore(config, plan, "slurm", cluster)
    groups, reductions = find_groups(task.architecture, task.cluster, plan.pipelines, GroupRules(one_network=True),
                                     sharded=plan.synchronization.sharded, in_nodes=task.machine.uses_gloo)

    def network_of(group: Group) -> str:
        fabric = task.cluster.node_of(group.ranks[0]).fabric
        shared = task.cluster.shared_network(group.ranks)
        return shared if shared == "local" else networks[fabric].get(_KINDS.get(group.whole_kind, ""), ETHERNET)

    own = tuple(dataclasses.replace(group, network=network_of(group)) for group in groups)
    choice = ScheduleChoice(plan.schedule.name, chunks=plan.schedule.chunks)
    return predict(task, dataclasses.replace(layout, groups=own, reductions=reductions), choice)
