"""The defaults teach the model something, on the text of whichever Python runs this."""

from __future__ import annotations

import math
from pathlib import Path

import numpy
import pytest

from holmes_hpc.data.python_docs import read_python_docs
from tests.runs_for_tests import train

ONE_PROCESS = ["+cluster=laptop", "cluster.partitions.laptop.gpus_per_node=1", "launch.mode=local"]


def nats_by_frequencies() -> float:
    """Return what bytes of the validation part cost whoever knows only how often each is in the training part."""
    training, validation = read_python_docs()
    shares = (numpy.bincount(training, minlength=256) + 1) / (len(training) + 256)
    return float(-numpy.log(shares[validation]).mean())


@pytest.mark.parametrize(("options", "nats_less"), [
    (["train.steps=20", "train.validate_every=10"], 0.1),
    pytest.param([], 0.3, marks=[pytest.mark.long, pytest.mark.timeout(1500)])],
    ids=["shorter", "default"])
def test_the_default_run_learns_more_than_how_frequent_bytes_are(tmp_path: Path, options: list[str],
                                                                 nats_less: float) -> None:
    finished = train(tmp_path, [*ONE_PROCESS, *options], timeout=1200)
    assert finished.status == 0, finished.stderr
    losses = [row["validation_loss"] for row in finished.rows if row.get("validation_loss") is not None]
    assert abs(finished.rows[0]["loss"] - math.log(256)) < 0.5, "a new model knows nothing of bytes"
    assert losses == sorted(losses, reverse=True), losses
    assert losses[-1] < nats_by_frequencies() - nats_less, losses
    assert options or losses[-1] < 2.8, losses
