"""What the ranks write of every step, on a disk that is full for a while."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc.engine.records import MetricsFile, Timelines
from holmes_hpc.errors import RunFailedError
from holmes_hpc.runs import RunFolder, read_metrics


class FullAtTimes(RunFolder):
    """A run folder whose disk is full while the file `full` exists beside it."""

    def append_metrics(self, record: Any) -> None:
        if (self.path / "full").exists():
            raise RunFailedError("the disk or the quota is full")
        super().append_metrics(record)

    def timeline_path(self, rank: int) -> Path:
        return Path("/dev/full") if (self.path / "full").exists() else super().timeline_path(rank)


def records_of(folder: RunFolder, *, patient: bool) -> tuple[MetricsFile, Timelines, list[str]]:
    said: list[str] = []
    return (MetricsFile(folder, said.append, patient=patient), Timelines(folder, 0, said.append, patient=patient),
            said)


def test_rows_wait_and_keep_their_order(tmp_path: Path) -> None:
    folder = FullAtTimes(tmp_path)
    file, timelines, said = records_of(folder, patient=True)
    for step in range(1, 7):
        if step in (2, 5):
            (tmp_path / "full").touch()
        if step == 4:
            (tmp_path / "full").unlink()
        file.add({"step": step})
        timelines.add(step, [{"action": "O"}])
    assert [row["step"] for row in read_metrics(folder)] == [1, 2, 3, 4]
    kinds = [("rows" in text, "timelines" in text) for text in said]
    assert kinds == 2 * [(True, False), (False, True)], "once each time"
    assert all("training goes on" in text for text in said)
    with pytest.raises(RunFailedError):
        file.close()
    (tmp_path / "full").unlink()
    file.close()
    assert [row["step"] for row in read_metrics(folder)] == [1, 2, 3, 4, 5, 6]
    lines = folder.timeline_path(0).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 4]


def test_without_patience_the_error_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "full").touch()
    file, timelines, said = records_of(FullAtTimes(tmp_path), patient=False)
    with pytest.raises(RunFailedError):
        file.add({"step": 1})
    with pytest.raises(RunFailedError, match=r"/dev/full cannot be written.*run\.folder"):
        timelines.add(1, [{"action": "O"}])
    assert not said


def test_a_timeline_that_has_no_room_for_all_of_a_step_takes_none_of_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    _, timelines, said = records_of(folder, patient=True)
    actions = [{"action": name} for name in "FBOG"]
    timelines.add(1, actions)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = folder.timeline_path(0).stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + size // 2, limits[1]))
    try:
        timelines.add(2, actions)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    timelines.add(3, actions)
    assert len(said) == 1
    found = [json.loads(line) for line in folder.timeline_path(0).read_text().splitlines()]
    assert found == [{"step": step, **action} for step in (1, 3) for action in actions]
