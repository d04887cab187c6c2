"""What would let a layout fit into memory, of what a strategy may be told to do."""

from __future__ import annotations

from holmes_hpc.planner.strategies.shapes import fits
from holmes_hpc.planner.task import Task

LAST_RESORT = "Take more nodes or a smaller model"


def capacity_remedies(task: Task, ranks: int, stages: int, tensor: int, size: int) -> str:
    """Return what would let the stages of a layout hold more layers: `ranks` of them in a row, each of so many."""
    deeper = stages < task.architecture.num_layers and ranks * tensor < task.cluster.world_size
    found = [*["parallel.pipeline higher"] * deeper, *["parallel.micro_batch_size lower"] * (size > 1),
             *["parallel.tensor higher"] * may_be_wider(task, tensor)]
    return f"Set {' or '.join(found)}, or take more nodes or a smaller model" if found else LAST_RESORT


def may_be_wider(task: Task, tensor: int) -> bool:
    """Return whether a tensor-parallel degree was asked for and a wider one fits; the search tries the others."""
    most = min(node.gpus for node in task.cluster.nodes)
    return task.settings.tensor is not None and any(fits(task, wider) for wider in range(tensor + 1, most + 1))
