"""A rank inside a Slurm step: `python -m holmes_hpc.launch.step RUN_FOLDER`, started by srun.

The first rank of every node reports what the node has; rank 0 binds the plan to the nodes that Slurm gave, or plans
anew where they are others than planned, and publishes plan and meeting point in the run folder; then all train.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from holmes_hpc.cluster import ClusterDescription, Machine
from holmes_hpc.cluster.nics import ETHERNET
from holmes_hpc.cluster.slurm.step import StepLayout, read_step
from holmes_hpc.config.plugins import load_plugins
from holmes_hpc.errors import HolmesError, RunFailedError
from holmes_hpc.launch.allocation import Allocation, GivenNode, allocate
from holmes_hpc.launch.mismatch import interfaces_of
from holmes_hpc.launch.node_report import NodeReport, read_node
from holmes_hpc.launch.settings import RankSettings
from holmes_hpc.runs import RunFolder, read_result, write_result
from holmes_hpc.values import Plan


def main(arguments: list[str]) -> int:
    """Run one rank and return its exit status."""
    folder = RunFolder(Path(arguments[0]))
    layout = read_step(os.environ)
    _redirect_output(folder.log_path(layout.rank))
    return be_rank(folder, layout)


def be_rank(folder: RunFolder, layout: StepLayout) -> int:
    """Bind the plan together with the other ranks, train, and return the exit status."""
    config = OmegaConf.load(folder.config_path)
    load_plugins(config)
    meeting = Meeting(folder, layout, config.train.start_timeout_seconds)
    try:
        if layout.local_rank == 0:
            meeting.report(read_node(layout.node))
        if layout.rank == 0:
            _bind(config, meeting)
        plan, allocation = meeting.wait_for_plan(config)
    except HolmesError as error:
        if layout.rank == 0:
            write_result(folder, "failed", error=str(error), emulated=False)
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    from holmes_hpc.launch.rank import run_rank

    settings = _settings(folder, layout, config, plan, allocation)
    status = run_rank(settings, lambda done, total, text: None, lambda text: _say(layout, text))
    if status == 0:
        if layout.rank == 0:
            write_result(folder, "completed", error=None, emulated=False)
    elif read_result(folder) is None:
        # The others notice only when this rank's process has ended, so the first to write here is the cause.
        write_result(folder, "failed", error=_error_of(folder, layout), emulated=False)
    return status


def _say(layout: StepLayout, text: str) -> None:
    sys.stderr.write(f"rank {layout.rank}: {text}\n")
    sys.stderr.flush()


def _error_of(folder: RunFolder, layout: StepLayout) -> str:
    report = json.loads(folder.rank_error_path(layout.rank).read_text())
    return f"{report['message']} [rank {layout.rank} on node {layout.node}; log: {folder.log_path(layout.rank)}]"


def start_name(layout: StepLayout) -> str:
    """Return a name that only this start of this job has."""
    return f"{layout.allocation.requeue_id}-{layout.restart_count}"


class Meeting:
    """The files by which the ranks of one start find each other; every start of a job has a folder of its own."""

    def __init__(self, folder: RunFolder, layout: StepLayout, timeout_seconds: float) -> None:
        self.run, self.layout = folder, layout
        name = start_name(layout)
        self.folder = folder.path / "starts" / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._deadline = time.monotonic() + timeout_seconds
        self._timeout_seconds = timeout_seconds

    def report(self, report: NodeReport) -> None:
        """Leave this node's report, with the ranks that run on it."""
        data = {"ranks": list(self.layout.own.ranks), "report": report.to_json()}
        self.run.write_json(self.folder / f"node-{report.node}.json", data)

    def nodes(self) -> list[GivenNode]:
        """Wait for the report of every node of the step; return them in rank order.

        Slurm's variables alone do not always tell the order (`-m arbitrary`), each node's own ranks do. Raises
        RunFailedError that names the nodes which are silent.
        """
        found: dict[str, GivenNode] = {}
        components = {node.name: node.component for node in self.layout.nodes}
        while len(found) < len(components):
            for name in components.keys() - found.keys():
                data = self._read(f"node-{name}.json")
                if data is not None:
                    found[name] = GivenNode(name, tuple(data["ranks"]), components[name],
                                            NodeReport.from_json(data["report"]))
            self._pause(lambda: f"no report from {', '.join(sorted(components.keys() - found.keys()))}")
        return sorted(found.values(), key=lambda node: node.ranks)

    def publish(self, plan: Plan, allocation: Allocation) -> None:
        """Write the plan, the newest one of the run, and let the other ranks go on."""
        if self.layout.restart_count:
            self.run.write_text(self.run.restart_plan_path(self.layout.restart_count), plan.to_json())
        self.run.write_text(self.run.plan_path, plan.to_json())
        self.run.write_json(self.folder / "start.json", dataclasses.asdict(allocation))

    def refuse(self, error: HolmesError) -> None:
        """Tell the other ranks why there is no plan."""
        self.run.write_json(self.folder / "start.json", {"error": str(error)})

    def wait_for_plan(self, config: Any) -> tuple[Plan, Allocation]:
        """Wait until rank 0 has published, and return the plan with where its slots lie."""
        while (data := self._read("start.json")) is None:
            self._pause(lambda: "rank 0 published no plan")
        if "error" in data:
            raise RunFailedError(data["error"])
        allocation = Allocation(data["slots"], data["host"], tuple(data["ethernet_only"]))
        return Plan.from_json(self.run.plan_path.read_text()), allocation

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            return json.loads((self.folder / name).read_text())
        except FileNotFoundError:
            return None

    def _pause(self, what: Any) -> None:
        if time.monotonic() > self._deadline:
            raise RunFailedError(f"{what()} within {self._timeout_seconds:.0f} s in {self.folder}; is the run folder "
                                 "on a file system that all nodes share? Else raise train.start_timeout_seconds")
        time.sleep(0.02)


def _bind(config: Any, meeting: Meeting) -> None:
    """On rank 0: fit the plan to the nodes and publish it, or publish why that is impossible."""
    try:
        meeting.run.forget_attempt()
        plan = Plan.from_json(meeting.run.plan_path.read_text())
        meeting.publish(*allocate(config, plan, meeting.nodes()))
    except HolmesError as error:
        meeting.refuse(error)
        raise


def _settings(folder: RunFolder, layout: StepLayout, config: Any, plan: Plan, allocation: Allocation) -> RankSettings:
    cluster = ClusterDescription.from_config(config.cluster)
    place = plan.ranks[layout.rank]
    node = next(node for node in cluster.nodes if node.slot == place.slot)
    interfaces = interfaces_of(node)
    if layout.node in allocation.ethernet_only:
        interfaces = {"local": "lo", ETHERNET: interfaces[ETHERNET]}
    return RankSettings(
        rank=layout.rank, node=layout.node, slot=place.slot, plan=plan, config=config, folder=folder,
        interfaces=interfaces, host=allocation.host,
        peak_tflops=Machine.described(cluster).tflops(node, config.train.precision),
        emulated=False, counts_bytes=layout.local_rank == 0,
    )


def _redirect_output(path: Path) -> None:
    """Send what this rank and its libraries write to its log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
