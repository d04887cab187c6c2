"""Files that a command wrote and a cluster file names: lists of records, read with every value checked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holmes_hpc.errors import ConfigurationError
from holmes_hpc.foreign import ForeignError, read_json
from holmes_hpc.paths import at_home


@dataclass(frozen=True)
class Valid:
    """What one key of a record may hold, in words and as a test; a key that is not `needed` may be left out."""

    words: str
    fits: Callable[[Any], bool]
    needed: bool = True


@dataclass(frozen=True)
class RecordFile:
    """A kind of file: the setting that names it, what it is, the list in it, its records' keys, and the remedy."""

    setting: str
    kind: str
    version: int
    list_key: str
    keys: Mapping[str, Valid]
    remedy: str

    def read(self, path: str) -> tuple[dict[str, Any], ...]:
        """Return the records of a file. Raises ConfigurationError with the file, the key and what is valid there."""
        place = at_home(path, self.setting)
        try:
            data = read_json(place)
        except ForeignError as error:
            if isinstance(error.__cause__, OSError):
                raise ConfigurationError(f"{self.setting}={path}: {error.__cause__.strerror}; {self.remedy}") from error
            raise self._none(path, str(error).removeprefix(f"{place}: ")) from error
        if not isinstance(data, dict) or data.get("format") != self.version:
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise self._none(path, f"its format is {shown(found)}; valid: {self.version}")
        records = data.get(self.list_key)
        if not isinstance(records, list):
            raise self._none(path, f"{self.list_key} is {shown(records)}; valid: a list")
        for number, record in enumerate(records):
            self._check(path, f"{self.list_key}[{number}]", record)
        return tuple(records)

    def _check(self, path: str, where: str, record: Any) -> None:
        if not isinstance(record, dict):
            raise self._none(path, f"{where} is {shown(record)}; valid: a mapping of {', '.join(self.keys)}")
        for key in record:
            if key not in self.keys:
                raise self._none(path, f"{where} has the unknown key {key!r}; valid: {', '.join(self.keys)}")
        for key, valid in self.keys.items():
            if key not in record:
                if valid.needed:
                    raise self._none(path, f"{where}.{key} is missing; valid: {valid.words}")
            elif not valid.fits(record[key]):
                raise self._none(path, f"{where}.{key} is {shown(record[key])}; valid: {valid.words}")

    def _none(self, path: str, reason: str) -> ConfigurationError:
        return ConfigurationError(f"{self.setting}={path} is no {self.kind}: {reason}; {self.remedy}")


def shown(value: Any) -> str:
    """Return a value as the file writes it, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def one_of(names: Sequence[str]) -> Valid:
    """Return a key that holds one of some names."""
    return Valid(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(name, str) and name for name in value)


ABOVE_ZERO = Valid("a finite number above 0", lambda value: _is_number(value) and value > 0)
FROM_ZERO = Valid("a finite number from 0", lambda value: _is_number(value) and value >= 0)
MAYBE_ABOVE_ZERO = Valid("a finite number above 0, or null", lambda value: value is None or ABOVE_ZERO.fits(value),
                         needed=False)
COUNT = Valid("a whole number from 1", lambda value: type(value) is int and value >= 1)
MAYBE_COUNT = Valid(COUNT.words, COUNT.fits, needed=False)
PAIR = Valid("a list of two names", _is_pair)
