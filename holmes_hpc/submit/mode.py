"""Where a run goes: `launch.mode`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.cluster.slurm import SlurmOutputError, read_allocation, read_place
from holmes_hpc.cluster.slurm.allocation import INTERACTIVE, STEP
from holmes_hpc.config.shipped import is_shipped
from holmes_hpc.emulation.namespaces import namespaces_available
from holmes_hpc.errors import LaunchImpossibleError
from holmes_hpc.submit.commands import nodes_of_job
from holmes_hpc.submit.controller import Controller, ask_controller
from holmes_hpc.submit.options import cluster_of
from holmes_hpc.words import counted

_NO_PARTITION = "the cluster's short form names no Slurm partition; write cluster.partitions"
_LONGER = "launch.dry_run=true says more"


@dataclass(frozen=True)
class Decision:
    """The mode and where that is; why `auto` did not choose Slurm is said in a few words and at length.

    `rank`: this process is one rank of a step that srun started; `srun`: start a step in the allocation that this
    process runs in; `slurm`: submit; `emulated` and `local`: here.
    """

    mode: str
    where: str
    not_slurm: str = ""
    not_slurm_in_short: str = ""

    @property
    def reason(self) -> str:
        """A short line that says where, and why not to Slurm where that may surprise."""
        return f"{self.where}{self.not_slurm_in_short}"

    @property
    def full_reason(self) -> str:
        """The reason with all that is known."""
        return f"{self.where}; not to Slurm: {self.not_slurm}" if self.not_slurm else self.where


@dataclass(frozen=True)
class Probes:
    """How to find out what this machine offers; tests give their own."""

    controller: Callable[[], Controller] = ask_controller
    controller_of: Callable[[str], Controller] = lambda cluster: ask_controller(cluster=cluster)
    namespaces: Callable[[], tuple[bool, str]] = namespaces_available
    nodes_of_job: Callable[[str], int | None] = nodes_of_job


def decide_mode(config: Any, cluster: ClusterDescription, environment: Mapping[str, str],
                probes: Probes | None = None) -> Decision:
    """Return where a run goes.

    `auto` tries in this order: a rank of a step with as many tasks as the cluster has GPUs; a step inside an
    allocation; Slurm, where this machine has one; the emulated cluster; plain local processes. A site's own cluster is
    never emulated on a machine with Slurm unless `launch.mode=emulated` says so: that machine is a login node, whose
    users would suffer. Raises LaunchImpossibleError there where the controller does not answer or does not know a
    partition, when a forced mode cannot work here, or where a job of Slurm runs this process in a way that cannot lead
    to a run.
    """
    probes = probes or Probes()
    wanted = str(config.launch.mode)
    if wanted == "local":
        return Decision("local", "plain local processes, as launch.mode=local says; NICs are not emulated")
    short = why = ""
    if wanted in ("auto", "slurm"):
        decision = _slurm(config, cluster, environment, probes)
        if decision.mode != "none":
            return decision
        if wanted == "slurm":
            raise LaunchImpossibleError(f"launch.mode=slurm is impossible here: {decision.where}; "
                                        "launch.mode=emulated or local would run it on this machine")
        short, why = decision.not_slurm_in_short, decision.where
    available, reason = probes.namespaces()
    if available:
        return Decision("emulated", "emulated cluster on this machine (network namespaces)", why, short)
    if wanted == "emulated":
        raise LaunchImpossibleError(f"launch.mode=emulated is impossible here: {reason}; or use launch.mode=local")
    return Decision("local", f"plain local processes, NICs are not emulated: {reason}", why, short)


def _slurm(config: Any, cluster: ClusterDescription, environment: Mapping[str, str], probes: Probes) -> Decision:
    if is_rank(environment, cluster.world_size):
        return Decision("rank", f"rank {environment['SLURM_PROCID']} of step {environment['SLURM_STEP_ID']} of job "
                                f"{environment.get('SLURM_JOB_ID', '?')}")
    too_small = ""
    if environment.get("SLURM_JOB_ID"):
        inside, too_small = _in_allocation(cluster, environment, probes)
        if inside:
            return Decision("srun", f"a step inside the allocation {environment['SLURM_JOB_ID']}")
    decision = _submission(config, probes)
    if too_small and decision.mode == "slurm":
        return Decision("slurm", f"{decision.where}, as a job of its own: {too_small}")
    return decision


def _submission(config: Any, probes: Probes) -> Decision:
    """Return the decision to submit, or `none` with the reason where the run may be played here instead."""
    shipped = is_shipped(config.cluster)
    if shipped and not cluster_names_partitions(config):
        return Decision("none", _NO_PARTITION)
    cluster = cluster_of(config.launch)
    controller = probes.controller() if cluster is None else probes.controller_of(cluster)
    if not controller.here:
        return Decision("none", controller.silence)
    wanted = {str(part.partition or label): str(label) for label, part in config.cluster.partitions.items()}
    decision = _of_controller(controller, wanted)
    if decision.mode == "slurm" or config.launch.mode == "slurm":
        return decision
    if shipped and not _known(controller).intersection(wanted):
        return decision
    raise LaunchImpossibleError(
        f"{decision.where}. {config.cluster.name} is not played on this machine unasked, since it has Slurm and may "
        "be a login node that others use; launch.mode=emulated asks for it")


def _of_controller(controller: Controller, wanted: Mapping[str, str]) -> Decision:
    """Return the decision for partitions (with the label of each) as far as the controller alone decides it."""
    listed = ", ".join(sorted(wanted))
    if controller.partitions is None:
        asked = f", so whether Slurm has the partitions {listed} is not known" if wanted else ""
        return Decision("none", f"no Slurm controller answers: {controller.silence}{asked}",
                        not_slurm_in_short=f"; not to Slurm: {controller.short} ({_LONGER})")
    if not wanted:
        return Decision("none", _NO_PARTITION)
    unknown = sorted(wanted.keys() - controller.partitions)
    if not unknown:
        return Decision("slurm", f"Slurm, partitions {listed}")
    settings = ", ".join(f"cluster.partitions.{wanted[name]}.partition" for name in unknown)
    return Decision("none", f"Slurm knows no partition {', '.join(unknown)}; it knows "
                            f"{', '.join(sorted(controller.partitions))}; set {settings}",
                    not_slurm_in_short=f"; not to Slurm, which knows no partition {', '.join(unknown)} ({_LONGER})")


def _known(controller: Controller) -> frozenset[str]:
    """Return the partitions that the controller told, or else those of Slurm's configuration."""
    return controller.partitions or controller.configured or frozenset()


