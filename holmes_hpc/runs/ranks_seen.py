"""What the files of a run say of each of its ranks now: read again and again, each line once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holmes_hpc.foreign import number, read_object, whole_number
from holmes_hpc.quoting import one_line
from holmes_hpc.runs.beats import Beat, Pulse
from holmes_hpc.runs.folder import RunFolder
from holmes_hpc.runs.growing import GrowingFile
from holmes_hpc.runs.job import job_ranks
from holmes_hpc.runs.metrics import NewSteps, timeline_row
from holmes_hpc.values import ActionKind
from holmes_hpc.values.schedule import COMPUTES, RECEIVES

_OWN = {*COMPUTES, ActionKind.OPTIMIZER}
_WAITS = {*RECEIVES, ActionKind.TAKE_TURN}
_SUMS = {ActionKind.REDUCE, ActionKind.GATHER}
_LAST_BYTES = 1 << 20
"""Of what is there at the first look; more is not needed to tell of the newest step."""


@dataclass
class RankSeen:
    """A rank: where it is, what it does, and the seconds of its newest recorded step by what they went into."""

    rank: int
    node: str = "?"
    fabric: str = "?"
    gpu: str = "?"
    step: int | None = None
    own_seconds: float = 0.0
    wait_seconds: float = 0.0
    sum_seconds: float = 0.0
    memory_gib: float | None = None
    is_straggler: bool = False
    beat: Beat | None = None
    silent_seconds: float = 0.0
    _actions: set[str] = field(default_factory=set)

    def add(self, row: Mapping[str, Any]) -> None:
        """Take one recorded action; one of another step begins anew, and one that a resumed run does again."""
        action = row.get("action", "")
        if row["step"] != self.step or action in self._actions:
            self.step, self.own_seconds, self.wait_seconds, self.sum_seconds = row["step"], 0.0, 0.0, 0.0
            self._actions.clear()
        self._actions.add(action)
        seconds = max(0.0, row["end"] - row["start"])
        if row["kind"] in _OWN:
            self.own_seconds += seconds
        elif row["kind"] in _WAITS:
            self.wait_seconds += seconds
        elif row["kind"] in _SUMS:
            self.sum_seconds += seconds


@dataclass
class RanksSeen:
    """All ranks of a run, and its newest step. Of a job that starts, or starts again, the plan names other nodes."""

    folder: RunFolder
    ranks: dict[int, RankSeen] = field(default_factory=dict)
    newest: dict[str, Any] = field(default_factory=dict)
    _steps: NewSteps = field(init=False)
    _timelines: dict[int, GrowingFile] = field(init=False, default_factory=dict)
    _pulse: Pulse = field(init=False)
    _written: list[tuple[int, int]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._steps = NewSteps(self.folder.metrics_path, last_bytes=_LAST_BYTES)
        self._place()

    def _place(self) -> None:
        """Read which ranks there are, and where, if that was written anew."""
        written = [_identity(path) for path in (self.folder.plan_path, self.folder.job_path)]
        if written == self._written:
            return
        before, self._written, self.ranks = self.ranks, written, {}
        for place in job_ranks(read_object(self.folder.plan_path) or {}):
            node, fabric, gpu = (one_line(str(place.get(name) or "?")) for name in ("node", "fabric", "gpu"))
            node = one_line(str(place.get("slot") or "?")) if node == "?" else node
            seen = before.get(place["rank"]) or RankSeen(place["rank"])
            seen.node, seen.fabric, seen.gpu = node, fabric, gpu
            self.ranks[place["rank"]] = seen
        for row in job_ranks(read_object(self.folder.job_path) or {}):
            seen = self.ranks.setdefault(row["rank"], before.get(row["rank"]) or RankSeen(row["rank"]))
            seen.node = one_line(str(row.get("node") or seen.node))
        for rank in self.ranks.keys() - self._timelines.keys():
            self._timelines[rank] = GrowingFile(self.folder.timeline_path(rank), last_bytes=_LAST_BYTES)
        if self.ranks.keys() != before.keys():
            self._pulse = Pulse(self.folder, self.ranks)

    def look(self, now: float) -> None:
        """Read what is new at the time `now`, in seconds of any clock of this reader."""
        self._place()
        for row in self._steps.rows():
            self.newest = row
            self._take(row)
        self._pulse.look(now)
        for rank, seen in self.ranks.items():
            for record in self._timelines[rank].new_records():
                if (action := timeline_row(record)) is not None:
                    seen.add(action)
            seen.beat = self._pulse.beats.get(rank)
            seen.silent_seconds = self._pulse.silent_seconds(rank, now)

    def _take(self, row: Mapping[str, Any]) -> None:
        memory = row.get("memory_gib_per_rank")
        for rank, value in enumerate(memory if isinstance(memory, list) else ()):
            if rank in self.ranks and (known := number(value)) is not None:
                self.ranks[rank].memory_gib = known
        slow = row.get("stragglers")
        named = {whole_number(rank) for rank in slow} if isinstance(slow, list) else set()
        for rank, seen in self.ranks.items():
            seen.is_straggler = rank in named

    def by_step_time(self) -> list[RankSeen]:
        """Return the ranks, stragglers first, then by their own time of the newest recorded step."""
        return sorted(self.ranks.values(), key=lambda seen: (not seen.is_straggler, -seen.own_seconds, seen.rank))


def _identity(path: Path) -> tuple[int, int]:
    """Return what differs where a file that is only ever replaced was written anew."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns
