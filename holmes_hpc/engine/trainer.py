"""The training loop of one rank."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import torch

from holmes_hpc.checkpoint.entries import Entry
from holmes_hpc.comm.reduce import all_reduce_scalars
from holmes_hpc.engine.executor import Executor
from holmes_hpc.engine.gradients import NORM_GUARD
from holmes_hpc.engine.guard import Guard
from holmes_hpc.engine.job import Job
from holmes_hpc.engine.optimizer import learning_rate
from holmes_hpc.engine.origin import Origin, find_origin
from holmes_hpc.engine.parts import data_of, real_parts
from holmes_hpc.engine.precision import DTYPES
from holmes_hpc.engine.profiler_trace import profiled
from holmes_hpc.engine.receives import arrivals
from holmes_hpc.engine.records import MetricsFile, Timelines
from holmes_hpc.engine.saving.checkpoints import Checkpoints, Saved
from holmes_hpc.engine.saving.optimizer_state import state_entries
from holmes_hpc.engine.saving.saved_state import ModelState, ParameterPieces, RandomState, ShardedState
from holmes_hpc.engine.sharing import share_numbers
from holmes_hpc.engine.timed.clock import ON_TIME
from holmes_hpc.engine.timed.parts import NoCheckpoints, timed_parts
from holmes_hpc.engine.timeline import Timeline
from holmes_hpc.errors import RunFailedError
from holmes_hpc.metrics import RankReport, Stragglers
from holmes_hpc.metrics.slow_nics import SlowNics
from holmes_hpc.metrics.step import BY_RANK_EVERY, by_rank
from holmes_hpc.metrics.usage import memory_gib
from holmes_hpc.schedule import build_schedule, plan_digest
from holmes_hpc.schedule.forward_only import forward_actions
from holmes_hpc.values import Action, ActionKind
from holmes_hpc.values.capabilities import unable_to_sum


class Trainer:
    """Trains one rank's stages by the plan's schedule; rank 0 writes the metrics."""

    def __init__(self, job: Job) -> None:
        self._job = job
        train, plan, rank = job.train, job.plan, job.rank
        dtype = DTYPES[train.precision]
        actions, self._arriving = self._scheduled_actions()
        end = next(i for i, action in enumerate(actions) if action.kind is ActionKind.OPTIMIZER)
        self._actions, self._gathers = actions[:end], actions[end + 1:]
        self._parts = parts = (real_parts if job.timed is None else timed_parts)(job, self._actions, dtype)
        self._model, self._gradients, self._gatherer = parts.model, parts.gradients, parts.gatherer
        self._compute, self._optimizer, self._batches = parts.compute, parts.optimizer, parts.batches
        self._executor = Executor(plan, rank, parts.compute, parts.gradients, job.communicator,
                                  job.pace if job.timed is None else None)
        self._guard = Guard(train, job.optimizer, rank, job.say, plan, self._origin)
        self._activity = job.communicator.activity
        self._stretch = 1.0 if job.timed is None else job.timed.dilation
        self._timeline = Timeline(self._activity, job.communicator.streams, self._stretch)
        self._pipelines = {pipeline for pipeline, _ in plan.stages_of(rank)}
        self._validation, self._validates = parts.validation, job.timed is None
        self._checkpoints = self._make_checkpoints(dtype) if job.timed is None else NoCheckpoints(train.steps)
        patient = train.on_save_error == "continue"
        self._timelines = Timelines(job.folder, rank, job.say, patient=patient)
        self._file = MetricsFile(job.folder, job.say, patient=patient)
        self._stragglers = Stragglers(plan, job.say if rank == 0 else lambda text: None)
        self._nics = SlowNics(plan, job.say if rank == 0 else lambda text: None)
        self._step_began = 0.0
        self._norm_seconds = 0.0
        self._stopping = False

    def run(self) -> bool:
        """Train up to step `train.steps`, from where a checkpoint left off; return whether the run came so far.

        When any rank was told to stop, all stop after the same step, and its state is saved.

        Raises RunFailedError when the loss or the gradients stop being finite and `train.on_nonfinite` is `stop`,
        CheckpointError when a checkpoint cannot be written or none can be used.
        """
        train = self._job.train
        first_step = self._checkpoints.resume() + 1
        self._parts.check_started(self._job, first_step - 1)
        if first_step > train.steps and self._job.rank == 0:
            self._job.say(f"nothing is left to train: the checkpoint is of step {first_step - 1}, and train.steps="
                          f"{train.steps}")
        self._stopping = any(share_numbers(float(self._job.stop_requested()), self._job.communicator))
        self._synchronise()
        for step in range(first_step, train.steps + 1):
            if self._stopping:
                self._checkpoints.stop(step - 1)
                self._file.close()
                return False
            self._change_conditions(step)
            with profiled(train, self._job.rank, self._job.folder, step, self._job.say):
                row = self.step(step)
            last = step == train.steps
            if self._validates and (last or (train.validate_every and step % train.validate_every == 0)):
                row["validation_loss"] = self._validate()
            if self._job.rank == 0:
                for tracker in (self._file, *self._job.trackers):
                    tracker.add(row)
            if last or (train.timeline_every and step % train.timeline_every == 0):
                self._timelines.add(step, self._timeline.rows())
            self._activity.begin("checkpoint")
            self._checkpoints.after_step(step)
            if "validation_loss" in row:
                self._synchronise()
        self._gatherer.finish()
        self._checkpoints.finish()
        self._file.close()
        return True

    def step(self, step: int) -> dict[str, Any]:
        """Train one step (counted from 1) and return its row of the metrics; all ranks call it."""
        job = self._job
        self._timeline.start()
        self._activity.begin("loading data", step)
        self._gatherer.start(self._timeline)
        batches = self._batches.load(step, self._pipelines)
        self._gradients.start(self._timeline)
        self._compute.loss_scale = scale = self._guard.scale.value
        loss = self._executor.run(self._actions, self._arriving, batches, self._timeline)
        reports, norm = self._combine_reports(loss)
        self._timeline.update()
        norm /= scale
        rate = learning_rate(step, job.optimizer, self._checkpoints.schedule_end)
        self._stopping = any(report.stop for report in reports)
        if self._guard.allows(step, sum(report.loss for report in reports), norm):
            self._update(norm, scale, rate)
        self._timeline.end()
        now = time.perf_counter()
        step_seconds, self._step_began = now - self._step_began, now
        row = job.metrics.row(step, reports, step_seconds=step_seconds, grad_norm=norm, learning_rate=rate)
        if job.pace.words:
            row["disturbed"] = list(job.pace.words)
        row["stragglers"] = self._stragglers.add(step, [each.own_seconds for each in reports], step_seconds)
        self._nics.add(step, reports, step_seconds, stragglers=bool(self._stragglers.now))
        row |= self._batches.row()
        if job.timed is None and (step == job.train.steps or step % BY_RANK_EVERY == 0):
            row |= by_rank(reports)
        return row | self._guard.row()

    def state_entries(self) -> Iterator[Entry]:
        """Return what this rank keeps of the optimizer's state, as parts of global tensors."""
        return state_entries(self._optimizer, self._model)

    def state_numbers(self) -> dict[str, float]:
        """Return the numbers that a checkpoint keeps beside the tensors."""
        scale = {f"loss_scale.{name}": value for name, value in self._guard.scale.state().items()}
        return {"optimizer.steps": float(self._optimizer.steps), "skipped_steps": float(self._guard.skipped), **scale}

    def load_numbers(self, numbers: dict[str, float]) -> None:
        """Go on with the numbers of a checkpoint; call it after parameters and `state_entries` were filled.

        In lower precision the parameters are rounded from their masters and gathered.
        """
        self._optimizer.steps = int(numbers["optimizer.steps"])
        self._guard.skipped = int(numbers["skipped_steps"])
        self._guard.scale.load({name: numbers[f"loss_scale.{name}"] for name in self._guard.scale.state()})
        for flat in self._gradients.flats:
            for segment in flat.segments:
                flat.copy_in(segment, self._model.parameters)
        self._optimizer.round()
        self._gatherer.updated()
        self._gather()
        self._gatherer.finish()

    def _origin(self) -> Origin | None:
        """Ask all ranks where numbers that are not finite began; all call it."""
        odd = self._gradients.own.odd(parameter.detach() for parameter in self._model.parameters.values())
        return find_origin(self._job.plan, [int(bits) for bits in share_numbers(float(odd), self._job.communicator)])

    def _update(self, norm: float, scale: float, rate: float) -> None:
        with self._timeline.record(Action(ActionKind.OPTIMIZER)):
            largest = self._job.optimizer.clip_grad_norm
            clip = 1.0 if largest is None else min(1.0, largest / (norm + NORM_GUARD))
            self._gradients.scale(clip / scale)
            self._optimizer.step(rate)
            self._gatherer.updated()
        self._gather()

    def _gather(self) -> None:
        before = time.perf_counter()
        for action in self._gathers:
            with self._timeline.record(action):
                self._gatherer.gather(action.reduction)
        self._compute.waited(time.perf_counter() - before)

    def _make_checkpoints(self, dtype: torch.dtype) -> Checkpoints:
        job = self._job
        pieces = ParameterPieces(job.plan, job.rank, self._model)
        saved = Saved(job.plan, job.architecture, data_of(job), job.train, job.optimizer, {
            "optimizer": ShardedState(str(job.optimizer.name), self.state_entries, self.state_numbers,
                                      self.load_numbers, self._gatherer.finish),
            "model": ModelState(self._model, pieces, written=dtype == torch.float32),
            "random": RandomState(job.rank, job.plan.world_size),
        })
        return Checkpoints(saved, job.communicator, job.folder, job.say)

    def _scheduled_actions(self) -> tuple[tuple[Action, ...], dict[int, list[Action]]]:
        """Return this rank's actions, and by neighbour its receives in the order in which it sends."""
        plan, rank = self._job.plan, self._job.rank
        problems = unable_to_sum(plan)
        if problems:
            raise RunFailedError("; ".join(problems))
        digest = plan_digest(plan)
        if plan.schedule.digest != digest:
            raise RunFailedError(
                f"the plan's schedule has the digest {plan.schedule.digest}, this version of holmes_hpc makes "
                f"{digest} of the same plan: it was made by another version; plan anew"
            )
        schedule = build_schedule(plan)
        return schedule.actions[rank], arrivals(rank, schedule.actions[rank], lambda peer: schedule.actions[peer])

    def _combine_reports(self, loss: torch.Tensor) -> tuple[list[RankReport], float]:
        """Return the reports of all ranks and the global norm of the gradients, in one collective.

        Here the host waits for the device, once.
        """
        job = self._job
        since = time.perf_counter()
        own_loss, *norms = torch.stack([loss.double(), *self._gradients.local_norms()]).tolist()
        if job.communicator.streams is not None:
            since = time.perf_counter()  # before, the device was at work
        exposed_seconds = (self._timeline.reduce_seconds() + self._timeline.late_gather_seconds()
                           + self._norm_seconds / self._stretch)
        if job.timed is not None:
            job.communicator.barrier()  # the bytes of a node are told when all its ranks have sent theirs
        busy_ethernet, busy_fabric = job.usage.busy_since_last()
        late = self._parts.lateness() if self._parts.lateness is not None else ON_TIME
        report = RankReport(own_loss, self._timeline.receive_wait_seconds(), exposed_seconds, memory_gib(),
                            *job.usage.sent_since_last(), stop=float(job.stop_requested()),
                            own_seconds=self._activity.own_seconds(), busy_ethernet=busy_ethernet,
                            busy_fabric=busy_fabric, late_mean_seconds=late.mean_seconds,
                            late_worst_seconds=late.worst_seconds)
        table = torch.zeros(job.plan.world_size, RankReport.length() + 1, dtype=torch.float64)
        table[job.rank] = torch.tensor([*report.row(), sum(norm**2 for norm in norms)], dtype=torch.float64)
        self._combine(table)
        self._norm_seconds = time.perf_counter() - since
        self._compute.waited(self._norm_seconds)
        square_sum = float(table[:, -1].sum())
        norm = math.sqrt(square_sum) if square_sum >= 0 else math.nan
        return [RankReport(*row[:-1]) for row in table.tolist()], norm

    def _validate(self) -> float:
        self._gatherer.finish()
        self._activity.begin("validation")
        plan, rank = self._job.plan, self._job.rank
        actions = forward_actions(plan, rank, self._validation)
        arriving = arrivals(rank, actions, lambda peer: forward_actions(plan, peer, self._validation))
        share = self._executor.run(actions, arriving, self._validation,
                                   Timeline(self._activity, self._job.communicator.streams), training=False)
        loss = share.double().cpu().reshape(1)
        self._combine(loss)
        return float(loss)

    def _combine(self, values: torch.Tensor) -> None:
        all_reduce_scalars(values, self._job.communicator.world, self._job.communicator)

    def _change_conditions(self, step: int) -> None:
        """Let what disturbs a step begin or end; where all ranks waited for it, the step is timed from then on."""
        if self._job.pace.changes_links(step):
            self._activity.begin("waiting for the links to change", step)
        if self._job.pace.begin(step):
            self._activity.own_seconds()
            self._step_began = time.perf_counter()

    def _synchronise(self) -> None:
        """Wait for all ranks, so that the next step is timed from a common start."""
        self._job.communicator.barrier()
        self._job.usage.sent_since_last()
        self._job.usage.busy_since_last()
        self._activity.own_seconds()
        self._step_began = time.perf_counter()
