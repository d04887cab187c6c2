"""Error bands of predictions, and which of level layouts is chosen."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from holmes_hpc.cluster import read_cluster
from holmes_hpc.cluster.calibrated import CalibratedGpu
from holmes_hpc.config.compose import compose
from holmes_hpc.planner import plan, render
from holmes_hpc.planner.error_band import LAYOUT_PERCENT, error_band
from holmes_hpc.planner.search.plainest import plainest
from holmes_hpc.planner.telling.compare import Compared, cautions, compare
from holmes_hpc.values import Pipeline, Plan, Stage


def test_the_least_known_gpu_decides() -> None:
    assert (error_band(["h100"], "bfloat16").percent, error_band(["h100"], "bfloat16").basis) == (5, "fitted")
    assert error_band(["h100", "a100-80g"], "bfloat16").percent == 9
    assert error_band(["h100", "l40s"], "bfloat16").basis == "prior"
    assert error_band(["cpu"], "float32").basis == "prior"


def test_measurements_narrow_the_band() -> None:
    found = [CalibratedGpu("l40s", "bfloat16", 1.1, 1.0, 1.21, 50)]
    band = error_band(["l40s"], "bfloat16", found)
    assert (band.percent, band.basis) == (10, "calibrated")
    assert error_band(["l40s"], "float16", found).basis == "prior"
    assert error_band(["l40s"], "bfloat16", found, ["l40s"]).basis == "profiled"
    assert LAYOUT_PERCENT["profiled"] < LAYOUT_PERCENT["fitted"] <= LAYOUT_PERCENT["prior"]


def layout(seconds: float, *pipelines: tuple[int, ...], groups: int = 3, first: int = 0, missing: tuple[str, ...] = (),
           world: int = 8, basis: str = "fitted") -> SimpleNamespace:
    """Return a priced layout with so many layers by stage; ranks are counted on from `first` in every pipeline."""
    made, rank = [], first
    for layers in pipelines:
        stages = []
        for count in layers:
            stages.append(Stage((rank,), 0, count))
            rank += 1
        made.append(Pipeline(4, tuple(stages)))
    task = SimpleNamespace(error_band=error_band(["h100" if basis == "fitted" else "l40s"], "bfloat16",
                                                 profiled=["h100"] if basis == "profiled" else []),
                           cluster=SimpleNamespace(world_size=world))
    if basis == "profiled":
        task.error_band = error_band(["h100"], "bfloat16", profiled=["h100"])
    return SimpleNamespace(seconds=seconds, layout=SimpleNamespace(pipelines=tuple(made), groups=(None,) * groups),
                           task=task, missing=missing)


def shared(seconds: float, **further) -> SimpleNamespace:
    """Return a layout of two pipelines that run on the same ranks."""
    found = layout(seconds, (4, 4), **further)
    found.layout.pipelines = found.layout.pipelines * 2
    return found


ALIKE, UNLIKE = ((4, 4), (4, 4)), ((5, 3), (8,))


@pytest.mark.parametrize(("others", "chosen"), [
    ([layout(1.035, *ALIKE)], 1.035),               # unlike pipelines are 3.5 % faster, of an error of 4 %
    ([layout(1.05, *ALIKE)], 1.0),                  # 5 % is more than the error
    ([layout(1.035, *ALIKE, missing=("x",))], 1.0),  # nobody can run it
    ([layout(1.03, *ALIKE), layout(1.02, *ALIKE)], 1.02),
    ([layout(1.022, *ALIKE, groups=2), layout(1.02, *ALIKE)], 1.022),
    ([layout(1.035, *ALIKE, basis="profiled")], 1.035),
    ([layout(1.01, *ALIKE, world=4), layout(1.02, *ALIKE)], 1.01),
])
def test_of_level_layouts_the_plainest_is_chosen(others, chosen) -> None:
    best = layout(1.0, *UNLIKE)
    assert plainest(best, [best, *others]).seconds == chosen


def test_a_profile_lets_the_exotic_layout_win() -> None:
    best, other = layout(1.0, *UNLIKE, basis="profiled"), layout(1.035, *ALIKE, basis="profiled")
    assert plainest(best, [best, other]) is best


def test_shared_ranks_are_less_plain_than_own_ones() -> None:
    best, other = shared(1.0), layout(1.03, *ALIKE)
    assert plainest(best, [best, other]) is other


def test_fewer_groups_alone_are_worth_half_a_percent() -> None:
    best = layout(1.0, *ALIKE)
    assert plainest(best, [best, layout(1.02, *ALIKE, groups=1)]) is best
    near = layout(1.004, *ALIKE, groups=1)
    assert plainest(best, [best, near]) is near


@pytest.fixture(scope="module")
def made() -> Plan:
    return plan(compose(["+cluster=mixed", "parallel=holmes"]), "slurm")


def test_a_plan_says_its_error_everywhere(made: Plan) -> None:
    assert (made.predicted.error_percent, made.predicted.error_basis) == (9, "fitted")
    assert all(each.predicted is None or each.predicted.error_percent == 9 for each in made.rejected)
    assert Plan.from_json(made.to_json()) == made
    buffer = io.StringIO()
    Console(file=buffer, width=120).print(render(made, read_cluster(compose(["+cluster=mixed"]).cluster)))
    assert "± 9 % (fitted)" in buffer.getvalue()
    rows = {row.label: row for row in compare(Compared("a", made), Compared("b", made))}
    assert rows["error of the prediction"].first == "± 9 % (fitted)"


def test_level_plans_are_said_to_be_level(made: Plan) -> None:
    from dataclasses import replace

    def slower(percent: float) -> Plan:
        seconds = made.predicted.step_seconds * (1 + percent / 100)
        return replace(made, predicted=replace(made.predicted, step_seconds=seconds))

    assert any("do not tell the two apart" in each for each in cautions(made, slower(3)))
    assert not cautions(made, slower(6)) and not cautions(made, made)


def test_alternatives_are_marked_level(made: Plan) -> None:
    compared = [(each.level, {each.predicted.step_seconds, made.predicted.step_seconds}) for each in made.rejected
                if each.predicted is not None and not each.reason.startswith("memory")]
    assert compared
    for level, seconds in compared:
        assert level == (max(seconds) <= 1.04 * min(seconds))
