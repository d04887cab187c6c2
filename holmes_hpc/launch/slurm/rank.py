"""One rank of a Slurm step, from its node's report to its end.

The first rank of every node reports what the node has; rank 0 binds the plan to the nodes that Slurm gave, or plans
anew where they are others than planned, and publishes plan and meeting point; then all train.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from holmes_hpc.cluster import ClusterDescription, Machine, read_cluster
from holmes_hpc.cluster.nccl import hardware_queues
from holmes_hpc.cluster.nics import ETHERNET
from holmes_hpc.cluster.slurm.step import StepLayout
from holmes_hpc.config.kept import read_kept
from holmes_hpc.config.plugins import load_plugins
from holmes_hpc.errors import PREEMPTED, HolmesError
from holmes_hpc.launch.node.backend import AUTO, prepare_environment
from holmes_hpc.launch.node.mismatch import interfaces_of
from holmes_hpc.launch.node.node_report import read_node
from holmes_hpc.launch.rank.settings import RankSettings
from holmes_hpc.launch.rank.torch_log import errors_only
from holmes_hpc.launch.slurm.allocation import Allocation, ExcludeNodesError, allocate
from holmes_hpc.launch.slurm.meeting import Meeting, RefusedError
from holmes_hpc.launch.slurm.stopping import Stopping
from holmes_hpc.redaction import redact
from holmes_hpc.runs import RunFolder, Start, add_note, read_result, write_result
from holmes_hpc.runs.code import CODE_FILE, other_code
from holmes_hpc.runs.plans import read_plan
from holmes_hpc.runs.private import check_own
from holmes_hpc.values import Plan
from holmes_hpc.values.backend_kinds import BACKEND_KINDS

LOG = logging.getLogger(__name__)



def be_rank(folder: RunFolder, layout: StepLayout, *, supervised: bool = False) -> int:
    """Bind the plan together with the other ranks, train, and return the exit status.

    Where somebody else ends a failed run when all ranks have ended (`supervised`: our batch script does), they leave
    only what went wrong; else the first that fails writes result.json. A run that an earlier start completed is left as
    it is: Slurm 24.11 may requeue a job once more after its good end, where it was requeued while being preempted.
    """
    if (read_result(folder) or {}).get("status") == "completed":
        _say(folder, layout, "this run was completed by an earlier start of the job; nothing is left to do")
        return 0
    start = Start(folder, layout.name)
    try:
        return _be_rank(folder, layout, start, supervised=supervised)
    except (Exception, SystemExit) as error:  # said, whatever it is: a rank without a word reads as a killed one
        sys.stderr.write(redact(traceback.format_exc()))
        start.write_failure(layout.rank, layout.node, error)
        _write_failed(folder, f"{type(error).__name__}: {error} [rank {layout.rank} on node {layout.node}]", supervised)
        return 1


def _be_rank(folder: RunFolder, layout: StepLayout, start: Start, *, supervised: bool) -> int:
    check_own(folder.path)
    config = read_kept(folder.config_path, lambda text: _say(folder, layout, text))

    def leave(signal_name: str | None, status: int = 1) -> None:
        if layout.rank not in start.ends():
            start.write_end(layout.rank, layout.node, status, told=signal_name)

    stopping = Stopping(str(config.launch.signal), start.anyone_failed, leave)
    try:
        settings = _prepare(config, start, layout, stopping)
    except HolmesError as error:
        sys.stderr.write(f"{redact(str(error))}\n")
        start.write_failure(layout.rank, layout.node, error)
        if error.exit_status != PREEMPTED:
            _write_failed(folder, str(error), supervised or isinstance(error, RefusedError))
        elif layout.rank == 0:
            write_result(folder, "preempted", error=str(error), emulated=False)
        return error.exit_status
    errors_only(os.environ)
    from holmes_hpc.launch.rank.rank import run_rank

    status = run_rank(settings, lambda done, total, text: None, lambda text: _say(folder, layout, text))
    leave(None, status)
    if status not in (0, PREEMPTED):
        _write_failed(folder, _error_of(folder, layout), supervised)
    elif layout.rank == 0:
        _write_good_end(folder, status, stopping)
    return status


def _prepare(config: Any, start: Start, layout: StepLayout, stopping: Stopping) -> RankSettings:
    load_plugins(config)
    cluster = read_cluster(config.cluster)
    meeting = Meeting(start, layout, config.train.start_timeout_seconds)
    if layout.local_rank == 0:
        meeting.report(read_node(layout.node))
    if layout.rank == 0:
        _say_other_code(start.run, layout)
        _bind(config, cluster, meeting)
    plan, allocation = meeting.wait_for_plan()
    return _settings(config, cluster, start, layout, plan, allocation, stopping)


def _bind(config: Any, cluster: ClusterDescription, meeting: Meeting) -> None:
    """On rank 0: fit the plan to the nodes and publish it, or publish why that is impossible."""
    run = meeting.start.run
    try:
        before = _start_before(meeting.start)
        run.forget_attempt()
        plan = read_plan(run.plan_path)
        nodes = meeting.nodes()
        _say_failed_before(before, [node.name for node in nodes])
        plan, allocation = allocate(config, cluster, plan, nodes)
        _say_no_gpus(config, cluster, allocation, meeting)
        meeting.publish(plan, allocation)
    except ExcludeNodesError as error:
        meeting.start.write("exclude.json", {"nodes": list(error.nodes)})
        meeting.refuse(error)
        raise
    except HolmesError as error:
        meeting.refuse(error)
        raise


def _say_other_code(folder: RunFolder, layout: StepLayout) -> None:
    changed = other_code(folder)
    if changed is not None:
        _say(folder, layout, f"WARNING: the code is not that of the submission: {changed}. This run uses it as it is "
                             f"now; what was submitted is in {folder.path / CODE_FILE}, and launch.snapshot=true lets "
                             "a job run from a copy")


def _start_before(start: Start) -> Start | None:
    """Return the start before this one."""
    others = [other for other in Start.all(start.run) if other != start]
    return others[-1] if others else None


def _say_no_gpus(config: Any, cluster: ClusterDescription, allocation: Allocation, meeting: Meeting) -> None:
    """Say so where ranks compute on CPUs although the cluster file describes GPUs, unless that was asked for."""
    kinds = dict.fromkeys(node.gpu for node in cluster.nodes)
    described = [kind for kind in kinds if kind != "cpu"]
    backend = BACKEND_KINDS[allocation.backend]
    if not backend.needs_gpus and described and str(config.launch.backend) == AUTO:
        _say(meeting.start.run, meeting.layout,
             f"WARNING: the cluster file describes {', '.join(described)}, and no node has a GPU that can be seen: "
             f"ranks compute on CPUs, over {backend.title}. Check the driver, the partitions' gres and launch.setup, "
             "or describe the nodes as gpu: cpu")


def _say_failed_before(before: Start | None, nodes: Sequence[str]) -> None:
    again = [name for name in before.failed_nodes() if name in nodes] if before is not None else []
    if again:
        LOG.warning("WARNING: node %s failed in the last start and is in use again; if it fails once more, leave it "
                    "out by cluster.partitions.<label>.exclude=%s", ", ".join(again), ",".join(again))


def _settings(config: Any, cluster: ClusterDescription, start: Start, layout: StepLayout, plan: Plan,
              allocation: Allocation, stopping: Stopping) -> RankSettings:
    place = plan.ranks[layout.rank]
    node = next(node for node in cluster.nodes if node.slot == place.slot)
    interfaces = interfaces_of(node)
    if layout.node in allocation.ethernet_only:
        interfaces = {"local": "lo", ETHERNET: interfaces[ETHERNET]}
    fabrics = list(dict.fromkeys(node.fabric for node in cluster.nodes))
    prepare_environment(BACKEND_KINDS[allocation.backend], node, os.environ, fabrics)
    return RankSettings(
        rank=layout.rank, node=layout.node, slot=place.slot, plan=plan, config=config, cluster=cluster,
        folder=start.run, interfaces=interfaces, host=allocation.host,
        peak_tflops=Machine.described(cluster).tflops(node, config.train.precision),
        emulated=False, counts_bytes=layout.local_rank == 0, rendezvous_path=start.rendezvous_path,
        stop_requested=stopping.requested, job_id=layout.allocation.requeue_id, restarts=layout.restart_count,
        backend=allocation.backend, device_queues=hardware_queues(os.environ),
    )


def _write_failed(folder: RunFolder, error: str, supervised: bool) -> None:
    # Until somebody knows how all ranks ended and what Slurm does with the job, the run counts as going on.
    if not supervised and read_result(folder) is None:
        write_result(folder, "failed", error=error, emulated=False)


def _write_good_end(folder: RunFolder, status: int, stopping: Stopping) -> None:
    if status == 0:
        write_result(folder, "completed", error=None, emulated=False)
    else:
        told = f"rank 0 received {stopping.told}" if stopping.told else "another rank was told to stop"
        write_result(folder, "preempted", error=f"saved and stopped before the end: {told}", emulated=False)


def _error_of(folder: RunFolder, layout: StepLayout) -> str:
    report = json.loads(folder.rank_error_path(layout.rank).read_text())
    return f"{report['message']} [rank {layout.rank} on node {layout.node}; log: {folder.log_path(layout.rank)}]"


def _say(folder: RunFolder, layout: StepLayout, text: str) -> None:
    """Say a line in this rank's log, and rank 0's to whoever follows the run."""
    sys.stderr.write(f"rank {layout.rank}: {text}\n")
    sys.stderr.flush()
    if layout.rank == 0:
        add_note(folder, text)
