"""What torch imports in the midst of a first step: in a process that forks ranks, better before."""

from __future__ import annotations

import importlib
from contextlib import suppress

from holmes_hpc.values import Plan

_OF_PIPELINES = "torch.fx.experimental.symbolic_shapes"
"""With sympy half a CPU second: in a backward that is given a gradient, as all stages but the last are."""
_OF_RECOMPUTATION = "torch._dynamo"
"""More than a CPU second: in the first forward that is to be computed again."""


def import_late_modules(plan: Plan) -> None:
    """Import what the plan's ranks will, so that forked ranks have it; a release of torch without it needs none."""
    names = []
    if any(len(pipeline.stages) > 1 for pipeline in plan.pipelines):
        names.append(_OF_PIPELINES)
    if plan.recompute != "none":
        names.append(_OF_RECOMPUTATION)
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)
