"""Putting node names into a plan, once it is known which nodes Slurm gave."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.values import Plan


def bind(plan: Plan, nodes: Mapping[str, str]) -> Plan:
    """Return the plan with the node of every slot filled in. `nodes` maps slots (`ib/0`) to node names.

    Raises PlanRefusedError when a slot has no node, a node is not wanted, or one node is given twice.
    """
    slots = list(dict.fromkeys(place.slot for place in plan.ranks))
    missing = [slot for slot in slots if slot not in nodes]
    extra = sorted(set(nodes) - set(slots))
    if missing or extra:
        problems = [f"no node for {', '.join(missing)}"] * bool(missing)
        problems += [f"no such slot: {', '.join(extra)}"] * bool(extra)
        raise PlanRefusedError(f"the nodes do not fit the plan: {'; '.join(problems)}. The plan has the slots "
                               f"{', '.join(slots)}; change nodes of the cluster's partitions, or plan anew.")
    twice = sorted({name for name in nodes.values() if list(nodes.values()).count(name) > 1})
    if twice:
        raise PlanRefusedError(f"the nodes do not fit the plan: {', '.join(twice)} is given to several slots. "
                               "Give every slot a node of its own.")
    ranks = tuple(dataclasses.replace(place, node=nodes[place.slot]) for place in plan.ranks)
    return dataclasses.replace(plan, ranks=ranks)
