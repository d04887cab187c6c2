"""Finding run folders and reading them in every state that a run can leave them in."""

import json

import pytest

from analysis.reading import find_runs, read_lines, read_run, read_runs
from holmes_hpc.errors import ConfigurationError
from tests.run_folders import make_run, metric


def test_runs_are_found_below_any_parent_once_and_links_are_not_followed(tmp_path):
    first = make_run(tmp_path, "20261003T120000-aa00")
    second = make_run(tmp_path, "20261003T130000-bb00", run_name="other")
    (tmp_path / "mixed" / "slurm-17").symlink_to(first)
    (first / "checkpoints" / "step-000010").mkdir(parents=True)
    (first / "checkpoints" / "step-000010" / "plan.json").write_text("{}")
    assert find_runs(tmp_path) == [first, second]
    assert find_runs(second, tmp_path / "mixed", first) == [second, first]
    assert find_runs(tmp_path / "mixed" / "slurm-17") == [first]


def test_a_path_without_runs_names_what_was_looked_for(tmp_path):
    with pytest.raises(ConfigurationError, match=r"no run here.*plan\.json, metrics\.jsonl, job\.json"):
        find_runs(tmp_path)
    with pytest.raises(ConfigurationError, match="no such folder"):
        find_runs(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="no run was named"):
        find_runs()


def test_one_wrong_path_among_right_ones_is_refused(tmp_path):
    run = make_run(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="empty"):
        find_runs(run, tmp_path / "empty")


def test_a_torn_last_line_is_left_out(tmp_path, caplog):
    run = make_run(tmp_path, metrics=[metric(1), metric(2)], timeline_steps=[2], torn=True)
    assert [record["step"] for record in read_run(run).metrics] == [1, 2]
    assert all(record["step"] == 2 for record in read_run(run).timeline()[3])
    assert not caplog.records


def test_a_torn_line_further_up_is_left_out_and_logged(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo{"step": 2}\n{"step": 3}\n')
    assert read_lines(path) == [{"step": 1}, {"step": 3}]
    assert "line 2" in caplog.text


def test_steps_that_a_resumed_run_did_again_replace_the_first_ones(tmp_path):
    first = [metric(step, loss=5.0) for step in (1, 2, 3, 4, 5)]
    run = make_run(tmp_path, metrics=[*first, metric(3, loss=4.0), metric(4, loss=3.5)])
    assert [(r["step"], r["loss"]) for r in read_run(run).metrics] == [(1, 5.0), (2, 5.0), (3, 4.0), (4, 3.5)]


def test_a_timeline_recorded_twice_is_there_once_and_newest(tmp_path):
    run = make_run(tmp_path)
    record = {"step": 5, "action": "F0.0.0", "kind": "F", "start": 0.0, "end": 1.0}
    other = {**record, "action": "F0.0.1"}
    again = {**record, "end": 2.0}
    lines = [record, other, {**record, "step": 10}, again]
    (run / "ranks" / "rank-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(r["step"], r["end"]) for r in read_run(run).timeline()[0]] == [(5, 2.0), (10, 1.0)]


def test_files_that_do_not_exist_or_hold_rubbish_are_empty(tmp_path, caplog):
    run = make_run(tmp_path)
    (run / "plan.json").write_text("{")
    (run / "config.yaml").write_text("a: [")
    (run / "metrics.jsonl").unlink()
    read = read_run(run)
    assert (read.plan, read.config, read.metrics, read.result) == ({}, {}, [], {})
    assert "plan.json" in caplog.text and "config.yaml" in caplog.text


def test_two_folders_of_one_name_are_told_apart(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    names = [run.name for run in read_runs(tmp_path)]
    assert len(set(names)) == 2 and all(name.startswith("mixed/20261003T120000-ab12 (") for name in names)


def test_nodes_come_from_the_plan_else_the_job_else_the_slot(tmp_path):
    from tests.run_folders import make_plan

    bound = make_run(tmp_path / "bound")
    unbound = make_run(tmp_path / "unbound", plan=make_plan(bound=False))
    assert read_run(bound).places()[5]["node"] == "roce-0"
    assert read_run(unbound).places()[5]["node"] == "host2"
    (unbound / "job.json").unlink()
    assert read_run(unbound).places()[5]["node"] == "roce/0"
