"""The place of a task in its step: rank, node, the nodes in rank order with their ranks and components.

Slurm's variables are less clear than their names:

- In a heterogeneous step SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE are sorted like slurm.conf, while ranks and
  node numbers go component after component. The order comes from SLURM_JOB_NODELIST_HET_GROUP_k.
- SLURM_JOB_PARTITION, SLURM_NTASKS_PER_NODE and SLURM_DISTRIBUTION hold the last component's values in all tasks, and
  SLURM_NTASKS_HET_GROUP_k what the job asked for, not what the step runs. They are not used there.
- `srun A : B` outside of a job has these lists under their former name alone, SLURM_JOB_NODELIST_PACK_GROUP_k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holmes_hpc.cluster.hostlist import expand_hostlist
from holmes_hpc.cluster.slurm.allocation import BATCH, Allocation, integer, read_allocation, read_counts
from holmes_hpc.cluster.slurm.records import SlurmOutputError, reads
from holmes_hpc.words import counted

_BLOCK, _CYCLIC = "block", "cyclic"


@dataclass(frozen=True)
class StepNode:
    """A node of the step: its ranks in the order of their local ranks, and its component (None: not known)."""

    name: str
    ranks: tuple[int, ...]
    component: int | None


@dataclass(frozen=True)
class StepLayout:
    """The place of one task in its step."""

    allocation: Allocation
    rank: int
    world_size: int
    local_rank: int
    node: str
    nodes: tuple[StepNode, ...]
    """in the order of their first ranks"""
    certain: bool
    """False where Slurm does not tell the order (`-m arbitrary`): only `rank`, `world_size`, `local_rank`, `node`, the
    set of nodes and their numbers of tasks hold then, and the tasks have to tell each other where they are"""
    step_id: str = "0"

    @property
    def name(self) -> str:
        """A name that only this step in this start of the job has."""
        return f"{self.allocation.requeue_id}-{self.restart_count}-{self.step_id}"

    @property
    def own(self) -> StepNode:
        """The node of this task."""
        return next(node for node in self.nodes if node.name == self.node)

    @property
    def component(self) -> int | None:
        """The component of this task's node; 0 in a plain job, None where it is not known."""
        return self.own.component

    @property
    def tasks_per_node(self) -> tuple[int, ...]:
        """The number of tasks on each node, in the order of `nodes`."""
        return tuple(len(node.ranks) for node in self.nodes)

    @property
    def restart_count(self) -> int:
        """How often the job was requeued."""
        return self.allocation.restart_count

    def node_of(self, rank: int) -> StepNode:
        """Return the node of a rank. Raises IndexError for a rank outside of the step."""
        for node in self.nodes:
            if rank in node.ranks:
                return node
        raise IndexError(f"rank {rank} is not in the step of {counted(self.world_size, 'rank')}")


@reads("Slurm's environment")
def read_step(environment: Mapping[str, str]) -> StepLayout:
    """Return the place of a task of a plain or heterogeneous step.

    Raises SlurmOutputError outside of a step (in a batch script or salloc's shell too), and where Slurm's variables
    are missing or contradict each other.
    """
    allocation = read_allocation(environment)
    if not environment.get("SLURM_STEP_ID") or allocation.place == BATCH:
        where = "a batch script" if allocation.place == BATCH else "a shell of salloc"
        groups = f" --het-group=0-{len(allocation.components) - 1}" if allocation.heterogeneous else ""
        raise SlurmOutputError(f"this process is {where}, not a task of a step; "
                               f"start the tasks with `srun{groups} ...`")
    rank, node = integer(environment, "SLURM_PROCID"), environment.get("SLURMD_NODENAME", "")
    world_size = integer(environment, "SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS"))
    counts = _tasks_of_nodes(environment)
    if sum(counts.values()) != world_size or rank >= world_size or node not in counts:
        raise SlurmOutputError(
            f"Slurm's variables contradict each other: rank {rank} of {world_size} on {node!r}, but the step has "
            f"{sum(counts.values())} tasks on {', '.join(counts)}; start the step with nothing changed in SLURM_*")
    order, ordered = _order(counts, allocation)
    ranks, dealt = _deal(order, counts, environment, allocation.heterogeneous)
    told = _own_ranks(environment)
    certain = ordered and dealt and ranks[node] == told
    if not certain:
        ranks = _guess(order, counts, node, told)
    layout = tuple(StepNode(name, ranks[name], _component_of(name, allocation)) for name in order)
    return StepLayout(allocation=allocation, rank=rank, world_size=world_size,
                      local_rank=integer(environment, "SLURM_LOCALID"), node=node,
                      nodes=tuple(sorted(layout, key=lambda node: node.ranks[0])), certain=certain,
                      step_id=environment["SLURM_STEP_ID"])


