"""Signs of life: every rank says every few seconds what it does, in a small file of the run folder.

Files rather than the store that ranks meet at, since that one hangs together with rank 0. They are written in place:
a few hundred bytes that one call writes, no other clock than the number of the beat.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from holmes_hpc.comm.activity import OUTSIDE, Doing
from holmes_hpc.foreign import ForeignError, read_json
from holmes_hpc.runs import RunFolder

RECORD_BYTES = 512
_LONGEST_OPERATION = 120


@dataclass(frozen=True)
class Beat:
    """One sign of life of a rank. `seconds`: since when it is in this state; `ended`: it left by an error."""

    number: int
    step: int
    action: str
    group: int = OUTSIDE
    operation: str = ""
    seconds: float = 0.0
    ended: bool = False

    @classmethod
    def of(cls, number: int, doing: Doing, seconds: float, *, ended: bool = False) -> Beat:
        """Return the beat that tells of a state."""
        return cls(number, doing.step, doing.action, doing.group, doing.operation[:_LONGEST_OPERATION],
                   round(seconds, 2), ended)


def write_beat(folder: RunFolder, rank: int, beat: Beat) -> None:
    """Leave a beat for the other ranks. A storage that refuses is no reason to end a run: then there is none."""
    record = json.dumps(asdict(beat)).encode().ljust(RECORD_BYTES - 1)[: RECORD_BYTES - 1] + b"\n"
    with suppress(OSError):
        descriptor = os.open(folder.beat_path(rank), os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.pwrite(descriptor, record, 0)
        finally:
            os.close(descriptor)  # what makes it visible to other nodes on NFS


def read_beat(path: Path) -> Beat | None:
    """Return the last beat in a file, None where there is none."""
    try:
        return Beat(**read_json(path))
    except (ForeignError, TypeError):
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
        for rank, (number, _) in self._seen.items():
            beat = read_beat(self._folder.beat_path(rank))
            if beat is None:
                continue
            self.beats[rank] = beat
            if beat.number != number:
                self._seen[rank] = (beat.number, now)

    def silent_seconds(self, rank: int, now: float) -> float:
        """Return for how long a rank has given no new sign of life, as far as was looked."""
        number, since = self._seen[rank]
        began = now if self._first is None else self._first
        return now - (began if number < 0 else since)
