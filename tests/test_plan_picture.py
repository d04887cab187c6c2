"""The timeline of a plan as it is simulated again for its picture, and that picture above a run's."""

import dataclasses
import itertools

import pytest
from matplotlib import image
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from analysis.predicted import MOST_LINKS, plan_picture, predicted_panel, run_panel
from analysis.throughput import main as throughput
from analysis.timeline import draw_timelines
from holmes_hpc import cli
from holmes_hpc.config.compose import compose
from holmes_hpc.planner import plan
from holmes_hpc.planner.telling.restore import restore
from holmes_hpc.planner.telling.retrace import retrace
from holmes_hpc.values import ActionKind, Plan
from tests.run_folders import make_run, metric

MIXED = "+cluster=mixed"
TWO_STAGES = [MIXED, "parallel=holmes", "parallel.pipeline=2", "parallel.micro_batch_size=4", "parallel.schedule=1f1b",
              "parallel.warmup_extra=0", "model.tied_embeddings=false"]


def made(*overrides):
    config = compose(list(overrides))
    return config, plan(config)


def test_long_steps_are_shortened():
    config, chosen = made(*TWO_STAGES, "train.global_batch_size=512", "parallel.micro_batch_size=1")
    task, layout = restore(config, chosen)
    whole = retrace(task, layout, chosen.schedule)
    short = retrace(task, layout, chosen.schedule, most_actions=500)
    assert not whole.shortened and short.shortened
    assert len(short.records) <= 700 and 4 <= short.microbatches[0] < 128
    # The end of the step is not shortened: the same sums, as long.
    assert sum(t.end - t.start for t in short.transfers if t.kind is ActionKind.REDUCE) == pytest.approx(
        sum(t.end - t.start for t in whole.transfers if t.kind is ActionKind.REDUCE))


def test_folded_ranks_wait_as_long():
    config, chosen = made(*TWO_STAGES, "cluster.partitions.ib.gpus_per_node=4",
                          "cluster.partitions.roce.gpus_per_node=4", "parallel.tensor=2")
    task, layout = restore(config, chosen)
    whole, folded = (retrace(task, layout, chosen.schedule, folded=each) for each in (False, True))
    assert folded.step_seconds == pytest.approx(whole.step_seconds)
    assert sum(folded.stands_for.values()) == sum(whole.stands_for.values()) == 16
    assert len({rank for rank, *_ in folded.records}) < len({rank for rank, *_ in whole.records})


def test_the_panel_holds_what_was_simulated():
    config, chosen = made(*TWO_STAGES)
    panel = predicted_panel(config, chosen)
    rows = panel.rows
    assert set(rows["rank"]) <= set(range(8)) and {"F", "B", "O", "R"} <= set(rows["kind"])
    assert (rows.groupby(["rank", "kind"]).size().loc[:, "F"] == 2).all()
    assert rows["end"].max() == pytest.approx(chosen.predicted.step_seconds, rel=0.05)
    links = panel.links
    assert 0 < links["link"].nunique() <= MOST_LINKS
    sent = links[(links["link"] == "Ethernet of ib/0, sending") & (links["kind"] == "SA")]
    assert len(sent) == 4  # two pipelines, two micro-batches
    assert "predicted, the cluster as described" in panel.title and "holmes PP2xDP4" in panel.title


def test_links_beyond_the_most_are_counted_in_the_title_and_the_busiest_drawn(monkeypatch):
    config, chosen = made(*TWO_STAGES)
    monkeypatch.setattr("analysis.predicted.MOST_LINKS", 1000)
    whole = predicted_panel(config, chosen)
    seconds = (whole.links["end"] - whole.links["start"]).groupby(whole.links["link"]).sum()
    monkeypatch.setattr("analysis.predicted.MOST_LINKS", 3)
    panel = predicted_panel(config, chosen)
    drawn = set(panel.links["link"])
    assert len(drawn) == 3 < len(seconds)
    assert seconds[list(drawn)].min() >= seconds.drop(list(drawn)).max()
    assert f"the 3 busiest of {len(seconds)} links" in panel.title.replace("\n", " ")
    assert "busiest" not in whole.title


def test_the_picture_is_drawn(tmp_path, capsys):
    path = tmp_path / "plan.png"
    assert cli.run(["plan", MIXED, "output=json", f"picture={path}"]) == 0
    out, err = capsys.readouterr()
    assert Plan.from_json(out).world_size == 8 and f"wrote {path}" in err
    pixels = image.imread(path)
    assert pixels.shape[1] > 1000 and pixels[..., :3].std() > 0.05
    assert cli.run(["plan", MIXED, "output=json", f"picture={tmp_path}/none/plan.png"]) == 2
    assert "a folder that exists" in capsys.readouterr().err


