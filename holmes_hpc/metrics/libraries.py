"""The trackers that come with holmes_hpc: each writes rows by its own library, which is imported when it is opened."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holmes_hpc.values.tracker_kinds import DEFAULT_TRACKER
from holmes_hpc.values.trackers import OpenTracker, TrackedRun, Tracker

_LEFT_OUT = frozenset({"step"})


def chosen_trackers(names: Sequence[str] | None) -> Sequence[str]:
    """Return the trackers of a run: those named, or where nobody chose, TensorBoard if its package is there."""
    if names is not None:
        return names
    return (DEFAULT_TRACKER,) if importlib.util.find_spec(DEFAULT_TRACKER) else ()


def numbers_of(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield what of a row is a single number."""
    for name, value in row.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in _LEFT_OUT:
            yield name, float(value)


class TensorBoard:
    """Writes event files into the folder `tensorboard` of the run."""

    def __init__(self, run: TrackedRun) -> None:
        """Open a file. Raises ImportError without the package, OSError where the folder cannot be written."""
        proto = "tensorboard.compat.proto"
        self._event = importlib.import_module(f"{proto}.event_pb2").Event
        self._summary = importlib.import_module(f"{proto}.summary_pb2").Summary
        writer = importlib.import_module("tensorboard.summary.writer.event_file_writer")
        self._folder = Path(run.folder, "tensorboard")
        self._writer = writer.EventFileWriter(str(self._folder), flush_secs=10)

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a row. Raises OSError where the folder is gone, or its disk takes no more."""
        if not self._folder.is_dir():
            raise FileNotFoundError(f"{self._folder} is gone")
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in numbers_of(row)]
        self._writer.add_event(self._event(wall_time=time.time(), step=row["step"],
                                           summary=self._summary(value=values)))

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class WeightsAndBiases:
    """Sends rows to Weights & Biases, or keeps them in the run folder with `mode: offline`."""

    def __init__(self, run: TrackedRun) -> None:
        """Begin a run of theirs under our run's name and id. Raises what the library raises."""
        options = {"project": run.name, "name": run.folder.name, "dir": str(run.folder), **_options(run, "wandb")}
        self._run = importlib.import_module("wandb").init(config=dict(run.config), **options)
        folder = Path(self._run.dir)
        self._folder = folder if folder.is_dir() else None  # `mode: disabled` makes none

    def add(self, row: Mapping[str, Any]) -> None:
        """Log a row at its step. Raises OSError where their folder is gone or its disk full: the library tells neither.
        """
        self._run.log(dict(numbers_of(row)), step=row["step"])
        if self._folder is not None:
            if not self._folder.is_dir():
                raise FileNotFoundError(f"{self._folder} is gone")
            if not shutil.disk_usage(self._folder).free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))

    def close(self) -> None:
        """End their run."""
        self._run.finish()


class MLflow:
    """Logs rows by MLflow's client; `tracking_uri` and `experiment` are its options."""

    def __init__(self, run: TrackedRun) -> None:
        """Begin a run of theirs under our run's id. Raises what the library raises."""
        options = {"tracking_uri": Path(run.folder, "mlflow").absolute().as_uri(), "experiment": run.name,
                   **_options(run, "mlflow")}
        package = importlib.import_module("mlflow")
        uri = str(options["tracking_uri"])
        if uri.startswith("file:") or "://" not in uri:
            _allow_files()
        self._metric = importlib.import_module("mlflow.entities").Metric
        self._client = package.MlflowClient(tracking_uri=options["tracking_uri"])
        known = self._client.get_experiment_by_name(options["experiment"])
        experiment = known.experiment_id if known else self._client.create_experiment(options["experiment"])
        self._id = self._client.create_run(experiment, run_name=run.folder.name).info.run_id
        self._client.log_dict(self._id, dict(run.config), "config.json")

    def add(self, row: Mapping[str, Any]) -> None:
        """Log a row at its step."""
        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[self._metric(name, value, now, row["step"])
                                                  for name, value in numbers_of(row)])

    def close(self) -> None:
        """End their run."""
        self._client.set_terminated(self._id)


def _allow_files() -> None:
    """Let MLflow write files, as recent releases do only where they are told to: all else needs a server."""
    known = importlib.import_module("mlflow.environment_variables")
    if hasattr(known, "MLFLOW_ALLOW_FILE_STORE"):
        known.MLFLOW_ALLOW_FILE_STORE.set(True)


def _options(run: TrackedRun, name: str) -> dict[str, Any]:
    """Return what `run.tracker_options` says for a tracker."""
    return dict((run.config.get("run", {}).get("tracker_options") or {}).get(name) or {})


LIBRARIES: Mapping[str, OpenTracker] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}


def open_library(name: str) -> OpenTracker:
    """Return what opens a tracker of ours; a library that is missing is named with the way to install it."""
    def opens(run: TrackedRun) -> Tracker:
        try:
            return LIBRARIES[name](run)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != name:
                raise
            raise ModuleNotFoundError(f"the package `{name}` is not installed (pip install {name})",
                                      name=name) from error
    return opens
