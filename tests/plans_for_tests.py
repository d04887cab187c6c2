"""Plans of small clusters for tests, and questions to their sums."""

from __future__ import annotations

import functools

from holmes_hpc.config.compose import compose
from holmes_hpc.planner import plan
from holmes_hpc.values import Operation, Plan

MIXED = "+cluster=mixed"


@functools.cache  # many ask for the same one
def make(*overrides: str, mode: str | None = None) -> Plan:
    return plan(compose(list(overrides)), mode)


def inner_and_outer(reduction):
    """Return the groups that sum inside themselves first, and those that join them."""
    first = reduction.copies or (reduction.levels[0].groups if reduction.levels else ())
    return first, next((level.groups for level in reduction.levels if level.operation is Operation.ALL_REDUCE
                        and level.groups != first), ())


def sums_parts(reduction):
    return reduction.divides or any(level.operation is Operation.BROADCAST for level in reduction.levels)


def nodes(ib: int, roce: int, gpus: int = 2) -> list[str]:
    return [MIXED, f"cluster.partitions.ib.nodes={ib}", f"cluster.partitions.roce.nodes={roce}",
            f"cluster.partitions.ib.gpus_per_node={gpus}", f"cluster.partitions.roce.gpus_per_node={gpus}"]


CASES = {
    "mixed": [MIXED],
    "mixed-holmes-2": [MIXED, "parallel=holmes", "parallel.pipeline=2"],
    "mixed-holmes-8": [MIXED, "parallel=holmes", "parallel.pipeline=8", "model.num_layers=8"],
    "mixed-alternate": [MIXED, "parallel=holmes", "cluster.order=alternate"],
    "mixed-megatron": [MIXED, "parallel=megatron", "parallel.pipeline=2"],
    "mixed-megatron-tensor": [MIXED, "parallel=megatron", "parallel.pipeline=2", "parallel.tensor=2"],
    "mixed-holmes-tensor": [MIXED, "parallel=holmes", "parallel.tensor=2"],
    "mixed-tensor-sequence": [MIXED, "parallel=holmes", "parallel.tensor=2", "parallel.sequence_parallel=true",
                              "parallel.recompute=selective", "model.tied_embeddings=false"],
    "unlike-tensor-degrees": [
        *nodes(1, 1, 6), "parallel=manual", "model.num_layers=3", "model.num_heads=6", "model.hidden_size=96",
        "model.vocab_size=258", "train.global_batch_size=24", "parallel.micro_batch_size=1",
        "parallel.pipelines=[{microbatches: 8, stages: [{ranks: [0, 1], layers: 1}, {ranks: [2, 3, 4], layers: 2}]},"
        "{microbatches: 8, stages: [{ranks: [5], layers: 1}, {ranks: [6, 7], layers: 1}, {ranks: [8, 9], layers: 1}]},"
        "{microbatches: 8, stages: [{ranks: [10, 11], layers: 3}]}]"],
    "untied": [MIXED, "parallel=holmes", "model.tied_embeddings=false"],
    "3-beside-1": [*nodes(3, 1), "parallel=holmes", "parallel.pipeline=2"],
    "5-beside-3": [*nodes(5, 3, 1), "parallel=holmes", "parallel.pipeline=2"],
    "3-beside-1-deep": [*nodes(3, 1, 1), "parallel=holmes", "parallel.pipeline=3"],
    "gpipe": [MIXED, "parallel=holmes", "parallel.schedule=gpipe"],
    "holmes-split": ["+cluster=mixed_gpus", "parallel=holmes", "parallel.layer_split=holmes", "model=gpt2_small",
                     "parallel.pipeline=2"],
    "list-split": [MIXED, "parallel=holmes", "parallel.pipeline=2", "parallel.layer_split=[3,1]"],
    "ib": ["+cluster=ib"],
    "ethernet": ["+cluster=ethernet"],
    "one-node": ["+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=4"],
    "three-fabrics": [MIXED, "+cluster.partitions={ib2: {nodes: 1, gpus_per_node: 2, gpu: a100-80g, nic: hdr200}}",
                      "parallel=holmes"],
    "interleaved": [MIXED, "parallel=holmes", "parallel.chunks=2", "model.num_layers=6"],
    "interleaved-3-beside-1": [*nodes(3, 1, 1), "parallel=holmes", "parallel.chunks=2"],
    "interleaved-megatron": [MIXED, "parallel=megatron", "parallel.chunks=2", "parallel.pipeline=2",
                             "parallel.schedule=interleaved"],
    "zero-bubble": [MIXED, "parallel=holmes", "parallel.schedule=zero_bubble"],
    "zero-bubble-3-beside-1": [*nodes(3, 1, 1), "parallel=holmes", "parallel.schedule=zero_bubble"],
    "turns": [MIXED, "parallel=holmes", "parallel.turns=true"],
    "manual": [*nodes(1, 1, 1), "parallel=manual", "train.global_batch_size=16", "parallel.micro_batch_size=2",
               "parallel.pipelines=[{microbatches: 5, stages: [{ranks: [0], layers: 3}, {ranks: [1], layers: 1}]},"
               "{microbatches: 3, stages: [{ranks: [1], layers: 2}, {ranks: [0], layers: 2}]}]"],
}
