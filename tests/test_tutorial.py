"""The tutorial is true: its lines run one after another in an empty folder, and end as it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs_for_tests import ROOT, environment

SMALL = ("train.global_batch_size=8 train.validate_every=0 train.validation_samples=4 model.hidden_size=32 "
         "model.num_heads=2 model.num_layers=2 model.sequence_length=32")


@pytest.mark.emulated
def test_the_tutorial_from_text_to_the_page(tmp_path: Path) -> None:
    """The lines as they stand, on a smaller model."""
    lines = "\n".join(re.findall(r"^```bash\n(.*?)^```$", (ROOT / "docs" / "tutorial.md").read_text(), re.S | re.M))
    assert lines.count("holmes ") == 6
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "holmes").write_text(f'#!/bin/sh\nexec {sys.executable} -m holmes_hpc.cli "$@"\n')
    (programs / "holmes").chmod(0o755)
    place = tmp_path / "laptop"
    place.mkdir()
    script = re.sub(r"(?m)^(holmes (?:train|plan) .*)$", rf"\1 {SMALL}", lines)
    done = subprocess.run(["bash", "-euc", script], cwd=place, capture_output=True, text=True, check=False, timeout=280,
                          env={**environment(), "PATH": f"{programs}:{os.environ['PATH']}"})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    steps = {}
    for name in ("first", "second"):
        (metrics,) = (place / "runs" / name).glob("2*/metrics.jsonl")
        steps[name] = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == {"first": list(range(1, 21)), "second": list(range(21, 31))}
    assert "next: `holmes report " in done.stderr and "step-000020" in done.stderr
    assert "first/" in (place / "report.html").read_text()
