"""An error on a thread of ours, which nobody waits for, is said and ends neither the thread nor what it watches."""

from __future__ import annotations

import ast
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from holmes_hpc.comm.activity import Activity
from holmes_hpc.comm.store.server import StoreServer
from holmes_hpc.engine.watchdog import watch as watchdog
from holmes_hpc.engine.watchdog.hang import Hang
from holmes_hpc.engine.watchdog.watch import Watch
from holmes_hpc.launch.rank import starting
from holmes_hpc.metrics import backlog
from holmes_hpc.metrics.backlog import Backlog
from holmes_hpc.runs import RunFolder, lease
from holmes_hpc.runs.beats import read_beat, write_beat
from holmes_hpc.runs.lookout import Lookout
from holmes_hpc.troubles import Troubles
from tests.runs_for_tests import ROOT


def fails(*words: object) -> NoReturn:
    raise AttributeError("no such thing")


def soon(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Failing:
    """Stands for a function of ours: fails the first few times."""

    def __init__(self, times: int, function: Callable[..., Any] = lambda *words: None) -> None:
        self.left, self.calls, self._function = times, 0, function

    def __call__(self, *words: Any) -> Any:
        self.calls += 1
        if self.calls <= self.left:
            fails()
        return self._function(*words)


def test_each_kind_of_trouble_is_said_once_and_with_its_place() -> None:
    said: list[str] = []
    troubles = Troubles("watching", said.append)
    for _ in range(3):
        with troubles.said():
            fails()
        with troubles.said():
            raise ValueError("first line\nsecond")
    assert len(said) == 2 and said[0].startswith("watching: AttributeError: no such thing (") and __file__ in said[0]
    assert "ValueError: first line (" in said[1] and all(text.endswith("; it goes on") for text in said)


def test_a_trouble_that_cannot_even_be_said_is_left() -> None:
    tried: list[str] = []

    def say(text: str) -> None:
        tried.append(text)
        fails()

    with Troubles("watching", say).said():
        raise OSError(28, "No space left on device")
    assert len(tried) == 1 and "No space left on device" in tried[0]


def test_who_looks_at_a_run_goes_on_after_an_error_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    lookout = Lookout(Failing(3, lambda: "the run is over"), 0.001)
    lookout.start()
    soon(lambda: lookout.answer)
    assert lookout.answer == "the run is over" and lookout.stop(60) and lookout.stuck_seconds() == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING] and "AttributeError" in caplog.text


def watch_of(folder: RunFolder, at_hang: Callable[[Hang], None], **fields: Any) -> tuple[Watch, Activity]:
    activity = Activity()
    communicator = SimpleNamespace(activity=activity, rank=0, world_size=1, **fields)
    return Watch(communicator, folder, 0.1, at_hang), activity  # type: ignore[arg-type]


def test_a_rank_gives_further_signs_of_life_after_one_that_failed(tmp_path: Path, caplog: pytest.LogCaptureFixture,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(tmp_path, "mixed")
    watch, activity = watch_of(folder, lambda hang: None)
    watch.start()
    monkeypatch.setattr(watchdog, "write_beat", Failing(3, write_beat))
    activity.begin("loading data", 7)
    soon(lambda: (beat := read_beat(folder.beat_path(0))) and beat.step == 7)
    watch.leave()
    assert "watching rank 0: AttributeError" in caplog.text


def test_a_rank_that_is_stuck_is_ended_although_nobody_can_say_for_whom(tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "MARGIN_SECONDS", 0.0)
    hangs: list[Hang] = []
    watch, activity = watch_of(RunFolder.create(tmp_path, "mixed"), hangs.append, describe_index=fails)
    watch.start()
    activity.begin("R0", 3)
    with activity.waiting(0, "summing gradients"):
        soon(lambda: hangs)
    assert "rank 0 waited" in hangs[0].message and "for whom cannot be said: AttributeError" in hangs[0].message
    watch.leave()


def test_signs_of_life_of_the_start_and_looks_at_queues_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_BEAT_SECONDS", 0.001)
    monkeypatch.setattr(starting, "write_beat", beats := Failing(3, write_beat))
    folder = RunFolder.create(tmp_path, "mixed")
    with starting.first_signs(SimpleNamespace(folder=folder, rank=0), Activity()):  # type: ignore[arg-type]
        soon(lambda: beats.calls > 3 and read_beat(folder.beat_path(0)))
    monkeypatch.setattr(backlog, "SAMPLE_SECONDS", 0.001)
    reading = Failing(3, dict)
    Backlog(("lo",), reading).start()
    soon(lambda: reading.calls > 3)
    monkeypatch.setattr(backlog, "SAMPLE_SECONDS", 3600.0)


def test_a_lease_is_renewed_after_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.001)
    mine = lease.Lease(tmp_path / "x.lease")
    mine.take()
    token = Failing(3, lease._token)
    monkeypatch.setattr(lease, "_token", token)
    soon(lambda: token.calls > 4)
    os.utime(tmp_path / "x.lease", (1, 1))
    soon(lambda: (tmp_path / "x.lease").stat().st_mtime > 1)
    mine.release()


def test_a_store_that_fails_tells_the_ranks_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreServer, "_turn", fails)
    server = StoreServer("127.0.0.1", b"x" * 32, 1)
    soon(lambda: server.error)
    server.close()
    assert "the store that ranks meet at failed: AttributeError: no such thing" in str(server.error)
    assert not server.is_listening


def test_every_thread_of_ours_takes_its_own_errors() -> None:
    """Each module that starts threads says what they raise, by the class for that or by keeping it for who waits."""
    keeps = {"checkpoint/background.py", "metrics/trackers.py", "comm/store/server.py", "comm/progress.py"}
    short = {"submit/step_guard.py",  # writes one line
             "launch/slurm/stopping.py"}  # waits for signals, and ends the process whatever happens
    found = {}
    for path in sorted((ROOT / "holmes_hpc").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        names |= {node.id for node in nodes if isinstance(node, ast.Name)}
        if "Thread" in names:
            found[str(path.relative_to(ROOT / "holmes_hpc"))] = "Troubles" in names
    assert {name for name, says in found.items() if not says} == keeps | short
    assert len(found) >= 8
