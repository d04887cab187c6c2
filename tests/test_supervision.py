"""A silence has an end: a supervisor outside the ranks reads their signs of life and says which one holds the run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.beats import Beat, read_beat, write_beat
from holmes_hpc.runs.lookout import Lookout
from holmes_hpc.runs.supervision import Limits, Supervisor
from holmes_hpc.values.doing import Doing

LIMITS = Limits(start_seconds=100, training_seconds=50, checkpoint_seconds=200)
NODES = {0: "ib-0", 1: "ib-1", 2: "roce-0"}


class Watched:
    """A run of three ranks whose clock and beats the test sets."""

    def __init__(self, folder: RunFolder, process: str = "") -> None:
        self.folder, self.now, self.said = folder, 0.0, list[str]()
        self.numbers = dict.fromkeys(NODES, 0)
        self.supervisor = Supervisor(folder, NODES, LIMITS, self.said.append, lambda rank: process, lambda: self.now)
        for _ in range(2):
            self.beat(*NODES)
            self.look(1)

    def beat(self, *ranks: int, doing: Doing | None = None, seconds: float = 0.0, **fields: object) -> None:
        for rank in ranks:
            self.numbers[rank] += 1
            state = doing or Doing(3, "R0", 0, "summing")
            write_beat(self.folder, rank, Beat.of(self.numbers[rank], state, seconds, **fields))  # type: ignore[arg-type]

    def look(self, seconds: float) -> str | None:
        self.now += seconds
        return self.supervisor.look()

    def pass_by(self, seconds: int, *alive: int, **fields: object) -> str | None:
        """Let so many seconds pass in which these ranks give signs of life; return why the run is ended."""
        for _ in range(seconds):
            self.beat(*alive, **fields)  # type: ignore[arg-type]
            if (cause := self.look(1)) is not None:
                return cause
        return None


@pytest.fixture
def run(tmp_path: Path) -> Watched:
    return Watched(RunFolder.create(tmp_path, "mixed"))


def test_a_run_whose_ranks_give_signs_of_life_goes_on(run: Watched) -> None:
    assert run.pass_by(300, 0, 1, 2) is None and not run.said


def test_all_ranks_silent_end_the_run_with_their_names(run: Watched) -> None:
    assert run.pass_by(60) is None, "those that wait in a group say so first"
    cause = run.pass_by(10) or ""
    assert cause.startswith("rank 0 on node ib-0 has given no sign of life for 62 s, last seen in step 3, R0 "
                            "(train.timeout_seconds=50), and so have ranks 1, 2 (all ranks); ")
    assert len(run.said) == 1 and "given no sign of life for 25 s" in run.said[0] and "ranks 1, 2 (all" in run.said[0]


def test_a_single_silent_rank_is_named_and_its_process(tmp_path: Path) -> None:
    run = Watched(RunFolder.create(tmp_path, "mixed"), process="its process, pid 7, is stopped (SIGSTOP)")
    cause = run.pass_by(70, 0, 1) or ""
    assert cause.startswith("rank 2 on node roce-0 has given no sign of life") and "is stopped (SIGSTOP)" in cause
    assert "so ha" not in cause


def test_a_pause_of_the_supervisor_too_is_no_silence(run: Watched) -> None:
    """Slurm suspends a job with the processes of its batch script."""
    assert run.look(100000) is None
    assert run.pass_by(40, 0, 1, 2) is None


def test_a_save_has_its_own_end_and_is_said_before(run: Watched) -> None:
    seconds = 0
    while (cause := run.pass_by(1, 2, beside="writing step-000100", beside_seconds=seconds)) is None:
        run.beat(0, 1)
        seconds += 1
        assert seconds < 300
    assert run.said == ["rank 2 on node roce-0 has been writing step-000100 for 60 s; the run ends at the "
                        "latest when it has been 226 s (train.checkpoint_timeout_seconds=200)"], "when it does end"
    assert cause.startswith("rank 2 on node roce-0 has been writing step-000100 for 227 s "
                            "(train.checkpoint_timeout_seconds=200)")


def test_a_file_system_that_holds_beats_and_checkpoint_alike_has_the_time_of_a_checkpoint(run: Watched) -> None:
    run.pass_by(2, 0, 1, 2, beside="writing step-000100", beside_seconds=1.0)
    assert run.pass_by(200) is None
    cause = run.pass_by(40) or ""
    assert "last seen in step 3, R0 and writing step-000100 (train.checkpoint_timeout_seconds=200)" in cause


@pytest.mark.parametrize(("doing", "words"), [
    (Doing(4, "loading data"), "rank 1 on node ib-1 has been loading data of step 4 for 70 s"),
    (Doing(4, "F0.0.0"), "rank 1 on node ib-1 has been busy in step 4 with F0.0.0 for 70 s"),
])
def test_data_and_actions_have_an_end(run: Watched, doing: Doing, words: str) -> None:
    run.beat(1, doing=doing, seconds=49)
    assert run.look(1) is None
    run.beat(1, doing=doing, seconds=70)
    assert (run.look(1) or "").startswith(words)


def test_what_comes_before_the_first_step_has_the_time_of_a_start(run: Watched) -> None:
    run.beat(0, 1, 2, doing=Doing(0, "start"), seconds=100)
    assert run.look(1) is None
    run.beat(0, doing=Doing(0, "start"), seconds=120)
    assert "train.start_timeout_seconds=100" in (run.look(1) or "")


def test_data_may_be_prepared_for_hours_as_long_as_it_gets_on(run: Watched) -> None:
    """Each minute a line says how far it is."""
    for minute in range(10):
        doing = Doing(0, f"tokenising data at {minute}.0 of 10.0 MiB of docs")
        waiting = Doing(0, f"waiting for data, which another process makes ready: {doing.action}")
        for _ in range(60):
            run.beat(1, doing=doing, seconds=30)
            run.beat(0, 2, doing=waiting, seconds=30)
            assert run.look(1) is None
    assert run.said[:2] == ["rank 1 on node ib-1: tokenising data at 0.0 of 10.0 MiB of docs",
                            "rank 1 on node ib-1: tokenising data at 1.0 of 10.0 MiB of docs"] and len(run.said) == 10


def test_data_that_is_prepared_no_further_has_the_time_of_a_start_and_who_does_it_is_named(run: Watched) -> None:
    for rank, words in ((0, "meeting the other ranks: rank 2"), (1, "waiting for data, which another process makes"),
                        (2, "tokenising data at 1.5 of 10.0 MiB of a, b")):
        run.beat(rank, doing=Doing(0, words), seconds=120)
    cause = run.look(1) or ""
    assert cause.startswith("rank 2 on node roce-0 has been tokenising data at 1.5 of 10.0 MiB of a, b for 120 s "
                            "(train.start_timeout_seconds=100), and so have ranks 0, 1 (all ranks); "), cause


def test_a_rank_that_is_silent_before_the_first_step_has_the_time_of_a_start(run: Watched) -> None:
    run.beat(0, 1, 2, doing=Doing(0, "opening data"))
    assert run.pass_by(100, 0, 1, doing=Doing(0, "meeting the other ranks: rank 2")) is None
    cause = run.pass_by(20, 0, 1, doing=Doing(0, "meeting the other ranks: rank 2")) or ""
    assert cause.startswith("rank 2 on node roce-0 has given no sign of life for 117 s, last seen in step 0, opening "
                            "data (train.start_timeout_seconds=100); look at that node")


@pytest.mark.parametrize("words", ["ä" * 3000, "\U0001f600" * 3000, '"' * 3000, "\ud800" * 500])
def test_a_beat_of_long_words_is_cut_and_stays_one(tmp_path: Path, words: str) -> None:
    folder = RunFolder.create(tmp_path, "mixed")
    write_beat(folder, 0, Beat.of(7, Doing(0, words, 1, words), 1.0, beside=words, links={words: words}))
    beat = read_beat(folder.beat_path(0))
    assert beat is not None and beat.number == 7 and beat.action.endswith("...") and len(beat.action) >= 25


def test_ranks_without_a_first_sign_have_the_time_of_a_start_and_of_loading_libraries(tmp_path: Path) -> None:
    now = [0.0]
    supervisor = Supervisor(RunFolder.create(tmp_path, "mixed"), NODES, LIMITS, print, clock=lambda: now[0])
    for _ in range(150):
        now[0] += 1
        assert supervisor.look() is None
    for _ in range(50):
        now[0] += 1
        cause = supervisor.look()
    assert "given no sign of life" in (cause or "") and "train.start_timeout_seconds=100" in (cause or "")


def test_ranks_that_ended_are_not_silent_but_their_parent_is(tmp_path: Path) -> None:
    run = Watched(RunFolder.create(tmp_path, "mixed"), process="the ranks' parent, pid 5, is stopped (SIGSTOP)")
    run.beat(0, ended=True)
    assert run.pass_by(200, 1, 2) is None
    run.beat(1, 2, ended=True)
    assert run.pass_by(60) is None
    cause = run.pass_by(10) or ""
    assert cause == ("all ranks ended 62 s ago, and their parent has not (the ranks' parent, pid 5, is stopped "
                     "(SIGSTOP))")


def test_a_rank_that_is_stopped_while_it_leaves_is_named(tmp_path: Path) -> None:
    now, folder = [0.0], RunFolder.create(tmp_path, "mixed")
    states = {0: "pid 5, has ended", 1: "pid 6, has ended", 2: "pid 7, is stopped (SIGSTOP)"}
    supervisor = Supervisor(folder, NODES, LIMITS, print, lambda rank: f"its process, {states[rank]}", lambda: now[0])
    for rank in NODES:
        write_beat(folder, rank, Beat.of(9, Doing(3, "R0"), 0.0, ended=True))
    causes = []
    for seconds in range(0, 90, 20):
        now[0] = seconds
        causes.append(supervisor.look())
    assert causes[-2] is None and causes[-1] == (
        "all ranks ended 80 s ago, and their parent has not (rank 2 on node roce-0: its process, pid 7, is stopped "
        "(SIGSTOP))")


def test_a_run_folder_that_was_removed_is_said(run: Watched) -> None:
    run.folder.path.rename(run.folder.path.with_name("elsewhere"))
    assert f"the run folder {run.folder.path} was removed while the run went on" in (run.look(1) or "")


@pytest.mark.parametrize("text", ["[]", "3", '{"number": "x", "step": 1, "action": "a"}', '{"number": 1}',
                                  '{"number": 1, "step": 1, "action": "a", "seconds": "long"}',
                                  '{"number": 1, "step": 1, "action": "a", "links": ["x"]}'])
def test_a_beat_of_another_form_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "beat").write_text(text)
    assert read_beat(tmp_path / "beat") is None


def test_limits_come_from_the_configuration_as_far_as_it_has_them(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "mixed", {"config.yaml": "train: {timeout_seconds: 7, checkpoint_timeout_"
                                                                 "seconds: soon}\n"})
    assert Limits.of_folder(folder) == Limits(300, 7, 600)
    folder.plan_path.write_text('{"predicted": {"step_seconds": 200}}')
    assert Limits.of_folder(folder) == Limits(300, 7, 600)
    folder.config_path.write_text("train: {timeout_seconds: null}")
    assert Limits.of_folder(folder) == Limits(300, 120 + 4 * 200, 600)
    for plan in ("[]", '{"predicted": 3}', '{"predicted": {"step_seconds": "x"}}', "\0"):
        folder.plan_path.write_text(plan)
        assert Limits.of_folder(folder) == Limits(300, 120, 600)
    folder.config_path.write_text("\0")
    assert Limits.of_folder(folder) == Limits()


def test_a_look_that_does_not_return_is_seen() -> None:
    now, held, looking = [0.0], threading.Event(), threading.Event()

    def look() -> str | None:
        looking.set()
        held.wait(20)
        return None

    lookout = Lookout(look, 0.01, lambda: now[0])
    lookout.start()
    assert looking.wait(20)
    now[0] = 70.0
    assert lookout.stuck_seconds() == 70.0 and not lookout.stop(0.0)
    held.set()
    assert lookout.stop(20) and lookout.stuck_seconds() == 0.0
