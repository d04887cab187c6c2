"""FlashFlex's own cost and memory model, as its public planner prices plans; it serves comparisons only.

Compute is `96 b s h^2 (1 + s/6h + V/16lh)` FLOPs a layer and micro-batch at the peak (a TFLOP of 2^40), tensor
parallelism exchanges `12 b s h` 16-bit elements a layer with every peer. A pipeline is GPipe's table of stages and
micro-batches: each column takes its slowest stage at work, whose time includes the hop there and back to the stage
after it and that one's broadcast to its other tensor ranks. Gradients are summed layer by layer after that, every
owner with every other, and the two parts are multiplied by 1.8 and 1.1. Memory is 8 bytes a parameter and the
activations of one micro-batch. What differs from there: the samples are those that the pipelines really take.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holmes_hpc.cluster import ClusterDescription, Node
from holmes_hpc.planner.layout.node_kinds import Kind
from holmes_hpc.planner.strategies.stage_table import Held, Hop

SEQUENCE, VOCABULARY = 4096, 32000
SIZES = {"llama_7b": (32, 4096), "llama_30b": (60, 6656)}
"""Layers and hidden size of the models that the clusters are for."""
_TFLOP, _GB = 1024.0**4, 1024.0**3
_PIPELINE_FACTOR, _GRADIENT_FACTOR = 1.8, 1.1
_BYTES_A_PARAMETER = 8
DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "unlike_clusters"


@dataclass(frozen=True)
class Spec:
    """A GPU kind."""

    peak_tflops: float
    memory_gb: float
    intra_node_gb_per_second: float


@dataclass(frozen=True)
class StageOf:
    """One stage of a pipeline: the node that it is in, its GPU kind, its tensor-parallel degree and its layers."""

    node: str
    gpu: str
    tensor: int
    layers: int


class Model:
    """The prices on one cluster."""

    def __init__(self, name: str) -> None:
        data = json.loads((DATA / f"{name}.json").read_text())
        self.name, self.trained = name, str(data["model"])
        self.layers, self.hidden = SIZES[self.trained]
        self.layer_parameters = 12 * self.hidden * self.hidden
        self.between = float(data["between_nodes_gb_per_second"])
        self.specs = {gpu: Spec(**spec) for gpu, spec in data["gpus"].items()}
        numbers: Counter[str] = Counter()
        nodes = []
        for each in data["nodes"]:
            gpu = each["gpu"]
            for _ in range(each["count"]):
                nodes.append(Node(slot=f"{gpu}/{numbers[gpu]}", label=gpu, index=numbers[gpu], fabric="all", gpu=gpu,
                                  gpus=each["gpus"], nic="eth10", nics=1, ethernet_gbps=8 * self.between))
                numbers[gpu] += 1
        self.cluster = ClusterDescription(name, tuple(nodes))

    def layer(self, gpu: str, tensor: int, samples: int = 1) -> float:
        """Return the seconds of one layer, forward, backward and recomputation."""
        spec = self.specs[gpu]
        flops = 96 * samples * SEQUENCE * self.hidden**2 * (
            1 + SEQUENCE / (6 * self.hidden) + VOCABULARY / (16 * self.layers * self.hidden))
        peers = (tensor - 1) / (tensor * spec.intra_node_gb_per_second * _GB)
        exchange = 12 * samples * SEQUENCE * self.hidden * 2 * peers
        return flops / (spec.peak_tflops * _TFLOP * tensor) + exchange

    def hop(self, before: StageOf, after: StageOf, samples: int = 1) -> float:
        """Return the seconds of a micro-batch's activations to the next stage and its tensor ranks, one way."""
        elements = samples * SEQUENCE * self.hidden * 2 / _GB
        broadcast = (after.tensor - 1) / after.tensor / self.specs[after.gpu].intra_node_gb_per_second
        return elements * (1 / self.link(before.node, after.node, before.gpu) + broadcast)

    def link(self, a: str, b: str, gpu: str) -> float:
        """Return the bandwidth between two nodes or inside one, 2^30 bytes a second."""
        return self.specs[gpu].intra_node_gb_per_second if a == b else self.between

    def fits(self, stage: StageOf, *, first: bool, last: bool, samples: int = 1) -> bool:
        """Whether a stage fits into its GPUs."""
        parameters = stage.layers * self.layer_parameters + (first + last) * VOCABULARY * self.hidden
        kept = samples * SEQUENCE * self.hidden * 2 * (stage.layers + 34 / 2)
        return (parameters * _BYTES_A_PARAMETER + kept) / stage.tensor <= self.specs[stage.gpu].memory_gb * _GB

    def pipeline_seconds(self, stages: Sequence[StageOf], microbatches: int, samples: int = 1) -> float:
        """Return what one pipeline takes for its micro-batches."""
        hops = [2 * self.hop(a, b, samples) for a, b in zip(stages, stages[1:], strict=False)] + [0.0]
        times = [stage.layers * self.layer(stage.gpu, stage.tensor, samples) + hop
                 for stage, hop in zip(stages, hops, strict=True)]
        return sum(max(times[max(0, column - microbatches + 1):column + 1])
                   for column in range(len(stages) + microbatches - 1))

    def gradient_seconds(self, pipelines: Sequence[Sequence[StageOf]]) -> float:
        """Return the seconds in which all layers' gradients are summed, one layer after the other."""
        if len(pipelines) < 2:
            return 0.0
        total = 0.0
        for layer in range(self.layers):
            owners = [_holder(stages, layer) for stages in pipelines]
            least, most = min(owner.tensor for owner in owners), max(owner.tensor for owner in owners)
            part = self.layer_parameters * 2 / (least * len(owners) * _GB)
            slowest = max(sum(part / self.link(owner.node, other.node, owner.gpu)
                              for j, other in enumerate(owners) if j != i) for i, owner in enumerate(owners))
            total += most // least * 2 * slowest
        return total

    def step_seconds(self, pipelines: Sequence[Sequence[StageOf]], counts: Sequence[int], samples: int = 1) -> float:
        """Return the seconds of a step of pipelines that take so many micro-batches each."""
        longest = max(self.pipeline_seconds(stages, count, samples)
                      for stages, count in zip(pipelines, counts, strict=True))
        return _PIPELINE_FACTOR * longest + _GRADIENT_FACTOR * self.gradient_seconds(pipelines)


