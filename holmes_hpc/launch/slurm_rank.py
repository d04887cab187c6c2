"""One rank of a Slurm step, from its node's report to its end.

The first rank of every node reports what the node has; rank 0 binds the plan to the nodes that Slurm gave, or plans
anew where they are others than planned, and publishes plan and meeting point; then all train.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from omegaconf import OmegaConf

from holmes_hpc.cluster import ClusterDescription, Machine, Node
from holmes_hpc.cluster.nccl import check_environment, node_environment
from holmes_hpc.cluster.nics import ETHERNET
from holmes_hpc.cluster.slurm.step import StepLayout
from holmes_hpc.errors import HolmesError
from holmes_hpc.launch.allocation import Allocation, ExcludeNodesError, allocate
from holmes_hpc.launch.meeting import Meeting, RefusedError
from holmes_hpc.launch.mismatch import interfaces_of
from holmes_hpc.launch.node_report import read_node
from holmes_hpc.launch.settings import RankSettings
from holmes_hpc.launch.stopping import Stopping
from holmes_hpc.runs import RunFolder, Start, read_result, write_result
from holmes_hpc.values import Plan

PREEMPTED = 3


def be_rank(folder: RunFolder, layout: StepLayout) -> int:
    """Bind the plan together with the other ranks, train, and return the exit status."""
    config = OmegaConf.load(folder.config_path)
    start = Start(folder, layout.name)

    def leave(signal_name: str | None, status: int = 1) -> None:
        if layout.rank not in start.ends():
            start.write_end(layout.rank, layout.node, status, told=signal_name)

    stopping = Stopping(str(config.launch.signal), start.anyone_failed, leave)
    try:
        settings = _prepare(config, start, layout, stopping)
    except HolmesError as error:
        sys.stderr.write(f"{error}\n")
        _write_refusal(folder, layout, error)
        leave(None, error.exit_status)
        return error.exit_status
    from holmes_hpc.launch.rank import run_rank

    status = run_rank(settings, lambda done, total, text: None, lambda text: _say(layout, text))
    leave(None, status)
    _write_end(folder, layout, status, stopping)
    return status


def _prepare(config: Any, start: Start, layout: StepLayout, stopping: Stopping) -> RankSettings:
    meeting = Meeting(start, layout, config.train.start_timeout_seconds)
    if config.launch.backend == "nccl":
        check_environment(os.environ)
    if layout.local_rank == 0:
        meeting.report(read_node(layout.node))
    if layout.rank == 0:
        _bind(config, meeting)
    plan, allocation = meeting.wait_for_plan()
    return _settings(config, start, layout, plan, allocation, stopping)


def _bind(config: Any, meeting: Meeting) -> None:
    """On rank 0: fit the plan to the nodes and publish it, or publish why that is impossible."""
    run = meeting.start.run
    try:
        run.forget_attempt()
        plan = Plan.from_json(run.plan_path.read_text())
        meeting.publish(*allocate(config, plan, meeting.nodes()))
    except ExcludeNodesError as error:
        meeting.start.write("exclude.json", {"nodes": list(error.nodes)})
        meeting.refuse(error)
        raise
    except HolmesError as error:
        meeting.refuse(error)
        raise


def _settings(config: Any, start: Start, layout: StepLayout, plan: Plan, allocation: Allocation,
              stopping: Stopping) -> RankSettings:
    cluster = ClusterDescription.from_config(config.cluster)
    place = plan.ranks[layout.rank]
    node = next(node for node in cluster.nodes if node.slot == place.slot)
    interfaces = interfaces_of(node)
    if layout.node in allocation.ethernet_only:
        interfaces = {"local": "lo", ETHERNET: interfaces[ETHERNET]}
    if config.launch.backend == "nccl":
        os.environ.update(_nccl_environment(node))
    return RankSettings(
        rank=layout.rank, node=layout.node, slot=place.slot, plan=plan, config=config, folder=start.run,
        interfaces=interfaces, host=allocation.host,
        peak_tflops=Machine.described(cluster).tflops(node, config.train.precision),
        emulated=False, counts_bytes=layout.local_rank == 0, rendezvous_path=start.rendezvous_path,
        stop_requested=stopping.requested, job_id=layout.allocation.requeue_id, restarts=layout.restart_count,
    )


def _nccl_environment(node: Node) -> dict[str, str]:
    return node_environment(node.hca, node.gid_index, node.interface)


def _write_refusal(folder: RunFolder, layout: StepLayout, error: HolmesError) -> None:
    """Say in result.json why nothing was trained: rank 0 does, or a rank that heard nothing of rank 0."""
    if layout.rank == 0 or (not isinstance(error, RefusedError) and read_result(folder) is None):
        status = "preempted" if error.exit_status == PREEMPTED else "failed"
        write_result(folder, status, error=str(error), emulated=False)


def _write_end(folder: RunFolder, layout: StepLayout, status: int, stopping: Stopping) -> None:
    """Write result.json: rank 0 for a good end; the first that fails, and the batch script may know better."""
    if status == 0 and layout.rank == 0:
        write_result(folder, "completed", error=None, emulated=False)
    elif status == PREEMPTED and layout.rank == 0:
        told = f"this rank received {stopping.told}" if stopping.told else "another rank was told to stop"
        write_result(folder, "preempted", error=f"stopped before the end: {told}", emulated=False)
    elif status not in (0, PREEMPTED) and read_result(folder) is None:
        write_result(folder, "failed", error=_error_of(folder, layout), emulated=False)


def _error_of(folder: RunFolder, layout: StepLayout) -> str:
    report = json.loads(folder.rank_error_path(layout.rank).read_text())
    return f"{report['message']} [rank {layout.rank} on node {layout.node}; log: {folder.log_path(layout.rank)}]"


def _say(layout: StepLayout, text: str) -> None:
    sys.stderr.write(f"rank {layout.rank}: {text}\n")
    sys.stderr.flush()
