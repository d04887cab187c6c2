"""A run in few words: its layout, its layers, its workload, and the machine that its numbers are of."""

from __future__ import annotations

from collections import Counter
from typing import Any

Record = dict[str, Any]
HERE = ("emulated", "local")
"""What runs on one machine, whose CPUs stand for GPUs."""


def layout(plan: Record) -> str:
    """Return the degrees of a plan, such as `PP2xDP4` or `TP2xPP4xDP8`; "" without pipelines.

    `PP2xDP6+2`: 6 replicas of the first stage beside 2 of the second. Pipelines that differ are listed with
    the tensor degrees of their stages: `2*PP2[TP4+2] + PP1[TP8]`.
    """
    pipelines = [_distinct_stages(pipeline) for pipeline in plan.get("pipelines") or []]
    if not pipelines:
        return ""
    degrees = {tuple(stage["ranks"]): int(stage.get("tensor", len(stage["ranks"])))
               for pipeline in plan["pipelines"] for stage in pipeline["stages"]}
    shapes = [tuple(degrees[ranks] for ranks in stages) for stages in pipelines]
    if len(set(shapes)) == 1 and len(set(shapes[0])) == 1:
        replicas = [str(len(set(stage))) for stage in zip(*pipelines, strict=True)]
        data = replicas[0] if len(set(replicas)) == 1 else "+".join(replicas)
        tensor = f"TP{shapes[0][0]}x" if shapes[0][0] > 1 else ""
        return f"{tensor}PP{len(shapes[0])}xDP{data}"
    return " + ".join(
        (f"{count}*" if count > 1 else "") + f"PP{len(shape)}[TP{'+'.join(map(str, shape))}]"
        for shape, count in Counter(shapes).items()
    )


def layers(plan: Record) -> str:
    """Return the layers of each stage, such as `2+2`; pipelines that differ are separated by ` | `."""
    splits = [
        "+".join(str(stage["num_layers"]) for stage in pipeline["stages"])
        for pipeline in plan.get("pipelines") or []
    ]
    return " | ".join(dict.fromkeys(splits))


def schedule(plan: Record) -> str:
    """Return the schedule's name, with the extra warm-up forwards where there are any: `1f1b +2`."""
    chosen = plan.get("schedule") or {}
    extra = chosen.get("warmup_extra") or 0
    return str(chosen.get("name", "")) + (f" +{extra}" if extra else "")


def workload(config: Record) -> str:
    """Return the model and its size, such as `gpt_tiny 4x128`: layers times hidden size."""
    model = config.get("model") or {}
    size = (
        f" {model['num_layers']}x{model['hidden_size']}"
        if {"num_layers", "hidden_size"} <= set(model)
        else ""
    )
    return f"{model.get('name', '')}{size}"


def machine(emulated: bool | None, predicted_machine: str | None, compute: str | None, *,
            on_slurm: bool = False) -> str:
    """Return what measured: `emulated`, `wind tunnel` (timed compute), `local`, `real`, or `unknown`.

    `local`: plain processes of one machine without emulated NICs, whose plan was made for the emulation.
    Without a plan only a job of Slurm is known to have run on real nodes.
    """
    if emulated is None:
        return "unknown"
    if emulated:
        return "wind tunnel" if compute == "timed" else "emulated"
    if predicted_machine is None and not on_slurm:
        return "unknown"
    return "local" if predicted_machine in HERE else "real"


def status(config: Record, result: Record) -> str:
    """Return how a run ended, or `running`; `completed, probe` of one that measured links and trained nothing."""
    ended = str(result.get("status") or ("unknown" if result else "running"))
    return f"{ended}, probe" if (config.get("launch") or {}).get("probe_only") else ended


def comparable(measured_on: str, predicted_machine: str | None) -> bool:
    """Tell whether a prediction is for the machine that measured, so that their ratio means something."""
    if predicted_machine in HERE:
        return measured_on in HERE
    return predicted_machine == "described" and measured_on in ("real", "wind tunnel")


def short(text: object, most: int = 48) -> str:
    """Return a name as a picture can hold it: of a long one the beginning and the end, which tells runs apart."""
    words = str(text)
    tail = most // 2
    return words if len(words) <= most else f"{words[:most - tail - 1]}\N{HORIZONTAL ELLIPSIS}{words[-tail:]}"


def _distinct_stages(pipeline: Record) -> tuple[tuple[int, ...], ...]:
    """Return a pipeline's rank tuples, each once: the chunks of an interleaved schedule share theirs."""
    return tuple(dict.fromkeys(tuple(stage["ranks"]) for stage in pipeline["stages"]))
