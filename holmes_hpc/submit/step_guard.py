"""Ends a step that Slurm does not end; runs beside srun in the batch script.

    python -m holmes_hpc.submit.step_guard RUN_FOLDER PID_OF_THE_SHELL [SECONDS]

srun waits for the word of the step daemon on every node. Where one was killed that word never comes, and the job would
hold its nodes although all its ranks have ended. It also waits for ranks that are stopped, or that a file system holds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from holmes_hpc.cluster.slurm import SlurmOutputError, read_allocation
from holmes_hpc.errors import WRONG, HolmesError
from holmes_hpc.runs import RunFolder, Start
from holmes_hpc.runs.life import Life
from holmes_hpc.runs.lookout import Lookout
from holmes_hpc.runs.supervision import Limits, Supervisor

END_SECONDS = 60.0
"""How long srun may take after all ranks have said that they end."""

SILENT_SECONDS = 300.0
"""How long the rest may be silent after a rank failed: Slurm ends them within seconds where it can."""

NOTHING_SECONDS = 1800.0
"""How long a step may take until a rank has begun: nodes may fetch a container meanwhile, and say nothing."""
_MEETING_SECONDS = 60.0
"""What ranks may take beyond `train.start_timeout_seconds` until they say by themselves that they met in vain."""

LOOK_SECONDS = 2.0
_CAUSE_SECONDS = 10.0
_TERM_SECONDS = 5.0


class StepGuard:
    """Knows when the step of one start of a run is over although srun still waits, or is to be ended.

    `say` is told of ranks that do one thing for long.
    """

    def __init__(self, folder: RunFolder, start_prefix: str, end_seconds: float = END_SECONDS,
                 clock: Callable[[], float] = time.monotonic, say: Callable[[str], None] = lambda text: None) -> None:
        self._folder, self._prefix = folder, start_prefix
        self._end_seconds, self._clock, self._say = end_seconds, clock, say
        self._life = Life(folder, clock)
        self._all_ended_at: float | None = None
        self._supervised: tuple[Start, Supervisor] | None = None

    def look(self) -> str | None:
        """Return why srun is to be ended now, None where it is not; a cause of ours is left for the run's result."""
        start = Start.newest(self._folder)
        if start is None or not start.name.startswith(self._prefix):
            return self._look_for_a_beginning()
        if not start.anyone_ended():
            return self._look_at_beats(start)
        ranks, ends = start.ranks(), start.ends()
        if ranks and ends.keys() >= ranks.keys():
            self._all_ended_at = self._all_ended_at or self._clock()
            waited = self._clock() - self._all_ended_at
            return _gone(f"all ranks ended {waited:.0f} s ago") if waited >= self._end_seconds else None
        failed = [rank for rank, end in ends.items() if end["status"] not in (0, 3)]
        if not failed:
            return self._look_at_beats(start)
        silent = self._life.silent_seconds()
        if silent < SILENT_SECONDS:
            return None
        return _gone(f"rank {failed[0]} failed, and the others have given no sign of life for {silent:.0f} s")

    def _look_at_beats(self, start: Start) -> str | None:
        if self._supervised is None or self._supervised[0] != start:
            if not start.is_published:
                return self._look_at_meeting(start)
            limits = Limits.of_folder(self._folder)
            self._supervised = start, Supervisor(self._folder, start.ranks(), limits, self._say, clock=self._clock)
        cause = self._supervised[1].look()
        if cause is None:
            return None
        with suppress(OSError, HolmesError):
            start.write_cause(cause)
        return f"{cause}; srun is ended"


    def _look_for_a_beginning(self) -> str | None:
        silent = self._life.silent_seconds()
        if silent < NOTHING_SECONDS:
            return None
        return (f"no rank has begun within {silent:.0f} s, and nothing was written to {self._folder.path} meanwhile; "
                "look at the nodes, and at what launch.setup and the container do there; srun is ended")

    def _look_at_meeting(self, start: Start) -> str | None:
        """Return that ranks which were to meet are silent; those that live say by themselves that they met in vain."""
        silent, limit = self._life.silent_seconds(), Limits.of_folder(self._folder).start_seconds
        if silent < limit + _MEETING_SECONDS:
            return None
        cause = (f"the ranks have given no sign of life for {silent:.0f} s, since before all of them had met "
                 f"(train.start_timeout_seconds={limit:g}): they were killed or stopped without a word")
        with suppress(OSError, HolmesError):
            start.write_cause(cause)
        return f"{cause}; srun is ended"


def _gone(why: str) -> str:
    return f"{why}, and srun still waits: the step daemon of a node has gone; srun is ended"


def start_prefix(environment: Mapping[str, str]) -> str:
    """Return how the names of this job's present start begin. Raises SlurmOutputError outside of a job."""
    allocation = read_allocation(environment)
    return f"{allocation.requeue_id}-{allocation.restart_count}-"


def main(arguments: Sequence[str]) -> int:
    """Look until the shell has no srun any more, or end that; return 0, or 2 for arguments that are wrong."""
    try:
        folder, shell, *rest = RunFolder(Path(arguments[0])), int(arguments[1]), *map(float, arguments[2:3])
    except (IndexError, ValueError):
        sys.stderr.write("usage: python -m holmes_hpc.submit.step_guard RUN_FOLDER PID_OF_THE_SHELL [SECONDS]; a job's "
                         "batch script starts it beside srun\n")
        return WRONG
    try:
        prefix = start_prefix(os.environ)
    except SlurmOutputError:
        return 0
    guard = StepGuard(folder, prefix, rest[0] if rest else END_SECONDS, say=_say)
    hang_seconds = Limits.of_folder(folder).checkpoint_seconds
    lookout = Lookout(guard.look, LOOK_SECONDS)
    lookout.start()
    seen = False
    while os.getppid() == shell:
        steps = _sruns_below(shell)
        if seen and not steps:
            break
        seen = seen or bool(steps)
        why = lookout.answer
        if why is None and lookout.stuck_seconds() > hang_seconds:
            why = (f"the file system of {folder.path} has not answered for {lookout.stuck_seconds():.0f} s "
                   f"(train.checkpoint_timeout_seconds={hang_seconds:g}); srun is ended")
        if why and steps:
            _end(steps, why)
            break
        time.sleep(LOOK_SECONDS)
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"holmes_hpc: {text}\n")
    sys.stdout.flush()


def _end(steps: Sequence[int], why: str) -> None:
    said = threading.Thread(target=_say, args=(why,), daemon=True)  # the log may lie where nothing answers
    said.start()
    said.join(_CAUSE_SECONDS)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in steps:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(_TERM_SECONDS)


def _sruns_below(ancestor: int) -> list[int]:
    """Return the processes called srun below a process."""
    parents, names = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            stat = path.read_text(errors="replace")
            pid, rest = int(path.parent.name), stat[stat.rindex(")") + 2:].split()
            names[pid], parents[pid] = stat[stat.index("(") + 1:stat.rindex(")")], int(rest[1])

    def is_below(pid: int) -> bool:
        while pid in parents and pid != ancestor:
            pid = parents[pid]
        return pid == ancestor

    return [pid for pid, name in names.items() if name == "srun" and is_below(pid)]


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # a look that hangs holds nobody
