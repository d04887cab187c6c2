"""The end of every silence: reads the ranks' signs of life from outside, and says when a run is to be ended and why.

Ranks that wait in a group for others notice that by themselves (`engine.watchdog`). Nobody among them notices that all
are stopped, that the only one is, or that a file system holds one while it saves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holmes_hpc.foreign import ForeignError, number, read_yaml
from holmes_hpc.runs.beats import Beat, Pulse
from holmes_hpc.runs.folder import RunFolder
from holmes_hpc.values.doing import OUTSIDE

LOOK_SECONDS = 1.0
SAID_SECONDS = 60.0
"""After so long, or half of its limit, a rank that does one thing only is worth a line."""

_MARGIN = 1.1
_MARGIN_SECONDS = 6.0
"""Ranks that wait for another one say so first: they know in what, and for whom."""
_FIRST_SIGN_SECONDS = 60.0
"""What a rank may take beyond `train.start_timeout_seconds` until its first sign of life: it loads its libraries."""
_LONGEST_PAUSE_SECONDS = 30.0
"""More than this between two looks was a pause of the supervisor too, as Slurm's suspend makes one."""
_SHOWN = 8


@dataclass(frozen=True)
class Limits:
    """The seconds that a run may wait for its start, in its training, and for a checkpoint."""

    start_seconds: float = 300.0
    training_seconds: float = 120.0
    checkpoint_seconds: float = 600.0

    @classmethod
    def of_train(cls, train: Any) -> Limits:
        """Return the limits that the group `train` of a configuration sets; what it lacks has its default."""
        values = [number(train.get(f"{name}timeout_seconds")) for name in ("start_", "", "checkpoint_")]
        defaults = (cls.start_seconds, cls.training_seconds, cls.checkpoint_seconds)
        return cls(*(default if value is None else value for value, default in zip(values, defaults, strict=True)))

    @classmethod
    def of_folder(cls, folder: RunFolder) -> Limits:
        """Return the limits that the configuration in a run folder sets."""
        try:
            config = read_yaml(folder.config_path)
        except ForeignError:
            return cls()
        train = config.get("train") if isinstance(config, dict) else None
        return cls.of_train(train if isinstance(train, dict) else {})


@dataclass(frozen=True)
class _Delay:
    """A rank that does one thing for long: `seconds` of the `limit` that the setting named `setting` gives."""

    rank: int
    doing: str
    seconds: float
    limit: float
    setting: str

    @property
    def is_over(self) -> bool:
        return self.seconds >= self.limit * _MARGIN + _MARGIN_SECONDS

    @property
    def is_long(self) -> bool:
        return self.seconds >= min(SAID_SECONDS, self.limit / 2)


