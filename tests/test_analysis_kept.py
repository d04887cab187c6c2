"""The steps of ended runs are parsed once where pyarrow is installed, and never taken for those of a changed file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from analysis import kept_steps as kept
from analysis import reading
from analysis.reading import read_run
from analysis.tables import runs_table, steps_table
from tests.run_folders import make_run, metric

DONE = {"status": "completed", "steps": 8, "final_loss": 2.0, "error": None, "emulated": True}
STEPS = [metric(1), metric(2, memory_gib_per_rank=[0.5, 0.25], stragglers=[]), metric(3, stragglers=[1], loss=None)]


class Table:
    """What Arrow makes of columns, here in JSON: enough of pyarrow for a machine without it."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        for values in columns.values():
            if len({type(value) for value in values if value is not None} - {int, float, type(None)}) > 1:
                raise TypeError("a column of unlike values")
        self.columns = columns

    def to_pylist(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*self.columns.values(), strict=True)]

    def to_pydict(self) -> dict[str, list[Any]]:
        return self.columns

    def read(self) -> Table:
        return self


def write_table(table: Table, file: Any) -> None:
    """Write what Parquet holds: a mapping without any key is none of it."""
    if any(value == {} for values in table.columns.values() for value in values):
        raise NotImplementedError("a struct type with no child field")
    file.write(json.dumps(table.columns).encode())


@pytest.fixture(autouse=True)
def arrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kept, "LEAST_BYTES", 1)
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        pyarrow, parquet = ModuleType("pyarrow"), ModuleType("pyarrow.parquet")
        pyarrow.table = Table  # type: ignore[attr-defined]
        pyarrow.parquet = parquet  # type: ignore[attr-defined]
        parquet.write_table = write_table  # type: ignore[attr-defined]
        parquet.ParquetFile = lambda path: Table(json.loads(path.read_bytes()))  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "pyarrow", pyarrow)
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    return tmp_path / "cache" / "holmes_hpc" / "steps"


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def test_an_ended_run_is_parsed_once_and_reads_the_same(tmp_path: Path, arrow: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path, metrics=STEPS, result=DONE)
    first = read_run(folder)
    (place,) = files(arrow)
    assert place.stat().st_mode & 0o077 == 0 and place.parent.stat().st_mode & 0o077 == 0
    monkeypatch.setattr("analysis.reading.parse_object", None)
    second = read_run(folder)
    for table in (runs_table, steps_table):
        assert table([second]).to_json() == table([first]).to_json()
    assert files(arrow) == [place]


def test_a_file_that_has_changed_is_read_anew(tmp_path: Path) -> None:
    folder = make_run(tmp_path, metrics=STEPS, result=DONE)
    read_run(folder)
    path = folder / "metrics.jsonl"
    before = path.stat()
    path.write_text(path.read_text().replace('"tokens": 4096', '"tokens": 4097'))
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert {step["tokens"] for step in read_run(folder).metrics} == {4097}
    with path.open("a") as file:
        file.write(json.dumps(metric(4)) + "\n")
    assert len(read_run(folder).metrics) == 4


@pytest.mark.parametrize(("steps", "torn", "result"), [
    (STEPS, True, DONE), (STEPS, False, None), ([*STEPS, metric(4, step_seconds=-1.0)], False, DONE),
    ([*STEPS, metric(4, note="a"), metric(5, note=[1])], False, DONE), ([], False, DONE),
    ([*STEPS, metric(4, note={})], False, DONE)],
    ids=["torn", "running", "impossible", "unlike", "empty", "a mapping without a key"])
def test_what_is_not_whole_is_not_kept(steps: list[dict[str, Any]], torn: bool, result: dict[str, Any] | None,
                                       tmp_path: Path, arrow: Path) -> None:
    folder = make_run(tmp_path, metrics=steps, result=result, torn=torn)
    first = read_run(folder)
    assert files(arrow) == [] and read_run(folder) == first


def test_what_is_added_while_a_file_is_read_is_not_left_out_ever_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                                       ) -> None:
    folder = make_run(tmp_path, metrics=STEPS, result=DONE)
    with monkeypatch.context() as patch:
        read = reading._lines

        def and_added_to(path: Path) -> tuple[list[reading.Record], bool]:
            found = read(path)
            with path.open("a") as file:
                file.write(json.dumps(metric(4)) + "\n")
            return found

        patch.setattr(reading, "_lines", and_added_to)
        assert [step["step"] for step in read_run(folder).metrics] == [1, 2, 3]
    assert [step["step"] for step in read_run(folder).metrics] == [1, 2, 3, 4]


def test_a_kept_file_that_is_damaged_or_cannot_be_written_changes_nothing(tmp_path: Path, arrow: Path,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path, metrics=STEPS, result=DONE)
    whole = read_run(folder)
    (place,) = files(arrow)
    place.write_bytes(b"PAR1 no such thing")
    assert read_run(folder) == whole
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "plan.json"))
    assert read_run(folder) == whole
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert read_run(folder) == whole and not (tmp_path / "other").exists()


def test_the_oldest_go_where_there_is_no_room(tmp_path: Path, arrow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow.mkdir(parents=True)
    for number in range(3):
        (arrow / f"{number}.parquet").write_bytes(b"x" * 100)
        os.utime(arrow / f"{number}.parquet", (number, number))
    monkeypatch.setattr(kept, "MOST_KEPT_BYTES", 250)
    read_run(make_run(tmp_path, metrics=STEPS, result=DONE))
    assert [path.name for path in files(arrow) if len(path.name) < 12] == ["1.parquet", "2.parquet"]
