"""A run folder in which one value is of another type, far away or missing: each command says so, or leaves it out."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from holmes_hpc import cli
from holmes_hpc.config.compose import compose
from holmes_hpc.planner import plan
from tests.run_folders import make_run, metric

ODD: dict[str, Any] = {"null": None, "word": "x", "list": [[1]], "mapping": {"a": {"b": 1}}, "negative": -1e308,
                       "huge": 10**30, "number": 2.5, "true": True}
COMMANDS = ("trace", "compare", "calibrate", "report")
TIMELINE = "ranks/rank-0.jsonl"
PLACES: list[tuple[str, tuple[str | int, ...]]] = [
    *((TIMELINE, (name,)) for name in ("step", "action", "kind", "pipeline", "stage", "microbatch", "start", "end")),
    *(("plan.json", path) for path in ((("schedule", "hop_warmups")), ("reductions", 0, "levels"), ("reductions", 0),
                                       ("synchronization", "norm_group"), ("pipelines", 0, "stages", 0), ("ranks", 0),
                                       ("predicted",), ("groups", 0, "ranks"))),
    *(("config.yaml", path) for path in (("cluster",), ("cluster", "partitions"), ("cluster", "partitions", "ib"),
                                         ("cluster", "name"), ("train",),
                                         ("cluster", "partitions", "ib", "nics_per_node"),
                                         ("cluster", "partitions", "ib", "nodes"), ("train", "precision"),
                                         ("model", "num_layers"), ("cluster", "emulate"), ("parallel",), ("launch",))),
]


@pytest.fixture(name="base", scope="module")
def made_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = compose(["+cluster=mixed", "cluster.partitions.ib.nodes=1", "cluster.partitions.roce.nodes=1"])
    made = plan(config, mode="local")
    folder = make_run(tmp_path_factory.mktemp("runs"), metrics=[metric(1)], timeline_steps=[1], result={
        "status": "completed", "emulated": True, "steps": 1})
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config))
    (folder / "plan.json").write_text(made.to_json())
    return folder


def changed(value: Any, path: tuple[str | int, ...], odd: Any) -> Any:
    value = inner = copy.deepcopy(value)
    for key in path[:-1]:
        inner = inner[key]
    assert path[-1] in (inner if isinstance(inner, dict) else range(len(inner))), path
    inner[path[-1]] = odd
    return value


def write_odd(file: Path, path: tuple[str | int, ...], odd: Any) -> None:
    text = file.read_text()
    if file.suffix == ".yaml":
        file.write_text(yaml.safe_dump(changed(yaml.safe_load(text), path, odd)))
    elif file.suffix == ".jsonl":
        first, rest = text.split("\n", 1)
        file.write_text(json.dumps(changed(json.loads(first), path, odd)) + "\n" + rest)
    else:
        file.write_text(json.dumps(changed(json.loads(text), path, odd)))


def cases() -> Iterator[Any]:
    """Yield each place with one of the odd values, another one in each."""
    for number, (file, path) in enumerate(PLACES):
        name = list(ODD)[(number * 3 + 2) % len(ODD)]
        yield pytest.param(file, path, ODD[name], id=f"{file}-{'.'.join(map(str, path))}-{name}",
                           marks=pytest.mark.long if number % 2 else ())


def test_the_folder_is_one_as_it_is(base: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(base, tmp_path / "mixed" / base.name)
    assert run("trace", folder) == 0 and run("compare", folder) == 0 and run("report", folder) == 0
    assert "plan is missing" not in (folder / "report.html").read_text()


@pytest.mark.parametrize("added", ["launch: {mode: local}", "? [a, b]\n: c", "odd: !!python/object:os.system {}",
                                   "when: 2026-99-99"])
def test_settings_that_only_hydras_reader_refuses_stop_no_page(base: Path, tmp_path: Path, added: str,
                                                               capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(base, tmp_path / "mixed" / base.name)
    with (folder / "config.yaml").open("a") as file:
        file.write(f"{added}\n")
    for command in ("report", "compare", "calibrate"):
        assert run(command, folder) in (0, 2), command
        assert "Traceback" not in capsys.readouterr().err
    assert (folder / "report.html").is_file()


def run(command: str, folder: Path) -> int:
    return cli.run([command, *[str(folder)] * (2 if command == "compare" else 1)])


@pytest.mark.parametrize(("file", "path", "odd"), list(cases()))
def test_one_odd_value_stops_no_command_with_a_traceback(base: Path, tmp_path: Path, file: str,
                                                         path: tuple[str | int, ...], odd: Any,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(base, tmp_path / "mixed" / base.name)
    write_odd(folder / file, path, odd)
    for command in COMMANDS[: 3 if file == TIMELINE and path != ("end",) else 4]:  # pages draw pictures, which is dear
        status = run(command, folder)
        captured = capsys.readouterr()
        assert status in (0, 2) and "Traceback" not in captured.out + captured.err, (command, captured.err)
        assert status == 0 or str(folder) in captured.err, "the message names the folder"
