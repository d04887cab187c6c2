"""`holmes trace`: a step of all ranks as a trace that Perfetto reads."""

from __future__ import annotations

import json

import pytest

from holmes_hpc import trace
from tests.engine_worlds import train_world
from tests.run_folders import make_run, metric


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = train_world(tmp_path_factory.mktemp("run"), [
        "+cluster=mixed", "cluster.partitions.ib.nodes=1", "cluster.partitions.ib.gpus_per_node=2",
        "cluster.partitions.roce.nodes=1", "cluster.partitions.roce.gpus_per_node=2", "parallel=holmes",
        "train.steps=2"])
    made.folder.plan_path.write_text(made.plan.to_json())
    made.folder.config_path.write_text("{}\n")
    return made


def test_every_action_and_flight_of_every_rank_is_in_the_trace(world, capsys):
    assert trace.main([str(world.folder.path), "--step", "2"]) == 0
    written = world.folder.path / "trace-step-2.json"
    assert str(written) in capsys.readouterr().out
    events = json.loads(written.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    for rank in range(4):
        rows = [row for row in world.timeline(rank) if row["step"] == 2]
        own = [event for event in spans if event["pid"] == rank]
        assert sorted(event["name"] for event in own) == sorted(row["action"] for row in rows)
        by_name = {event["name"]: event for event in own}
        for row in rows:
            assert by_name[row["action"]]["ts"] == pytest.approx(row["start"] * 1e6)
            assert by_name[row["action"]]["dur"] == pytest.approx((row["end"] - row["start"]) * 1e6)
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [name.split(",")[0] for name in names] == [f"rank {rank}" for rank in range(4)]
    lanes = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert "actions" in lanes
    assert any(lane.startswith("sums of reduction 1: data 0-1 by local") for lane in lanes), lanes


def test_the_profiler_runs_over_chosen_steps_and_changes_nothing(tmp_path):
    one = ["+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=1", "train.steps=3"]
    plain = train_world(tmp_path, one)
    profiled = train_world(tmp_path, [*one, "train.profile_steps=[2]"])
    [written] = profiled.folder.timeline_path(0).parent.glob("profile-*")
    assert written.name == "profile-rank-0-step-2.json"
    assert any("mm" in event.get("name", "") for event in json.loads(written.read_text())["traceEvents"])
    assert [row["loss"] for row in profiled.rows] == [row["loss"] for row in plain.rows]


def test_steps_without_a_timeline_are_named(world, capsys, tmp_path):
    assert trace.main([str(world.folder.path), "--step", "7"]) == 2
    assert "no timeline of step 7; it has those of 1, 2" in capsys.readouterr().err
    assert trace.main([str(world.folder.path), "--to", str(tmp_path / "t.json")]) == 0
    assert json.loads((tmp_path / "t.json").read_text())["otherData"]["step"] == 2


def test_damaged_lines_are_left_out(world, capsys, tmp_path):
    path = world.folder.timeline_path(1)
    path.write_text(path.read_text() + '{"step": 2, "action"\n[1]\n')
    assert trace.main([str(world.folder.path), "--to", str(tmp_path / "t.json")]) == 0


def test_a_step_that_was_done_again_is_there_once_and_odd_sums_have_a_row(tmp_path):
    run = make_run(tmp_path, metrics=[metric(1)], timeline_steps=[1])
    path = run / "ranks" / "rank-0.jsonl"
    text = path.read_text()
    found = []
    odd = [json.dumps({"step": 1, "action": action, "kind": "R~", "start": 0, "end": 1})
           for action in ("R~x", "R", "R~99.0", f"R~{'9' * 5000}.0")]
    for content in (text, text + text, "\n".join([*odd, text])):
        path.write_text(content)
        assert trace.main([str(run)]) == 0
        found.append(json.loads((run / "trace-step-1.json").read_text())["traceEvents"])
    once, again, with_odd_ones = found
    assert again == once and sum(each["ph"] == "X" and each["pid"] == 0 for each in once) == len(text.splitlines())
    assert len(with_odd_ones) > len(once)
    assert "sums of a reduction that the plan does not have" in [
        each["args"].get("name") for each in with_odd_ones if each["name"] == "thread_name"]
