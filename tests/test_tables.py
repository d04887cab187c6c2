"""Schedules and strategies are values in a table each: nobody knows one by its name, and what is added works."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from holmes_hpc import registry
from holmes_hpc.config.compose import compose
from holmes_hpc.config.help import help_text
from holmes_hpc.errors import ConfigurationError, PlanRefusedError
from holmes_hpc.planner import plan
from holmes_hpc.planner.search.catalogue import compared_strategies
from holmes_hpc.planner.simulation.long_steps import shortened
from holmes_hpc.planner.telling.compare import Compared, compare
from holmes_hpc.resources import folder
from holmes_hpc.schedule.building import make_schedule
from holmes_hpc.schedule.kinds import ORDERS
from holmes_hpc.values import ActionKind, Pipeline, Plan, ScheduleChoice, Stage
from holmes_hpc.values.capabilities import ENGINE
from holmes_hpc.values.schedule_kinds import GPIPE, SCHEDULE_KINDS, ScheduleKind, compared_schedules, schedule_kind
from holmes_hpc.values.strategy_kinds import AUTO, STRATEGY_KINDS, Proposes, strategy_kind
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


ARGUMENTS = {Proposes.SHAPES: ["task", "tensor"], Proposes.PROPOSALS: ["task"], Proposes.PIPELINES: ["task"]}


@pytest.mark.parametrize("kind", STRATEGY_KINDS.values(), ids=str)
def test_every_strategy_has_its_function_help_and_group(kind) -> None:  # type: ignore[no-untyped-def]
    module = importlib.import_module(f"holmes_hpc.planner.strategies.{kind.name}")
    required = [name for name, parameter in inspect.signature(getattr(module, kind.proposes)).parameters.items()
                if parameter.default is inspect.Parameter.empty]
    assert required == ARGUMENTS[kind.proposes]
    assert f"{kind.name:<12} {kind.help}" in help_text("plan", "", folder("conf"))
    assert (folder("conf") / "parallel" / f"{kind.name}.yaml").is_file()
    for name in (kind.name, AUTO):
        with pytest.raises(ConfigurationError, match="is built in"):
            registry.STRATEGIES.add(name, None)


@pytest.mark.parametrize("kind", [kind for kind in STRATEGY_KINDS.values() if not kind.is_written], ids=str)
def test_defaults_of_a_strategy_are_those_of_its_group(kind) -> None:  # type: ignore[no-untyped-def]
    written = compose(["+cluster=mixed", f"parallel={kind.name}"]).parallel
    usual = compose(["+cluster=mixed"]).parallel
    changed = {key: value for key, value in written.items() if value != usual[key] and key != "strategy"}
    assert changed == {key: getattr(value, "name", value) for key, value in kind.defaults}


def comparisons(path: Path) -> Iterator[tuple[str, set[str]]]:
    """Yield every comparison of a module, as text, with the whole texts in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            yield ast.unparse(node), {each.value for each in ast.walk(node)
                                      if isinstance(each, ast.Constant) and isinstance(each.value, str)}


OTHER_WORDS = ("output", "split", "asked")
"""What is compared with `megatron`, a form of output, and with `holmes`, a layer split."""


def test_no_strategy_is_known_by_its_name() -> None:
    found = [f"{path.relative_to(ROOT)}: {text}" for path in sorted(PACKAGE.rglob("*.py"))
             for text, words in comparisons(path)
             if words & STRATEGY_KINDS.keys() and not any(word in text for word in OTHER_WORDS)
             or AUTO in words and "strategy" in text]
    assert not found


def test_the_test_sees_a_comparison(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text('a = plan.strategy == "megatron" or b in ("holmes", "auto")')
    assert [words for _, words in comparisons(path)] == [{"megatron"}, {"holmes", "auto"}]


def test_auto_compares_all_that_search() -> None:
    assert compared_strategies() == ("holmes", "megatron", "flashflex", "unlike")
    added = strategy_kind("a_plug_in")
    assert (added.proposes, added.overlaps, added.changed, added.one_network) == (Proposes.SHAPES, True, False, False)


def test_the_search_for_unlike_pipelines_has_a_name_of_its_own() -> None:
    alone = plan(compose(["+cluster=mixed_gpus", "parallel=unlike"]), "slurm")
    assert alone.strategy == "unlike"
    together = plan(compose(["+cluster=mixed_gpus"]), "slurm")
    named = {together.strategy, *(each.strategy for each in together.rejected)}
    assert "unlike" in named and AUTO not in named
    assert together.predicted.step_seconds <= alone.predicted.step_seconds
    with pytest.raises(PlanRefusedError, match="unlike: it cuts layers by speed and memory itself"):
        plan(compose(["+cluster=mixed_gpus", "parallel=unlike", "parallel.layer_split=uniform"]), "slurm")


def test_plans_of_older_versions_are_read_under_the_present_name() -> None:
    made = plan(compose(["+cluster=mixed_gpus", "parallel=unlike"]), "slurm")
    old = json.loads(made.to_json())
    old["strategy"] = AUTO
    old["rejected"] = [{"strategy": name, "layout": "", "reason": "as it was"} for name in (AUTO, "holmes")]
    read = Plan.from_json(json.dumps(old))
    assert read.strategy == "unlike" and [each.strategy for each in read.rejected] == ["unlike", "holmes"]
    rows = compare(Compared("old", read), Compared("new", made))
    assert not [row.label for row in rows if row.differs]
