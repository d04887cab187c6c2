"""What `doctor` finds out from Slurm: release, settings, partitions with their fabrics, and the cluster file's fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.cluster.slurm import NodeAnnotation, SlurmOutputError, SlurmSettings, read_allocation, read_place
from holmes_hpc.cluster.slurm.allocation import OUTSIDE, Allocation
from holmes_hpc.findings import FAIL, NOTE, OK, Finding
from holmes_hpc.submit.commands import SlurmCommandError, read_cluster_settings
from holmes_hpc.submit.fit import check_fit
from holmes_hpc.submit.inventory import Inventory, ask_slurm
from holmes_hpc.submit.options import cluster_of
from holmes_hpc.words import counted

_MOST_FEATURES = 8


def slurm_findings(config: Any, environment: Mapping[str, str], cluster: ClusterDescription | None, *,
                   has_cluster: bool) -> Iterator[Finding]:
    """Yield what Slurm tells, once its controller answers.

    `has_cluster`: `config.cluster` names a cluster, which is to be compared; `cluster` is what it describes, None where
    that cannot be read.
    """
    try:
        asked = cluster_of(config.launch)
        settings = read_cluster_settings(asked)
        inventory = ask_slurm(dict(config.cluster.features), cluster=asked)
    except SlurmCommandError as error:
        yield Finding(NOTE, "slurm", str(error), "check with `scontrol ping`")
        return
    yield from _settings(settings, bool(config.launch.requeue))
    yield from _partitions(inventory)
    yield from _topology(inventory)
    if has_cluster and config.cluster.partitions:
        facts = list(check_fit(config.cluster, inventory)) if _knows_partitions(config, inventory) else None
        if facts is None:
            yield Finding(NOTE, "cluster", "Slurm does not know every partition that it names, so it is not submitted",
                          "correct cluster.partitions.<label>.partition, or play it here by launch.mode=emulated")
        for fact in facts or ():
            text = f"cluster.partitions.{fact.label}: {fact.text}"
            yield Finding(FAIL if fact.fatal else NOTE, "fit", text, fact.remedy or "compare the cluster file")
        if facts is not None and not facts:
            yield Finding(OK, "fit", "the cluster file agrees with what Slurm tells of its partitions")
    yield from job_findings(config, environment, cluster)


def job_findings(config: Any, environment: Mapping[str, str], cluster: ClusterDescription | None
                 ) -> Iterator[Finding]:
    """Yield where in a job this process runs, and whether the cluster, if any, fits into it."""
    place = read_place(environment)
    if place == OUTSIDE:
        yield Finding(OK, "place", "outside of a job: a run would be submitted")
        return
    try:
        allocation = read_allocation(environment)
    except SlurmOutputError as error:
        yield Finding(FAIL, "place", str(error), "start it with Slurm's variables unchanged")
        return
    nodes = [name for component in allocation.components for name in component.nodes]
    yield Finding(OK, "place", f"job {allocation.requeue_id}, {place}, restart {allocation.restart_count}: "
                  f"{', '.join(nodes) or 'components not told'}")
    if cluster is not None and nodes:
        yield from _job_fits(config, cluster, allocation, len(nodes))


def _job_fits(config: Any, cluster: ClusterDescription, allocation: Allocation, nodes: int) -> Iterator[Finding]:
    wanted = len(cluster.nodes)
    if nodes < wanted:
        yield Finding(NOTE, "place", f"this job has {nodes} of the {counted(wanted, 'node')} of {config.cluster.name}",
                      "for a run here ask for more, or lower cluster.partitions.<label>.nodes")
    labels = len(config.cluster.partitions)
    if allocation.heterogeneous and len(allocation.components) not in (0, labels):
        yield Finding(FAIL, "place", f"this job has {len(allocation.components)} components, {config.cluster.name} "
                      f"{labels} labels", "ask for one component for each label, in the file's order")


def _settings(settings: SlurmSettings, requeue: bool) -> Iterator[Finding]:
    yield Finding(OK, "slurm", f"release {settings.values.get('SLURM_VERSION', '?')}, cluster {settings.cluster}; "
                  f"accounting {'on' if settings.accounting else 'off'}; {settings.kill_wait_seconds} s from SIGTERM "
                  f"to SIGKILL; arrays up to {settings.longest_array}")
    if requeue and not settings.requeues:
        yield Finding(NOTE, "requeue", "JobRequeue=0: jobs go back into the queue only where they ask for it",
                      "ours ask (--requeue); if your site forbids it, set launch.requeue=false")
    preempts = settings.values.get("PreemptType", "preempt/none") != "preempt/none"
    if preempts and not settings.preempted_jobs_are_requeued:
        yield Finding(NOTE, "preemption", f"PreemptMode={settings.values.get('PreemptMode')}: a preempted job may be "
                      "cancelled for good", "its state is saved; start it again with train.resume=RUN_FOLDER")
    if preempts and "preempt_send_user_signal" not in settings.values.get("SlurmctldParameters", ""):
        yield Finding(OK, "preemption", "jobs that are preempted receive SIGTERM; ranks save and stop on it")


def _partitions(inventory: Inventory) -> Iterator[Finding]:
    for name, partition in inventory.partitions.items():
        nodes = inventory.nodes_of(name)
        if not nodes:
            yield Finding(NOTE, "partition", f"{name}: no nodes are shown to you", "ask your site for access")
            continue
        fabrics: dict[str, list[NodeAnnotation]] = {}
        for node in nodes:
            network = inventory.networks[node.name]
            fabrics.setdefault(network.fabric or "unknown", []).append(network)
        usable = sum(node.usable for node in nodes)
        features = list(dict.fromkeys(feature for node in nodes for feature in node.features))[:_MOST_FEATURES]
        told = "; ".join(f"{fabric} on {len(found)} ({found[0].source})" for fabric, found in fabrics.items())
        fact = (f"{name}: {usable} of {counted(len(nodes), 'node')} in service, time limit {partition.max_time}, "
                "features "
                f"{', '.join(features) or 'none'}; fabrics: {told}")
        if not partition.up:
            yield Finding(NOTE, "partition", f"{name} is down: {fact}", "choose another one")
        elif len(fabrics) > 1:
            yield Finding(NOTE, "partition", fact, "a label that names it needs a constraint for one of them")
        elif "unknown" in fabrics:
            yield Finding(NOTE, "partition", fact, "name its features in cluster.features, if there are any")
        else:
            yield Finding(OK, "partition", fact)


def _topology(inventory: Inventory) -> Iterator[Finding]:
    topology = inventory.topology
    if topology is None or not topology.switches:
        yield Finding(OK, "topology", "Slurm names no switches: fabrics are told apart by features and partitions")
        return
    yield Finding(OK, "topology", f"{topology.kind}: {', '.join(switch.name for switch in topology.switches)}")
    strangers = topology.strangers(inventory.nodes)
    if strangers:
        listed = "; ".join(f"{switch}: {', '.join(names[:3])}" for switch, names in strangers.items())
        yield Finding(NOTE, "topology", f"it names nodes that Slurm does not show: {listed}", "tell your site")


def _knows_partitions(config: Any, inventory: Inventory) -> bool:
    wanted = {str(part.partition or label) for label, part in config.cluster.partitions.items()}
    return wanted <= set(inventory.partitions)
