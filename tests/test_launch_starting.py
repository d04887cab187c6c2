"""The time before the training: ranks say what they do, and wait for each other as long as each gets on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holmes_hpc.comm.activity import Activity
from holmes_hpc.comm.store.client import RunStore
from holmes_hpc.data import cache, telling, text, tokenizer
from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.data.telling import Portion
from holmes_hpc.errors import NetworkError
from holmes_hpc.launch.rank.patience import Patience
from holmes_hpc.launch.rank.rendezvous import open_store
from holmes_hpc.launch.rank.settings import RankSettings
from holmes_hpc.launch.rank.starting import first_signs, wait_for_all
from holmes_hpc.runs.beats import Beat, read_beat, write_beat
from holmes_hpc.values.doing import Doing
from tests.runs_for_tests import run as start
from tests.test_faults import SMALL
from tests.test_launch_rendezvous import settings


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_rank_gives_signs_of_life_before_it_trains(tmp_path: Path) -> None:
    rank, activity = settings(tmp_path, 0), Activity()
    with first_signs(rank, activity):
        eventually(lambda: read_beat(rank.folder.beat_path(0)) is not None)
    beat = read_beat(rank.folder.beat_path(0))
    assert beat is not None and (beat.step, beat.action, beat.ended) == (0, "start", False)
    assert not [thread for thread in threading.enumerate() if thread.name == "first signs"]


def test_patience_lasts_as_long_as_there_is_something_new(tmp_path: Path) -> None:
    folder, now = settings(tmp_path, 0).folder, [0.0]
    patience = Patience(folder, 1, 10.0, lambda: now[0])
    for minute in range(50):
        write_beat(folder, 1, Beat.of(minute, Doing(0, f"tokenising data at {minute // 8} of 7 MiB"), 0.0))
        now[0] += 1
        assert not patience.is_over(), minute
    assert patience.said == "tokenising data at 6 of 7 MiB"
    now[0] += 3600
    assert not patience.is_over(), "a pause of the process that waits is none of the other"
    waited = 0
    while not patience.is_over():
        now[0] += 1
        waited += 1
    assert 5 <= waited <= 10


def test_nobody_waits_for_a_rank_of_which_nothing_is_heard(tmp_path: Path) -> None:
    now = [0.0]
    patience = Patience(settings(tmp_path, 0).folder, 1, 3.0, lambda: now[0])
    for _ in range(3):
        now[0] += 1
        assert not patience.is_over()
    now[0] += 1
    assert patience.is_over() and not patience.said


def met(rank: RankSettings, seconds: float, kept: list[RunStore]) -> str:
    """Meet as this rank, and return what that ended with."""
    try:
        kept.append(open_store(rank, seconds))
        wait_for_all(kept[-1], rank, Activity(), seconds)
    except NetworkError as error:
        return str(error)
    return "met"


def test_ranks_meet_although_one_prepares_its_data_for_longer_than_a_start_may_take(tmp_path: Path) -> None:
    """The others wait for it two seconds each time, and it says something new for five."""
    first = settings(tmp_path, 0)
    second = replace_rank(first, 1)
    ends, stores = dict[int, str](), list[RunStore]()
    threads = [threading.Thread(target=lambda: ends.update({0: met(first, 2.0, stores)}))]
    threads[0].start()
    for step in range(12):
        write_beat(first.folder, 1, Beat.of(step, Doing(0, f"tokenising data at {step} of 12 MiB"), 0.0))
        time.sleep(0.4)
        assert not ends, ends
    threads.append(threading.Thread(target=lambda: ends.update({1: met(second, 2.0, stores)})))
    threads[1].start()
    for thread in threads:
        thread.join(20)
    assert ends == {0: "met", 1: "met"}
    for store in reversed(stores):
        store.close()


def test_rank_0_names_who_does_not_get_on_and_what_it_did(tmp_path: Path) -> None:
    first = settings(tmp_path, 0)
    write_beat(first.folder, 1, Beat.of(1, Doing(0, "tokenising data at 3.0 of 7.0 MiB of docs"), 0.0))
    words = met(first, 0.5, [])
    assert words.startswith("rank 0 on node n1 waited 0.5 s for rank 1 on node n2, and rank 1 has been tokenising data "
                            "at 3.0 of 7.0 MiB of docs all the time; look at its node and "), words
    assert "raise train.start_timeout_seconds (now 0.5)" in words


def replace_rank(first: RankSettings, rank: int) -> RankSettings:
    from types import SimpleNamespace

    return SimpleNamespace(**{**vars(first), "rank": rank, "node": f"n{rank + 1}"})  # type: ignore[return-value]


def test_a_portion_tells_at_once_and_then_every_second(tmp_path: Path) -> None:
    now, told = [0.0], list[str]()
    portion = Portion(told.append, "tokenising data", 5 << 20, "docs", lambda: now[0])
    for _ in range(5):
        now[0] += 0.5
        portion.add(1 << 20)
    assert told == [f"tokenising data at {done}.0 of 5.0 MiB of docs" for done in (0, 2, 4)]


def test_who_waits_for_the_tokens_of_another_process_hears_how_far_it_is(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "_EVERY_SECONDS", 0.0)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.txt").write_bytes(b"word " * (3 << 18))
    source = SourceSettings("data", "text", str(tmp_path / "docs"), cache=tmp_path / "cache")
    held, going, made, heard = threading.Event(), threading.Event(), list[str](), list[str]()

    class Slow(tokenizer.ByteTokenizer):
        def encode(self, text: bytes) -> object:  # type: ignore[override]
            going.set()
            assert held.wait(20)
            return super().encode(text)

    monkeypatch.setattr(text, "load_tokenizer", lambda *arguments, **keywords: Slow())
    threads = [threading.Thread(target=lambda told=told: cache.read_text(source, 256, told.append))
               for told in (made, heard)]
    threads[0].start()
    assert going.wait(20)
    threads[1].start()
    eventually(lambda: bool(heard))
    assert heard == ["waiting for data, which another process makes ready: tokenising data at 0.0 of 3.8 MiB of "
                     f"{tmp_path}/docs"]
    held.set()
    for thread in threads:
        thread.join(20)
    assert [words.partition(" of ")[0] for words in made] == [
        "reading data at 0.0", "reading data at 3.8", *(f"tokenising data at {done}" for done in (0.0, 2.0, 3.8))]


def test_words_of_a_lock_that_somebody_else_wrote_are_shown_only_where_they_are_words(tmp_path: Path) -> None:
    for content, words in ((b"", ""), (b"\0" * 300, ""), (b"a\x1b[2Jb", ""), (b"\xff" * 3, "�" * 3),
                           (b"at 1 of 2 MiB".ljust(256), "at 1 of 2 MiB")):
        (tmp_path / "lock").write_bytes(content)
        descriptor = os.open(tmp_path / "lock", os.O_RDONLY)
        assert telling.read_words(descriptor) == words
        os.close(descriptor)


HOLDING = """
from holmes_hpc import extend
from holmes_hpc.data.tokenizer import ByteTokenizer

extend.add_activation("held", abs)
before, pieces = ByteTokenizer.encode, []

def encode(self, text):
    pieces.append(text)
    if len(pieces) == 3:
        open("pipe").read()  # nobody writes: as a tokenizer or a file system that does not answer
    return before(self, text)

ByteTokenizer.encode = encode
"""


@pytest.mark.emulated
def test_a_run_whose_data_is_prepared_no_further_ends_with_how_far_it_was(tmp_path: Path) -> None:
    (tmp_path / "holding.py").write_text(HOLDING)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.txt").write_bytes(b"word " * (1 << 20))
    done = start(tmp_path, "train", [*SMALL, "plugins=[holding.py]", "data=text", f"data.path={tmp_path}/docs",
                                     "train.start_timeout_seconds=2"])
    error = done.result["error"]
    assert done.status == 1 and "Traceback" not in done.stderr
    assert " has been tokenising data at " in error and " of 5.0 MiB of " in error, error
    assert "train.start_timeout_seconds=2" in error
