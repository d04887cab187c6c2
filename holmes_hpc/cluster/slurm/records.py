"""The text forms that Slurm's programs share: `Key=Value` records, configuration lines, tables."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from holmes_hpc.errors import HolmesError

CLUSTER_LINE = "CLUSTER: "
"""How the line begins that commands print before what another cluster tells (`--clusters`)."""

_KEY = re.compile(r"([A-Z][A-Za-z0-9_/:.]*)=")
_NOTHING = frozenset({"", "(null)", "N/A", "n/a", "None", "none", "NONE"})


class SlurmOutputError(HolmesError, ValueError):
    """A Slurm program or configuration file says something that cannot be understood."""


Reader = TypeVar("Reader", bound=Callable[..., Any])


def reads(what: str) -> Callable[[Reader], Reader]:
    """Let a reader raise SlurmOutputError, which names `what` it reads, for whatever it stumbles over."""
    def decorate(read: Reader) -> Reader:
        @functools.wraps(read)
        def tolerant(*arguments: Any, **options: Any) -> Any:
            try:
                return read(*arguments, **options)
            except HolmesError:
                raise
            except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                raise SlurmOutputError(f"{what}: it cannot be understood ({type(error).__name__}: {error}); if Slurm "
                                       "itself said this, its release has another form") from error
        return tolerant  # type: ignore[return-value]
    return decorate


def read_records(text: str, first_key: str) -> list[dict[str, str]]:
    """Return the records of `scontrol show ...`, each a mapping of key to value.

    A record starts with each line whose first word is `first_key=...`, indented or not, so the one-line form (`-o`)
    and a missing blank line between records are understood. A value may hold blanks (`OS=Linux 6.1 #1 SMP`);
    where a key comes twice the first one counts.
    """
    records: list[dict[str, str]] = []
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        if words[0].startswith(f"{first_key}="):
            records.append({})
        if records:
            _add_words(records[-1], words)
    return records


def _add_words(record: dict[str, str], words: Iterable[str]) -> None:
    last: str | None = None
    for word in words:
        match = _KEY.match(word)
        if match:
            last = match[1] if match[1] not in record else None
            if last is not None:
                record[last] = word[match.end():]
        elif last is not None:
            record[last] += f" {word}"


def value_of(record: Mapping[str, str], key: str) -> str | None:
    """Return a record's value; None where it is missing or one of Slurm's words for nothing, such as `(null)`."""
    value = record.get(key)
    return None if value is None or value.strip() in _NOTHING else value


def split_list(text: str | None) -> tuple[str, ...]:
    """Return the entries of a comma list such as a node's features; nothing for None and `(null)`."""
    if text is None or text.strip() in _NOTHING:
        return ()
    return tuple(entry for entry in (entry.strip() for entry in text.split(",")) if entry)


def configuration_lines(text: str) -> Iterator[dict[str, str]]:
    """Yield the settings of each line of a Slurm configuration file, keys in lower case.

    Comments and empty lines are left out, lines that end in a backslash are joined. What is no `Key=Value` is skipped.
    """
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = line.split("#", 1)[0].split()
        pairs = [word.partition("=") for word in words]
        settings = {key.lower(): value for key, equals, value in pairs if equals}
        if settings:
            yield settings


def read_table(text: str) -> list[dict[str, str]]:
    """Return the rows of a table with a header, as `sinfo` and `squeue` print it, keys as in the header.

    Columns are separated by `|` (as in `--parsable2` and our own formats) or else by blanks; in the latter case the
    last column may hold blanks itself. Lines before the header, such as the date of `sinfo --long`, are skipped: the
    header is the first line all of whose words are in capitals or hold a `|`.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(CLUSTER_LINE)]
    start = next((place for place, line in enumerate(lines) if _is_header(line)), None)
    if start is None:
        return []
    if "|" in lines[start]:
        names = [name.strip() for name in lines[start].split("|")]
        # A line without a bar is the rest of a job's name that has a line break.
        rows = [[cell.strip() for cell in line.split("|", len(names) - 1)] for line in lines[start + 1:]
                if "|" in line]
    else:
        names = lines[start].split()
        rows = [line.split(maxsplit=len(names) - 1) for line in lines[start + 1:]]
    return [dict(zip(names, (cell.rstrip() for cell in row), strict=False)) for row in rows]


def _is_header(line: str) -> bool:
    return "|" in line or re.fullmatch(r"[A-Z0-9_()/:\s]+", line) is not None
