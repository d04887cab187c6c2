"""A layout and its schedule in words, made from facts of it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from holmes_hpc.planner.search.candidate import Candidate
from holmes_hpc.planner.strategies.proposals import (
    AlikePipelines,
    AsWritten,
    Form,
    Repeated,
    SharedStages,
    UnlikePipelines,
)
from holmes_hpc.values import Pipeline, ScheduleChoice
from holmes_hpc.values.schedule_kinds import ONE_F_ONE_B
from holmes_hpc.words import counted


def layout_words(candidate: Candidate) -> str:
    """Return a layout for people: its form, layers, micro-batch, what was changed, and its schedule."""
    return ", ".join(_layout(candidate))


def schedule_words(choice: ScheduleChoice) -> str:
    """Return a schedule for people, as it stands behind a layout: nothing for the usual ones."""
    return ", ".join(_schedule(choice))


def _layout(candidate: Candidate) -> Iterator[str]:
    facts, chosen = candidate.facts, candidate.schedule
    form, placed = facts.form, None
    own = form.form if isinstance(form, Repeated) else form
    if isinstance(own, UnlikePipelines):
        placed = own.stages_together
    yield form_words(form)
    if chosen.chunks > 1:
        yield f"{chosen.chunks} chunks"
    if facts.layers:
        yield f"layers {'+'.join(map(str, facts.layers))}"
    yield f"micro-batch {facts.micro_batch_size}"
    if placed is not None:
        yield "stages fill nodes" if placed else "pipelines fill nodes"
    if facts.recompute != "none":
        yield f"recomputing {facts.recompute}"
    if facts.tuned:
        yield _tuned(candidate.layout.pipelines, candidate.layout.micro_batch_size)
    yield from _schedule(dataclasses.replace(chosen, **_asked(candidate)))


def form_words(form: Form) -> str:
    """Return what the ranks of a layout form: `2 x [ib 2, roce 1 of tensor 2: layers 3+3+2]`."""
    if isinstance(form, Repeated):
        return f"{form.parts} parts of {form_words(form.form)}"
    if isinstance(form, UnlikePipelines):
        return " and ".join(map(_alike, form.forms))
    if isinstance(form, SharedStages):
        stages = (f"{kind} {width} wide, {counted(layers, 'layer')}{_of_tensor(tensor)}"
                  for kind, tensor, width, layers in form.stages)
        return f"stages shared by all pipelines [{', '.join(stages)}]"
    if isinstance(form, AsWritten):
        return f"{counted(form.pipelines, 'pipeline')} as written"
    return form


def _alike(form: AlikePipelines) -> str:
    stages = ", ".join(f"{kind} {count}{_of_tensor(tensor)}" for kind, tensor, count in form.stages)
    layers = "+".join(f"{layer}" if n == 1 else f"{n}x{layer}" for layer, n in
                      ((layer, len(list(group))) for layer, group in itertools.groupby(form.layers)))
    return f"{form.copies} x [{stages}: layers {layers}]"


def _of_tensor(degree: int) -> str:
    return f" of tensor {degree}" if degree > 1 else ""


def _tuned(pipelines: Sequence[Pipeline], size: int) -> str:
    cuts = dict.fromkeys("+".join(str(stage.num_layers) for stage in pipeline.stages) for pipeline in pipelines)
    counts = "+".join(str(count) for count in dict.fromkeys(pipeline.microbatches for pipeline in pipelines))
    return f"tuned to layers {', '.join(cuts)}, micro-batch {size} x {counts}"


def _asked(candidate: Candidate) -> dict[str, Any]:
    """Return what of the schedule was asked for, each as the usual one: a layout's words say what the search chose."""
    settings, asked = candidate.task.settings, dict[str, Any]()
    if settings.schedule is not None:
        asked["name"] = ONE_F_ONE_B.name
    if settings.warmup_extra is not None:
        asked["warmup_extra"] = 0
    if settings.turns is not None:
        asked["turns"] = False
    return asked


def _schedule(choice: ScheduleChoice) -> Iterator[str]:
    if choice.kind.words:
        yield choice.kind.words
    if choice.warmup_extra:
        yield f"warm-up +{choice.warmup_extra}"
    if choice.turns:
        yield "turns"
