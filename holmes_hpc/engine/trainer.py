"""The training loop of one rank."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from holmes_hpc.architecture import Architecture
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.reduce import all_reduce_scalars
from holmes_hpc.data import Dataset
from holmes_hpc.engine.batch import TrainingBatches, validation_batches
from holmes_hpc.engine.checkpoints import Checkpoints, Saved
from holmes_hpc.engine.executor import Executor
from holmes_hpc.engine.gradients import Gradients
from holmes_hpc.engine.local_model import LocalModel
from holmes_hpc.engine.optimizer import build_optimizer, learning_rate, set_learning_rate
from holmes_hpc.engine.saved_state import ModelState, ParameterPieces, PlainOptimizerState, RandomState
from holmes_hpc.engine.timeline import Timeline
from holmes_hpc.engine.validation import forward_actions
from holmes_hpc.errors import RunFailedError
from holmes_hpc.metrics import RankReport, StepMetrics, Stragglers, Usage
from holmes_hpc.metrics.step import BY_RANK_EVERY, memory_by_rank
from holmes_hpc.metrics.usage import memory_gib
from holmes_hpc.planner import build_schedule
from holmes_hpc.runs import RunFolder
from holmes_hpc.values import Action, ActionKind, Plan


@dataclass(frozen=True)
class Job:
    """Everything that a rank needs to train; `train` and `optimizer` are groups of the configuration.

    `say` tells the user a line.
    """

    plan: Plan
    rank: int
    architecture: Architecture
    dataset: Dataset
    communicator: Communicator
    folder: RunFolder
    metrics: StepMetrics
    usage: Usage
    train: Any
    optimizer: Any
    say: Callable[[str], None] = logging.getLogger(__name__).info


class Trainer:
    """Trains one rank's stages by the plan's schedule; rank 0 writes the metrics."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._model = LocalModel(job.plan, job.rank, job.architecture, job.train.seed, communicator=job.communicator)
        self._gradients = Gradients(job.plan, job.rank, self._model)
        self._optimizer = build_optimizer(self._model.parameters, job.optimizer)
        self._executor = Executor(job.plan, job.rank, self._model, self._gradients, job.communicator,
                                  job.architecture)
        self._activity = job.communicator.activity
        self._timeline = Timeline(self._activity)
        self._actions = self._scheduled_actions()
        self._batches = TrainingBatches(job.plan, job.dataset, job.train.seed)
        self._pipelines = {pipeline for pipeline, _ in job.plan.stages_of(job.rank)}
        self._validation = validation_batches(job.plan, job.dataset, job.train.validation_samples)
        self._checkpoints = self._make_checkpoints()
        self._stragglers = Stragglers(job.plan, job.say if job.rank == 0 else lambda text: None)
        self._step_began = 0.0

    def run(self) -> None:
        """Train up to step `train.steps`, from where a checkpoint left off.

        Raises RunFailedError when the loss or the gradients stop being finite, CheckpointError when a checkpoint
        cannot be written or none can be used.
        """
        train = self._job.train
        first_step = self._checkpoints.resume() + 1
        if first_step > train.steps and self._job.rank == 0:
            self._job.say(f"nothing is left to train: the checkpoint is of step {first_step - 1}, and train.steps="
                          f"{train.steps}")
        self._synchronise()
        for step in range(first_step, train.steps + 1):
            row = self._step(step)
            last = step == train.steps
            if last or (train.validate_every and step % train.validate_every == 0):
                row["validation_loss"] = self._validate()
            self._write(row)
            if last or (train.timeline_every and step % train.timeline_every == 0):
                self._write_timeline(step)
            self._activity.begin("checkpoint")
            self._checkpoints.after_step(step)
            if "validation_loss" in row:
                self._synchronise()
        self._checkpoints.finish()

    def _step(self, step: int) -> dict[str, Any]:
        job = self._job
        self._timeline.start()
        self._activity.begin("loading data", step)
        batches = self._batches.load(step, self._pipelines)
        self._gradients.zero()
        loss = self._executor.run(self._actions, batches, self._timeline)
        exposed_from = time.perf_counter()
        norm = self._global_norm(step)
        exposed_seconds = self._timeline.reduce_seconds() + time.perf_counter() - exposed_from
        rate = learning_rate(step, job.optimizer, job.train.steps)
        with self._timeline.record(Action(ActionKind.OPTIMIZER)):
            self._gradients.clip(norm, job.optimizer.clip_grad_norm)
            set_learning_rate(self._optimizer, rate)
            self._optimizer.step()
        report = RankReport(loss, self._timeline.receive_wait_seconds(), exposed_seconds, memory_gib(),
                            *job.usage.sent_since_last(), own_seconds=self._activity.own_seconds())
        reports = self._gather(report)
        now = time.perf_counter()
        step_seconds, self._step_began = now - self._step_began, now
        row = job.metrics.row(step, reports, step_seconds=step_seconds, grad_norm=norm, learning_rate=rate)
        row["stragglers"] = self._stragglers.add(step, [each.own_seconds for each in reports], step_seconds)
        if step == job.train.steps or step % BY_RANK_EVERY == 0:
            row |= memory_by_rank(reports)
        if not math.isfinite(row["loss"]):
            raise RunFailedError(f"step {step}: the loss is {row['loss']}; lower optimizer.lr "
                                 f"(now {job.optimizer.lr}) or lengthen optimizer.warmup_steps")
        return row

    def _make_checkpoints(self) -> Checkpoints:
        job = self._job
        pieces = ParameterPieces(job.plan, job.rank, self._model, job.architecture)
        saved = Saved(job.plan, job.architecture, job.dataset, job.train, job.optimizer, {
            "optimizer": PlainOptimizerState(self._optimizer, self._model, pieces),
            "model": ModelState(self._model, pieces),
            "random": RandomState(job.rank, job.plan.world_size),
        })
        return Checkpoints(saved, job.communicator, job.folder, job.say)

    def _scheduled_actions(self) -> tuple[Action, ...]:
        plan, rank = self._job.plan, self._job.rank
        schedule = build_schedule(plan)
        if plan.schedule.digest != schedule.digest():
            raise RunFailedError(
                f"the plan's schedule has the digest {plan.schedule.digest}, this version of holmes_hpc makes "
                f"{schedule.digest()} of the same plan: it was made by another version; plan anew"
            )
        return tuple(action for action in schedule.actions[rank] if action.kind is not ActionKind.OPTIMIZER)

    def _global_norm(self, step: int) -> float:
        square_sum = torch.tensor([self._gradients.local_square_sum()], dtype=torch.float64)
        self._combine(square_sum)
        norm = math.sqrt(float(square_sum)) if float(square_sum) >= 0 else math.nan
        if not math.isfinite(norm):
            raise RunFailedError(f"step {step}: the gradients are not finite (norm {norm}); lower optimizer.lr "
                                 f"(now {self._job.optimizer.lr}) or lengthen optimizer.warmup_steps")
        return norm

    def _gather(self, report: RankReport) -> list[RankReport]:
        rows = torch.zeros(self._job.plan.world_size, RankReport.length(), dtype=torch.float64)
        rows[self._job.rank] = torch.tensor(report.row(), dtype=torch.float64)
        self._combine(rows)
        return [RankReport(*row) for row in rows.tolist()]

    def _validate(self) -> float:
        self._activity.begin("validation")
        actions = forward_actions(self._job.plan, self._job.rank, self._validation)
        share = self._executor.run(actions, self._validation, Timeline(), training=False)
        loss = torch.tensor([share], dtype=torch.float64)
        self._combine(loss)
        return float(loss)

    def _combine(self, values: torch.Tensor) -> None:
        all_reduce_scalars(values, self._job.communicator.world, self._job.communicator)

    def _synchronise(self) -> None:
        """Wait for all ranks, so that the next step is timed from a common start."""
        self._job.communicator.barrier()
        self._job.usage.sent_since_last()
        self._activity.own_seconds()
        self._step_began = time.perf_counter()

    def _write(self, row: dict[str, Any]) -> None:
        if self._job.rank == 0:
            self._job.folder.append_metrics(row)

    def _write_timeline(self, step: int) -> None:
        lines = [
            json.dumps({"step": step, "action": str(action), "kind": action.kind.value, "pipeline": action.pipeline,
                        "stage": action.stage, "microbatch": action.microbatch, "start": round(start, 6),
                        "end": round(end, 6)})
            for action, start, end in self._timeline.records
        ]
        path = self._job.folder.timeline_path(self._job.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write("\n".join(lines) + "\n")
