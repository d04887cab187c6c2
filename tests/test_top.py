"""`holmes top`: the ranks of a run as its files tell of them, against numbers worked out by hand."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holmes_hpc import cli, top
from holmes_hpc.runs import RunFolder, describe_job
from holmes_hpc.runs.beats import Beat, write_beat
from holmes_hpc.runs.files import write_json_atomic
from holmes_hpc.runs.growing import GrowingFile
from holmes_hpc.runs.ranks_seen import RanksSeen
from tests.run_folders import make_run, metric
from tests.runs_for_tests import ROOT


def action(step: int, kind: str, seconds: float, start: float = 0.0) -> str:
    return json.dumps({"step": step, "action": kind, "kind": kind, "pipeline": 0, "stage": 0, "microbatch": 0,
                       "start": start, "end": start + seconds}) + "\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = make_run(tmp_path, "20261201-100000-ab12", metrics=[
        metric(1, memory_gib_per_rank=[0.5] * 7 + [1.5]), metric(2, 0.2, stragglers=[6])])
    (folder / "ranks" / "rank-0.jsonl").write_text(
        action(1, "F", 9.0) + action(2, "F", 0.03) + action(2, "B", 0.06) + action(2, "RA", 0.05) + action(2, "R", 0.02)
        + action(2, "R~", 7.0) + "{torn")
    (folder / "ranks" / "rank-6.jsonl").write_text(action(2, "O", 0.04))
    (folder / "ranks" / "rank-3.jsonl").write_text(action(2, "W", 0.25))
    write_beat(RunFolder(folder), 3, Beat(5, 3, "B0.1.2", operation="receiving activations"))
    write_beat(RunFolder(folder), 4, Beat(5, 3, "", ended=True))
    return folder


def table(run: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert cli.run(["top", str(run)]) == 0
    captured = capsys.readouterr()
    assert captured.err == "" and "\x1b" not in captured.out
    return captured.out.splitlines()


def test_without_a_terminal_one_table_by_step_time_the_straggler_first(run: Path, capsys: pytest.CaptureFixture[str]
                                                                       ) -> None:
    lines = table(run, capsys)
    assert lines[:2] == ["mixed/20261201-100000-ab12  not ended  step 2 of 100  20,480 tokens/s  loss 5.288",
                         "200 ms a step; ranks wait 25 % for other stages, 5 % for sums of gradients"]
    # 2,000,000 bytes of four nodes in 0.2 s.
    assert lines[2] == "Ethernet: 1.9 MiB a step; 0.5 MiB, 0.02 Gbit/s a node, of 4 nodes"
    assert lines[4] == "straggler: rank 6 on host3"
    rows = [line.split() for line in lines if " host" in line and line.split()[0].isdigit()]
    assert [row[0] for row in rows] == ["6", "3", "0", "1", "2", "4", "5", "7"]
    assert rows[0][:4] == ["6", "host3", "roce", "a100-80g"]
    assert rows[1][4:] == ["250", "ms", "0", "ms", "0", "ms", "0.50", "step", "3:", "receiving", "activations"]
    assert rows[2][4:] == ["90", "ms", "50", "ms", "20", "ms", "0.50", "-"]
    assert rows[5][-2:] == ["has", "ended"] and rows[7][-2:] == ["1.50", "-"]


def test_a_second_look_reads_only_what_is_new(run: Path) -> None:
    seen = RanksSeen(RunFolder(run))
    seen.look(100.0)
    assert (seen.ranks[0].step, seen.ranks[0].own_seconds) == (2, pytest.approx(0.09))
    read = []
    os_pread = os.pread
    with pytest.MonkeyPatch.context() as patch, (run / "ranks" / "rank-0.jsonl").open("a") as file:
        patch.setattr("holmes_hpc.runs.growing.os.pread",
                      lambda descriptor, count, offset: read.append(count) or os_pread(descriptor, count, offset))
        file.write("\n" + action(3, "F", 0.5))
        file.flush()
        seen.look(101.0)
    # What was torn before, its end, and the new line; nothing of the other files.
    assert sorted(read)[-1] == len("{torn\n" + action(3, "F", 0.5)) and sum(read) == sorted(read)[-1]
    assert (seen.ranks[0].step, seen.ranks[0].own_seconds) == (3, pytest.approx(0.5))
    assert seen.ranks[3].silent_seconds == 1.0
    seen.look(112.0)
    assert seen.ranks[3].silent_seconds == 12.0 and top._does(seen.ranks[3]).endswith("silent 12 s")
    assert top._slow(seen.by_step_time())[1] == "no sign of life for 10 s or more: rank 0-3, 5-7"


def test_a_step_that_is_done_again_after_a_resume_counts_once(run: Path) -> None:
    with (run / "ranks" / "rank-3.jsonl").open("a") as file:
        file.write(action(2, "W", 0.5) + action(2, "B", 0.125))
    seen = RanksSeen(RunFolder(run))
    seen.look(100.0)
    assert (seen.ranks[3].step, seen.ranks[3].own_seconds) == (2, 0.625)


def test_ranks_are_where_the_newest_plan_has_them(run: Path) -> None:
    """Until its job starts a run has slots alone; a start on fewer nodes plans anew."""
    whole = json.loads((run / "plan.json").read_text())
    for place in whole["ranks"]:
        place["node"] = None
    job = (run / "job.json").read_text()
    (run / "job.json").unlink()
    write_json_atomic(run / "plan.json", whole)
    seen = RanksSeen(RunFolder(run))
    seen.look(100.0)
    assert [seen.ranks[rank].node for rank in (0, 7)] == ["ib/0", "roce/1"]
    write_json_atomic(run / "plan.json", {**whole, "ranks": [{**each, "node": "n5"} for each in whole["ranks"][:4]]})
    seen.look(101.0)
    assert {rank: each.node for rank, each in seen.ranks.items()} == dict.fromkeys(range(4), "n5")
    assert (seen.ranks[0].step, seen.ranks[0].own_seconds) == (2, pytest.approx(0.09)), "no line is read twice"
    write_json_atomic(run / "plan.json", whole)
    write_json_atomic(run / "job.json", json.loads(job))
    seen.look(102.0)
    assert [seen.ranks[rank].node for rank in (0, 7)] == ["host0", "host3"]


def test_of_a_long_file_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_text("".join(action(step, "F", 1.0) for step in range(1, 200)))
    found = GrowingFile(path, last_bytes=1000).new_records()
    assert 0 < len(found) < 15 and found[-1]["step"] == 199
    assert len(GrowingFile(path, last_bytes=10**9).new_records()) == 199
    assert GrowingFile(tmp_path / "none", last_bytes=10).new_records() == []


@pytest.mark.parametrize(("name", "text"), [
    ("plan.json", "[]"), ("plan.json", '{"ranks": [{"rank": 0, "node": [1], "fabric": 5}, {"rank": -1}, 7]}'),
    ("metrics.jsonl", '{"step": 1, "loss": "x", "stragglers": [[], "a"], "memory_gib_per_rank": {"a": 1}}\n'),
    ("metrics.jsonl", '{"step": 2, "memory_gib_per_rank": ["x", null], "bytes_ethernet": "many", "step_seconds": 0}\n'),
    ("ranks/rank-0.jsonl", '{"step": 2, "kind": [], "start": 0, "end": 1}\n{"step": 2, "kind": "F"}\n'),
    ("ranks/rank-0.beat", '{"number": "x"}'), ("job.json", "\x00")])
def test_damaged_files_are_told_as_unknown(name: str, text: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / name).write_text(text)
    assert table(run, capsys)[0].startswith("mixed/20261201-100000-ab12  not ended")


def test_a_run_that_has_recorded_nothing_says_what_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no step was recorded yet: train.timeline_every says which are" in table(make_run(tmp_path), capsys)[-1]


def test_on_a_terminal_it_is_live_until_the_run_ends(run: Path) -> None:
    (run / "job.json").write_text(json.dumps({**describe_job(emulated=True, environment={}), "ranks": []}))
    terminal, other = pty.openpty()
    command = subprocess.Popen([sys.executable, "-m", "holmes_hpc.top", str(run)], cwd=ROOT, stdin=other, stdout=other,
                               stderr=other, env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"})
    os.close(other)
    shown, ended = b"", False
    end = time.monotonic() + 60
    while time.monotonic() < end:
        ready, _, _ = select.select([terminal], [], [], 1.0)
        try:
            piece = os.read(terminal, 65536) if ready else b"-"
        except OSError:  # the other end was closed
            break
        shown += piece if ready else b""
        if not ended and b"straggler: rank 6" in shown:
            (run / "result.json").write_text(json.dumps({"status": "completed", "steps": 2}))
            ended = True
    os.close(terminal)
    assert command.wait(60) == 0, shown[-2000:].decode(errors="replace")
    # The other screen while it goes on, and what is left to see afterwards.
    assert ended and b"\x1b[?1049h" in shown and shown.rindex(b"completed") > shown.rindex(b"\x1b[?1049l")
