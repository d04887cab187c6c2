"""Files of rows: a JSON value a line, or Parquet."""

from __future__ import annotations

import gzip
import importlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.data.tokens import readable
from holmes_hpc.errors import ConfigurationError, DataError
from holmes_hpc.foreign import open_regular

_ENDINGS = {"jsonl": (".jsonl", ".ndjson", ".jsonl.gz"), "parquet": (".parquet",)}
_LONGEST_LINE_BYTES = 1 << 28
_ROWS_AT_ONCE = 1024
_TOOLS = "tools"


@dataclass(frozen=True)
class Stretch:
    """A part of a file in bytes; rows belong to the stretch in which they begin."""

    begin: int = 0
    end: int | None = None


WHOLE_FILE = Stretch()


@dataclass(frozen=True)
class Row:
    """One row of a file: its value, the bytes that it took, and where it is, in words, for whoever asks."""

    value: Any
    num_bytes: int
    place: Callable[[], str]


def format_of(settings: SourceSettings, file: Path) -> str:
    """Return `plain`, `jsonl` or `parquet`."""
    if settings.format != "auto":
        return settings.format
    return next((name for name, endings in _ENDINGS.items() if file.name.endswith(endings)), "plain")


def rows(settings: SourceSettings, file: Path, stretch: Stretch = WHOLE_FILE) -> Iterator[Row]:
    """Yield the rows of a file, each a mapping. Raises DataError with file and line for one that is none."""
    found = (_parquet if format_of(settings, file) == "parquet" else _lines)(settings, file, stretch)
    for row in found:
        if not isinstance(row.value, dict):
            raise bad_row(settings, row, f"is {type(row.value).__name__} and no object with names and values")
        yield row


def bad_row(settings: SourceSettings, row: Row, fact: str) -> DataError:
    """Return the error for a row that cannot be used."""
    return DataError(f"{settings.key('path')}={settings.path}: {row.place()} {fact}. Mend the row, or leave it out.")


def _lines(settings: SourceSettings, file: Path, stretch: Stretch) -> Iterator[Row]:
    with readable(settings, file), _opened(file) as stream:
        at = stretch.begin
        if at:
            stream.seek(at - 1)
            at += len(stream.readline()) - 1  # a row that began before belongs to the stretch before
        try:
            while stretch.end is None or at < stretch.end:
                line = stream.readline(_LONGEST_LINE_BYTES)
                if not line:
                    return
                place = _line_place(file, at)
                if len(line) == _LONGEST_LINE_BYTES and not line.endswith(b"\n"):
                    raise bad_row(settings, Row(None, 0, place), f"is longer than {_LONGEST_LINE_BYTES >> 20} MiB")
                if line.strip():
                    yield Row(_value(settings, line, place), len(line), place)
                at += len(line)
        except EOFError as error:
            raise DataError(f"{settings.key('path')}={settings.path}: {file} is cut short ({error}). Copy it "
                            "again.") from error


def _value(settings: SourceSettings, line: bytes, place: Callable[[], str]) -> Any:
    try:
        return json.loads(line)
    except UnicodeDecodeError as error:
        raise bad_row(settings, Row(None, 0, place), f"is not UTF-8 at its byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise bad_row(settings, Row(None, 0, place), f"is no JSON: {str(error)[:200]}") from error


def _line_place(file: Path, at: int) -> Callable[[], str]:
    def place() -> str:
        with _opened(file) as stream:
            left, number = at, 1
            while left > 0 and (chunk := stream.read(min(left, 1 << 20))):
                number += chunk.count(b"\n")
                left -= len(chunk)
        return f"{file}, line {number},"
    return place


def _opened(file: Path) -> IO[bytes]:
    """Open a regular file: of any other kind, such as a pipe, a read may never end."""
    if file.suffix == ".gz":
        with open_regular(file):
            return cast(IO[bytes], gzip.open(file, "rb"))
    return open_regular(file)


def _parquet(settings: SourceSettings, file: Path, stretch: Stretch) -> Iterator[Row]:
    """Yield the rows of a Parquet file, which is one stretch."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigurationError(f"{settings.key('path')}={settings.path}: {file} is a Parquet file, and these need "
                                 "the package `pyarrow`, which is not installed. Run pip install pyarrow, or write the "
                                 "rows as jsonl.") from error
    wanted = settings.text_field if settings.kind == "text" else settings.messages_field
    with readable(settings, file):
        try:
            opened = parquet.ParquetFile(file)
            if wanted not in opened.schema_arrow.names:
                raise DataError(f"{settings.key('path')}={settings.path}: {file} has no column {wanted}; it has "
                                f"{', '.join(opened.schema_arrow.names)}. Set "
                                f"{settings.key('text_field' if settings.kind == 'text' else 'messages_field')} to "
                                "one of them.")
            size, count = file.stat().st_size, max(opened.metadata.num_rows, 1)
            number = 0
            columns = [wanted, *({_TOOLS} & set(opened.schema_arrow.names) if settings.kind == "chat" else ())]
            for batch in opened.iter_batches(_ROWS_AT_ONCE, columns=columns):
                for value in batch.to_pylist():
                    number += 1
                    yield Row(value, size // count, lambda number=number: f"{file}, row {number},")  # type: ignore[misc]
        except DataError:
            raise
        except Exception as error:  # pyarrow's own errors, some of which are OSErrors that no system made
            if isinstance(error, OSError) and error.errno is not None:
                raise
            fact = (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(".")
            raise DataError(f"{settings.key('path')}={settings.path}: {file} is no Parquet file, or damaged: {fact}. "
                            "Copy it again.") from error
