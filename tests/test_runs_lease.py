"""One process holds a sweep, whichever machine it is on; who was killed or stopped loses it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc.errors import LaunchImpossibleError
from holmes_hpc.runs import lease
from holmes_hpc.runs.lease import HeldError, LeasedError, held, is_held, is_renewed, lease_path
from holmes_hpc.runs.sweeps import Sweep


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.4)


def elsewhere(path: Path, **changes: Any) -> Path:
    """Leave the lease of a process on another machine."""
    lease_path(path).write_text(json.dumps({"token": "x", "host": "another", "pid": 7, "start": 1, **changes}))
    return lease_path(path)


def test_a_second_one_waits_or_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "submitting"
    with held(path) as first:
        assert first.still_mine() and is_held(lease_path(path)) and is_renewed(lease_path(path))
        with pytest.raises(HeldError, match=f"process {os.getpid()} on "), held(path):
            pass
    assert not lease_path(path).exists()
    with held(path):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["submitting"]


def test_without_locks_of_the_file_system_the_lease_keeps_others_out(tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    def no_lock(descriptor: int, kind: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_lock)
    path = tmp_path / "submitting"
    with held(path), pytest.raises(LeasedError), held(path):
        pass
    with held(path):
        pass


def test_a_lease_that_nobody_renews_is_taken_over_and_its_holder_learns_of_it(tmp_path: Path) -> None:
    path = tmp_path / "submitting"
    with held(path) as stopped:
        stopped._end.set()  # as SIGSTOP would
        os.utime(lease_path(path), (1, 1))
        with pytest.raises(HeldError), held(path):  # on this machine its lock is there still
            pass
        lease_path(path).unlink()
        elsewhere(path)
        assert not stopped.still_mine()
    assert lease_path(path).exists(), "the other's lease is left to it"


def test_one_that_was_killed_on_another_machine_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "submitting"
    elsewhere(path)
    with pytest.raises(LeasedError, match="process 7 on another"), held(path):
        pass
    began = time.monotonic()
    with held(path, wait_seconds=5):
        pass
    assert time.monotonic() - began > 0.2


def test_a_process_of_this_machine_that_is_dead_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "submitting"
    elsewhere(path, host=os.uname().nodename, pid=2**22 - 1)
    with held(path) as ours:
        assert ours.still_mine()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"token": 3}', '{"host": []}'])
def test_damaged_leases_are_over_in_time(tmp_path: Path, content: str) -> None:
    path = tmp_path / "submitting"
    lease_path(path).write_text(content)
    with held(path, wait_seconds=5) as ours:
        assert ours.still_mine()


def test_a_sweep_whose_command_was_killed_elsewhere_is_gone_on_with_after_a_while(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, [], "")
    elsewhere(sweep.submitting)
    with sweep.alone():
        assert is_held(lease_path(sweep.submitting))
        with pytest.raises(LaunchImpossibleError, match="another command submits the runs of"), sweep.alone():
            pass