def _tasks_of_nodes(environment: Mapping[str, str]) -> dict[str, int]:
    """Return the tasks of each node of the step, in the order of Slurm's list."""
    listed = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    tasks = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE")
    if not listed or not tasks:
        raise SlurmOutputError("SLURM_STEP_NODELIST or SLURM_STEP_TASKS_PER_NODE is not set; pass Slurm's variables on "
                               "to this process (a container may need them named)")
    names, counts = expand_hostlist(listed), read_counts(tasks)
    if len(names) != len(counts):
        raise SlurmOutputError(f"SLURM_STEP_NODELIST={listed} names {counted(len(names), 'node')}, "
                               f"SLURM_STEP_TASKS_PER_NODE={tasks} {len(counts)}; pass both on unchanged")
    return dict(zip(names, counts, strict=True))


def _order(counts: Mapping[str, int], allocation: Allocation) -> tuple[list[str], bool]:
    """Return the step's nodes by their numbers, and whether that is sure: component after component."""
    if not allocation.heterogeneous:
        return list(counts), True
    grouped = [name for component in allocation.components for name in component.nodes if name in counts]
    return (grouped, True) if len(grouped) == len(counts) else (list(counts), False)


def _deal(order: list[str], counts: Mapping[str, int], environment: Mapping[str, str], heterogeneous: bool
          ) -> tuple[dict[str, tuple[int, ...]], bool]:
    """Return the ranks of each node as the step's distribution deals them out, and whether it is a known one."""
    # In a heterogeneous step SLURM_DISTRIBUTION is the last component's; the default fills node after node.
    distribution = "" if heterogeneous else environment.get("SLURM_DISTRIBUTION", "").partition(":")[0]
    if distribution == _CYCLIC:
        return _cyclic(order, counts), True
    first, ranks = 0, {}
    for name in order:
        ranks[name] = tuple(range(first, first + counts[name]))
        first += counts[name]
    return ranks, distribution in ("", _BLOCK)


def _cyclic(order: list[str], counts: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    ranks: dict[str, list[int]] = {name: [] for name in order}
    rank = 0
    while rank < sum(counts.values()):
        for name in order:
            if len(ranks[name]) < counts[name]:
                ranks[name].append(rank)
                rank += 1
    return {name: tuple(dealt) for name, dealt in ranks.items()}


def _own_ranks(environment: Mapping[str, str]) -> tuple[int, ...]:
    """The ranks on this task's node, which Slurm tells as they are."""
    text = environment.get("SLURM_GTIDS", "")
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise SlurmOutputError(f"SLURM_GTIDS is {text!r}, where Slurm sets the ranks of the node, such as 0,1; "
                               "pass Slurm's variables on unchanged") from None


def _guess(order: list[str], counts: Mapping[str, int], own: str, told: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Give the own node its ranks, and the others what is left, in order."""
    rest = iter(sorted(set(range(sum(counts.values()))) - set(told)))
    return {name: told if name == own else tuple(next(rest) for _ in range(counts[name])) for name in order}


def _component_of(name: str, allocation: Allocation) -> int | None:
    return next((component.index for component in allocation.components if name in component.nodes), None)