def test_a_large_plan_is_drawn_in_part(tmp_path):
    config, chosen = made(MIXED, "cluster.partitions.ib.gpus_per_node=16", "cluster.partitions.roce.gpus_per_node=16",
                          "parallel=holmes", "parallel.pipeline=2", "train.global_batch_size=512",
                          "parallel.micro_batch_size=1")
    panel = predicted_panel(config, chosen)
    assert panel.rows["rank"].nunique() <= 32
    assert "of 64 ranks" in panel.title.replace("\n", " ")
    plan_picture(config, chosen, tmp_path / "plan.pdf")
    assert (tmp_path / "plan.pdf").read_bytes().startswith(b"%PDF")


def test_one_row_stands_for_the_ranks_of_a_timeline():
    config, chosen = made(MIXED, "cluster.partitions.ib.nodes=8", "cluster.partitions.roce.nodes=8",
                          "cluster.partitions.ib.gpus_per_node=4", "cluster.partitions.roce.gpus_per_node=4",
                          "parallel=holmes", "parallel.pipeline=2", "parallel.tensor=4", "model.num_kv_heads=4",
                          "train.global_batch_size=64", "parallel.micro_batch_size=1")
    panel = predicted_panel(config, chosen)
    rows = panel.rows.drop_duplicates("rank")
    assert list(rows["stands_for"]) == [32, 32] and list(rows["fabric"]) == ["ib", "roce"]
    assert "2 timelines stand for 64 of 64 ranks" in panel.title.replace("\n", " ")
    assert panel.end == pytest.approx(chosen.predicted.step_seconds)


def test_a_deep_pipeline_is_drawn_at_even_distances():
    config, chosen = made("+cluster=uniform", "cluster.nodes=6", "cluster.gpus_per_node=8", "parallel=megatron",
                          "parallel.pipeline=48", "model.num_layers=48", "train.global_batch_size=16",
                          "parallel.micro_batch_size=1")
    ranks = sorted(predicted_panel(config, chosen).rows["rank"].unique())
    assert len(ranks) == 32 and ranks[0] == 0 and ranks[-1] == 47
    assert max(after - before for before, after in itertools.pairwise(ranks)) == 2


def test_a_legend_is_not_cut_at_the_edges(monkeypatch, tmp_path):
    config, chosen = made(MIXED)
    panel = predicted_panel(config, chosen)
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: (figures.append(figure), save(figure, *a, **k)))
    draw_timelines([panel], tmp_path / "plan.png")
    box, (legend,) = figures[0].bbox, figures[0].legends
    kinds = {*panel.rows["kind"], *panel.links["kind"]}
    assert len(legend.get_texts()) == len(kinds)
    assert legend.get_window_extent().x0 >= 0 and legend.get_window_extent().x1 <= box.width


def run_folder(tmp_path, chosen, config, machine="emulated"):
    chosen = dataclasses.replace(chosen, predicted=dataclasses.replace(chosen.predicted, machine=machine))
    folder = make_run(tmp_path, metrics=[metric(step) for step in (1, 2)], timeline_steps=[2], plan=chosen)
    OmegaConf.save(config, folder / "config.yaml")
    return folder


def test_the_picture_of_a_run_has_what_was_predicted_above_what_was_measured(tmp_path, monkeypatch):
    config, chosen = made(*TWO_STAGES[:3], "parallel.micro_batch_size=2", "launch.mode=emulated")
    drawn = []
    monkeypatch.setattr("analysis.timeline.draw_timelines", lambda panels, path: drawn.extend(panels))
    folder = run_folder(tmp_path / "a", chosen, config)
    assert throughput([str(folder)]) == 0
    predicted, measured = drawn
    assert "predicted, emulated cluster" in predicted.title and "measured, emulated cluster" in measured.title
    # The CPU's speed is measured again; the picture keeps to the plan's step.
    assert predicted.end == pytest.approx(chosen.predicted.step_seconds, rel=0.01)
    drawn.clear()
    other = run_folder(tmp_path / "b", chosen, config, machine="described")
    assert throughput([str(other)]) == 0
    assert len(drawn) == 1  # the prediction is for another machine


def test_a_run_of_another_version_has_no_prediction(tmp_path):
    from analysis.reading import read_run

    folder = make_run(tmp_path, metrics=[metric(1)], timeline_steps=[1])  # its configuration is not whole
    assert run_panel(read_run(folder), "emulated") is None
