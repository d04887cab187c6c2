"""Logs are shown in pieces, and their ends are found, however large they are and whatever lies in their place."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from holmes_hpc import logs
from holmes_hpc.runs import RunFolder, write_result
from holmes_hpc.submit.log_causes import LOG_LINES, cause_in_log, log_tail, newest_text

HUGE_BYTES = 10**11
"""A hundred gigabytes, of which the disk holds nothing but the end."""


@pytest.fixture(name="run")
def made_run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "mixed", {"config.yaml": "{}"})


def huge(path: Path, end: bytes) -> None:
    with path.open("wb") as file:
        file.seek(HUGE_BYTES)
        file.write(end)


def shown(run: RunFolder, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert logs.main([str(run.path), *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize("text", ["", "a", "a\n", "\n\n\n", "erste\nzwei\u00e4\u20ac\n\U0001f600 drei\nvier",
                                  "erste\n\nzwei\n"])
def test_the_last_lines_are_those_of_the_whole(run: RunFolder, capsys: pytest.CaptureFixture[str], text: str,
                                               piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_PIECE_BYTES", piece)
    run.log_path(0).write_text(text)
    assert shown(run, capsys) == text
    for lines in range(5):
        expected = text.splitlines(keepends=True)[-lines:] if lines else []
        assert shown(run, capsys, "--lines", str(lines)) == "".join(expected), lines


def test_a_rank_of_a_run_whose_logs_were_removed_has_none(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run.logs)
    assert logs.main([str(run.path), "--rank", "3"]) == 2
    assert f"--rank 3: {run.logs} has no log of it; it holds nothing" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "who"), [(("--rank", "0"), "rank 0"), ((), None)])
def test_a_log_without_a_word_is_said_to_be_empty(run: RunFolder, capsys: pytest.CaptureFixture[str],
                                                  arguments: tuple[str, ...], who: str | None) -> None:
    run.log_path(0).write_text("")
    for words in ("wrote nothing yet", "wrote nothing"):
        assert logs.main([str(run.path), *arguments]) == 0
        shown = capsys.readouterr()
        assert (shown.out, shown.err) == ("", f"holmes logs: {who or run.path} {words}\n")
        write_result(run, "completed", error=None, emulated=True)
    run.log_path(0).write_text("words\n")
    assert logs.main([str(run.path), *arguments, "--lines", "0"]) == 0
    assert capsys.readouterr() == ("", "")


def test_fewer_lines_than_none_are_refused(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert logs.main([str(run.path), "--lines", "-3"]) == 2
    assert "--lines -3: expected a whole number from 0" in capsys.readouterr().err


def test_the_newest_step_of_a_run_is_shown_behind_its_logs(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    run.log_path(0).write_text("words\n")
    for step in (1, 2):
        run.append_metrics({"step": step, "loss": 4.0 - step, "tokens_per_second": 1500.0, "step_seconds": 0.25,
                            "mfu": 0.5})
    newest = f"==> {run.metrics_path} <==\nstep 2  loss 2.000  1,500 tokens/s  250 ms/step  MFU 50%\n"
    assert shown(run, capsys) == f"words\n{newest}"
    assert shown(run, capsys, "--rank", "0") == "words\n"


def test_a_followed_run_shows_how_its_steps_get_on(run: RunFolder, capsys: pytest.CaptureFixture[str],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    run.append_metrics({"step": 1, "loss": 3.0})
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        run.append_metrics({"step": 1 + len(looks), "loss": 3.0})
        if len(looks) == 3:
            write_result(run, "completed", error=None, emulated=True)

    monkeypatch.setattr(time, "sleep", sleep)
    told = [line.partition("  ")[0] for line in shown(run, capsys, "--follow").splitlines()]
    assert told == [f"==> {run.metrics_path} <==", "step 1", "step 4"]


def test_a_log_larger_than_memory_is_shown_from_its_end(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    huge(run.log_path(0), b"\nlast but one\nlast\n")
    assert shown(run, capsys, "--lines", "2") == "last but one\nlast\n"


def test_causes_are_found_at_the_end_of_a_log_larger_than_memory(run: RunFolder) -> None:
    huge(run.logs / "batch.log", b"\nslurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n" + b"x" * 9000
         + b"\n" + b"execve(): " * 5000 + b"\n" + b"exceeded memory limit (" * 500)
    cause = cause_in_log(newest_text(run))
    assert cause is not None and "it used more memory than its job has" in cause
    tail = log_tail(run)
    assert "oom_kill event" in tail and len(tail) < 10_000 and len(tail.splitlines()) <= LOG_LINES + 1


def test_a_pipe_in_the_place_of_a_log_holds_nobody(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(run.log_path(0))
    os.mkfifo(run.logs / "batch.log")
    assert logs.main([str(run.path)]) == 2
    assert "it is no regular file" in capsys.readouterr().err
    assert newest_text(run) == "" and log_tail(run) == f"; see {run.logs}"
