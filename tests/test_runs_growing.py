"""Following a file costs what was added to it, not what it holds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from analysis import reading
from holmes_hpc.runs import metrics
from holmes_hpc.runs.growing import GrowingFile


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_each_record_is_read_once_and_only_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = GrowingFile(path)
    assert rows.new_records() == []
    append(path, '{"step": 1}\n{"step": 2}\n{"st')
    assert rows.new_records() == [{"step": 1}, {"step": 2}]
    assert rows.new_records() == []
    append(path, 'ep": 3}\n')
    assert rows.new_records() == [{"step": 3}]


def test_what_is_no_record_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'torn{"step": 1}\n[1]\n\xff\xfe\n{"step": 2}\n' + b"[" * 100_000 + b"\n\n")
    assert GrowingFile(path).new_records() == [{"step": 2}]


def test_a_reader_may_begin_behind_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, '{"step": 1}\n')
    rows = GrowingFile(path, skip=True)
    append(path, '{"step": 2}\n')
    assert rows.new_records() == [{"step": 2}]


@pytest.mark.parametrize("how", ["shortened", "replaced", "removed"])
def test_a_file_that_is_another_one_now_is_read_from_its_beginning(tmp_path: Path, how: str) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, '{"step": 1}\n{"step": 2}\n')
    rows = GrowingFile(path)
    assert len(rows.new_records()) == 2
    if how == "shortened":
        path.write_text('{"step": 7}\n')
    elif how == "replaced":
        (tmp_path / "other").write_text('{"step": 7}\n' * 3)
        (tmp_path / "other").replace(path)
    else:
        path.unlink()
        assert rows.new_records() == []
        path.write_text('{"step": 7}\n' * 4)
    assert {record["step"] for record in rows.new_records()} == {7}


def test_a_pipe_or_a_folder_in_its_place_does_not_hold_the_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        assert GrowingFile(tmp_path / name).new_lines() == []


def test_a_look_reads_no_more_than_was_added(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step, "loss": 2.5}) + "\n" for step in range(50_000)))
    rows = GrowingFile(path)
    assert len(rows.new_records()) == 50_000
    append(path, '{"step": 50000}\n')
    before = _bytes_read()
    assert rows.new_records() == [{"step": 50_000}]
    assert _bytes_read() - before < path.stat().st_size / 10


def _bytes_read() -> int:
    return int(next(line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar"))
               .split()[1])


def test_a_look_is_bounded_and_lines_of_no_end_are_passed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holmes_hpc.runs.growing.MOST_BYTES", 64)
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(30)))
    rows, found = GrowingFile(path), []
    while new := rows.new_records():
        assert len(new) <= 6
        found += new
    assert [row["step"] for row in found] == list(range(30))
    assert GrowingFile(path, skip=True).new_records() == []
    append(path, "[" * 200 + '\n{"step": 30}\n')
    assert [row for _ in range(6) for row in rows.new_records()] == [{"step": 30}]


def test_a_file_of_a_terabyte_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("wb") as file:
        file.truncate(10**12)
    assert GrowingFile(path).new_lines() == []


def test_commands_read_the_end_of_lines_of_a_terabyte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                      caplog: pytest.LogCaptureFixture) -> None:
    """`report` and `calibrate` read such a timeline whole, until the memory was full."""
    path = tmp_path / "rank-0.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, 2)
        file.write(b'{"step": 1}\n{"step": 2}\n')
    for module in (metrics, reading):
        monkeypatch.setattr(module, "MOST_LINES_BYTES", 1 << 16)
    assert metrics.read_json_lines(path) == [{"step": 2}]
    assert reading.read_lines(path) == [{"step": 2}] and "only its last" in caplog.text
