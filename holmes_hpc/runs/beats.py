"""Signs of life: every rank says every few seconds what it does, in a small file of the run folder.

Files rather than the store that ranks meet at, since that one hangs together with rank 0. They are written in place:
a few hundred bytes that one call writes, no other clock than the number of the beat.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from holmes_hpc.foreign import ForeignError, number, read_json, whole_number
from holmes_hpc.runs.folder import RunFolder
from holmes_hpc.values.doing import OUTSIDE, Doing

RECORD_BYTES = 1024
_LONGEST_WORDS, _FEWEST_WORDS = (200, 100, 50), 25
_MOST_LINKS = 10
_MOST_BYTES = 65536


@dataclass(frozen=True)
class Beat:
    """One sign of life of a rank.

    `seconds`: since when it is in this state; `ended`: it has left the training; `beside` and `beside_seconds`: what a
    thread of it does beside the training, and for how long; `links`: its node's interfaces and in which state they are.
    """

    number: int
    step: int
    action: str
    group: int = OUTSIDE
    operation: str = ""
    seconds: float = 0.0
    ended: bool = False
    beside: str = ""
    beside_seconds: float = 0.0
    links: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, number: int, doing: Doing, seconds: float, *, ended: bool = False, beside: str = "",
           beside_seconds: float = 0.0, links: Mapping[str, str] | None = None) -> Beat:
        """Return the beat that tells of a state."""
        few = dict(list((links or {}).items())[:_MOST_LINKS])
        return cls(number, doing.step, doing.action, doing.group, doing.operation, round(seconds, 2), ended, beside,
                   round(beside_seconds, 2), few)

    @classmethod
    def read(cls, record: object) -> Beat | None:
        """Return the beat of a JSON value, None where it is none."""
        if not isinstance(record, dict):
            return None
        try:
            beat = cls(**record)
        except TypeError:
            return None
        whole = all(whole_number(value, least=-1) is not None for value in (beat.number, beat.step, beat.group))
        timed = all(number(value) is not None for value in (beat.seconds, beat.beside_seconds))
        worded = all(isinstance(value, str) for value in (beat.action, beat.operation, beat.beside))
        linked = isinstance(beat.links, dict) and all(isinstance(value, str) for value in beat.links.values())
        return beat if whole and timed and worded and linked and isinstance(beat.ended, bool) else None


def write_beat(folder: RunFolder, rank: int, beat: Beat) -> None:
    """Leave a beat for the other ranks. A storage that refuses is no reason to end a run: then there is none."""
    record = _record(beat).ljust(RECORD_BYTES - 1) + b"\n"
    with suppress(OSError):
        descriptor = os.open(folder.beat_path(rank), os.O_WRONLY | os.O_CREAT, 0o664)
        try:
            os.pwrite(descriptor, record, 0)
        finally:
            os.close(descriptor)  # what makes it visible to other nodes on NFS


def _record(beat: Beat) -> bytes:
    """Return the JSON of a beat, its words cut until it is short enough: half a record would be no sign of life."""
    tries = [(longest, len(beat.links)) for longest in _LONGEST_WORDS]
    tries += [(_LONGEST_WORDS[-1], links) for links in reversed(range(len(beat.links)))] + [(_FEWEST_WORDS, 0)]
    for longest, links in tries:
        few = replace(beat, action=_cut(beat.action, longest), operation=_cut(beat.operation, longest),
                      beside=_cut(beat.beside, longest), links=dict(list(beat.links.items())[:links]))
        record = json.dumps(asdict(few), ensure_ascii=False).encode(errors="replace")
        if len(record) < RECORD_BYTES:
            break
    return record


def _cut(words: str, longest: int) -> str:
    return words if len(words) <= longest else f"{words[: max(0, longest - 3)]}..."


def read_beat(path: Path) -> Beat | None:
    """Return the last beat in a file, None where there is none."""
    try:
        return Beat.read(read_json(path, _MOST_BYTES))
    except ForeignError:
        return None


class Pulse:
    """Watches the beats of all ranks: one whose number stands still gives no sign of life.

    Times are the reader's own, so that the clocks of nodes need not agree.
    """

    def __init__(self, folder: RunFolder, ranks: Iterable[int]) -> None:
        self._folder = folder
        self._seen: dict[int, tuple[int, float]] = dict.fromkeys(ranks, (-1, 0.0))
        self._first: float | None = None
        self.beats: dict[int, Beat] = {}

    def forget(self) -> None:
        """Begin anew."""
        self._first = None
        self._seen = dict.fromkeys(self._seen, (-1, 0.0))
        self.beats.clear()

    @property
    def began(self) -> bool:
        """Whether a look was taken."""
        return self._first is not None

    def look(self, now: float) -> None:
        """Read all beats at the time `now`, in seconds of any clock of this rank."""
        self._first = now if self._first is None else self._first
        for rank, (seen, _) in self._seen.items():
            beat = read_beat(self._folder.beat_path(rank))
            if beat is None:
                continue
            self.beats[rank] = beat
            if beat.number != seen:
                self._seen[rank] = (beat.number, now)

    def silent_seconds(self, rank: int, now: float) -> float:
        """Return for how long a rank has given no new sign of life, as far as was looked."""
        number, since = self._seen[rank]
        began = now if self._first is None else self._first
        return now - (began if number < 0 else since)
