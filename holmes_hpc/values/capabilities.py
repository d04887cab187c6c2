"""What the engine of this version can run, and what to do about the rest.

The planner may plan more than the engine runs; `train` asks here before it starts anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holmes_hpc.values.plan import Plan
from holmes_hpc.values.schedule_kinds import AUTO, SCHEDULE_KINDS


@dataclass(frozen=True)
class Abilities:
    """What an engine can run: the one table that the search, `train` and `plan` ask.

    `tensor` and `unlike_tensor` are tensor parallelism, and pipelines of which stages have unlike degrees. A level of a
    reduction is done at least every `longest_interval` steps. `norm_over_parts` is the norm of gradients over a part of
    the ranks.
    """

    schedules: tuple[str, ...]
    chunks: bool
    tensor: bool
    unlike_tensor: bool
    sequence_parallel: bool
    recompute: tuple[str, ...]
    precisions: tuple[str, ...]
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    turns: bool
    cross_fabric_dtypes: tuple[str, ...]
    longest_interval: int
    norm_over_parts: bool


ENGINE = Abilities(
    schedules=tuple(SCHEDULE_KINDS), chunks=True, tensor=True, unlike_tensor=True,
    sequence_parallel=True, recompute=("none", "selective", "full"), precisions=("float32", "bfloat16", "float16"),
    overlap_grad_reduce=True, overlap_param_gather=True, turns=True, cross_fabric_dtypes=("float32",),
    longest_interval=1, norm_over_parts=False,
)
"""The engine of this version."""


def unsupported(config: Any, plan: Plan | None = None, abilities: Abilities = ENGINE) -> list[str]:
    """Return what the engine cannot run of a composed configuration (and of its plan), each with its remedy.

    An empty list means that all of it runs.
    """
    parallel, train, can = config.parallel, config.train, abilities
    asked = (
        (parallel.schedule not in (AUTO, *can.schedules), f"parallel.schedule={parallel.schedule}",
         f"auto, {_either(can.schedules)}"),
        ((parallel.tensor or 1) > 1 and not can.tensor, f"parallel.tensor={parallel.tensor}", "1 or null"),
        ((parallel.chunks or 1) > 1 and not can.chunks, f"parallel.chunks={parallel.chunks}", "1"),
        (train.precision not in can.precisions, f"train.precision={train.precision}", _either(can.precisions)),
        (parallel.recompute not in ("auto", *can.recompute), f"parallel.recompute={parallel.recompute}",
         _either(can.recompute)),
        (bool(parallel.sequence_parallel) and not can.sequence_parallel, "parallel.sequence_parallel=true", "false"),
        (bool(parallel.overlap_grad_reduce) and not can.overlap_grad_reduce, "parallel.overlap_grad_reduce=true",
         "false or null"),
        (bool(parallel.overlap_param_gather) and not can.overlap_param_gather, "parallel.overlap_param_gather=true",
         "false or null"),
        (bool(parallel.turns) and not can.turns, "parallel.turns=true", "false or null"),
        (parallel.cross_fabric_dtype not in (None, *can.cross_fabric_dtypes),
         f"parallel.cross_fabric_dtype={parallel.cross_fabric_dtype}", f"{_either(can.cross_fabric_dtypes)} or null"),
    )
    problems = [_message(what, remedy) for wrong, what, remedy in asked if wrong]
    if problems or plan is None:
        return problems
    return [*(f"the plan uses {what}: the engine of this version cannot run it. Use more nodes, more pipeline stages "
              "or a smaller model." for what in unable([[stage.tensor for stage in pipeline.stages]
                                                        for pipeline in plan.pipelines],
                                                       plan.schedule.name, plan.recompute, abilities)),
            *unable_to_sum(plan, abilities), *(unable_to_compile(plan) if train.compile else ())]


def unable_to_compile(plan: Plan) -> list[str]:
    """Return what of a plan stands against compiled layers (`train.compile`), each with its remedy."""
    against = (
        (SCHEDULE_KINDS[plan.schedule.name].splits, f"the schedule {plan.schedule.name} takes the gradients of "
         "weights out of the layers", "parallel.schedule=1f1b"),
        (any(stage.tensor > 1 for pipeline in plan.pipelines for stage in pipeline.stages),
         "tensor-parallel ranks exchange numbers in the midst of layers", "parallel.tensor=1"),
        (plan.recompute == "selective", "selective recomputation splits the layers", "parallel.recompute=none or full"),
    )
    return [f"train.compile=true: {what}, so they cannot be compiled whole. Set {remedy}, or train.compile=false."
            for wrong, what, remedy in against if wrong]


def unable_to_sum(plan: Plan, abilities: Abilities = ENGINE) -> list[str]:
    """Return what the engine cannot run of how a plan sums gradients, each with its remedy.

    That is in groups and reductions of the plan alone: this version's planner makes none of it.
    """
    problems = []
    wires = dict.fromkeys(group.wire for group in plan.groups if group.wire not in abilities.cross_fabric_dtypes)
    for wire in wires:
        kinds = dict.fromkeys(group.kind for group in plan.groups if group.wire == wire)
        problems.append(f"the plan sends gradients as {wire} in its {' and '.join(kinds)} groups (groups[].wire): the "
                        "engine of this version cannot. Set parallel.cross_fabric_dtype to "
                        f"{_either(abilities.cross_fabric_dtypes)} or null and plan anew.")
    longest = max((level.every for each in plan.reductions for level in (*each.levels, *each.gathers)), default=1)
    if longest > abilities.longest_interval:
        problems.append(f"the plan does a level of its reductions in every {longest}th step only "
                        "(reductions[].levels[].every): the engine of this version does all of them at least every "
                        f"{abilities.longest_interval}. Plan anew with this version.")
    if plan.synchronization.norm_group and not abilities.norm_over_parts:
        group = plan.groups[plan.synchronization.norm_group]
        problems.append(f"the plan takes the norm of the gradients over the {group.kind} group of "
                        f"{len(group.ranks)} ranks (synchronization.norm_group): the engine of this version takes it "
                        "over all ranks. Plan anew with this version.")
    return problems


def unable(degrees: list[list[int]], schedule: str, recompute: str, abilities: Abilities = ENGINE) -> list[str]:
    """Return what the engine cannot run of what a planner chooses, in words; an empty list when it runs all of it.

    `degrees` are the tensor-parallel degrees of every stage of every pipeline.
    """
    widest = max(degree for stages in degrees for degree in stages)
    unlike = len({degree for stages in degrees for degree in stages}) > 1
    missing = []
    if widest > 1 and not abilities.tensor:
        missing.append(f"tensor parallelism of degree {widest}")
    if unlike and abilities.tensor and not abilities.unlike_tensor:
        missing.append("unlike tensor-parallel degrees")
    if schedule not in abilities.schedules:
        missing.append(f"the schedule {schedule}")
    if recompute not in abilities.recompute:
        missing.append(f"recomputation {recompute}")
    return missing


def _either(words: tuple[str, ...]) -> str:
    return " or ".join(words)


def _message(what: str, remedy: str) -> str:
    name = what.partition("=")[0]
    return f"{what}: the engine of this version cannot run it. Set {name} to {remedy}."
