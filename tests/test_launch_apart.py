"""What may never return is done by a process that holds nobody."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from holmes_hpc.launch.here.apart import NoAnswerError, apart
from holmes_hpc.launch.here.ended import RunEnd
from holmes_hpc.runs import RunFolder, read_result


def test_an_answer_comes_back_and_so_does_what_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> list[object]:
        os.write(2, b"a word\n")
        return ["x" * 200_000, 2, None]

    assert apart(work, 60) == ["x" * 200_000, 2, None]
    assert capsys.readouterr().err == "a word\n"


def test_work_that_does_not_return_holds_nobody_and_goes_on(tmp_path: Path) -> None:
    pipe, began = tmp_path / "pipe", time.monotonic()
    os.mkfifo(pipe)

    def work() -> int:
        return (tmp_path / "done").write_text(pipe.read_text())

    with pytest.raises(NoAnswerError):
        apart(work, 0.3)
    assert time.monotonic() - began < 30 and not (tmp_path / "done").exists()
    pipe.write_text("late")
    deadline = time.monotonic() + 30
    while not (tmp_path / "done").exists() or (tmp_path / "done").read_text() != "late":
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("how", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: sys.exit(3), lambda: 1 / 0,
                                 lambda: {1, 2}])
def test_work_that_ends_without_an_answer_is_an_error(how: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="without an answer"):
        apart(how, 60)  # type: ignore[arg-type]


def test_the_end_of_a_run_whose_folder_hangs_says_what_is_known(tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(tmp_path, "mixed")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr("holmes_hpc.launch.here.ended.write_result", lambda *_, **__: (tmp_path / "pipe").read_text())
    end = RunEnd(folder, emulated=False, seconds=0.3)
    assert end.write("failed", lambda: "read from the folder", "rank 3 is gone") == (
        f"rank 3 is gone; the run folder {folder.path} did not answer for 0 s, so its result was not written", False)
    assert end.write("completed", lambda: None)[1] is False
    for _ in range(2):
        (tmp_path / "pipe").write_text("")  # lets both processes end


def test_the_end_of_a_run_whose_folder_is_gone_names_that_alone(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "mixed")
    folder.path.rename(tmp_path / "elsewhere")
    end = RunEnd(folder, emulated=False, seconds=60)
    assert end.write("failed", lambda: "it was removed") == ("it was removed", True)
    assert end.write("completed", lambda: None) == (f"the run folder {folder.path} was removed while the run went on",
                                                    False)
    assert read_result(folder) is None and not folder.path.exists()
