"""The message of a run that failed names one rank: the one at fault."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from holmes_hpc.engine.saving.saver import Saver
from holmes_hpc.errors import CheckpointError, DataError, HolmesError
from holmes_hpc.launch.follow.failure import FailureReport
from holmes_hpc.launch.rank.spare import Spare
from holmes_hpc.launch.rank.watching import report_error
from holmes_hpc.runs import RunFolder, Start
from tests.run_folders import make_plan


def checkpoint_failure(tmp_path: Path) -> CheckpointError:
    """Return what every rank raises when rank 1 cannot write its part."""
    communicator = SimpleNamespace(rank=1, plan=make_plan())
    saver = Saver(tmp_path, communicator, token="t", keep=1, goes_on=False, say=print, texts={})
    with pytest.raises(CheckpointError) as raised:
        saver._fail(f"the checkpoint of step 3 was not written: {saver._who(1)}: no space is left")
    return raised.value


def write_reports(folder: RunFolder, error: HolmesError) -> None:
    for rank in (0, 1):
        report_error(SimpleNamespace(folder=folder, rank=rank, tell=lambda report: None, spare=Spare()), error)


def here(folder: RunFolder) -> str:
    report = FailureReport(folder)
    for rank in (0, 1):
        report.add({"event": "ended", "rank": rank, "node": "ib-0", "slot": "ib/0", "status": 1})
    return report.message()


def on_slurm(folder: RunFolder) -> str:
    start = Start(folder, "5-0")
    start.write("node-ib-0.json", {"ranks": [0, 1], "report": {"node": "ib-0"}})
    for rank in (0, 1):
        start.write_end(rank, "ib-0", 1)
    return start.cause() or ""


@pytest.mark.parametrize("cause", [here, on_slurm])
def test_a_failed_checkpoint_names_the_rank_that_could_not_write_and_no_other(cause, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "mixed")
    write_reports(folder, checkpoint_failure(tmp_path))
    assert json.loads(folder.rank_error_path(0).read_text())["names_rank"]
    message = cause(folder)
    assert re.findall(r"rank \d+", message) == ["rank 1"] and "no space is left" in message


@pytest.mark.parametrize("cause", [here, on_slurm])
def test_other_errors_get_the_rank_that_raised_them(cause, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "mixed")
    write_reports(folder, DataError("the file is cut short"))
    assert re.findall(r"rank \d+", cause(folder)) == ["rank 0"]
