"""Files that a command wrote and a cluster file names: lists of records, read with every value checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holmes_hpc.errors import ConfigurationError
from holmes_hpc.foreign import ForeignError, number, read_json, whole_number
from holmes_hpc.paths import at_home


@dataclass(frozen=True)
class Valid:
    """What one key of a record may hold, in words and as a test; a key that is not `needed` may be left out."""

    words: str
    fits: Callable[[Any], bool]
    needed: bool = True


_LEAST, _MOST = 1e-12, 1e12
"""No time, rate or factor that was measured is further away from 1."""
_BOUNDS = f" ({_LEAST:g} to {_MOST:g})"


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
        for index, record in enumerate(records):
            self._check(path, f"{self.list_key}[{index}]", record)
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
    """Say whether a value is a number that arithmetic bears, such as a ratio of two of them."""
    found = number(value)
    return found is not None and (found == 0 or _LEAST <= abs(found) <= _MOST)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(name, str) and name for name in value)


ABOVE_ZERO = Valid(f"a finite number above 0{_BOUNDS}", lambda value: _is_number(value) and value > 0)
FROM_ZERO = Valid(f"a finite number from 0{_BOUNDS}", lambda value: _is_number(value) and value >= 0)
MAYBE_ABOVE_ZERO = Valid(f"a finite number above 0, or null{_BOUNDS}",
                         lambda value: value is None or ABOVE_ZERO.fits(value), needed=False)
COUNT = Valid("a whole number from 1", lambda value: whole_number(value, 1) is not None)
MAYBE_COUNT = Valid(COUNT.words, COUNT.fits, needed=False)
PAIR = Valid("a list of two names", _is_pair)
