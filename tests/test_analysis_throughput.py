"""The command `python -m analysis.throughput`: what it prints, writes and refuses."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from matplotlib import image

from analysis import columns
from analysis.loss import lowest_losses
from analysis.pictures import _bar_label, _panel_title, fastest_rows, run_label
from analysis.reading import read_runs
from analysis.tables import actions_table, runs_table
from analysis.throughput import main
from analysis.timeline import _measured_title, by_stage
from tests.run_folders import make_plan, make_run, metric

ROOT = Path(__file__).resolve().parent.parent
DONE = {"status": "completed", "steps": 8, "final_loss": 2.0, "error": None, "emulated": True}


@pytest.fixture
def run(tmp_path):
    metrics = [metric(step, validation_loss=3.0 if step == 8 else None) for step in range(1, 9)]
    return make_run(tmp_path / "runs", metrics=metrics, timeline_steps=[4, 8], result=DONE)


def pictures(folder):
    """Return the names of the pictures in a folder; each must be a readable picture that is not blank."""
    for path in folder.glob("*.png"):
        pixels = image.imread(path)
        assert pixels.shape[1] > 1000 and pixels[..., :3].std() > 0.05, path
    return {path.name for path in folder.glob("*.png")}


def test_one_run_prints_its_table_and_draws_into_its_folder(run, capsys):
    assert main([str(run)]) == 0
    text = capsys.readouterr().out
    assert pictures(run) == {"throughput.png", "loss.png", "timeline.png"}
    for name in ("throughput.png", "loss.png", "timeline.png"):
        assert f"wrote {run / name}" in text
    for expected in (
        "mixed/20261003T120000-ab12",
        "emulated",
        "8 (3)",
        "40,960",
        "PP2xDP4",
        "1f1b +1",
        "10.0 %",
        "25.0 %",
        "10.0 ms",
        "2.00 MB",
        "12.0 MB",
        "100 ms",
        "80.0 ms",
        "1.25",
        "3.000",
    ):
        assert expected in text, expected
    table = [line for line in text.splitlines() if not line.startswith("wrote ")]
    assert max(len(line) for line in table) <= 100


def test_several_runs_draw_into_the_folder_that_holds_them_or_the_named_one(run, tmp_path, monkeypatch, capsys):
    make_run(tmp_path / "runs", "other", plan=make_plan("megatron"), metrics=[metric(s, 0.2) for s in range(1, 9)])
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (run / "ranks" / "rank-0.jsonl").unlink()
    assert main([str(tmp_path / "runs"), "--by", "strategy"]) == 0
    assert pictures(run.parent) == {"throughput.png", "loss.png", "timeline.png"}
    assert not list(here.iterdir())
    assert main([str(run), "--out", str(tmp_path / "new" / "out")]) == 0
    assert pictures(tmp_path / "new" / "out") == {"throughput.png", "loss.png", "timeline.png"}
    assert not list(run.glob("*.png"))
    assert "Medians by strategy" in capsys.readouterr().out


def test_json_is_alone_on_standard_output(run, tmp_path, capsys):
    make_run(tmp_path / "runs", "started")
    assert main([str(tmp_path / "runs"), "--json", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert [(row["status"], row["emulated"], row["tokens_per_second"]) for row in rows] == [
        ("completed", True, 40960.0),
        ("running", None, None),
    ]
    assert "wrote" in captured.err


def test_csv_holds_the_table_of_runs(run, tmp_path, capsys):
    assert main([str(run), "--csv", str(tmp_path / "table.csv"), "--no-pictures"]) == 0
    table = pd.read_csv(tmp_path / "table.csv")
    assert table.loc[0, "tokens_per_second"] == 40960 and table.loc[0, "emulated"]
    assert not list(run.glob("*.png"))


def test_a_run_without_steps_says_so(tmp_path, capsys):
    run = make_run(tmp_path)
    assert main([str(run)]) == 0
    text = capsys.readouterr().out
    assert "no step was measured yet" in text and "no timeline was recorded" in text
    assert not list(run.glob("*.png"))


def test_a_run_that_failed_shows_its_error(tmp_path, capsys):
    main([str(make_run(tmp_path, result={**DONE, "status": "failed", "error": "rank 3 [roce-1] died"}))])
    assert "failed: rank 3 [roce-1] died" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "5"], "--step 5: no run recorded it; recorded: 4, 8"),
        (["--by", "speed"], "--by speed: no such column; columns: run, folder"),
        (["--csv", "/dev/null/table.csv"], "--csv /dev/null/table.csv: cannot be written"),
        (["--out", "/proc/nowhere"], "/proc/nowhere: cannot write pictures there"),
        (["--speed"], "unrecognized arguments"),
    ],
)
def test_wrong_arguments_end_with_2_and_one_message(run, arguments, message, capsys):
    assert main([str(run), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_a_path_that_is_no_run_ends_with_2(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "looked for a folder with one of plan.json" in capsys.readouterr().err


def test_titles_name_every_machine_and_the_chosen_step(run, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    make_run(
        tmp_path / "runs",
        "real",
        plan=make_plan(machine="described"),
        timeline_steps=[4, 8],
        metrics=[metric(step, 0.05, emulated=False) for step in range(1, 9)],
    )
    titles, names = [], []
    save = Figure.savefig

    def spy(figure, drawn, **settings):
        titles.append([axes.get_title(loc="left") for axes in figure.axes])
        save(figure, drawn, **settings)

    monkeypatch.setattr(Figure, "savefig", spy)
    monkeypatch.setattr("analysis.pictures.put_file", lambda path, content: names.append(path.name))
    assert main([str(tmp_path / "runs"), "--out", str(tmp_path), "--step", "4"]) == 0
    found = dict(zip(names, titles, strict=True))
    for name in ("throughput.png", "timeline.png"):
        assert len(found[name]) == 2
        assert found[name][0].endswith("emulated cluster") and found[name][1].endswith("real hardware")
    assert "step 4" in found["timeline.png"][0] and "mixed/20261003T120000-ab12" in found["timeline.png"][0]


def test_measured_figures_stand_with_their_bar_and_a_run_without_steps_says_why(tmp_path, monkeypatch):
    """A bar of 40,960 tokens/s, predicted 51,200; its baseline of 20,480; one that failed and one that began."""
    from analysis import pictures as drawing
    from analysis.tables import runs_table

    written = {}
    monkeypatch.setattr(drawing, "_write", lambda axes, text, x, y, colour="": written.__setitem__(text, (x, round(y))))
    steps = [metric(step) for step in range(1, 9)]
    make_run(tmp_path, "a", metrics=steps, result=DONE)
    make_run(tmp_path, "b", plan=make_plan("megatron"), metrics=[metric(step, 0.2) for step in range(1, 9)])
    make_run(tmp_path, "c", result={**DONE, "status": "failed", "error": "rank 3 died"})
    make_run(tmp_path, "d")
    table = runs_table(read_runs(tmp_path))
    assert (table["predicted_tokens_per_second"] == 51200).all()
    drawing.throughput_picture(table, tmp_path / "all.png")
    places = {name.split("/")[-1]: place for place, name in enumerate(table["run"])}
    assert written == {
        "40,960 \N{MIDDLE DOT} 2.00x megatron": (0, places["a"]),
        "20,480": (0, places["b"]),
        "failed before a step was measured": (0, places["c"]),
        "no step measured yet": (0, 0),  # in a panel of its own: nothing says yet what machine it is on
    }


def test_help_and_module_start_without_torch(run):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    shown = subprocess.run(
        [sys.executable, "-m", "analysis.throughput", "--help"],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    assert "--step N" in shown.stdout
    code = f"from analysis.throughput import *; main([{str(run)!r}]); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "False", done.stderr


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.00123, "0.00123"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234")]
)
def test_significant_digits(value, text):
    assert columns.significant(value) == text


def test_sizes_and_seconds():
    assert [columns.size(value) for value in (999, 1500, 2e6, 3.25e9, 4e12)] == [
        "999 B",
        "1.50 kB",
        "2.00 MB",
        "3.25 GB",
        "4.00 TB",
    ]
    assert [columns.seconds(value) for value in (0.0123, 1.5, 75)] == ["12.3 ms", "1.50 s", "75.0 s"]


def test_holmes_throughput_is_safe_from_a_local_package_named_analysis(run, tmp_path):
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    done = subprocess.run(
        [sys.executable, "-c", "from holmes_hpc.cli import main; main()", "throughput", str(run), "--no-pictures"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        timeout=60,
    )
    assert "mixed/20261003T120000-ab12" in done.stdout, done.stderr


def many_runs(tmp_path: Path, count: int) -> Path:
    for i in range(count):
        make_run(tmp_path, f"20261003T12{i:04d}-ab12", cluster="mixed" if i < count - 2 else "ib",
                 plan=make_plan("megatron" if i == 3 else "holmes"),
                 metrics=[metric(step, 0.05 + 0.01 * i) for step in range(1, 6)])
    return tmp_path / "mixed"


def test_of_many_runs_tables_and_pictures_hold_a_part_and_say_so(tmp_path: Path,
                                                                 capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(many_runs(tmp_path, 40))]) == 0
    lines = capsys.readouterr().out.splitlines()
    text = " ".join(" ".join(lines).split())
    assert "the newest 30 of 40 runs; --csv FILE and --json have all, --by COLUMN puts alike ones together" in text
    runs = {line.split()[1] for line in lines if "mixed/20261003T12" in line and line.split()[0].isdigit()}
    assert runs == {f"mixed/20261003T12{i:04d}-ab12" for i in range(10, 40)}
    assert "throughput.png (the 24 fastest of 40; name fewer runs to choose, or --by COLUMN" in text
    assert "loss.png (the 12 of lowest loss of 40; name fewer runs to choose)" in text


def test_the_fastest_of_every_panel_and_its_baseline_are_drawn(tmp_path: Path) -> None:
    table = runs_table(read_runs(many_runs(tmp_path, 30)))
    shown = fastest_rows(table, 5)
    numbers = [int(run[-9:-5]) for run in shown["run"]]
    assert numbers == [0, 1, 3, 28, 29], "in the order of the table; the baseline, and both of the other cluster"
    assert len(fastest_rows(table, 30)) == 30
    losses = lowest_losses(read_runs(tmp_path / "mixed"), 7)
    assert [run.metrics[-1]["loss"] for run in losses] == sorted(run.metrics[-1]["loss"] for run in losses)
    assert len(losses) == 7


@pytest.mark.parametrize("home", ["/proc"])
def test_pictures_are_drawn_in_silence_without_a_home_to_write_in(home: str | None, run: Path, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items()
            if name not in ("HOME", "MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    done = subprocess.run([sys.executable, "-m", "analysis.throughput", str(run), "--out", str(tmp_path / "pictures")],
                          env=kept | ({"HOME": home} if home else {}), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "pictures" / "throughput.png").exists()


def test_what_else_matplotlib_logs_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("matplotlib").warning("Bad key %s", "x")
    logging.getLogger("matplotlib").warning("mkdir -p failed for path %s: %s", "/proc/x", "no")
    assert [record.getMessage() for record in caplog.records] == ["Bad key x"]


def test_ranks_are_drawn_in_the_order_of_their_stages():
    """Ranks 2 and 0 hold stage 0; rank 1, which does no stage, stands first, as the label says none."""
    rows = pd.DataFrame([(3, 1), (2, 0), (0, 0), (0, -1), (4, 1), (4, 2), (1, -1)], columns=["rank", "stage"])
    assert by_stage(rows) == [1, 0, 2, 3, 4]


@pytest.mark.parametrize("name", ["n" * 200, "x " * 100])
def test_names_of_any_length_leave_room_for_what_is_drawn(name: str, tmp_path: Path) -> None:
    """The names of cluster, model, strategy and run; the end of a run's is what tells it from others."""
    run = make_run(tmp_path, "20261201-000000-a000", metrics=[metric(step) for step in range(1, 9)], timeline_steps=[4])
    plan = json.loads((run / "plan.json").read_text())
    plan["strategy"] = name
    for place in plan["ranks"]:
        place["node"] = f"{place['node']}{name}"
    (run / "plan.json").write_text(json.dumps(plan))
    config = (run / "config.yaml").read_text().replace("gpt_tiny", name).replace("name: mixed", f"name: {name}")
    (run / "config.yaml").write_text(config)
    found = read_runs(run)
    row = runs_table(found).iloc[0]
    assert row["strategy"] == name, "tables have it whole"
    lines = [*run_label(row).splitlines(), *_bar_label(row.to_dict(), None).splitlines(), _panel_title(row),
             _measured_title(actions_table(found))]
    assert max(map(len, lines)) < 170 and all("\N{HORIZONTAL ELLIPSIS}" in line for line in (lines[0], lines[-2]))
    assert run_label(row).count(run.name) == 1
    assert main([str(run)]) == 0
    for picture in ("throughput", "timeline", "loss"):
        height, width = image.imread(run / f"{picture}.png").shape[:2]
        assert width < 3000 and height < 3000
