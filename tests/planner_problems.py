"""Small problems for the planner: clusters of two and three fabrics and kinds of GPUs, models that fill them."""

from __future__ import annotations

from dataclasses import dataclass

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import ClusterDescription, Machine, Node
from holmes_hpc.config.compose import compose
from holmes_hpc.planner.task import PlanSettings, Task


@dataclass(frozen=True)
class Problem:
    """`fabrics` holds (GPU, NIC, GPUs of each node) by fabric; Ethernet joins them."""

    name: str
    fabrics: tuple[tuple[str, str, tuple[int, ...]], ...]
    layers: int = 4
    batch: int = 8
    hidden: int = 2048
    sequence: int = 1024
    ethernet_gbps: float = 25.0
    tied: bool = False
    vocabulary: int = 32000

    def task(self, *overrides: str) -> Task:
        """Return the problem as the planner takes it."""
        config = compose([
            "+cluster=mixed", f"model.num_layers={self.layers}", f"model.hidden_size={self.hidden}",
            "model.num_heads=16", f"model.sequence_length={self.sequence}", f"model.vocab_size={self.vocabulary}",
            f"model.tied_embeddings={str(self.tied).lower()}", f"train.global_batch_size={self.batch}",
            "train.precision=float16", "parallel.leave_nodes_out=true", "parallel.plain=0", *overrides])
        cluster = make_cluster(self.name, self.fabrics, self.ethernet_gbps)
        return Task(PlanSettings.from_config(config), Architecture.from_config(config.model), cluster,
                    Machine.described(cluster))


def make_cluster(name: str, fabrics: tuple[tuple[str, str, tuple[int, ...]], ...],
                 ethernet_gbps: float) -> ClusterDescription:
    """Return a cluster of the fabrics' nodes, in order."""
    nodes = [Node(slot=f"f{f}/{i}", label=f"f{f}", index=i, fabric=f"f{f}", gpu=gpu, gpus=gpus, nic=nic, nics=1,
                  ethernet_gbps=ethernet_gbps)
             for f, (gpu, nic, counts) in enumerate(fabrics) for i, gpus in enumerate(counts)]
    return ClusterDescription(name, tuple(nodes))


A, V, T, R = "a100-80g", "v100", "t4", "3090"
IB, ROCE, ETH = "hdr200", "roce100", "eth25"

SMALL = (
    Problem("2+2 gpus", ((A, IB, (2,)), (V, ROCE, (2,)))),
    Problem("2+4 gpus", ((A, IB, (2,)), (V, ROCE, (4,)))),
    Problem("4+2 gpus", ((A, IB, (4,)), (V, ROCE, (2,)))),
    Problem("1+4 gpus", ((A, IB, (1,)), (V, ROCE, (4,)))),
    Problem("2 nodes of 2 + 2", ((A, IB, (2, 2)), (V, ROCE, (2,)))),
    Problem("2 + 2 nodes of 2", ((A, IB, (2,)), (V, ROCE, (2, 2)))),
    Problem("like GPUs, unlike NICs", ((A, IB, (2,)), (A, ROCE, (2,)))),
    Problem("like GPUs, unequal", ((A, IB, (2, 2)), (A, ROCE, (2,))), layers=5),
    Problem("single GPUs", ((A, IB, (1, 1)), (V, ROCE, (1, 1))), layers=6),
    Problem("single GPUs, unequal", ((A, IB, (1, 1, 1)), (V, ROCE, (1, 1)))),
    Problem("three fabrics of 2", ((A, IB, (2,)), (V, ROCE, (2,)), (T, ETH, (2,)))),
    Problem("three fabrics, 2+1+2", ((A, IB, (2,)), (V, ROCE, (1,)), (A, ROCE, (2,)))),
    Problem("three fabrics, 1+1+1", ((A, IB, (1,)), (V, ROCE, (1,)), (R, ETH, (1,))), layers=6),
    Problem("three fabrics, 1+2+3", ((A, IB, (1,)), (V, ROCE, (2,)), (T, ETH, (3,)))),
    Problem("three fabrics, like GPUs", ((A, IB, (2,)), (A, ROCE, (2,)), (A, ETH, (2,)))),
    Problem("slow Ethernet", ((A, IB, (2,)), (V, ROCE, (2,))), ethernet_gbps=5),
    Problem("slow Ethernet, unequal", ((A, IB, (4,)), (V, ROCE, (2,))), ethernet_gbps=5, layers=5),
    Problem("very slow Ethernet", ((A, IB, (2,)), (A, ROCE, (2,))), ethernet_gbps=1),
    Problem("fast Ethernet", ((A, IB, (2,)), (V, ROCE, (4,))), ethernet_gbps=100, batch=12),
    Problem("fast Ethernet, like GPUs", ((A, IB, (2, 1)), (A, ROCE, (2,))), ethernet_gbps=100),
    Problem("large batch", ((A, IB, (2,)), (V, ROCE, (2,))), batch=24),
    Problem("large batch, unequal", ((A, IB, (1,)), (V, ROCE, (3,))), batch=16),
    Problem("large batch, fast", ((A, IB, (2,)), (R, ETH, (3,))), batch=16, ethernet_gbps=100),
    Problem("deep", ((A, IB, (2,)), (V, ROCE, (2,))), layers=8),
    Problem("deep and narrow", ((A, IB, (2,)), (V, ROCE, (3,))), layers=7, hidden=1024),
    Problem("wide", ((A, IB, (2,)), (V, ROCE, (2,))), hidden=4096, layers=3),
    Problem("tight memory", ((V, IB, (2,)), (T, ROCE, (2,))), hidden=4096, layers=6),
    Problem("tight memory, unequal", ((V, IB, (3,)), (T, ROCE, (1,))), hidden=4096, layers=6),
    Problem("tied", ((A, IB, (2,)), (V, ROCE, (2,))), tied=True),
    Problem("tied, unequal", ((A, IB, (1,)), (V, ROCE, (3,))), tied=True, layers=5),
    Problem("long samples", ((A, IB, (2,)), (V, ROCE, (2,))), sequence=4096, batch=6),
    Problem("odd batch", ((A, IB, (2,)), (V, ROCE, (3,))), batch=9, layers=5),
    Problem("large vocabulary", ((A, IB, (2,)), (V, ROCE, (2,))), vocabulary=128000),
)
