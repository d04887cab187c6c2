"""A rank that stops or sleeps is named by those that wait for it; pauses that all make together are not."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holmes_hpc.cluster.link_state import link_states
from holmes_hpc.comm.activity import OUTSIDE, Activity, Doing, Wait
from holmes_hpc.comm.groups import Communicator, connect
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.engine.watchdog.hang import Evidence, Hang, explain
from holmes_hpc.engine.watchdog.watch import Watch
from holmes_hpc.errors import NetworkError
from holmes_hpc.runs import RunFolder, Start
from holmes_hpc.runs.beats import Beat, Pulse, read_beat, write_beat
from holmes_hpc.values import Group
from tests.forked import ForkedRank, run_ranks
from tests.tiny_plans import tiny_plan

TIMEOUT_SECONDS = 2.0
PLAN = tiny_plan(4, [Group("data", (0, 1), "ib"), Group("data", (2, 3), "roce")])
LOGS = Path("logs")


def beat(action: str = "F0.0.0", group: int = OUTSIDE, seconds: float = 0.0, **fields: Any) -> Beat:
    return Beat(7, 3, action, group, "" if group == OUTSIDE else "summing gradients", seconds, **fields)


def explained(beats: dict[int, Beat], silent: dict[int, float], group: int = 0) -> Hang:
    wait = Wait(Doing(3, "R0", group, "summing gradients"), 2.5)
    return explain(Evidence(PLAN, 0, wait, f"the group {group}", beats, silent, 2.0, LOGS))


def test_a_silent_rank_is_named_with_its_node_and_what_it_did_last() -> None:
    beats = {rank: beat("R0", 0) for rank in range(4)} | {3: beat("F0.1.2")}
    hang = explained(beats, {3: 1.7})
    assert hang.culprits == (3,)
    for words in ("rank 3 on node roce/1 (slot roce/1) hangs", "no sign of life for at least 1.7 s", "step 3, F0.1.2",
                  "rank 0 on node ib/0 waited 2.5 s", "not arrived there: rank 3 on node roce/1", "logs/rank-3.log",
                  "train.timeout_seconds"):
        assert words in hang.message, words


def test_a_busy_rank_is_named_although_another_one_waits_for_it_elsewhere() -> None:
    beats = {0: beat("R0", 1), 1: beat("O", 0), 2: beat("loading data", seconds=2.4), 3: beat("R0", 2)}
    hang = explained(beats, {}, group=1)
    assert hang.culprits == (2,)
    assert "busy outside any process group for 2.4 s in step 3, loading data" in hang.message
    assert "not arrived there: rank 1 on node roce/0" in hang.message


def test_a_rank_that_left_because_of_the_hang_is_not_named() -> None:
    beats = {0: beat("R0", 0), 1: beat("R0", ended=True), 2: beat("R0", ended=True), 3: beat("F0.0.0", seconds=2.0)}
    assert explained(beats, {1: 5.0, 2: 5.0}).culprits == (3,)


def test_where_all_wait_the_network_is_named() -> None:
    hang = explained({rank: beat("R0", 0) for rank in range(4)}, {})
    assert hang.culprits == ()
    assert "all ranks wait" in hang.message and "its network is at fault" in hang.message


def test_a_link_that_is_down_is_named_with_both_ends() -> None:
    beats = {rank: beat("R0", 1, links={"eth0": f"up, 10.0.0.{rank + 1}"}) for rank in range(4)}
    beats[1] = beat("R0", 1, links={"eth0": "up, but has no carrier", "roce0": "down"})
    message = explained(beats, {}, group=1).message
    assert message.startswith("all ranks wait, none computes: the interface eth0 of node roce/0 is up, but has no "
                              "carrier, the interface roce0 of node roce/0 is down; rank 0 ")
    assert "its ends: ib/0: eth0 up, 10.0.0.1; roce/0: eth0 up, but has no carrier, roce0 down" in message


def test_the_state_of_an_interface_is_the_kernels() -> None:
    assert link_states(["lo", "nosuch0"]) in ({"lo": "up, 127.0.0.1", "nosuch0": "missing"},
                                              {"lo": "down", "nosuch0": "missing"})


def test_several_silent_ranks_are_named_together() -> None:
    hang = explained({0: beat("R0", 0)}, {1: 2.0, 2: 2.0, 3: 2.0})
    assert hang.culprits == (1, 2, 3)
    assert "ranks 1 on node roce/0 (slot roce/0), 2 on node ib/1" in hang.message


def test_a_sign_of_life_is_given_as_the_training_begins(tmp_path: Path) -> None:
    """The next one comes later, and a rank that is stopped until then would seem to start still."""
    folder, activity = RunFolder.create(tmp_path, "mixed"), Activity()
    communicator = SimpleNamespace(activity=activity, rank=0, world_size=1)
    watch = Watch(communicator, folder, 1e6, lambda hang: None)  # type: ignore[arg-type]
    watch._interval_seconds = 3600.0
    watch.start()
    activity.begin("loading data", 1)
    deadline = time.monotonic() + 60
    while (now := read_beat(folder.beat_path(0))) is None or now.step == 0:
        assert time.monotonic() < deadline, now
        time.sleep(0.01)
    assert (now.step, now.action, now.number) == (1, "loading data", 2)
    watch.leave()


def test_own_seconds_leave_out_the_operations_of_groups() -> None:
    activity = Activity()
    began = time.monotonic()
    activity.own_seconds()
    time.sleep(0.05)
    with activity.waiting(0, "x"), activity.waiting(0, "y"):
        time.sleep(0.2)
    asked = time.monotonic()
    assert 0.04 < activity.own_seconds() < time.monotonic() - began - 0.19
    assert activity.own_seconds() <= time.monotonic() - asked, "counted from the last question on"
    assert activity.now.group == OUTSIDE


def test_a_beat_is_read_as_written_and_a_still_number_is_silence(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    pulse = Pulse(folder, range(2))
    write_beat(folder, 0, beat("a long one " * 100))
    assert (cut := read_beat(folder.beat_path(0))) is not None and cut.action.endswith("a long one...")
    write_beat(folder, 0, beat(seconds=1.5))
    assert read_beat(folder.beat_path(0)) == beat(seconds=1.5)
    pulse.look(10.0)
    pulse.look(12.0)
    assert pulse.silent_seconds(0, 12.0) == 2.0
    assert pulse.silent_seconds(1, 12.0) == 2.0, "never seen"
    write_beat(folder, 0, Beat(8, 3, "F0.0.0"))
    pulse.look(13.0)
    assert pulse.silent_seconds(0, 13.0) == 0.0


def joined(given: ForkedRank, timeout_seconds: float) -> Communicator:
    return connect(given.store, given.rank, given.world_size, tiny_plan(given.world_size, []), NodeNetworks.local(),
                   start_timeout=20, train_timeout=timeout_seconds)


def meet(communicator: Communicator, step: int) -> None:
    communicator.activity.begin("F0.0.0", step)
    communicator.barrier()


def outcome(communicator: Any, watch: Watch) -> Any:
    """Wait for all at a barrier; return the ranks to blame and the message where that was a hang."""
    try:
        communicator.barrier()
    except NetworkError:
        hang = watch.explain_failure()
        return None if hang is None else (hang.culprits, hang.message)
    return "no error"


def stuck(given: ForkedRank, base: str, how: str, stuck_ranks: tuple[int, ...]) -> Any:
    """Meet a few times; then some ranks stop or sleep. Return what the others say."""
    folder = RunFolder(Path(base))
    communicator = joined(given, TIMEOUT_SECONDS)
    watch = Watch(communicator, folder, TIMEOUT_SECONDS, lambda hang: None)
    watch.start()
    for step in range(1, 4):
        meet(communicator, step)
    communicator.activity.begin("loading data", 4)
    if given.rank in stuck_ranks:
        if how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        given.kept = communicator, watch
        return None
    return outcome(communicator, watch)


@pytest.mark.parametrize(("how", "stuck_ranks"), [("stop", (2,)), ("stop", (0, 2)), ("sleep", (1,))])
def test_those_that_wait_name_the_cause(tmp_path: Path, how: str, stuck_ranks: tuple[int, ...]) -> None:
    folder = RunFolder.create(tmp_path, "x")
    others = [rank for rank in range(3) if rank not in stuck_ranks]
    outcomes = run_ranks(3, stuck, str(folder.path), how, stuck_ranks, check=False, awaited=others)
    said = [outcomes[rank].value for rank in others if outcomes[rank].value]
    assert said, [(each.error, each.message) for each in outcomes]
    message = said[0][1]
    assert all(each[0] == stuck_ranks for each in said), said
    assert "step 4, loading data" in message
    assert ("no sign of life" in message) == (how == "stop")


def suspended(given: ForkedRank, base: str) -> Any:
    """Rank 1 comes late, as all stand still for longer than the timeout: rank 0 in its wait."""
    folder = RunFolder(Path(base))
    communicator = joined(given, TIMEOUT_SECONDS)
    watch = Watch(communicator, folder, TIMEOUT_SECONDS, lambda hang: None)
    watch.start()
    meet(communicator, 1)
    communicator.activity.begin("loading data", 2)
    if given.rank == 1:
        (folder.path / "pid").write_text(str(os.getpid()))
        time.sleep(600)
    while not (folder.path / "pid").exists():
        time.sleep(0.01)
    rank = os.getpid()
    if os.fork() == 0:  # what suspends the job: it stops both ranks, and lets the first one go on
        time.sleep(0.3)
        for pid in (rank, int((folder.path / "pid").read_text())):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(2 * TIMEOUT_SECONDS)
        os.kill(rank, signal.SIGCONT)
        os._exit(0)
    return outcome(communicator, watch)


def test_a_rank_that_was_suspended_for_longer_than_the_timeout_says_so(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    culprits, message = run_ranks(2, suspended, str(folder.path), check=False, awaited=[0])[0].value
    assert culprits == () and "rank 0 stood still for " in message and "`scontrol suspend`" in message
    assert "raise train.timeout_seconds" in message


def unnoticed(given: ForkedRank, base: str) -> Any:
    """Rank 1 never comes, and the library would wait for much longer than the watchdog."""
    communicator = joined(given, 60)
    folder = RunFolder(Path(base))

    def end(hang: Hang) -> None:
        (folder.path / f"hang-{given.rank}").write_text(hang.message)
        os._exit(1)

    Watch(communicator, folder, 1.0, end).start()
    communicator.activity.begin("F0.0.0", 1)
    if given.rank == 1:
        while not (folder.path / "hang-0").exists():
            time.sleep(0.05)
        return
    communicator.barrier()


def test_the_watchdog_ends_a_rank_whose_library_waits_on(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    outcomes = run_ranks(2, unnoticed, str(folder.path), timeout_seconds=30, check=False)
    assert outcomes[0].error == "died"
    message = (folder.path / "hang-0").read_text()
    assert message.startswith("rank 1 on node roce/0 (slot roce/0) hangs: busy outside any process group")


def resting(given: ForkedRank, base: str) -> int:
    """All ranks pause for longer than the timeout, one of them a little longer."""
    communicator = joined(given, 20)
    hangs: list[Hang] = []
    watch = Watch(communicator, RunFolder(Path(base)), 0.5, hangs.append)
    watch.start()
    for step in range(2):
        communicator.activity.begin("checkpoint", step)
        time.sleep(3.5 + 0.3 * given.rank)
        meet(communicator, step)
    watch.stop()
    return len(hangs)


def test_a_common_pause_triggers_nothing(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    assert run_ranks(2, resting, str(folder.path)) == [0, 0]


def test_on_slurm_the_hang_is_the_cause_and_not_the_kill_that_follows(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x")
    start = Start(folder, "5-0")
    start.path.mkdir(parents=True, exist_ok=True)
    for node in (0, 1):
        start.write(f"node-{node}.json", {"ranks": [2 * node, 2 * node + 1], "report": {"node": f"n{node}"}})
    for rank, kind in ((0, "HangError"), (1, "NetworkError")):
        start.write_end(rank, "n0", 1)
        folder.write_json(folder.rank_error_path(rank), {"type": kind, "message": f"{kind} of {rank}", "ours": True})
    assert start.cause() == "HangError of 0", "ranks 2 and 3 left no word: Slurm killed them"
    start.write_end(2, "n1", 1)
    folder.write_json(folder.rank_error_path(2), {"type": "DataError", "message": "bad data", "ours": True})
    assert start.cause() != "HangError of 0"
