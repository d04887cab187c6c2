"""Follows a run on this machine from outside of it: shows how it gets on, and ends it when it does not."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from holmes_hpc.emulation.world import World
from holmes_hpc.launch.follow.failure import FailureReport
from holmes_hpc.launch.follow.progress import Reporter
from holmes_hpc.launch.here.processes import describe_process
from holmes_hpc.runs import NewSteps, RunFolder, write_job
from holmes_hpc.runs.lookout import Lookout
from holmes_hpc.runs.supervision import LOOK_SECONDS, Limits, Supervisor

LOG = logging.getLogger(__name__)

POLL_SECONDS = 0.1
_LAST_LOOK_SECONDS = 10.0


class Following:
    """Follows one run; `ranks` are the nodes of its ranks.

    The run folder is read by a thread of its own: where its file system hangs, the run is ended all the same.
    """

    def __init__(self, world: World, folder: RunFolder, ranks: Mapping[int, str], limits: Limits, reporter: Reporter,
                 failure: FailureReport) -> None:
        self._world, self._folder, self._limits = world, folder, limits
        self._reporter, self._failure = reporter, failure
        self._file = NewSteps(folder.metrics_path, skip=True)  # a run that goes on has some
        self._rows: deque[dict[str, Any]] = deque()
        self._sayings: deque[str] = deque()
        self._pids: dict[int, int] = {}
        self._supervisor = Supervisor(folder, ranks, limits, self._sayings.append, self._describe_process)
        self._supervised = time.monotonic()
        self._lookout = Lookout(self._look, POLL_SECONDS)

    def follow(self) -> int:
        """Show the run up to its end, and return its status; one that makes no progress is ended."""
        self._lookout.start()
        while True:
            status = self._world.poll()
            for event in self._world.events(timeout_seconds=POLL_SECONDS):
                self._handle(event)
            if status is not None:
                self._failure.tree_ended(self._world.ended_by)
                self._lookout.stop(_LAST_LOOK_SECONDS)
                self._look_for_rows()
                self._show()
                return status
            self._show()
            cause = self._cause()
            if cause is not None:
                self._failure.ended_for(cause)
                LOG.warning("the run makes no progress and is being ended")  # why is said at its end
                self._world.kill()
                self._lookout.stop(0.0)
                return 1

    @property
    def folder_answers(self) -> bool:
        """Whether the file system of the run folder does what it is asked for."""
        return self._lookout.stop(1.0)

    def _cause(self) -> str | None:
        stuck, limit = self._lookout.stuck_seconds(), self._limits.checkpoint_seconds
        if stuck > limit:
            return (f"the file system of {self._folder.path} has not answered for {stuck:.0f} s "
                    f"(train.checkpoint_timeout_seconds={limit:g}); choose another place with run.folder=PATH")
        return self._lookout.answer

    def _look(self) -> str | None:
        self._look_for_rows()
        now = time.monotonic()
        if now < self._supervised + LOOK_SECONDS:
            return None
        self._supervised = now
        return self._supervisor.look()

    def _look_for_rows(self) -> None:
        self._rows.extend(self._file.rows())

    def _show(self) -> None:
        _drain(self._rows, self._reporter.step)
        _drain(self._sayings, lambda text: LOG.warning("%s", text))

    def _describe_process(self, rank: int) -> str:
        """Return what keeps a rank's process or those above it from going on."""
        above = (("the ranks' parent", self._world.init_pid), ("its parent", self._world.mid_pid))
        words = [describe_process(self._pids.get(rank), "its process"),
                 *(describe_process(pid, name) for name, pid in above)]
        return "; ".join(word for word in words if word)

    def _handle(self, event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            self._reporter.starting(event["done"], event["total"], event["description"])
        elif event["event"] == "started":
            outer = self._world.outer_pids()
            self._pids = {r["rank"]: outer.get(r["pid"], r["pid"]) for r in event["ranks"]}
            write_job(self._folder, ranks=[(r["rank"], r["node"], self._pids[r["rank"]]) for r in event["ranks"]])
        elif event["event"] == "said":
            LOG.info("%s", event["text"])
        elif event["event"] in ("ended", "failed", "error"):
            self._failure.add(event)


def _drain(waiting: deque[Any], take: Callable[[Any], None]) -> None:
    while waiting:
        take(waiting.popleft())
