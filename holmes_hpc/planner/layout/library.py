"""The communication library of a plan: one that does not know nodes is told by the plan how groups go inside them."""

from __future__ import annotations

import dataclasses

from holmes_hpc.schedule import plan_digest
from holmes_hpc.values import Plan
from holmes_hpc.values.levels import for_nodes


def for_library(plan: Plan, *, knows_nodes: bool) -> Plan:
    """Return the plan with the levels that a library needs, and the digest of its schedule, which names them.

    The planner knows the library of the machine that it prices. A run may use another one: a GPU cluster's plan that
    is tried in emulation sums by gloo. Its prediction stays that of the machine it is for.
    """
    slots = {place.rank: place.slot for place in plan.ranks}
    groups, reductions = for_nodes(plan.groups, plan.reductions, None if knows_nodes else slots.__getitem__)
    if (groups, reductions) == (plan.groups, plan.reductions):
        return plan
    changed = dataclasses.replace(plan, groups=groups, reductions=reductions)
    digest = plan_digest(changed)
    return dataclasses.replace(changed, schedule=dataclasses.replace(plan.schedule, digest=digest))