class Supervisor:
    """Watches the ranks of one start of a run; `ranks` are their nodes' names by rank. No beat of an earlier start is
    left when it begins.

    `say` is told of a rank that does one thing for long, once. `process` says what else is known of a rank, such as
    that its process is stopped; "" where nothing is.
    """

    def __init__(self, folder: RunFolder, ranks: Mapping[int, str], limits: Limits, say: Callable[[str], None],
                 process: Callable[[int], str] = lambda rank: "",
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._ranks, self._limits, self._say = folder, dict(ranks), limits, say
        self._process, self._clock = process, clock
        self._pulse = Pulse(folder, ranks)
        self._before, self._now = clock(), 0.0
        self._said: set[tuple[int, str]] = set()
        self._ended_at: float | None = None

    def look(self) -> str | None:
        """Read the beats; return why the run is to be ended now, None where it is not."""
        now = self._clock()
        self._now += min(now - self._before, _LONGEST_PAUSE_SECONDS)
        self._before = now
        if self._folder_is_gone():
            return (f"the run folder {self._folder.path} was removed while the run went on: nothing that it did could "
                    "be kept")
        self._pulse.look(self._now)
        delays = list(self._delays())
        over = [delay for delay in delays if delay.is_over]
        if over:
            return self._describe_end(over)
        self._say_new([delay for delay in delays if delay.is_long])
        return self._all_ended()

    def _say_new(self, delays: list[_Delay]) -> None:
        """Say what was not said yet, in one line for all ranks that it holds for."""
        new = [delay for delay in delays if (delay.rank, delay.setting) not in self._said]
        self._said = {(delay.rank, delay.setting) for delay in delays}
        if new:
            first = new[0]
            self._say(f"{self._describe(first)}{self._others(first, new)}; the run ends when it has been "
                      f"{first.limit:g} s ({first.setting})")

    def _delays(self) -> Iterator[_Delay]:
        for rank in self._ranks:
            beat, limits = self._pulse.beats.get(rank), self._limits
            silent = self._pulse.silent_seconds(rank, self._now)
            if beat is None:
                yield _Delay(rank, "given no sign of life", silent, limits.start_seconds + _FIRST_SIGN_SECONDS,
                             "train.start_timeout_seconds")
                continue
            if beat.ended:
                continue
            saves = bool(beat.beside)  # a file system that holds the checkpoint holds the beat as well
            limit, setting = _longer(limits) if saves else (limits.training_seconds, "train.timeout_seconds")
            yield _Delay(rank, _last_seen("given no sign of life", beat), silent, limit, setting)
            if saves:
                yield _Delay(rank, f"been {beat.beside}", beat.beside_seconds, limits.checkpoint_seconds,
                             "train.checkpoint_timeout_seconds")
            if beat.group == OUTSIDE and beat.step == 0:
                yield _Delay(rank, f"been {_in_words(beat)}", beat.seconds, limits.start_seconds,
                             "train.start_timeout_seconds")
            elif beat.group == OUTSIDE:
                yield _Delay(rank, f"been {_in_words(beat)}", beat.seconds, limits.training_seconds,
                             "train.timeout_seconds")

    def _folder_is_gone(self) -> bool:
        try:
            return not self._folder.path.exists()
        except OSError:
            return False

    def _all_ended(self) -> str | None:
        """Return that all ranks have left the training although their start has not ended, where that is long ago."""
        beats = self._pulse.beats
        if len(beats) < len(self._ranks) or not all(beat.ended for beat in beats.values()):
            self._ended_at = None
            return None
        self._ended_at = self._now if self._ended_at is None else self._ended_at
        seconds, limit = self._now - self._ended_at, self._limits.training_seconds
        if seconds < limit * _MARGIN + _MARGIN_SECONDS:
            return None
        return f"all ranks ended {seconds:.0f} s ago, and their parent has not{self._known(min(self._ranks))}"

    def _describe_end(self, over: list[_Delay]) -> str:
        """Return what the first of these delays is, and which other ranks are in the same."""
        first = over[0]
        return (f"{self._describe(first)} ({first.setting}={self._set(first):g}){self._others(first, over)}; look at "
                f"that node, its file system and {self._folder.log_path(first.rank)}, or raise {first.setting} if it "
                "is only slow")

    def _others(self, first: _Delay, delays: list[_Delay]) -> str:
        """Return which other ranks are delayed in the same way, to be put behind what the first one is."""
        alike = [delay.rank for delay in delays if delay.setting == first.setting and delay.rank != first.rank]
        ranks = list(dict.fromkeys(alike))
        if not ranks:
            return ""
        shown = ", ".join(map(str, ranks[:_SHOWN])) + (f" and {len(ranks) - _SHOWN} more" if ranks[_SHOWN:] else "")
        whole = " (all ranks)" if len(ranks) + 1 == len(self._ranks) else ""
        return f", and so {'has rank' if len(ranks) == 1 else 'have ranks'} {shown}{whole}"

    def _set(self, delay: _Delay) -> float:
        """Return the value of the setting that a delay's limit comes from."""
        limits = self._limits
        return {"train.start_timeout_seconds": limits.start_seconds, "train.timeout_seconds": limits.training_seconds,
                "train.checkpoint_timeout_seconds": limits.checkpoint_seconds}[delay.setting]

    def _describe(self, delay: _Delay) -> str:
        what, comma, last = delay.doing.partition(", ")
        return (f"rank {delay.rank} on node {self._ranks[delay.rank]} has {what} for {delay.seconds:.0f} s"
                f"{comma}{last}{self._known(delay.rank)}")

    def _known(self, rank: int) -> str:
        words = self._process(rank)
        return f" ({words})" if words else ""


def _longer(limits: Limits) -> tuple[float, str]:
    return max((limits.training_seconds, "train.timeout_seconds"),
               (limits.checkpoint_seconds, "train.checkpoint_timeout_seconds"))


def _last_seen(what: str, beat: Beat) -> str:
    beside = f" and {beat.beside}" if beat.beside else ""
    return f"{what}, last seen in step {beat.step}, {beat.action}{beside}"


def _in_words(beat: Beat) -> str:
    """Return what a rank does outside of any group, to be put behind `has been`."""
    if beat.action.endswith("ing data"):
        return f"{beat.action} of step {beat.step}"
    return f"busy in step {beat.step} with {beat.action}"