def is_rank(environment: Mapping[str, str], world_size: int) -> bool:
    """Say whether a site's own srun started this process as one of `world_size` ranks.

    A step under a pseudo-terminal (`srun --pty`, as notebooks are started) or with another number of tasks is not ours.
    """
    return (read_place(environment) == STEP and "SLURM_PTY_PORT" not in environment
            and environment.get("SLURM_STEP_NUM_TASKS") == str(world_size))


def cluster_names_partitions(config: Any) -> bool:
    """Say whether the cluster file has labels, which stand for Slurm partitions."""
    return bool(config.cluster.partitions)


def _in_allocation(cluster: ClusterDescription, environment: Mapping[str, str], probes: Probes) -> tuple[bool, str]:
    """Say whether to start the ranks in the allocation that this process runs in, and else why not.

    Raises LaunchImpossibleError where several tasks of a step came here, of which each would start a run, and where
    a batch script asked for too few nodes: nobody is there to see that another job was submitted instead.
    """
    job, place = environment["SLURM_JOB_ID"], read_place(environment)
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if place == STEP and tasks != "1":
        raise LaunchImpossibleError(
            f"srun started {tasks} tasks in job {job}, and the cluster {cluster.name} has "
            f"{counted(cluster.world_size, 'GPU')}: "
            f"each of these tasks would start a run of its own. Start {cluster.world_size} tasks "
            f"(srun --ntasks={cluster.world_size}), or change the cluster file"
        )
    if place == INTERACTIVE and environment.get("SLURM_PROCID", "0") != "0":
        raise LaunchImpossibleError(f"task {environment['SLURM_PROCID']} of `srun --pty` in job {job}: task 0 starts "
                                    "the run for all")
    given, needed = _nodes_in_environment(environment), len(cluster.nodes)
    if place in (STEP, INTERACTIVE) and given is not None and given < needed:
        given = probes.nodes_of_job(job)  # a step is told its own nodes alone
    if given is None or given >= needed:
        return True, ""
    words = f"job {job}, in which this is typed, has {given} of the {counted(needed, 'node')} that {cluster.name} needs"
    if place in (STEP, INTERACTIVE):
        return False, words
    raise LaunchImpossibleError(f"{words}; ask for {counted(needed, 'node')}, or start the command outside of the job")


def _nodes_in_environment(environment: Mapping[str, str]) -> int | None:
    """Return the number of nodes of the job, all components together, as far as the environment tells."""
    try:
        components = read_allocation(environment).components
    except SlurmOutputError:
        return None
    return sum(len(component.nodes) for component in components) or None
