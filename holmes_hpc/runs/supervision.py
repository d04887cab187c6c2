"""The end of every silence: reads the ranks' signs of life from outside, and says when a run is to be ended and why.

Ranks that wait in a group for others notice that by themselves (`engine.watchdog`). Nobody among them notices that all
are stopped, that the only one is, or that a file system holds one while it saves.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holmes_hpc.cluster.link_state import is_well
from holmes_hpc.foreign import ForeignError, number, read_object, read_yaml
from holmes_hpc.runs.beats import Beat, Pulse
from holmes_hpc.runs.folder import RunFolder
from holmes_hpc.values.doing import AWAITING_DATA, CONNECTING, MEETING, OUTSIDE

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
_STEPS = 4
"""A wait of so many predicted steps is no hang yet: a prediction may be far too short, and one step a long one."""
_SHOWN = 8
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class Limits:
    """The seconds that a run may wait for its start, in its training, and for a checkpoint."""

    start_seconds: float = 300.0
    training_seconds: float = 120.0
    checkpoint_seconds: float = 600.0

    @classmethod
    def of_train(cls, train: Any, step_seconds: float | None = None) -> Limits:
        """Return the limits that the group `train` of a configuration sets; what it lacks has its default.

        `step_seconds`, what a step is predicted to take, is counted in where the configuration leaves the training's
        limit open. The host of a GPU runs ahead of it, and then waits for the whole of a step at its end; NCCL
        counts from the issue of an operation.
        """
        values = [number(train.get(f"{name}timeout_seconds")) for name in ("start_", "", "checkpoint_")]
        training_seconds = cls.training_seconds + _STEPS * (step_seconds or 0.0)
        defaults = (cls.start_seconds, training_seconds, cls.checkpoint_seconds)
        return cls(*(default if value is None else value for value, default in zip(values, defaults, strict=True)))

    @classmethod
    def of_folder(cls, folder: RunFolder) -> Limits:
        """Return the limits that the configuration and the plan in a run folder set."""
        try:
            config = read_yaml(folder.config_path)
        except ForeignError:
            return cls()
        train = config.get("train") if isinstance(config, dict) else None
        plan = read_object(folder.plan_path) or {}
        predicted = plan.get("predicted")
        seconds = number(predicted.get("step_seconds")) if isinstance(predicted, dict) else None
        return cls.of_train(train if isinstance(train, dict) else {}, seconds)


@dataclass(frozen=True)
class _Delay:
    """A rank that does one thing for long: `seconds` of the `limit` that the setting named `setting` gives.

    `last`: where it was seen last; `waits`: it does so together with others, one of which may be to blame.
    """

    rank: int
    doing: str
    seconds: float
    limit: float
    setting: str
    last: str = ""
    waits: bool = False

    @property
    def end_seconds(self) -> float:
        """After so long the run is ended: ranks that wait for this one say so first, at the limit itself."""
        return self.limit * _MARGIN + _MARGIN_SECONDS

    @property
    def is_over(self) -> bool:
        return self.seconds >= self.end_seconds

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
        self._next_news = SAID_SECONDS
        self._links: dict[tuple[str, str], str] = {}

    def look(self) -> str | None:
        """Read the beats; return why the run is to be ended now, None where it is not."""
        now = self._clock()
        self._now += min(now - self._before, _LONGEST_PAUSE_SECONDS)
        self._before = now
        if self._folder_is_gone():
            return (f"the run folder {self._folder.path} was removed while the run went on: nothing that it did could "
                    "be kept")
        self._pulse.look(self._now)
        delays = sorted(self._delays(), key=lambda delay: delay.waits)  # who keeps the others waiting comes first
        over = [delay for delay in delays if delay.is_over]
        if over:
            return self._describe_end(over)
        self._say_new([delay for delay in delays if delay.is_long])
        self._say_how_far()
        self._say_links()
        return self._all_ended()

    def _say_new(self, delays: list[_Delay]) -> None:
        """Say what was not said yet, in one line for all ranks that it holds for."""
        new = [delay for delay in delays if (delay.rank, delay.setting) not in self._said]
        self._said = {(delay.rank, delay.setting) for delay in delays}
        if new:
            first = new[0]
            self._say(f"{self._describe(first)}{self._others(first, new)}; the run ends at the latest when it has been "
                      f"{first.end_seconds:.0f} s ({first.setting}={self._set(first):g})")

    def _say_how_far(self) -> None:
        """Say every minute what the first rank does that still prepares for the training, such as making tokens."""
        if self._now < self._next_news:
            return
        self._next_news = self._now + SAID_SECONDS
        beats = {rank: beat for rank in self._ranks if (beat := self._pulse.beats.get(rank)) and not beat.ended}
        preparing = [rank for rank, beat in beats.items() if _is_start(beat) and not _waits(beat)]
        if preparing and beats[preparing[0]].seconds < SAID_SECONDS:  # else it was said as a delay
            first, others = preparing[0], len(preparing) - 1
            more = f" (and {others} more {'rank' if others == 1 else 'ranks'})" if others else ""
            self._say(f"rank {first} on node {self._ranks[first]}{more}: {_in_words(beats[first])}")

    def _say_links(self) -> None:
        """Say it where a link that was well at first is so no more."""
        for rank, beat in self._pulse.beats.items():
            node = self._ranks.get(rank, "")
            known = any(link[0] == node for link in self._links)
            for name, state in beat.links.items():
                before = self._links.get((node, name))
                self._links[node, name] = state
                was_well = known if before is None else is_well(before)  # a beat has not room for many that are well
                if was_well and not is_well(state) and not beat.ended:
                    kind = "adapter" if "/" in name else "interface"
                    self._say(f"the {kind} {name} of node {node} is {state}{f'; it was {before}' if before else ''}")

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
            limit, setting = _longer(limits, beat)
            yield _Delay(rank, "given no sign of life", silent, limit, setting, last=_last_seen(beat))
            if saves:
                yield _Delay(rank, f"been {beat.beside}", beat.beside_seconds, limits.checkpoint_seconds,
                             "train.checkpoint_timeout_seconds")
            if _is_start(beat):
                yield _Delay(rank, f"been {_in_words(beat)}", beat.seconds, limits.start_seconds,
                             "train.start_timeout_seconds", waits=_waits(beat))
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
        return f"all ranks ended {seconds:.0f} s ago, and their parent has not{self._known_of_one()}"

    def _known_of_one(self) -> str:
        """Return what is known of the rank that is unlike the others, such as the only one that is stopped."""
        words = {rank: self._process(rank) for rank in self._ranks}
        forms = {rank: _NUMBERS.sub("", said) for rank, said in words.items()}  # without pids
        counts = Counter(forms.values())
        known = [rank for rank in words if words[rank]]
        if not known:
            return ""
        odd = min(known, key=lambda rank: counts[forms[rank]])
        return f" ({words[odd]})" if len(counts) == 1 else f" (rank {odd} on node {self._ranks[odd]}: {words[odd]})"

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
        return (f"rank {delay.rank} on node {self._ranks[delay.rank]} has {delay.doing} for {delay.seconds:.0f} s"
                f"{delay.last}{self._known(delay.rank)}")

    def _known(self, rank: int) -> str:
        words = self._process(rank)
        return f" ({words})" if words else ""


def _longer(limits: Limits, beat: Beat) -> tuple[float, str]:
    """Return for how long a rank in this state may be silent, and by which setting."""
    bounds = [(limits.training_seconds, "train.timeout_seconds")]
    if beat.beside:
        bounds.append((limits.checkpoint_seconds, "train.checkpoint_timeout_seconds"))
    if _is_start(beat):
        bounds.append((limits.start_seconds, "train.start_timeout_seconds"))
    return max(bounds)


def _is_start(beat: Beat) -> bool:
    return beat.group == OUTSIDE and beat.step == 0


def _waits(beat: Beat) -> bool:
    return beat.action.startswith((MEETING, CONNECTING, AWAITING_DATA))


def _last_seen(beat: Beat) -> str:
    beside = f" and {beat.beside}" if beat.beside else ""
    return f", last seen in step {beat.step}, {beat.action}{beside}"


def _in_words(beat: Beat) -> str:
    """Return what a rank does outside of any group, to be put behind `has been`."""
    if beat.step == 0 and beat.action.partition(" ")[0].endswith("ing"):
        return beat.action
    if beat.action.endswith("ing data"):
        return f"{beat.action} of step {beat.step}"
    return f"busy in step {beat.step} with {beat.action}"
