"""What the engine of this version can run, and what to do about the rest.

The planner may plan more than the engine runs; `train` asks here before it starts anything.
"""

from __future__ import annotations

from typing import Any

from holmes_hpc.values.plan import Plan

SCHEDULES = ("auto", "gpipe", "1f1b")


def unsupported(config: Any, plan: Plan | None = None) -> list[str]:
    """Return what the engine cannot run of a composed configuration (and of its plan), each with its remedy.

    An empty list means that all of it runs.
    """
    parallel = config.parallel
    asked = (
        (parallel.schedule not in SCHEDULES, f"parallel.schedule={parallel.schedule}", "auto, gpipe or 1f1b"),
        ((parallel.tensor or 1) > 1, f"parallel.tensor={parallel.tensor}", "1 or null"),
        (parallel.chunks > 1, f"parallel.chunks={parallel.chunks}", "1"),
        (parallel.recompute != "none", f"parallel.recompute={parallel.recompute}", "none"),
        (bool(parallel.sequence_parallel), "parallel.sequence_parallel=true", "false"),
        (bool(parallel.turns), "parallel.turns=true", "false or null"),
        (parallel.cross_fabric_dtype not in (None, "float32"),
         f"parallel.cross_fabric_dtype={parallel.cross_fabric_dtype}", "float32 or null"),
    )
    problems = [_message(what, remedy) for wrong, what, remedy in asked if wrong]
    return problems + ([] if plan is None or problems else _of_plan(plan))


def _of_plan(plan: Plan) -> list[str]:
    """Return what the planner chose of itself and the engine cannot run."""
    widest = max(len(stage.ranks) for pipeline in plan.pipelines for stage in pipeline.stages)
    if widest == 1:
        return []
    return [f"the plan uses tensor parallelism of degree {widest}, because the model does not fit without: the engine "
            "of this version cannot run it. Use more nodes, more pipeline stages or a smaller model."]


def _message(what: str, remedy: str) -> str:
    name = what.partition("=")[0]
    return f"{what}: the engine of this version cannot run it. Set {name} to {remedy}."
