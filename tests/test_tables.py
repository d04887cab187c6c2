"""Schedules are values in one table: nobody knows one by its name, and what is added there works everywhere."""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from holmes_hpc.config.help import help_text
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.simulation.long_steps import shortened
from holmes_hpc.resources import folder
from holmes_hpc.schedule.building import make_schedule
from holmes_hpc.schedule.kinds import ORDERS
from holmes_hpc.values import ActionKind, Pipeline, ScheduleChoice, Stage
from holmes_hpc.values.capabilities import ENGINE
from holmes_hpc.values.schedule_kinds import GPIPE, SCHEDULE_KINDS, ScheduleKind, compared_schedules, schedule_kind
from tests.runs_for_tests import ROOT

PACKAGE = ROOT / "holmes_hpc"
PIPELINES = (Pipeline(64, (Stage((0,), 0, 2), Stage((1,), 2, 2))),)


def constants(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every whole text of a module's code, with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_no_schedule_is_named_outside_the_table() -> None:
    table = PACKAGE / "values" / "schedule_kinds.py"
    assert {text for _, text in constants(table)} >= SCHEDULE_KINDS.keys(), "the test sees none of the names"
    named = [f"{path.relative_to(ROOT)}:{line} names {text}" for path in sorted(PACKAGE.rglob("*.py")) if path != table
             for line, text in constants(path) if text in SCHEDULE_KINDS]
    assert not named


def test_every_schedule_has_an_order_and_help() -> None:
    assert list(ORDERS) == list(SCHEDULE_KINDS.values())
    assert set(ENGINE.schedules) == SCHEDULE_KINDS.keys()
    text = help_text("plan", "", folder("conf"))
    for kind in SCHEDULE_KINDS.values():
        assert f"{kind.name:<12} {kind.help}" in text


@pytest.mark.parametrize("in_chunks", [False, True])
def test_auto_compares_schedules_of_the_asked_chunks(in_chunks: bool) -> None:
    compared = compared_schedules(in_chunks=in_chunks)
    assert compared and all(kind.in_chunks == in_chunks and kind.compared for kind in compared)


def test_an_unknown_schedule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PlanRefusedError, match=r"parallel\.schedule=spiral: .* auto, gpipe, 1f1b, interleaved or z"):
        schedule_kind("spiral")
    with pytest.raises(PlanRefusedError, match="spiral"):
        make_schedule(PIPELINES, (), (), ScheduleChoice("spiral"))


@pytest.mark.parametrize(("splits", "keeps", "warms_up"), list(itertools.product([False, True], repeat=3)))
def test_a_new_schedule_is_a_row_and_an_order(monkeypatch: pytest.MonkeyPatch, splits: bool, keeps: bool,
                                              warms_up: bool) -> None:
    kind = ScheduleKind("spiral", "as 1f1b", splits=splits, keeps=keeps, warms_up=warms_up)
    seen: list[Mapping[tuple[int, int], int]] = []

    def orders(pipelines, warmups, choice):  # type: ignore[no-untyped-def]
        seen.append(warmups)
        return ORDERS[schedule_kind("zero_bubble" if splits else "gpipe")](pipelines, {}, choice)

    monkeypatch.setitem(SCHEDULE_KINDS, kind.name, kind)  # type: ignore[arg-type]
    monkeypatch.setitem(ORDERS, kind, orders)  # type: ignore[arg-type]
    choice = ScheduleChoice("spiral", hop_warmups=((3,),))
    done = {action.kind for action in make_schedule(PIPELINES, (), (), choice).actions[0]}
    assert (ActionKind.BACKWARD_WEIGHT in done) == (ActionKind.BACKWARD_INPUT in done) == splits
    assert (ActionKind.BACKWARD in done) == (not splits)
    assert seen == [{(0, 0): 3}] if warms_up else seen == [{}]
    long = (dataclasses.replace(PIPELINES[0], microbatches=512),)
    assert (shortened(long, choice) is None) == keeps
    assert kind.is_capped != keeps


def test_chunks_are_refused_by_schedules_without_them() -> None:
    with pytest.raises(PlanRefusedError, match=r"chunks=2 with parallel\.schedule=gpipe: only the schedule inter"):
        make_schedule(PIPELINES, (), (), ScheduleChoice(GPIPE.name, chunks=2))
