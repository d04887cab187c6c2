"""What the engine of this version can run, and what to do about the rest.

The planner may plan more than the engine runs; `train` asks here before it starts anything.
"""

from __future__ import annotations

from typing import Any

SCHEDULES = ("auto", "gpipe", "1f1b")


def unsupported(config: Any) -> list[str]:
    """Return what the engine cannot run of a composed configuration, each with its remedy.

    An empty list means that all of it runs.
    """
    parallel, train = config.parallel, config.train
    asked = (
        (parallel.schedule not in SCHEDULES, f"parallel.schedule={parallel.schedule}", "auto, gpipe or 1f1b"),
        (parallel.chunks > 1, f"parallel.chunks={parallel.chunks}", "1"),
        (train.precision != "float32", f"train.precision={train.precision}", "float32"),
        (bool(parallel.overlap_grad_reduce), "parallel.overlap_grad_reduce=true", "false or null"),
        (bool(parallel.overlap_param_gather), "parallel.overlap_param_gather=true", "false or null"),
        (bool(parallel.turns), "parallel.turns=true", "false or null"),
        (parallel.cross_fabric_dtype not in (None, "float32"),
         f"parallel.cross_fabric_dtype={parallel.cross_fabric_dtype}", "float32 or null"),
    )
    return [_message(what, remedy) for wrong, what, remedy in asked if wrong]


def _message(what: str, remedy: str) -> str:
    name = what.partition("=")[0]
    return f"{what}: the engine of this version cannot run it. Set {name} to {remedy}."
