"""Runs on the test cluster that can be watched while they train: submitted, not followed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from tests.runs_for_tests import ROOT, command, newest_run
from tests.slurm_cluster import SlurmCluster

TINY = [
    "train.validate_every=0", "train.validation_samples=4", "train.timeline_every=0", "train.global_batch_size=32",
    "parallel.micro_batch_size=2", "model.num_layers=2", "model.hidden_size=32", "model.num_heads=2",
    "model.sequence_length=32", "model.tied_embeddings=false", "optimizer.clip_grad_norm=0.5",
]
PAIR = ["+cluster=mixed", "parallel=holmes", *(f"cluster.partitions.{label}.{key}=1" for label in ("ib", "roce")
                                              for key in ("nodes", "gpus_per_node"))]
"""One rank with InfiniBand and one with RoCE."""
ENDLESS = ["train.steps=100000", "optimizer.decay_steps=24"]
"""More steps than any machine finishes while a test looks on; the learning rate of the first ones is that of 24."""
SLOW_ETHERNET_GBPS = 0.004
"""A rate between the two at which a step takes about a fifth of a second, so that it can be met in mid-run."""
HOLDING = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def holmes(slurm: SlurmCluster, verb: str, arguments: list[str], machine: str = "head", **options: Any) -> Any:
    """Run `python -m holmes_hpc.VERB` on a machine, in the folder that all machines share."""
    words = command(verb, arguments)
    options.setdefault("environment", HOLDING)
    return slurm.run(words, machine, **{"timeout_seconds": 150, **options})


class SubmittedJob:
    """A run that was submitted."""

    def __init__(self, slurm: SlurmCluster, overrides: list[str], **options: Any) -> None:
        self.slurm = slurm
        self.steps_before_restart = 0
        done = holmes(slurm, "train", [*PAIR, *TINY, "launch.wait=false", "launch.signal_seconds=1", *overrides],
                      **options)
        folder = newest_run(slurm.shared)
        assert folder is not None, done.stderr
        self.folder = folder
        self.id = int(self.read("job.json")["job_id"])

    def read(self, name: str) -> Any:
        """Return a JSON file of the run folder, None where there is none."""
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else None

    @property
    def rows(self) -> list[dict[str, Any]]:
        path = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def steps(self) -> list[int]:
        return [row["step"] for row in self.rows]

    @property
    def checkpoints(self) -> list[Path]:
        return sorted((self.folder / "checkpoints").glob("step-*"))

    @property
    def log(self) -> str:
        """All that was written: the batch script's log, then the ranks'."""
        paths = sorted((self.folder / "logs").glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')}" for path in paths)

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = 90) -> None:
        """Wait for a condition; fails with the logs."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, (f"not within {seconds} s: {what}; states "
                                                 f"{self.slurm.states(self.id)}\n{self.log}")
            time.sleep(0.1)

    def wait_for_steps(self, count: int) -> None:
        self.wait(lambda: len(self.rows) >= count, f"{count} steps")

    def wait_for_restart(self, more_steps: int = 2) -> None:
        """Wait until the job was started again and has gone on for some steps."""
        def has_gone_on() -> bool:
            if (self.read("job.json") or {}).get("restarts", 0) < 1:
                return False
            self.steps_before_restart = self.steps_before_restart or len(self.rows)
            return len(self.rows) >= self.steps_before_restart + more_steps

        self.wait(has_gone_on, f"a restart and {more_steps} steps")

    def complete_after(self, more_steps: int) -> None:
        """Let the next start of an endless run complete after some more steps."""
        config = OmegaConf.load(self.folder / "config.yaml")
        config.train.steps = self.steps[-1] + more_steps
        OmegaConf.save(config, self.folder / "config.yaml")

    def cancel(self) -> None:
        """Cancel the job and wait until nothing is left of it."""
        self.slurm.run(f"scancel {self.id}")
        self.slurm.wait_for(self.id)
        self.wait_until_gone()

    def wait_for_result(self, status: str, seconds: float = 90) -> dict[str, Any]:
        """Wait until result.json says `status`."""
        def ended() -> bool:
            found = (self.read("result.json") or {}).get("status")
            assert found in (None, status, "preempted"), f"{self.read('result.json')}\n{self.log}"
            return found == status

        self.wait(ended, f"a result {status}", seconds)
        return self.read("result.json")

    def wait_until_gone(self) -> None:
        """Wait until no process of the run is left on any node."""
        self.wait(lambda: not self.processes(), f"the end of all processes, {self.processes()} are left", 30)

    def processes(self) -> list[str]:
        """Return the command lines of the run's living processes."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(self.folder) in line and ("launch.step" in line or "outcome" in line):
                found.append(line)
        return found
