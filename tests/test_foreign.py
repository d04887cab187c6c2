"""Whatever lies in a file that this process did not write, its reader gives a value, nothing, or one message."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as some

from analysis.reading import read_run
from holmes_hpc import foreign
from holmes_hpc.checkpoint.index import read_index
from holmes_hpc.cluster.calibrated import read_calibrated
from holmes_hpc.cluster.hostlist import HostlistError, expand_hostlist
from holmes_hpc.cluster.measured import read_measured
from holmes_hpc.cluster.slurm import gres, jobs, nodes, topology
from holmes_hpc.cluster.slurm import settings as slurm_settings
from holmes_hpc.cluster.slurm.allocation import read_allocation, read_counts
from holmes_hpc.cluster.slurm.step import read_step
from holmes_hpc.compare import read as read_plan
from holmes_hpc.errors import HolmesError
from holmes_hpc.launch.follow.failure import FailureReport
from holmes_hpc.launch.here.ended import clear_and_advise
from holmes_hpc.planner.calibration import read_run as read_finished
from holmes_hpc.runs import RunFolder, Start, heal, last_metrics, read_metrics, read_result
from holmes_hpc.runs.beats import read_beat
from holmes_hpc.runs.find import find_runs
from holmes_hpc.runs.job import final_state, main_is_alive, ranks_are_alive
from holmes_hpc.submit.board import Board, failure_lines
from holmes_hpc.submit.inventory import read_saved
from holmes_hpc.submit.watch import SubmittedRun, Watched
from tests.fuzzing import examples

DEEP = b"[" * 100_000
ALIASES = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n".encode()
    for before, name in zip("abcdefghi", "bcdefghij", strict=True))
HOSTILE = {
    "not UTF-8": b"train: {steps: \xff\xfe}\n", "nested": DEEP, "nested objects": b'{"a":' * 50_000, "empty": b"",
    "null": b"null", "a word": b"word", "a list": b"[null, 1, []]", "numbers": b"1e999", "long number": b"9" * 5000,
    "torn": b'{"status": "comp', "zeros": bytes(4096), "aliases": ALIASES, "itself": b"&a [*a]\n",
    "ranks are null": b'{"ranks": [null], "runs": [null], "main_pid": 1, "train": null, "status": "completed"}',
    "a pid beyond an int": b'{"main_pid": 99999999999999999999999, "host": null, "ranks": {"rank": 1}}',
    "a step that is a word": b'{"step": "three", "loss": "low", "status": 3, "steps": "many", "rank": "two"}\n',
    "a huge step": b'{"step": 1e300, "train": {"steps": 1e300}, "type": 3, "message": null}\n',
    "other forms": b'{"report": 3, "ranks": "0", "components": 7, "nodes": [{}], "jobs": [1], "sinfo": [{"node": 3}]}',
}

FILES = ("config.yaml", "plan.json", "job.json", "metrics.jsonl", "result.json", "excluded.json", "sweep.json",
         "ranks/rank-0.jsonl", "ranks/rank-0.error.json", "ranks/rank-0.beat", "starts/1-0-0/node-a.json",
         "starts/1-0-0/ended-0.json", "logs/notes.log", "checkpoints/step-000003/checkpoint.json", "probe.json")


def start_of(path: Path) -> Any:
    start = Start.newest(RunFolder(path))
    return start and (start.ranks(), start.ends(), start.cause(), start.failed_nodes(), start.anyone_failed())


def failure_of(path: Path) -> str:
    report = FailureReport(RunFolder(path))
    report.add({"event": "ended", "rank": 0, "node": "a", "slot": "a/0", "status": 1})
    return report.message()


FOLDER_READERS: dict[str, Callable[[Path], Any]] = {
    "result": lambda path: read_result(RunFolder(path)), "metrics": lambda path: read_metrics(RunFolder(path)),
    "last": lambda path: last_metrics(RunFolder(path)), "heal": lambda path: heal(path.parent.parent, clear_and_advise),
    "find": lambda path: find_runs([str(path)], path.parent), "board": lambda path: Board().row(
        Watched(SubmittedRun("1", RunFolder(path)), 0.0)), "failure lines": lambda path: failure_lines(RunFolder(path)),
    "state": lambda path: final_state(RunFolder(path)), "start": start_of, "failure": failure_of,
    "beat": lambda path: read_beat(path / "ranks" / "rank-0.beat"),
    "plan": lambda path: read_plan(str(path), path.parent.parent), "calibration": read_finished,
    "checkpoint": lambda path: read_index(path / "checkpoints" / "step-000003"),
    "analysis": lambda path: (read_run(path), read_run(path).places(), read_run(path).timeline()),
    "measured": lambda path: read_measured(str(path / "probe.json")),
    "calibrated": lambda path: read_calibrated(str(path / "probe.json")),
    "advice": lambda path: clear_and_advise(RunFolder(path)),
}
TEXT_READERS: dict[str, Callable[[str], Any]] = {
    "hostlist": expand_hostlist, "squeue": jobs.read_squeue, "sacct": jobs.read_sacct,
    "scontrol nodes": nodes.read_scontrol_nodes, "sinfo": nodes.read_sinfo,
    "partitions": nodes.read_scontrol_partitions, "slurm.conf": nodes.read_slurm_conf, "gres": gres.read_gres,
    "topology": topology.read_topology,
    "settings": slurm_settings.read_settings, "counts": read_counts, "saved": read_saved,
    "allocation": lambda text: read_allocation({"SLURM_JOB_ID": text, "SLURM_JOB_NODELIST": text,
                                                "SLURM_JOB_NUM_NODES": text, "SLURM_TASKS_PER_NODE": text}),
    "step": lambda text: read_step({"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": text, "SLURM_STEP_ID": text,
                                    "SLURM_STEP_TASKS_PER_NODE": text, "SLURM_PROCID": text}),
}


def tolerated(read: Callable[[Any], Any], value: Any) -> None:
    """Call a reader; one of our own errors is an answer, with a message in one line or few."""
    try:
        read(value)
    except (HolmesError, HostlistError) as error:
        assert str(error), type(error)


def fill(folder: Path, content: bytes, only: str | None = None) -> Path:
    for name in FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if only in (None, name) else b"{}")
    return folder


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_damaged_folder_stops_no_reader(tmp_path: Path, kind: str) -> None:
    folder = fill(tmp_path / "runs" / "mixed" / "20261129-201530-x7k2", HOSTILE[kind])
    for read in FOLDER_READERS.values():
        tolerated(read, folder)


@pytest.mark.parametrize("name", [name for name in FILES if "." in name])
@pytest.mark.parametrize("what", ["pipe", "folder", "link to itself", "no right"])
def test_something_else_in_the_place_of_a_file_holds_no_reader(tmp_path: Path, name: str, what: str) -> None:
    folder = fill(tmp_path / "runs" / "mixed" / "20261129-201530-x7k2", b"{}")
    path = folder / name
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "link to itself":
        path.symlink_to(path.name)
    else:
        path.write_bytes(b"{}")
        path.chmod(0)
    for read in FOLDER_READERS.values():
        tolerated(read, folder)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=some.data())
def test_mutated_files_stop_no_reader(tmp_path: Path, data: some.DataObject) -> None:
    scalar = some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=8)
    keys = some.sampled_from(["ranks", "rank", "status", "step", "steps", "main_pid", "host", "report", "type",
                              "message", "time", "told", "runs", "job_id", "train", "format", "content", "x"])
    value = some.recursive(scalar, lambda inner: some.lists(inner, max_size=3) | some.dictionaries(keys, inner,
                                                                                                    max_size=4))
    text = json.dumps(data.draw(some.dictionaries(keys, value, max_size=6))).encode()
    cut = data.draw(some.integers(0, len(text)))
    content = data.draw(some.sampled_from([text, text[:cut], text[:cut] + b"\xff" + text[cut:], text + b"\n" + text]))
    folder = fill(tmp_path / "runs" / "mixed" / "20261129-201530-x7k2", content)
    for read in FOLDER_READERS.values():
        tolerated(read, folder)


@pytest.mark.parametrize("reader", TEXT_READERS)
@examples(60)
@given(text=some.text(max_size=60) | some.text("0123456789[]-,()x|={}\"':\n nodeJOBIDSTATE", max_size=80))
def test_texts_of_slurm_stop_no_reader(reader: str, text: str) -> None:
    tolerated(TEXT_READERS[reader], text)


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("reader", TEXT_READERS)
def test_hostile_texts_stop_no_reader_of_slurm(reader: str, kind: str) -> None:
    tolerated(TEXT_READERS[reader], HOSTILE[kind].decode(errors="replace"))


@pytest.mark.parametrize("text", ["2(x999999999999)", "9" * 30, "1(x2000000)", "1," * 3 + "1(x1048576)"])
def test_counts_do_not_fill_the_memory(text: str) -> None:
    with pytest.raises(HolmesError, match="lists more than"):
        read_counts(text)


def test_a_damaged_folder_is_no_obstacle_for_the_runs_beside_it(tmp_path: Path) -> None:
    for number, content in enumerate(HOSTILE.values()):
        fill(tmp_path / "mixed" / f"20261129-201530-x{number:03d}", content)
    dead = tmp_path / "mixed" / "20261129-201531-dead"
    fill(dead, b"{}")
    (dead / "result.json").unlink()
    (dead / "job.json").write_text(json.dumps({"main_pid": 4_000_000, "host": os.uname().nodename, "main_start": 1}))
    healed = heal(tmp_path, clear_and_advise)
    assert dead in [folder.path for folder in healed]


@pytest.mark.parametrize(("job", "alive"), [
    ({"main_pid": 2**70}, None), ({"main_pid": -1}, None), ({"main_pid": True}, None), ({"main_pid": "1"}, None),
    ({}, None), ({"main_pid": 4_100_000}, False)])
def test_a_pid_that_is_none_says_nothing(job: dict[str, Any], alive: bool | None) -> None:
    job["host"] = os.uname().nodename
    assert main_is_alive(job) is alive
    assert not ranks_are_alive({"ranks": [None, 3, {"rank": None}, {"rank": 0, "pid": 2**70}], **job})


def test_a_file_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.write_bytes(b"[" + b"1," * 1000 + b"1]")
    with pytest.raises(foreign.ForeignError, match="at most 100 are read"):
        foreign.read_json(path, most_bytes=100)
    assert len(foreign.read_json(path)) == 1001


def test_depth_and_aliases_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"[" * 60 + b"]" * 60)
    foreign.read_json(path)
    foreign.read_yaml(path)
    for content, words in ((b"[" * 70 + b"]" * 70, "deeper than 64"), (ALIASES, "a million values"),
                           (b"a: &a {b: *a}\n", "values|deeper")):
        path.write_bytes(content)
        with pytest.raises(foreign.ForeignError, match=words):
            foreign.read_yaml(path)
    path.write_text("base: &base {nodes: 2}\nib: *base\nroce: {<<: *base, nodes: 3}\n")
    assert foreign.read_yaml(path)["roce"] == {"nodes": 3}
