"""`holmes compare`: two plans side by side, and what is no plan."""

import dataclasses
import json

import pytest

from holmes_hpc import cli
from holmes_hpc.compare import read
from holmes_hpc.planner.telling.compare import Compared, cautions, compare
from holmes_hpc.values import NetworkBytes
from tests.run_folders import make_plan, make_run, metric


def rows(first, second):
    return {row.label: row for row in compare(first, second)}


def test_equal_plans_do_not_differ():
    plan = make_plan()
    assert not any(row.differs for row in compare(Compared("a", plan), Compared("b", plan)))
    assert cautions(plan, plan) == ()


def test_what_differs_is_named_with_its_ratio():
    first = make_plan(step_seconds=0.08)
    second = make_plan("megatron", step_seconds=0.1)
    second = dataclasses.replace(
        second, micro_batch_size=4, schedule=dataclasses.replace(second.schedule, warmup_extra=0),
        predicted=dataclasses.replace(second.predicted, bytes_by_network=(NetworkBytes("ethernet", 3e6),)))
    found = rows(Compared("a", first), Compared("b", second))
    differing = {label for label, row in found.items() if row.differs}
    assert {"strategy", "batch", "schedule", "predicted step", "predicted tokens/s"} <= differing
    assert {"ranks", "pipelines", "layers by stage", "predicted for", "most memory of a rank"}.isdisjoint(differing)
    assert found["predicted step"].ratio == pytest.approx(1.25)
    assert (found["predicted step"].first, found["predicted step"].second) == ("80 ms", "100 ms")
    assert found["layers by stage"].first == "2+2"
    assert found["ranks of the first pipeline"].first == "0 > 4"
    assert found["data groups over ib"].second == "none"
    assert found["data groups over ethernet"].second == "2 of 4 ranks"
    sent = found["bytes over ethernet a step"]
    assert (sent.first, sent.second) == ("unknown", "3 MB")


def test_a_network_that_a_plan_does_not_use_carries_nothing():
    plans = [dataclasses.replace(make_plan(), predicted=dataclasses.replace(
        make_plan().predicted, bytes_by_network=(NetworkBytes(network, 2e9),))) for network in ("ib", "ethernet")]
    found = rows(*(Compared("", plan) for plan in plans))
    assert (found["bytes over ib a step"].first, found["bytes over ib a step"].second) == ("2 GB", "0 B")
    assert found["bytes over ib a step"].ratio == 0


def test_figures_that_do_not_compare_are_named():
    plan = make_plan()
    other = dataclasses.replace(make_plan(machine="described"), global_batch_size=64, tied_embeddings=True)
    assert [caution.split(":")[0] for caution in cautions(plan, other)] == [
        "the predictions are for different machines", "the global batches differ", "the models differ"]


def test_the_command_reads_plans_and_runs(tmp_path, capsys):
    run = make_run(tmp_path / "runs", metrics=[metric(step, 0.5 if step < 4 else 0.1) for step in range(1, 9)])
    plan = tmp_path / "plan.json"
    plan.write_text(make_plan(step_seconds=0.16).to_json())
    assert read(str(run), tmp_path).measured_seconds == 0.1
    assert cli.run(["compare", str(run), str(plan)]) == 0
    lines = capsys.readouterr().out.splitlines()
    marked = [line for line in lines if line.rstrip().endswith("differs")]
    assert [line.strip().partition("   ")[0] for line in marked] == [
        "predicted step", "predicted tokens/s", "measured step, median"]
    assert "100 ms" in marked[2] and "unknown" in marked[2]
    assert sum("differs" in line for line in lines) == len(marked), "said once"
    assert cli.run(["compare", str(plan), str(plan)]) == 0
    assert "nothing differs" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"\x89PNG", b"{", b"[]", b"{}", b'{"format_version": 99}',
                                     json.dumps({"format_version": 1, "strategy": "x"}).encode()])
def test_files_that_are_no_plans_are_refused(content, tmp_path, capsys):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(make_plan().to_json())
    bad.write_bytes(content)
    assert cli.run(["compare", str(good), str(bad)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"holmes compare: {bad}: no plan") and "output=json" in error


def test_what_is_not_there_is_refused(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for missing in (tmp_path / "none.json", tmp_path / "empty"):
        assert cli.run(["compare", str(missing), str(missing)]) == 2
        assert str(missing) in capsys.readouterr().err
    assert cli.run(["compare", "only-one.json"]) == 2
