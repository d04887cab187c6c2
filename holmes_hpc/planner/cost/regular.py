"""One step of a regular layout: equal pipelines of equal stages, as published runs use.

The simulator prices any plan; this closed form prices thousands of regular layouts a second from the same parts and
is what the accuracy tables are made with.
"""

from __future__ import annotations

from dataclasses import dataclass

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster.gpus import Gpu
from holmes_hpc.planner.cost.collectives import Ring, all_reduce_seconds, gather_seconds, unit_directions
from holmes_hpc.planner.cost.ends import embedding_seconds, head_seconds
from holmes_hpc.planner.cost.gpu_constants import NETWORK_SHARE_ELSE, RING_STEP_SECONDS, local_share
from holmes_hpc.planner.cost.layer import layer_seconds
from holmes_hpc.planner.cost.memory_parts import rank_parameters
from holmes_hpc.planner.cost.micro_batch import MicroBatch, Seconds
from holmes_hpc.planner.cost.software import ENGINE, Software


@dataclass(frozen=True)
class RegularRun:
    """A run of `data` pipelines of `pipeline` stages of `tensor` GPUs, ranks in Megatron's order.

    `node_bytes_per_second` is what a node's NICs give together, one value or one for each stage;
    `hop_bytes_per_second` what they give between stages, where that differs; `network_share` the share of both that
    large messages reach. `stage_layers` gives the layers of each stage; None divides them evenly (a whole stage may
    then hold a fraction of a layer). `chunks` above 1 interleaves.
    """

    architecture: Architecture
    gpu: Gpu
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
    gpus_per_node: int = 8
    node_bytes_per_second: float | tuple[float, ...] = 200e9
    hop_bytes_per_second: float | None = None
    network_share: float = NETWORK_SHARE_ELSE
    stage_layers: tuple[int, ...] | None = None
    compute_scale: float = 1.0

    @property
    def gpus(self) -> int:
        """The GPUs of the run."""
        return self.tensor * self.pipeline * self.data

    @property
    def microbatches(self) -> float:
        """The micro-batches of each pipeline."""
        return self.global_batch / (self.micro_batch * self.data)

    @property
    def work(self) -> MicroBatch:
        """One micro-batch on one GPU."""
        return MicroBatch(self.architecture, self.gpu, self.micro_batch, self.tensor, self.precision, self.recompute,
                    self.sequence_parallel, self.software)

    @property
    def layers(self) -> tuple[float, ...]:
        """The layers of each stage."""
        return self.stage_layers or (self.architecture.num_layers / self.pipeline,) * self.pipeline

    def node_rate(self, stage: int) -> float:
        """Return the byte/s that large messages of a stage's node reach, all NICs together."""
        rate = self.node_bytes_per_second
        return (rate[stage] if isinstance(rate, tuple) else rate) * self.network_share


@dataclass(frozen=True)
class StepSeconds:
    """A step by parts, in seconds: the pipelines' work with its bubble, the sums behind it, the optimizer."""

    pipelines: float
    gradient_sums: float
    embedding_sum: float
    optimizer: float

    @property
    def total(self) -> float:
        """The step."""
        return self.pipelines + self.gradient_sums + self.embedding_sum + self.optimizer


def regular_step(run: RegularRun) -> StepSeconds:
    """Return the time of one step.

    1F1B: the slowest stage's work for every micro-batch, and each other stage's once, divided by the chunks when
    interleaved. Blocking transfers add their time to every micro-batch: a stage swaps activations for gradients with
    each of its neighbours, both directions at once, and a pipeline of two stages has but one. Others cost only
    while the pipeline fills and drains.
    """
    stages = stage_seconds(run)
    slowest, hop = max(stages), hop_seconds(run)
    swaps = min(2, run.pipeline - 1) * run.microbatches * run.chunks if run.software.blocking_transfers else 0.0
    pipelines = (run.microbatches * slowest + (sum(stages) - slowest) / run.chunks
                 + (swaps + 2 * (run.pipeline - 1)) * hop)
    parameters = [parameter_count(run, stage) for stage in range(run.pipeline)]
    sums = max(gradient_sum_seconds(run, stage, count) for stage, count in enumerate(parameters))
    memory = run.work.device.memory_speed
    return StepSeconds(pipelines, sums, _embedding_sum_seconds(run),
                       max(parameters) * run.software.optimizer_bytes / memory)


