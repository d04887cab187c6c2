"""The watchdog of a rank: a thread that gives signs of life, and ends the rank when it is stuck in a group."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from holmes_hpc.cluster.adapters import Ports
from holmes_hpc.cluster.link_state import is_well, link_states
from holmes_hpc.comm.activity import OUTSIDE, Doing, Wait
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.engine.watchdog.hang import Evidence, Hang, explain
from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.beats import Beat, Pulse, write_beat
from holmes_hpc.troubles import Troubles, described

MARGIN_SECONDS = 2.0
"""How long the communication library may take to notice its own timeout, before the watchdog ends the rank."""

_LONG_WAIT = 0.8
"""A broken operation that took this share of the timeout was a hang; a shorter one lost a rank that ended."""


class Watch:
    """Watches one rank while it trains.

    `at_hang` is called by the watchdog's thread when the rank has waited in a group for longer than the timeout and
    the library did not say so; it should end the process, whose main thread cannot. Time in which the whole process
    was stopped, as Slurm's suspend does, does not count. Its signs of life tell the state of the node's `interfaces`
    and of its adapters' `ports`.
    """

    def __init__(self, communicator: Communicator, folder: RunFolder, timeout_seconds: float,
                 at_hang: Callable[[Hang], None], interfaces: Iterable[str] = (), ports: Ports | None = None) -> None:
        self._communicator, self._folder, self._at_hang = communicator, folder, at_hang
        self._activity, self._rank = communicator.activity, communicator.rank
        self._timeout_seconds, self._interfaces, self._ports = timeout_seconds, tuple(interfaces), ports
        self._interval_seconds = min(5.0, timeout_seconds / 20)
        self._silent_after_seconds = min(timeout_seconds / 3, max(1.0, 4 * self._interval_seconds))
        self._pulse = Pulse(folder, range(communicator.world_size))
        self._clock = 0.0
        self._looked_at = time.monotonic()
        self._stops: deque[tuple[float, float]] = deque(maxlen=64)
        self._changed = 0.0
        self._beside, self._beside_since = (0, ""), 0.0
        self._number = 0
        self._end, self._wake = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._troubles = Troubles(f"watching rank {self._rank}")
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Give the first sign of life and begin to watch."""
        self._beat(self._activity.standing()[0])
        self._activity.at_training = self._wake.set  # who reads the beats has shorter limits from then on
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._end.set()
        self._wake.set()

    def leave(self) -> None:
        """Stop watching, and let others know that this rank has left the training."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(self._interval_seconds)  # else its last beat could come after this one
        self._say_left()

    def _say_left(self) -> None:
        write_beat(self._folder, self._rank, Beat.of(self._number + 1, self._activity.standing()[0], 0.0, ended=True,
                                                       links=self._links()))

    def _links(self) -> dict[str, str]:
        """Return the state of the interfaces and adapters, those that are not well first."""
        links = link_states(self._interfaces) | (self._ports.states() if self._ports else {})
        return dict(sorted(links.items(), key=lambda link: is_well(link[1])))

    def explain_failure(self) -> Hang | None:
        """Say what an operation waited for that has just failed; None where it did not wait for long.

        The rank counts as ended from here on, so that others do not take it for the cause.
        """
        self.stop()
        wait = self._activity.last_wait
        hang = None
        if wait.seconds >= _LONG_WAIT * self._timeout_seconds:
            with self._lock:
                still = self._stood_still_seconds(wait)
                suspended = wait.seconds - still < _LONG_WAIT * self._timeout_seconds
                hang = self._of_suspension(wait, still) if suspended else self._explain(wait)
        self._say_left()
        return hang

    def _run(self) -> None:
        changes = -1
        self._looked_at = time.monotonic()
        while self._is_due():
            doing, seen = self._activity.standing()
            self._tick()
            if seen != changes:
                changes, self._changed = seen, self._clock
                self._pulse.forget()
            with self._troubles.said():
                self._beat(doing)
            stuck = self._clock - self._changed
            if doing.group != OUTSIDE and stuck > self._timeout_seconds / 2:
                with self._troubles.said(), self._lock:
                    self._pulse.look(self._clock)
            if doing.group != OUTSIDE and stuck > self._timeout_seconds + MARGIN_SECONDS:
                self._at_hang(self._explain_surely(Wait(doing, stuck)))
                return

    def _tick(self) -> None:
        """Let the clock go on, which stands still with the process, and note when that was seen, and for how long."""
        now = time.monotonic()
        passed, most = now - self._looked_at, 2 * self._interval_seconds
        self._looked_at = now
        self._clock += min(passed, most)
        if passed > most:
            self._stops.append((now, passed - most))

    def _stood_still_seconds(self, wait: Wait) -> float:
        """Return for how long the process stood still during a wait that has just ended."""
        self._tick()
        return sum(seconds for seen, seconds in self._stops if seen > self._looked_at - wait.seconds)

    def _is_due(self) -> bool:
        """Wait until the next sign of life is due; return False where none is any more."""
        self._wake.wait(self._interval_seconds)
        self._wake.clear()
        return not self._end.is_set()

    def _beat(self, doing: Doing) -> None:
        self._number += 1
        beside = self._activity.beside
        if beside != self._beside:
            self._beside, self._beside_since = beside, self._clock
        write_beat(self._folder, self._rank, Beat.of(
            self._number, doing, self._clock - self._changed, beside=beside[1],
            beside_seconds=self._clock - self._beside_since if beside[1] else 0.0,
            links=self._links()))

    def _explain_surely(self, wait: Wait) -> Hang:
        """Return what a wait is for, or only that it is one: a rank that is stuck is ended in any case."""
        try:
            return self._explain(wait)
        except Exception as error:
            return Hang((), f"rank {self._rank} waited {wait.seconds:.1f} s in {wait.doing.operation} of step "
                        f"{wait.doing.step} (train.timeout_seconds={self._timeout_seconds:g}), and for whom cannot be "
                        f"said: {described(error)}")

    def _of_suspension(self, wait: Wait, seconds: float) -> Hang:
        """The library counts the time in which the process was stopped, and cannot take the group up again."""
        return Hang((), f"rank {self._rank} stood still for {seconds:.1f} s in step {wait.doing.step}, longer than "
                        f"train.timeout_seconds={self._timeout_seconds:g} allows a wait for others: its job was "
                        "suspended, as by `scontrol suspend`, gang scheduling or PreemptMode=SUSPEND, or its machine "
                        "was; raise train.timeout_seconds above such pauses, or have the site requeue such jobs",
                    of_suspension=True)

    def _explain(self, wait: Wait) -> Hang:
        self._pulse.look(self._clock)
        silent = {rank: self._pulse.silent_seconds(rank, self._clock)
                  for rank in range(self._communicator.world_size)}
        silent = {rank: seconds for rank, seconds in silent.items() if seconds >= self._silent_after_seconds}
        group = self._communicator.describe_index(wait.doing.group)
        return explain(Evidence(self._communicator.plan, self._rank, wait, group, self._pulse.beats, silent,
                                self._timeout_seconds, self._folder.logs))
