"""What the page of `holmes report` draws and links, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import holmes_hpc
from analysis import report
from analysis.page import svg
from analysis.page.run_axis import course, pauses_in_words
from analysis.page.scaling import curves
from analysis.page.step_parts import parts
from analysis.page.tables import sorted_table
from analysis.page.traffic import Measured, Predicted, caption, cluster_drawing, measured_traffic
from analysis.printing import rows_of
from analysis.reading import read_run, read_runs
from analysis.tables import runs_table
from holmes_hpc.cluster import read_cluster
from holmes_hpc.config.compose import compose
from holmes_hpc.planner.simulation.traffic import loads, network_bytes, node_bytes
from holmes_hpc.planner.telling.restore import restore
from tests.run_folders import make_plan, make_run, metric

DONE = {"status": "completed", "steps": 8, "final_loss": 2.0, "error": None, "emulated": True}


def row(**changed: object) -> dict[str, object]:
    return {"workload": "gpt", "strategy": "holmes", "machine": "real", "precision": "float32", "world_size": 8,
            "global_batch_size": 32, "tokens_per_second": 100.0, "others_held_cores": math.nan, **changed}


def test_curves_of_a_kept_batch_and_of_one_that_grows() -> None:
    rows = [row(), row(tokens_per_second=300.0), row(world_size=16, tokens_per_second=300.0),
            row(world_size=16, global_batch_size=64, tokens_per_second=360.0),
            row(world_size=32, tokens_per_second=1.0, others_held_cores=2.0), row(strategy="megatron"),
            row(world_size=4, tokens_per_second=math.nan)]
    strong, weak = sorted(curves(rows), key=lambda curve: curve.kind)
    assert (strong.kind, strong.size, strong.points) == ("strong", "batch 32", ((8, 200.0), (16, 300.0)))
    assert strong.efficiency() == pytest.approx(0.75)
    assert (weak.kind, weak.size, weak.points) == ("weak", "batch 4 a GPU", ((8, 200.0), (16, 360.0)))


@pytest.mark.parametrize(("step", "bubble", "exposed", "expected"), [
    (2.0, 0.25, 0.3, (1.2, 0.5, 0.3)), (1.0, 0.9, 0.2, (0.0, 0.9, 0.2)), (math.nan, 0.1, 0.1, None),
    (1.0, math.nan, 0.1, None)])
def test_a_step_by_cause(step: float, bubble: float, exposed: float, expected: tuple[float, ...] | None) -> None:
    found = parts({"step_seconds": step, "bubble_fraction": bubble, "exposed_comm_seconds": exposed})
    assert found == (expected and pytest.approx(expected))


def test_a_run_over_the_clock_has_its_pause_and_its_marks(tmp_path: Path) -> None:
    seconds = [10, 12, 14, 76, 78, 80]
    steps = [metric(n, 2.0, time=f"2026-12-01T10:{at // 60:02d}:{at % 60:02d}.000+00:00", stragglers=[3] * (n > 4),
                    validation_loss=2.5 if n == 3 else None) for n, at in enumerate(seconds, 1)]
    folder = make_run(tmp_path, "20261201-100000-ab12", metrics=[
        *steps, metric(7, time="yesterday"), metric(8, time="0001-01-01T00:00:00+14:00")])
    (folder / "checkpoints" / "step-000002").mkdir(parents=True)
    found = course(read_run(folder))
    assert found is not None and found.seconds == seconds
    assert found.marks == [("checkpoint", 12, 2), ("validation", 14, 3), ("straggler", 78, 5)]
    assert found.pauses == [(14, 76)] and pauses_in_words(found) == "62 s without a step (77.5 %)"


def test_a_run_without_times_has_no_axis(tmp_path: Path) -> None:
    assert course(read_run(make_run(tmp_path, metrics=[metric(1, time=None), metric(2, time="2026")]))) is None


def test_a_thinned_line_keeps_its_peaks_and_their_order() -> None:
    points = [(float(x), 5.0 if x == 501 else -3.0 if x == 777 else 0.0) for x in range(1000)]
    few = list(svg.thinned(points, 100))
    assert len(few) <= 100 and {(501.0, 5.0), (777.0, -3.0)} <= set(few) and few == sorted(few)


@pytest.mark.parametrize(("high", "expected"), [(0.9, [0, 0.2, 0.4, 0.6, 0.8]), (47, [0, 10, 20, 30, 40]), (0, [0]),
                                              (math.inf, [0]), (math.nan, [0]), (5e-324, [0])])
def test_ticks_are_round(high: float, expected: list[float]) -> None:
    assert svg.ticks(high) == pytest.approx(expected)


def test_cells_are_sorted_by_values_not_by_words(tmp_path: Path) -> None:
    from analysis.columns import SPEED

    runs = make_run(tmp_path, "a", metrics=[metric(step, 0.001) for step in range(1, 9)]).parent
    make_run(tmp_path, "b")
    text = sorted_table("t", SPEED, rows_of(runs_table(read_runs(runs))))
    assert 'data-v="4096000">4,096,000<' in text and 'data-v="">-<' in text


@pytest.mark.parametrize("overrides", [["parallel=holmes", "parallel.pipeline=2"], ["parallel=megatron"], []])
def test_the_nodes_send_together_what_the_step_does(overrides: list[str]) -> None:
    settings = ["+cluster=mixed", *overrides]
    config = compose(settings)
    task, layout = restore(config, holmes_hpc.plan(settings))
    sent = node_bytes(task, layout)
    whole: dict[str, float] = {}
    for (slot, network), value in sent.items():
        assert slot in {node.slot for node in task.cluster.nodes}
        whole[network] = whole.get(network, 0.0) + value
    assert whole == pytest.approx(network_bytes(task, loads(task, layout)))
    assert len({slot for slot, _ in sent}) == 4


def test_the_drawing_names_nodes_fabrics_and_bytes() -> None:
    cluster = read_cluster(compose(["+cluster=mixed"]).cluster)
    slots = [node.slot for node in cluster.nodes]
    predicted = Predicted(cluster, {(slots[0], "ib"): 3e6, (slots[2], "ethernet"): 2e6, (slots[3], "ethernet"): 1e6})
    text = cluster_drawing(predicted, None, {slots[0]: "<first>"}).text()
    for words in ("&lt;first&gt;: 3.00 MB predicted, a step by ib", "ib (hdr200)", "Ethernet: 3.00 MB predicted a step",
                  f"{slots[2]}: 2.00 MB predicted, a step by Ethernet"):
        assert words in text
    assert "measured" not in text and "not measured" in caption(None)
    measured = Measured(50, {(slots[0], "ib"): 4e6, (slots[2], "ethernet"): 1e6})
    text = cluster_drawing(predicted, measured, {}).text()
    for words in (f"{slots[0]}: 4.00 MB measured, 3.00 MB predicted, a step by ib", ">4.00 MB / 3.00 MB<",
                  ">1.00 MB / 2.00 MB<", ">? / 1.00 MB<", "Ethernet: 1.00 MB / 3.00 MB (measured / predicted) a step"):
        assert words in text, words
    assert "in step 50 / predicted" in caption(measured)


def test_what_nodes_sent_is_read_of_the_newest_step_that_has_it(tmp_path: Path) -> None:
    cluster = read_cluster(compose(["+cluster=mixed"]).cluster)
    few = [100, None, 200, None, 300, None, 400, None]
    run = read_run(make_run(tmp_path, metrics=[
        metric(1, bytes_ethernet_per_rank=[1, None] * 4), metric(2, bytes_ethernet_per_rank=few,
                                                                bytes_fabric_per_rank=[0, None] * 4),
        metric(3)]))
    found = measured_traffic(run, cluster)
    assert found is not None and found.step == 2
    assert found.sent == {**{(slot, "ethernet"): float(few[2 * place]) for place, slot in enumerate(
        ("ib/0", "ib/1", "roce/0", "roce/1"))}, ("ib/0", "ib"): 0.0, ("ib/1", "ib"): 0.0, ("roce/0", "roce"): 0.0,
        ("roce/1", "roce"): 0.0}
    assert measured_traffic(read_run(make_run(tmp_path, "20261201-000001-aaaa", metrics=[
        metric(1, bytes_ethernet_per_rank=["many", -1], bytes_fabric_per_rank=7)])), cluster) is None


def test_200_runs_whole_and_damaged_are_all_in_the_table_and_on_the_page(tmp_path: Path) -> None:
    first = make_run(tmp_path, "20261201-000000-a000", metrics=[metric(step) for step in range(1, 9)], result=DONE)
    for number in range(1, 200):
        folder = Path(shutil.copytree(first, first.with_name(f"20261201-{number:06d}-a{number:03d}")))
        if number % 4 == 0:
            (folder / ("config.yaml", "plan.json", "job.json", "result.json")[number // 4 % 4]).write_text("{")
    damaged = runs_table(read_runs(tmp_path)).query("damages != ''")
    assert list(damaged["run"]) == [f"mixed/20261201-{number:06d}-a{number:03d}" for number in range(4, 200, 4)]
    assert report.main([str(tmp_path)]) == 0
    page = (tmp_path / "mixed" / "report.html").read_text()
    assert page.count("<section>") == 200
    named = re.findall(r'<li><a href="#run-(\d+)">mixed/20261201-(\d+)-a\d+</a> is damaged: (\S+)', page)
    assert [(int(place) - 1, int(stamp)) for place, stamp, _ in named] == [(n, n) for n in range(4, 200, 4)]


def test_the_settings_of_a_page_are_as_they_were_written(tmp_path: Path) -> None:
    run = make_run(tmp_path, plan=make_plan())
    setup = ["export TOKEN=abc", "module load a: b"]
    config = {"run": {"name": "5e3"}, "launch": {"setup": setup}, "z": None, "a": 1.5}
    (run / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    (run / "job.json").write_text(json.dumps({"host": "a\ud800b", "command": ["holmes", "train"]}))
    assert report.main([str(run)]) == 0
    page = (run / "report.html").read_text()
    assert "name: &#x27;5e3&#x27;" in page and "module load a: b" in page and "TOKEN=abc" not in page
    assert page.index("z: null") < page.index("a: 1.5") and "\\ud800" in page
