"""A refusal names the cause that is one, settings that are set, and remedies that can help; one cause a line."""

from __future__ import annotations

import re

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner import plan

MIXED = "+cluster=mixed"
ONE_LAYER = ["train.global_batch_size=7", "model.num_layers=1", "model.hidden_size=8", "model.num_heads=1"]


def refused(*overrides: str) -> str:
    with pytest.raises(PlanRefusedError) as caught:
        cluster = [] if overrides[0].startswith("+cluster=") else [MIXED]
        plan(compose([*cluster, *overrides]), mode="slurm")
    assert caught.value.exit_status == 2
    assert "None" not in str(caught.value), "a setting that is not set has no value to print"
    return str(caught.value)


def test_a_batch_too_small_for_the_pipelines_is_no_matter_of_memory() -> None:
    words = refused(*ONE_LAYER)
    assert "memory" not in words and "larger parallel.pipeline" not in words, "one layer is one stage"
    head, *causes = words.splitlines()
    assert head == "no strategy has a plan:"
    assert [cause.split(":")[0].strip() for cause in causes] == ["holmes", "megatron", "flashflex, unlike"]
    assert "Raise model.num_layers to at least 2" in causes[0] and causes[0].count("holmes") == 1
    assert "7 micro-batches for 8 pipelines" in causes[1] and "to a multiple of 8" in causes[1]
    assert "at least 8 pipelines" in causes[2] and "train.global_batch_size to at least 8" in causes[2]
    assert plan(compose([MIXED, *ONE_LAYER, "train.global_batch_size=8"]), mode="slurm").global_batch_size == 8


@pytest.mark.parametrize("overrides", [
    ("parallel=flashflex", *ONE_LAYER),
    ("parallel=megatron", *ONE_LAYER),
    ("parallel=holmes", *ONE_LAYER),
])
def test_one_strategy_gives_its_cause_alone(overrides: tuple[str, ...]) -> None:
    words = refused(*overrides)
    assert "\n" not in words and "memory" not in words


@pytest.mark.parametrize("strategy", ["holmes", "megatron", "flashflex", "auto"])
def test_a_batch_of_one_is_planned_where_wider_stages_leave_one_pipeline(strategy: str) -> None:
    found = plan(compose([MIXED, f"parallel={strategy}", "train.global_batch_size=1"]), mode="slurm")
    assert len(found.pipelines) == 1


@pytest.mark.parametrize(("strategy", "least"), [("holmes", "at least 2"), ("megatron", "a multiple of 2")])
def test_the_least_batch_is_told_that_any_layout_needs(strategy: str, least: str) -> None:
    words = refused("+cluster=holmes_paper", f"parallel={strategy}", "train.global_batch_size=1")
    assert f"Set train.global_batch_size to {least}" in words
    number = least.split()[-1]
    plan(compose(["+cluster=holmes_paper", f"parallel={strategy}", f"train.global_batch_size={number}"]), mode="slurm")


@pytest.mark.parametrize(("overrides", "remedy", "useless"), [
    (["parallel=auto", "parallel.data=8", "model=gpt_145_6b"], "parallel.data to at most 7", "smaller model"),
    (["parallel=flashflex", "parallel.pipeline=1", "model.num_heads=1", "model.hidden_size=8"],
     "parallel.pipeline above 1", "raise model.num_layers"),
    (["parallel=megatron", "parallel.data=8", "model.num_layers=1"], "lower parallel.data", "raise model.num_layers"),
])
def test_remedies_are_of_settings_that_stand_in_the_way(overrides: list[str], remedy: str, useless: str) -> None:
    words = refused("train.global_batch_size=7", *overrides)
    assert remedy in words and useless not in words


def test_memory_is_named_where_it_is_the_cause_with_what_was_asked() -> None:
    words = refused("parallel=flashflex", "model=gpt_145_6b", "parallel.tensor=2")
    assert words.startswith("memory: ") and "with parallel.tensor=2." in words
    assert "smaller parallel.micro_batch_size" not in words, "of one sample it cannot be smaller"


@pytest.mark.parametrize(("overrides", "remedies"), [
    (["parallel.pipeline=4", "parallel.chunks=2", "parallel.schedule=interleaved"], ". Take more nodes"),
    (["model=gpt_39_1b", "model.num_layers=36", "parallel.pipeline=4", "parallel.chunks=2",
      "parallel.schedule=interleaved", "parallel.tensor=1"],
     ". Set parallel.pipeline above 4 or parallel.tensor above 1; or take more nodes"),
    (["parallel.pipeline=4", "parallel.tensor=2"], ". Take more nodes or a smaller model."),
    (["parallel.pipeline=4", "parallel.tensor=2", "train.precision=bfloat16"], ". Take more nodes or a smaller model."),
])
def test_remedies_against_memory_are_within_the_cluster(overrides: list[str], remedies: str) -> None:
    model = [] if overrides[0].startswith("model=") else ["model=gpt_145_6b"]
    assert remedies in refused("parallel=megatron", *model, "parallel.recompute=full", *overrides)


@pytest.mark.parametrize("strategy", ["megatron", "holmes"])
@pytest.mark.parametrize(("model", "degrees"), [
    ("gpt_39_1b", {"pipeline": 8, "tensor": 1}), ("gpt_39_1b", {"tensor": 1}), ("gpt_39_1b", {"pipeline": 2}),
    ("gpt_18_4b", {"pipeline": 2, "tensor": 1}),
])
def test_remedies_against_memory_lead_to_a_plan_or_to_their_end(strategy: str, model: str,
                                                                degrees: dict[str, int]) -> None:
    """What a message tells to raise is raised, until there is a plan or nothing more is told to be raised."""
    degrees = dict(degrees)
    for _ in range(4):
        overrides = [f"parallel.{name}={degree}" for name, degree in degrees.items()]
        try:
            plan(compose([MIXED, f"parallel={strategy}", f"model={model}", *overrides]), mode="slurm")
            return
        except PlanRefusedError as error:
            words = str(error)
        assert words.startswith("memory: "), words
        told = re.findall(r"parallel\.(pipeline|tensor) (?:above|higher)", words)
        if not told:
            assert "ake more nodes" in words
            return
        degrees[told[0]] *= 2
    raise AssertionError(f"still told to raise something: {words}")


def test_degrees_that_fill_no_nodes_are_named_and_unset_ones_are_not() -> None:
    words = refused("parallel=flashflex", "parallel.pipeline=3", "parallel.data=1")
    assert "parallel.pipeline=3, parallel.data=1" in words and "parallel.tensor" not in words
    assert "memory" not in words


@pytest.mark.parametrize("strategy", ["auto", "holmes"])
def test_what_no_price_knows_is_not_planned(strategy: str) -> None:
    words = refused(f"parallel={strategy}", "parallel.cross_fabric_dtype=bfloat16")
    assert words == ("parallel.cross_fabric_dtype=bfloat16: this version neither prices nor runs it. "
                     "Set parallel.cross_fabric_dtype to float32 or null.")
    plan(compose([MIXED, "parallel=megatron", "parallel.cross_fabric_dtype=float32"]))
