"""Trains small worlds of forked ranks in this process's children, without the emulated cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from holmes_hpc.architecture import Architecture
from holmes_hpc.comm.groups import connect
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.config.compose import compose
from holmes_hpc.data import Dataset, open_dataset
from holmes_hpc.engine import Job, Trainer
from holmes_hpc.launch.rank.late_imports import import_late_modules
from holmes_hpc.metrics import StepMetrics, Usage
from holmes_hpc.metrics.trackers import Trackers
from holmes_hpc.planner import plan
from holmes_hpc.runs import RunFolder, read_metrics
from holmes_hpc.values import Plan
from holmes_hpc.values.backend_kinds import GLOO
from holmes_hpc.values.timed import TimedPrices
from holmes_hpc.values.trackers import OpenTracker, TrackedRun
from tests.forked import ForkedRank, run_ranks

TINY = [
    "train.steps=4", "train.global_batch_size=8", "parallel.micro_batch_size=1", "train.validate_every=0",
    "train.validation_samples=2", "train.timeline_every=1", "model.num_layers=4", "model.hidden_size=16",
    "model.num_heads=2", "model.sequence_length=16", "optimizer.clip_grad_norm=0.5", "parallel.bucket_mib=0.004",
]

SAID = "said.txt"
"""File in a run's folder with what was said of its trackers."""
Look = Callable[[Trainer], Any]


@dataclass
class World:
    """What a small run left: its plan, the rows of its metrics, its folder, and what `look` returned by rank."""

    plan: Plan
    rows: list[dict[str, Any]]
    folder: RunFolder
    seen: list[Any]

    def timeline(self, rank: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.folder.timeline_path(rank).read_text().splitlines()]


def train_world(path: Path, overrides: list[str], look: Look | None = None, made: Plan | None = None,
                before: Look | None = None, check: bool = True,
                trackers: Mapping[str, OpenTracker] | None = None, backend: str = GLOO.name,
                timed: TimedPrices | None = None) -> World:
    """Train a tiny model on forked ranks; `before` and `look` see every rank's trainer before and after.

    `trackers` are opened on rank 0; what is said of them is in the file SAID of the run's folder. With `timed` ranks
    only wait, and get no data.
    """
    published = any(each.startswith("model.from_pretrained=") for each in overrides)
    tiny = [each for each in TINY if not (published and each.startswith("model."))]
    config = compose([*tiny, *overrides])
    made = made or plan(config, mode="local")
    import_late_modules(made)
    folder = RunFolder.create(path, "world")
    dataset = None
    if timed is None:
        dataset = open_dataset(config.data, Architecture.from_config(config.model))  # once, before the ranks are forked
    results = run_ranks(made.world_size, _train, config, made, dataset, folder, look, before, trackers or {},
                        backend, timed, timeout_seconds=120, check=check)
    return World(made, read_metrics(folder), folder, results)


def _train(given: ForkedRank, config: Any, made: Plan, dataset: Dataset | None, folder: RunFolder, look: Look | None,
           before: Look | None, opens: Mapping[str, OpenTracker], backend: str, timed: TimedPrices | None) -> Any:
    architecture = Architecture.from_config(config.model)
    communicator = connect(given.store, given.rank, made.world_size, made, NodeNetworks.local(), backend,
                           start_timeout=60, train_timeout=60)
    run = TrackedRun("world", folder.path, {}, made)
    with Trackers(opens if given.rank == 0 else {}, run, partial(_say, folder)) as trackers:
        job = Job(made, given.rank, architecture, dataset, communicator, folder,
                  StepMetrics(made, architecture, 1.0, True, timed), Usage(None, None), config.train, config.optimizer,
                  trackers=(trackers,), pretrained=config.model.from_pretrained, timed=timed)
        trainer = Trainer(job)
        if before is not None:
            before(trainer)
        trainer.run()
    seen = look(trainer) if look is not None else None
    communicator.close()
    return seen


def _say(folder: RunFolder, line: str) -> None:
    with Path(folder.path, SAID).open("a") as file:
        file.write(line + "\n")
