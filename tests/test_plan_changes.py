"""The benchmark that says why plans changed names each cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.plan_changes import changes, summary, table
from benchmarks.plan_digests import planning_here
from holmes_hpc.config.compose import compose
from holmes_hpc.planner import plan
from holmes_hpc.values import Plan

NAME = "+cluster=mixed parallel=holmes parallel.pipeline=2"


@pytest.fixture(scope="module")
def made() -> Plan:
    with planning_here():
        return plan(compose(NAME.split()), "described")


@pytest.fixture(scope="module")
def other() -> Plan:
    """A slower layout of the same job."""
    with planning_here():
        return plan(compose([*NAME.split(), "parallel.layer_split=[3,1]"]), "described")


def priced(made: Plan, factor: float) -> Plan:
    """The plan as if its step had been priced otherwise."""
    step = made.predicted.step_seconds * factor
    return dataclasses.replace(made, predicted=dataclasses.replace(made.predicted, step_seconds=step))


def in_words(made: Plan) -> Plan:
    return dataclasses.replace(made, rejected=())


@pytest.mark.parametrize(("before", "after", "cause"), [
    (lambda made, other: in_words(made), lambda made, other: made, "words"),
    (lambda made, other: priced(made, 1.2), lambda made, other: made, "prices"),
    (lambda made, other: other, lambda made, other: made, "search"),
    (lambda made, other: priced(other, 0.5), lambda made, other: made, "prices"),
    (lambda made, other: made, lambda made, other: other, "slower"),
    (lambda made, other: None, lambda made, other: other, "refusals"),
])
def test_the_cause_of_a_change_is_named(before: Callable[..., Plan | None], after: Callable[..., Plan], cause: str,
                                        made: Plan, other: Plan, tmp_path: Path) -> None:
    for name, chosen in (("before", before(made, other)), ("after", after(made, other))):
        (tmp_path / name).mkdir()
        text = '{"refused": "words"}' if chosen is None else chosen.to_json()
        (tmp_path / name / f"{NAME}.json").write_text(text)
    with planning_here():
        (found,) = changes(tmp_path / "before", tmp_path / "after")
    assert found.cause == cause
    assert (found.gain_percent > 0) == (cause in ("search",) or "3 1" in found.before and cause == "prices")
    assert any(cause in line for line in summary([found]))
    assert any(NAME in line for line in table([found])) == (cause != "words")
