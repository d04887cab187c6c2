"""Plans of earlier formats are still read, and a plan refuses what it cannot mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holmes_hpc.values import Plan, Stage
from holmes_hpc.values.plan import FORMAT_VERSION

OLD = sorted((Path(__file__).parent / "data" / "plans").glob("format_1_*.json"))


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.stem)
def test_plans_of_format_1_are_read_as_plans_of_this(path: Path) -> None:
    assert json.loads(path.read_text())["format_version"] == 1
    plan = Plan.from_json(path.read_text())
    assert plan.format_version == FORMAT_VERSION > 1
    assert all(stage.tensor == len(stage.ranks) for pipeline in plan.pipelines for stage in pipeline.stages)
    assert Plan.from_json(plan.to_json()) == plan


def test_a_format_that_is_not_known_is_refused() -> None:
    data = json.loads(OLD[0].read_text())
    with pytest.raises(ValueError, match=r"plan of format 99: this version reads the formats 1 and 2"):
        Plan.from_json(json.dumps(data | {"format_version": 99}))


def test_the_ranks_of_a_stage_are_the_product_of_its_degrees() -> None:
    assert Stage((4, 5), 0, 2).tensor == 2
    assert Stage((4, 5), 0, 2, tensor=2) == Stage((4, 5), 0, 2)
    with pytest.raises(ValueError, match=r"a stage of 4 ranks with the tensor-parallel degree 2.*Set tensor to 4"):
        Stage((0, 1, 2, 3), 0, 2, tensor=2)


def test_a_plan_file_with_another_degree_names_the_stage() -> None:
    data = json.loads(OLD[0].read_text())
    data["pipelines"][0]["stages"][1]["tensor"] = 3
    with pytest.raises(ValueError, match=r"plan\.pipelines\[0\]\.stages\[1\]: a stage of 1 ranks"):
        Plan.from_json(json.dumps(data))
