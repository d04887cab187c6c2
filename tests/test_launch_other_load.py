"""A machine that other programs use is told from one that a run has for itself."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from analysis import pictures, throughput
from analysis.page.document import page
from analysis.reading import read_runs
from analysis.tables import grouped, runs_table
from holmes_hpc.launch.here.other_load import OtherLoad
from holmes_hpc.runs import RunFolder, write_result
from tests.run_folders import make_plan, make_run, metric


def stat(busy: float, idle: float) -> str:
    each = os.sysconf("SC_CLK_TCK")
    return f"cpu  {round(busy * each)} 0 0 {round(idle * each)} 0 0 0 0 0 0\ncpu0 1 1 1\n"


@pytest.mark.parametrize(("busy", "idle", "own", "told"), [
    (20.0, 0.0, 19.9, None),          # all ours
    (20.0, 0.0, 7.0, (1.3, 2)),       # two cores, of which others held most
    (12.0, 8.0, 4.0, None),           # others computed, and cores were idle all the same
    (20.0, 0.0, 25.0, None),          # accounts that do not agree
    (1280.0, 20.0, 600.0, (68.0, 130)),
])
def test_what_others_held(busy: float, idle: float, own: float, told: tuple[float, int] | None) -> None:
    stats, owns, clock = iter([stat(50, 70), stat(50 + busy, 70 + idle)]), iter([3.0, 3.0 + own]), iter([5.0, 15.0])
    load = OtherLoad(stats.__next__, owns.__next__, clock.__next__)
    assert load.cores() == (told if told is None else (pytest.approx(told[0]), told[1]))


@pytest.mark.parametrize("text", ["", "cpu", "cpu a b c", "intr 1 2 3 4 5 6 7 8 9", "cpu 1 2 3"])
def test_a_kernel_that_tells_nothing(text: str) -> None:
    assert OtherLoad(lambda: text).cores() is None


def test_this_machine_is_read() -> None:
    load = OtherLoad(clock=iter([0.0, 0.0]).__next__)
    assert load._begin is not None and load.cores() is None


@pytest.mark.parametrize(("held", "said"), [(None, False), (1.3, True), ("many", False)])
def test_the_tables_say_it(held: object, said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, "mixed", metrics=[metric(step) for step in (1, 2)])
    (run / "result.json").write_text(json.dumps({"status": "completed", "others_held_cores": held}))
    assert throughput.main([str(run), "--no-pictures"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert ("other programs held up to 1.3 cores" in printed) == ("40,960 (busy)" in printed) == said


def test_pictures_and_pages_compare_no_speed_of_a_busy_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(pictures, "_write", lambda axes, text, *place: written.append(text))
    steps = [metric(step) for step in range(1, 9)]
    fast = [metric(step, 0.025) for step in range(1, 9)]
    make_run(tmp_path, "a", metrics=fast)
    make_run(tmp_path, "b", plan=make_plan("megatron"), metrics=[metric(step, 0.4) for step in range(1, 9)],
             result={"status": "completed", "emulated": True, "others_held_cores": 1.5})
    make_run(tmp_path, "c", plan=make_plan("megatron"), metrics=steps)
    found = read_runs(tmp_path)
    table = runs_table(found)
    pictures.throughput_picture(table, tmp_path / "picture.png")
    assert written == ["163,840 \N{MIDDLE DOT} 4.00x megatron", "10,240 \N{MIDDLE DOT} machine was busy", "40,960"]
    written.clear()
    pictures.throughput_picture(grouped(table[:2], "strategy"), tmp_path / "picture.png", "strategy")
    assert written == ["163,840", "10,240 \N{MIDDLE DOT} machine was busy"]
    text = page(found)
    assert "other programs held 1.5 cores" in text
    assert re.findall(r"(mixed/\w)</a> \(\w+\) ([\d.]+)x", text) == [("mixed/c", "0.25"), ("mixed/a", "4.00")]


def test_the_result_has_it_only_where_others_were_felt(tmp_path: Path) -> None:
    for held, expected in ((None, None), (1.26, 1.3)):
        folder = RunFolder.create(tmp_path, "run")
        write_result(folder, "completed", error=None, emulated=False, others_held_cores=held)
        assert json.loads(folder.result_path.read_text()).get("others_held_cores") == expected
