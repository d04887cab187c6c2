"""Trackers that come with us: what they hand to their libraries, which are imitated here, and what breaks."""

from __future__ import annotations

import shutil
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.metrics import libraries
from holmes_hpc.metrics.trackers import Trackers
from holmes_hpc.values.trackers import TrackedRun
from tests.engine_worlds import SAID, train_world

ROW = {"step": 3, "loss": 2.5, "samples": 8, "emulated": True, "time": "now", "stragglers": [], "mfu": None}
NUMBERS = {"loss": 2.5, "samples": 8.0}


def a_run(folder: Path, **options: Any) -> TrackedRun:
    plan: Any = None
    return TrackedRun("name", folder, {"run": {"tracker_options": options}, "train": {"steps": 4}}, plan)


def modules(monkeypatch: pytest.MonkeyPatch, **found: Any) -> None:
    for name, content in found.items():
        module = types.ModuleType(name.replace("__", "."))
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)


class Called:
    """Keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Called:
            self.calls.append((name, arguments, options))
            return self
        return call


def test_tensorboard_gets_every_number_at_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []

    class Writer:
        def __init__(self, folder: str, flush_secs: int) -> None:
            Path(folder).mkdir()

        def add_event(self, event: Any) -> None:
            written.append(event)

        def close(self) -> None:
            written.append("closed")

    class Summary(types.SimpleNamespace):
        Value = types.SimpleNamespace

    modules(monkeypatch, tensorboard__compat__proto__event_pb2={"Event": types.SimpleNamespace},
            tensorboard__compat__proto__summary_pb2={"Summary": Summary},
            tensorboard__summary__writer__event_file_writer={"EventFileWriter": Writer},
            tensorboard={"__path__": []}, tensorboard__compat={"__path__": []},
            tensorboard__compat__proto={"__path__": []}, tensorboard__summary={"__path__": []},
            tensorboard__summary__writer={"__path__": []})
    said: list[str] = []
    with Trackers({"tensorboard": libraries.open_library("tensorboard")}, a_run(tmp_path), said.append) as trackers:
        trackers.add(ROW)
    assert written[-1] == "closed"
    assert written[0].step == 3
    assert {each.tag: each.simple_value for each in written[0].summary.value} == NUMBERS
    assert said == []
    tracker = libraries.open_library("tensorboard")(a_run(fresh(tmp_path)))
    shutil.rmtree(tmp_path / "fresh")
    with pytest.raises(FileNotFoundError, match="tensorboard is gone"):
        tracker.add(ROW)


def fresh(folder: Path) -> Path:
    (folder / "fresh").mkdir()
    return folder / "fresh"


def test_weights_and_biases_is_told_what_the_settings_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = Called()
    called.dir = str(fresh(tmp_path))
    modules(monkeypatch, wandb={"init": called.init})
    tracker = libraries.open_library("wandb")(a_run(tmp_path, wandb={"mode": "offline", "project": "mine"}))
    tracker.add(ROW)
    tracker.close()
    # The library says nothing of either.
    with monkeypatch.context() as full, pytest.raises(OSError, match="No space left"):
        full.setattr(libraries.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=0))
        tracker.add(ROW)
    shutil.rmtree(called.dir)
    with pytest.raises(FileNotFoundError, match="fresh is gone"):
        tracker.add(ROW)
    libraries.open_library("wandb")(a_run(tmp_path, wandb={"mode": "disabled"})).add(ROW)  # which makes no folder
    (_, _, options), (log, (numbers,), at), (finish, _, _) = called.calls[:3]
    assert options["mode"] == "offline"
    assert options["project"] == "mine"
    assert options["dir"] == str(tmp_path)
    assert options["config"]["train"] == {"steps": 4}
    assert (log, numbers, at, finish) == ("log", NUMBERS, {"step": 3}, "finish")


def test_mlflow_keeps_its_files_in_the_run_folder_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    allowed: list[bool] = []

    class Client(Called):
        def __init__(self, tracking_uri: str) -> None:
            super().__init__()
            made.append((tracking_uri, self))

        def create_run(self, experiment: Any, run_name: str) -> Any:
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id="their-id"))

    modules(monkeypatch, mlflow={"MlflowClient": Client, "__path__": []},
            mlflow__entities={"Metric": lambda *values: values},
            mlflow__environment_variables={"MLFLOW_ALLOW_FILE_STORE": types.SimpleNamespace(set=allowed.append)})
    tracker = libraries.open_library("mlflow")(a_run(tmp_path))
    tracker.add(ROW)
    tracker.close()
    [(uri, client)] = made
    assert uri == (tmp_path / "mlflow").as_uri()
    assert allowed == [True]
    libraries.open_library("mlflow")(a_run(tmp_path, mlflow={"tracking_uri": "https://example.org"}))
    assert allowed == [True]
    names = [name for name, _, _ in client.calls]
    assert names[-2:] == ["log_batch", "set_terminated"]
    [metrics] = [options["metrics"] for name, _, options in client.calls if name == "log_batch"]
    assert [(name, value, step) for name, value, _, step in metrics] == [("loss", 2.5, 3), ("samples", 8.0, 3)]


def test_a_library_that_is_missing_is_named_once_and_stops_nothing(tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    said: list[str] = []
    with Trackers({"wandb": libraries.open_library("wandb")}, a_run(tmp_path), said.append) as trackers:
        for step in range(20):
            trackers.add({**ROW, "step": step})
    assert len(said) == 1
    assert "wandb" in said[0]


def test_the_default_is_tensorboard_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for installed in (True, False):
        monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name, found=installed: found or None)
        assert list(libraries.chosen_trackers(None)) == (["tensorboard"] if installed else [])
        assert list(libraries.chosen_trackers([])) == []
        assert list(libraries.chosen_trackers(["mlflow"])) == ["mlflow"]


def test_trackers_that_cannot_be_are_refused_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="Valid: tensorboard, wandb, mlflow"):
        compose(["+cluster=laptop", "run.trackers=[other]"])
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigurationError, match="pip install wandb"):
        compose(["+cluster=laptop", "run.trackers=[wandb]"])
    assert compose(["+cluster=laptop"]).run.trackers is None


class Files:
    """A tracker of files that loses what it writes to: its folder at step 2, or from the begin the room on its disk."""

    def __init__(self, run: TrackedRun, full: bool = False) -> None:
        self._folder = Path(run.folder, "files")
        self._folder.mkdir(exist_ok=True)
        self._full = full

    def add(self, row: Any) -> None:
        with Path("/dev/full" if self._full else self._folder / "rows.txt").open("a") as file:
            file.write(f"{row['loss']}\n")
        if row["step"] == 2:
            shutil.rmtree(self._folder)


class Ended(Files):
    """A tracker whose library ends the thread that it runs on."""

    def add(self, row: Any) -> None:
        raise SystemExit("killed")


def test_a_run_whose_trackers_break_has_the_losses_of_one_without(tmp_path: Path) -> None:
    layout = ["+cluster=uniform", "cluster.nodes=2", "cluster.gpus_per_node=1", "parallel=holmes",
              "parallel.pipeline=1", "train.steps=8"]
    plain = train_world(tmp_path, layout)
    broken = train_world(tmp_path, layout, trackers={"removed": Files, "full": partial(Files, full=True),
                                                     "killed": Ended})
    for key in ("loss", "grad_norm"):
        assert [row[key] for row in broken.rows] == [row[key] for row in plain.rows]
    said = Path(broken.folder.path, SAID).read_text().splitlines()
    assert sorted(line.split()[3].rstrip(":") for line in said) == ["full", "killed", "removed"], said
    assert not Path(plain.folder.path, SAID).exists()