def _holder(stages: Sequence[StageOf], layer: int) -> StageOf:
    for stage in stages:
        if layer < stage.layers:
            return stage
        layer -= stage.layers
    raise ValueError("a pipeline without some layer")


class ModelStageCosts:
    """The same model as the planner's search asks it (see `strategies.stage_table.StageCosts`)."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def layer_seconds(self, kind: Kind, tensor: int, samples: int) -> float:
        """Return the seconds of one layer."""
        return _PIPELINE_FACTOR * self.model.layer(kind.node.gpu, tensor, samples)

    def end_seconds(self, kind: Kind, tensor: int, samples: int, *, first: bool, last: bool) -> float:
        """Return nothing: the layers carry the vocabulary's part."""
        return 0.0

    def layer_bytes(self, kind: Kind, tensor: int, samples: int) -> Held:
        """Return states and the activations of one micro-batch, which is all that this model counts."""
        states = self.model.layer_parameters * _BYTES_A_PARAMETER
        return Held((states + samples * SEQUENCE * self.model.hidden * 2) / tensor, 0.0, 0.0)

    def end_bytes(self, kind: Kind, tensor: int, samples: int, *, first: bool, last: bool) -> Held:
        """Return the tables of the ends and the working memory of a layer."""
        tables = (first + last) * VOCABULARY * self.model.hidden * _BYTES_A_PARAMETER
        return Held((tables + samples * SEQUENCE * self.model.hidden * 34) / tensor, 0.0, 0.0)

    def free_bytes(self, kind: Kind) -> float:
        """Return a GPU's memory."""
        return self.model.specs[kind.node.gpu].memory_gb * _GB

    def hop(self, before: Kind, after: Kind, samples: int) -> Hop:
        """Return the hop between two nodes; this model knows no sharing of NICs."""
        seconds = _PIPELINE_FACTOR * samples * SEQUENCE * self.model.hidden * 2 / (self.model.between * _GB)
        return Hop(seconds, 0.0) if before is not after else Hop(0.0, 0.0)

    def layer_gradient_bytes(self) -> float:
        """Return the gradients of a layer."""
        return self.model.layer_parameters * 2.0

    def table_gradient_bytes(self) -> float:
        """Return nothing: this model sums the gradients of layers alone."""
        return 0.0

    def tied_gradient_bytes(self) -> float:
        """Return nothing, as for the table."""
        return 0.0

    def sync_seconds_a_byte(self, kinds: tuple[Kind, ...], nodes: tuple[int, ...]) -> float:
        """Return about what a byte takes: inside one node its own links, else the network."""
        inside = len(kinds) == 1 and nodes[0] == 1
        speed = self.model.specs[kinds[0].node.gpu].intra_node_gb_per_second if inside else self.model.between
        return _GRADIENT_FACTOR * 1.5 / (speed * _GB)
