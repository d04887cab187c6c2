"""A run as published tables describe it, and what the planner predicts of it.

The layout is that of the planner's `megatron` strategy, and `predict` is the function that plans have their figures
from: groups, schedule, cost model and simulation are those of `plan`. What a table does not have is the trainer, which
is an input of the task like the cluster.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import ClusterDescription, Machine, Node
from holmes_hpc.cluster.nics import DEFAULT_ETHERNET_GBPS
from holmes_hpc.config.compose import compose
from holmes_hpc.planner.layout.groups import find_groups
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.layout.pipelines import build_pipelines
from holmes_hpc.planner.simulation.predict import predict
from holmes_hpc.planner.software import ENGINE, Software
from holmes_hpc.planner.strategies import megatron
from holmes_hpc.planner.task import PlanSettings, Task
from holmes_hpc.values import ScheduleChoice, Synchronization

GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Run:
    """`data` pipelines of `pipeline` stages of `tensor` GPUs, on nodes of `gpus_per_node` (fewer in a smaller run).

    `nic` and `nics` are the kind and number of a node's NICs. `chunks` above 1 interleaves. `stage_layers` are the
    layers of each stage in data-flow order; None divides them evenly.
    """

    architecture: Architecture
    gpu: str
    global_batch: int
    micro_batch: int
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    chunks: int = 1
    recompute: str = "none"
    sequence_parallel: bool = False
    precision: str = "float16"
    software: Software = ENGINE
    nic: str = "hdr200"
    nics: int = 8
    stage_layers: tuple[int, ...] | None = None
    gpus_per_node: int = GPUS_PER_NODE

    @property
    def gpus(self) -> int:
        """The GPUs of the run."""
        return self.tensor * self.pipeline * self.data

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers of each stage."""
        stages = self.pipeline * self.chunks
        return self.stage_layers or (self.architecture.num_layers // stages,) * stages

    def task(self, machine: Machine) -> Task:
        """Return what the planner is told of the run on a machine."""
        settings = _defaults().replace(
            tensor=self.tensor, pipeline=self.pipeline, data=self.data, micro_batch_size=self.micro_batch,
            recompute=self.recompute, sequence_parallel=self.sequence_parallel, precision=self.precision,
            global_batch_size=self.global_batch)
        return Task(settings, self.architecture, machine.cluster, machine, self.software)

    @property
    def seconds(self) -> float:
        """The step that the planner predicts."""
        return _seconds(self)


@functools.lru_cache(maxsize=4096)
def _seconds(run: Run) -> float:
    return seconds_anew(run)


def seconds_anew(run: Run) -> float:
    """Return the step that the planner predicts now, whatever it predicted with other constants."""
    machine = machine_of(run.gpu, run.gpus, run.nic, run.nics, run.gpus_per_node)
    return predicted_seconds(run, machine, run.task(machine).synchronization("megatron"))


def predicted_seconds(run: Run, machine: Machine, synchronization: Synchronization, *,
                      own_networks: bool = False) -> float:
    """Return the step of a run that the planner predicts on a machine.

    Groups are Megatron's: all on the network that the whole cluster shares or, with `own_networks`, each on the fastest
    that its own ranks share. Raises ValueError where a batch or the layers cannot be divided.
    """
    microbatches, rest = divmod(run.global_batch, run.micro_batch)
    if rest or sum(run.layers) != run.architecture.num_layers:
        raise ValueError(f"{run}: not a whole number of micro-batches and of layers a stage")
    task = run.task(machine)
    (shape,) = megatron.shapes(task, run.tensor)
    pipelines = build_pipelines(shape.in_chunks(run.chunks).stages, run.layers, microbatches)
    groups, reductions = find_groups(task.architecture, task.cluster, pipelines, shape.rules)
    if own_networks:
        groups = tuple(dataclasses.replace(group, network=task.cluster.shared_network(group.ranks)) for group in groups)
    layout = Layout(pipelines, groups, reductions, run.micro_batch, synchronization)
    choice = ScheduleChoice("interleaved" if run.chunks > 1 else "1f1b", chunks=run.chunks)
    return predict(task, layout, choice).step_seconds


@functools.lru_cache(maxsize=1)
def _defaults() -> PlanSettings:
    """Return the settings of a baseline that neither shards its optimizer nor overlaps its sums."""
    return PlanSettings.from_config(compose(["parallel=megatron", "optimizer.sharded=false"], cluster_required=False))


@functools.lru_cache(maxsize=64)
def machine_of(gpu: str, gpus: int, nic: str, nics: int, gpus_per_node: int = GPUS_PER_NODE) -> Machine:
    """Return a cluster of one fabric of equal nodes, as it is described."""
    a_node = min(gpus_per_node, gpus)
    nodes = tuple(Node(slot=f"node/{i}", label="node", index=i, fabric="fabric", gpu=gpu, gpus=a_node, nic=nic,
                       nics=nics, ethernet_gbps=DEFAULT_ETHERNET_GBPS) for i in range(gpus // a_node))
    return Machine.described(ClusterDescription("published", nodes))


def forget() -> None:
    """Drop every prediction."""
    _seconds.cache_clear()
