"""Words of layouts are made from facts of them, at the end: the search reads, edits and keys by none."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.planner.layout.groups import GroupRules
from holmes_hpc.planner.search.candidate import Candidate, Shortage, evaluate_layout
from holmes_hpc.planner.strategies.proposals import (
    AlikePipelines,
    AsWritten,
    Form,
    LayoutFacts,
    SharedStages,
    UnlikePipelines,
)
from holmes_hpc.planner.task import task_of
from holmes_hpc.planner.telling.layouts import form_words, layout_words, schedule_words
from holmes_hpc.planner.telling.memory import memory_cause, memory_words
from holmes_hpc.values import Pipeline, ScheduleChoice, Stage
from tests.runs_for_tests import ROOT


@pytest.mark.parametrize(("form", "words"), [
    ("ib 1 stage x data 4", "ib 1 stage x data 4"),
    (UnlikePipelines((AlikePipelines(2, (("ib", 1, 2), ("roce", 2, 1)), (3, 3, 2)),
                      AlikePipelines(1, (("roce", 1, 1),), (8,)))),
     "2 x [ib 2, roce 1 of tensor 2: layers 2x3+2] and 1 x [roce 1: layers 8]"),
    (SharedStages((("ib", 1, 4, 1), ("roce", 2, 2, 3))),
     "stages shared by all pipelines [ib 4 wide, 1 layer, roce 2 wide, 3 layers of tensor 2]"),
    (AsWritten(3), "3 pipelines as written"),
])
def test_forms(form: Form, words: str) -> None:
    assert form_words(form) == words


@pytest.mark.parametrize(("choice", "words"), [
    (ScheduleChoice("1f1b"), ""), (ScheduleChoice("interleaved", chunks=2), ""),
    (ScheduleChoice("zero_bubble", 2, turns=True), "zero bubble, warm-up +2, turns"),
    (ScheduleChoice("gpipe"), "gpipe"),
])
def test_schedules(choice: ScheduleChoice, words: str) -> None:
    assert schedule_words(choice) == words


def evaluated(*overrides: str) -> Candidate:
    """Return a layout of four pipelines of two stages, one rank each, on the shipped cluster."""
    task = task_of(compose(["+cluster=mixed", "model.tied_embeddings=false", *overrides]), "slurm")
    pipelines = tuple(Pipeline(2, (Stage((p,), 0, 2), Stage((p + 4,), 2, 2))) for p in range(4))
    return evaluate_layout(task, LayoutFacts("holmes", "ib then roce", 4, (2, 2)), pipelines, 4, GroupRules())


def test_words_follow_the_facts() -> None:
    found = evaluated()
    assert layout_words(found) == "ib then roce, layers 2+2, micro-batch 4"
    recomputed = dataclasses.replace(found, facts=dataclasses.replace(found.facts, recompute="full"))
    assert layout_words(recomputed) == "ib then roce, layers 2+2, micro-batch 4, recomputing full"
    pipelines = tuple(Pipeline(count, (Stage((p,), 0, 3), Stage((p + 4,), 3, 1)))
                      for p, count in enumerate((5, 5, 3, 3)))
    tuned = dataclasses.replace(found, facts=dataclasses.replace(found.facts, tuned=True, recompute="full"),
                                layout=dataclasses.replace(found.layout, pipelines=pipelines, micro_batch_size=2),
                                schedule=ScheduleChoice("zero_bubble", 1))
    assert layout_words(tuned) == ("ib then roce, layers 2+2, micro-batch 4, recomputing full, "
                                   "tuned to layers 3+1, micro-batch 2 x 5+3, zero bubble, warm-up +1")
    chunks = dataclasses.replace(found, schedule=ScheduleChoice("interleaved", chunks=2),
                                 facts=dataclasses.replace(found.facts, layers=(1, 1, 1, 1)))
    assert layout_words(chunks) == "ib then roce, 2 chunks, layers 1+1+1+1, micro-batch 4"
    form = UnlikePipelines((AlikePipelines(4, (("ib", 1, 1), ("roce", 1, 1)), (2, 2)),), stages_together=False)
    placed = dataclasses.replace(found, facts=LayoutFacts("unlike", form, 4))
    assert layout_words(placed) == "4 x [ib 1, roce 1: layers 2x2], micro-batch 4, pipelines fill nodes"


def test_what_was_asked_for_is_not_told() -> None:
    found = dataclasses.replace(evaluated("parallel.schedule=zero_bubble", "parallel.turns=true"),
                                schedule=ScheduleChoice("zero_bubble", 2, turns=True))
    assert layout_words(found).endswith("micro-batch 4, warm-up +2")
    found = dataclasses.replace(evaluated("parallel.warmup_extra=2"), schedule=ScheduleChoice("1f1b", 2, turns=True))
    assert layout_words(found).endswith("micro-batch 4, turns")


def test_a_shortage_of_memory_names_the_rank_the_layout_and_remedies() -> None:
    found = dataclasses.replace(evaluated(), shortage=Shortage(5, 100.0))
    assert found.fits is False and memory_cause(evaluated()) == ""
    cause = memory_cause(found)
    assert cause.startswith("memory: rank 5 (roce/0, a100-80g) needs 100.0 GiB as stage 1 of 2, and has 7")
    remedy = "Set parallel.micro_batch_size below 4"
    assert memory_words(found).startswith(f"{cause}. Layout: {layout_words(found)}. {remedy}")


def editing(path: Path) -> list[str]:
    """Return what of a module takes texts apart or looks into them."""
    tree = ast.parse(path.read_text())
    calls = [node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call)
             and isinstance(node.func, ast.Attribute)]
    modules = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return [word for word in (*calls, *modules)
            if word in ("re", "partition", "rpartition", "removesuffix", "removeprefix", "startswith", "endswith")]


@pytest.mark.parametrize("room", ["search", "strategies"])
def test_nobody_below_takes_words_apart(room: str) -> None:
    found = {str(path): editing(path) for path in sorted((ROOT / "holmes_hpc" / "planner" / room).rglob("*.py"))}
    assert len(found) > 5 and not any(found.values()), {path: words for path, words in found.items() if words}
    assert editing(ROOT / "holmes_hpc" / "planner" / "telling" / "decision.py") == ["removeprefix"]
