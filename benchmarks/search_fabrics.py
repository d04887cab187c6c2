"""How long the search takes as fabrics or GPUs grow: CPU seconds of one core, and the memory of the process.

    python -m benchmarks.search_fabrics [--fabrics N ...] [--unlike] [--large GPUS ...]

Fabrics of 2 nodes of 4 A100 with GPT 1.7B, joined by Ethernet of 25 Gb/s; with `--unlike` each of 1 to 3 nodes of 2, 4
or 8 GPUs of four kinds, drawn. `--large` plans Llama 70B on so many H100, one sample a GPU.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections.abc import Sequence

from holmes_hpc.cluster import ClusterDescription, Node
from holmes_hpc.config.compose import compose
from holmes_hpc.planner import plan

FABRICS = (1, 2, 3, 5, 8, 12)
_GPUS = ("a100-80g", "v100", "h100", "a100-40g")
_NICS = ("hdr200", "roce200", "edr100", "eth25")
Nodes = tuple[str, int, int, str, str, int]
"""Label, nodes, GPUs of each, GPU, NIC, NICs of each."""


def make_cluster(partitions: Sequence[Nodes], ethernet_gbps: float = 25.0) -> ClusterDescription:
    """Return a cluster whose partitions are a fabric each."""
    return ClusterDescription("measured", tuple(
        Node(slot=f"{label}/{i}", label=label, index=i, fabric=label, gpu=gpu, gpus=gpus, nic=nic, nics=nics,
             ethernet_gbps=ethernet_gbps)
        for label, nodes, gpus, gpu, nic, nics in partitions for i in range(nodes)))


def fabrics(number: int, *, unlike: bool) -> ClusterDescription:
    """Return so many fabrics, all equal or drawn, the same ones each time."""
    draw = random.Random(number)
    if not unlike:
        return make_cluster([(f"p{i:02d}", 2, 4, "a100-80g", "hdr200", 1) for i in range(number)])
    return make_cluster([(f"p{i:02d}", draw.choice((1, 2, 3)), draw.choice((2, 4, 8)), draw.choice(_GPUS),
                          draw.choice(_NICS), draw.choice((1, 2))) for i in range(number)])


def measure(cluster: ClusterDescription, model: str, batch: int) -> tuple[float, float, str]:
    """Return the CPU seconds of a plan, its predicted step and its strategy."""
    config = compose(["+cluster=mixed", f"model={model}", "train.precision=float16",
                      f"train.global_batch_size={batch}"])
    start = time.process_time()
    made = plan(config, "slurm", cluster)
    return time.process_time() - start, made.predicted.step_seconds, made.strategy


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fabrics", type=int, nargs="*", default=list(FABRICS))
    parser.add_argument("--unlike", action="store_true")
    parser.add_argument("--large", type=int, nargs="*", default=[])
    arguments = parser.parse_args()
    measure(fabrics(1, unlike=False), "gpt2_small", 64)  # imports and tables that every later search finds made
    print("| cluster | CPU seconds | most memory, MB | predicted step, s | strategy |")
    print("|---|---|---|---|---|")
    rows = [(f"{number} fabrics", fabrics(number, unlike=arguments.unlike), "gpt_1_7b", 480)
            for number in arguments.fabrics]
    rows += [(f"{gpus} H100", make_cluster([("h100", gpus // 8, 8, "h100", "ndr400", 8)]), "llama_70b", gpus)
             for gpus in arguments.large]
    for name, cluster, model, batch in rows:
        seconds, step, strategy = measure(cluster, model, batch)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"| {name} | {seconds:.2f} | {memory} | {step:.4g} | {strategy} |", flush=True)


if __name__ == "__main__":
    main()
