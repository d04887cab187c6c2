"""How the ranks of a Slurm step meet: by files in the folder of this start, below the run folder."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from holmes_hpc.cluster.slurm.step import StepLayout
from holmes_hpc.errors import HolmesError, RunFailedError
from holmes_hpc.launch.node.node_report import NodeReport
from holmes_hpc.launch.slurm.allocation import Allocation, GivenNode
from holmes_hpc.runs import Start
from holmes_hpc.runs.starts import PUBLISHED
from holmes_hpc.values import Plan

_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5


class RefusedError(RunFailedError):
    """Rank 0 published why there is no plan; `exit_status` is that of its own error."""


class Meeting:
    """One rank's view of the start: it leaves its node's report and waits for the plan."""

    def __init__(self, start: Start, layout: StepLayout, timeout_seconds: float) -> None:
        self.start, self.layout = start, layout
        start.path.mkdir(parents=True, exist_ok=True)
        self._deadline = time.monotonic() + timeout_seconds
        self._timeout_seconds = timeout_seconds

    def report(self, report: NodeReport) -> None:
        """Leave this node's report, with the ranks that run on it."""
        self.start.write(f"node-{report.node}.json",
                         {"ranks": list(self.layout.own.ranks), "report": report.to_json()})

    def nodes(self) -> list[GivenNode]:
        """Wait for the report of every node of the step; return them in rank order.

        Slurm's variables alone do not always tell the order (`-m arbitrary`), each node's own ranks do. Raises
        RunFailedError that names the nodes which are silent.
        """
        found: dict[str, GivenNode] = {}
        components = {node.name: node.component for node in self.layout.nodes}

        def collect() -> bool:
            for name in components.keys() - found.keys():
                data = self.start.read(f"node-{name}.json")
                if data is not None:
                    found[name] = GivenNode(name, tuple(data["ranks"]), components[name],
                                            NodeReport.from_json(data["report"]))
            return len(found) == len(components)

        self._wait(collect, lambda: f"no report from {', '.join(sorted(components.keys() - found.keys()))}")
        return sorted(found.values(), key=lambda node: node.ranks)

    def publish(self, plan: Plan, allocation: Allocation) -> None:
        """Write the plan, the newest one of the run, and let the other ranks go on.

        At a restart on other nodes it is kept as `plan-<restart>.json` as well.
        """
        run, text = self.start.run, plan.to_json()
        if text != run.plan_path.read_text():
            if self.layout.restart_count:
                run.write_text(run.restart_plan_path(self.layout.restart_count), text)
            run.write_text(run.plan_path, text)
        self.start.write(PUBLISHED, {"plan": text, "allocation": dataclasses.asdict(allocation)})

    def refuse(self, error: HolmesError) -> None:
        """Tell the other ranks why there is no plan."""
        self.start.write(PUBLISHED, {"error": str(error), "status": error.exit_status})

    def wait_for_plan(self) -> tuple[Plan, Allocation]:
        """Wait until rank 0 has published, and return the plan with where its slots lie.

        Raises RefusedError where rank 0 found none, RunFailedError where it says nothing.
        """
        published: list[dict[str, Any]] = []

        def read() -> bool:
            data = self.start.read(PUBLISHED)
            if data is not None:
                published.append(data)
            return bool(published)

        self._wait(read, lambda: "rank 0 published no plan")
        data = published[0]
        if "error" in data:
            error = RefusedError(data["error"])
            error.exit_status = int(data["status"])
            raise error
        where = data["allocation"]
        allocation = Allocation(where["slots"], where["host"], tuple(where["ethernet_only"]), where["backend"])
        return Plan.from_json(data["plan"]), allocation

    def _wait(self, done: Callable[[], bool], missing: Callable[[], str]) -> None:
        pause = _PAUSE_SECONDS
        while not done():
            if time.monotonic() > self._deadline:
                raise RunFailedError(
                    f"{missing()} within {self._timeout_seconds:g} s in {self.start.path}; is the run folder on a "
                    "file system that all nodes share? Else raise train.start_timeout_seconds (now "
                    f"{self._timeout_seconds:g})")
            time.sleep(pause)
            pause = min(pause * 1.2, _LONGEST_PAUSE_SECONDS)
