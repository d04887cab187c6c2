"""What would let a layout fit into memory, of what a strategy may be told to do."""

from __future__ import annotations

from holmes_hpc.planner.strategies.shapes import fits
from holmes_hpc.planner.task import Task

LAST_RESORT = "Take more nodes or a smaller model"


def capacity_remedies(task: Task, ranks: int, stages: int, tensor: int, size: int) -> str:
    """Return what would let the stages of a layout hold more layers: `ranks` of them in a row, each of so many."""
    deeper = (task.settings.pipeline is not None and stages < task.architecture.num_layers
              and ranks * tensor < task.cluster.world_size)
    found = [*["parallel.pipeline higher"] * deeper, *["parallel.micro_batch_size lower"] * (size > 1),
             *["parallel.tensor higher"] * may_be_wider(task, tensor)]
    return f"Set {' or '.join(found)}, or take more nodes or a smaller model" if found else LAST_RESORT


def may_be_wider(task: Task, tensor: int) -> bool:
    """Return whether a tensor-parallel degree was asked for and a wider one fits; else the search tries them all."""
    return task.settings.tensor is not None and widest(task, task.settings.pipeline or 1) > tensor


def widest(task: Task, stages: int) -> int:
    """Return the widest tensor-parallel degree that the nodes, the model and the other degrees allow."""
    share = task.cluster.world_size // (stages * (task.settings.data or 1))
    most = min(share, *(node.gpus for node in task.cluster.nodes))
    return max((tensor for tensor in range(1, most + 1) if fits(task, tensor)), default=1)