def stage_seconds(run: RegularRun) -> list[float]:
    """Return forward and backward time of a micro-batch on each stage, tensor ranks' sums included."""
    work = run.work
    ring = tensor_ring(run)

    def both(unit: Seconds) -> float:
        times = unit_directions(work, unit, ring)
        return run.compute_scale * (times.forward + times.backward)

    stages = [layers * both(layer_seconds(work)) for layers in run.layers]
    stages[0] += both(embedding_seconds(work))
    stages[-1] += both(head_seconds(work))
    return stages


def tensor_ring(run: RegularRun) -> Ring:
    """Return the ring of a tensor group: inside a node, or over the NICs that its groups share."""
    local = local_rate(run.gpu)
    if run.tensor <= run.gpus_per_node:
        return Ring(local)
    return Ring(min(local, run.node_rate(0)))


def local_rate(gpu: Gpu) -> float:
    """Return the byte/s of large messages between GPUs of a node."""
    return gpu.intra_node_gb_per_second * 1e9 * local_share(gpu.name)


def hop_seconds(run: RegularRun) -> float:
    """Return the time of handing one micro-batch to the next stage, all GPUs of the node at once."""
    if run.pipeline == 1:
        return 0.0
    work, local = run.work, local_rate(run.gpu)
    divided = run.software.split_transfers or run.sequence_parallel
    size = work.boundary_bytes / (run.tensor if divided else 1)
    if run.gpus <= run.gpus_per_node:
        rate = local
    else:
        whole = run.hop_bytes_per_second * run.network_share if run.hop_bytes_per_second else run.node_rate(0)
        rate = min(local, whole / min(run.gpus_per_node, run.tensor * run.data))
    ring = Ring(rate)
    gathered = run.software.split_transfers and not run.sequence_parallel and run.tensor > 1
    gather = gather_seconds(Ring(local), run.tensor, work.boundary_bytes) if gathered else 0.0
    return size / rate + ring.start_seconds + gather


def parameter_count(run: RegularRun, stage: int) -> float:
    """Return the parameters that one GPU of a stage holds; the table's copy of a tied last stage counts."""
    first, last = stage == 0, stage == run.pipeline - 1
    ends = run.architecture.stage_units(0, 0, first=first, last=last)
    layer = rank_parameters(run.architecture, "layers.0", run.tensor)
    return run.layers[stage] * layer + sum(rank_parameters(run.architecture, unit, run.tensor) for unit in ends)


def gradient_sum_seconds(run: RegularRun, stage: int, parameters: float) -> float:
    """Return the time of summing a stage's gradients over its data-parallel group.

    Inside a node the ring runs over the node's links; across, the groups of a node's tensor ranks share its NICs.
    """
    if run.data == 1:
        return 0.0
    local = local_rate(run.gpu)
    size = parameters * run.software.gradient_bytes
    if run.tensor * run.data <= run.gpus_per_node:
        return all_reduce_seconds(Ring(local), run.data, size)
    groups = min(run.tensor, run.gpus_per_node)
    return all_reduce_seconds(Ring(min(local, run.node_rate(stage) / groups)), run.data, size)


def _embedding_sum_seconds(run: RegularRun) -> float:
    """Return the time of summing a tied table's gradient between first and last stage."""
    if run.pipeline == 1 or not run.architecture.tied_embeddings:
        return 0.0
    table = rank_parameters(run.architecture, "embedding.token", run.tensor) * run.software.gradient_bytes
    local = local_rate(run.gpu)
    if run.gpus <= run.gpus_per_node:
        return all_reduce_seconds(Ring(local), 2, table)
    whole = run.hop_bytes_per_second * run.network_share if run.hop_bytes_per_second else run.node_rate(0)
    pairs = min(run.gpus_per_node, run.tensor * run.data)
    return all_reduce_seconds(Ring(min(local, whole / pairs), RING_STEP_SECONDS), 2, table)
