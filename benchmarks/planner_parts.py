"""How long the small parts of planning take: pricing a layer anew and again, making schedules, expanding node lists.

    python -m benchmarks.planner_parts

CPU seconds of one core, the best of three, all in one run, beside what each is expected to stay below.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.published import gpt
from holmes_hpc.cluster import expand_hostlist
from holmes_hpc.cluster.gpus import gpu
from holmes_hpc.data.python_docs import read_python_docs
from holmes_hpc.planner.cost.collectives import unit_directions
from holmes_hpc.planner.cost.layer import layer_seconds
from holmes_hpc.planner.cost.micro_batch import MicroBatch
from holmes_hpc.planner.layout.pipelines import build_pipelines
from holmes_hpc.schedule.building import make_schedule
from holmes_hpc.values import ScheduleChoice

HIDDEN_SIZES = range(1024, 1024 + 128 * 100, 128)
TENSOR_DEGREES = (1, 2, 4, 8)


def price_layers() -> None:
    """Price 400 layers; those that were priced before are remembered."""
    device = gpu("a100-80g")
    for hidden in HIDDEN_SIZES:
        model = gpt(hidden, 24, 16, 1024)
        for tensor in TENSOR_DEGREES:
            each = MicroBatch(model, device, 1, tensor=tensor)
            unit_directions(each, layer_seconds(each))


def price_layers_anew() -> None:
    """Price 400 layers, none of them remembered."""
    layer_seconds.cache_clear()
    price_layers()


def schedule(depth: int, width: int) -> None:
    """Make the 1F1B schedule of `width` pipelines of that depth, 64 micro-batches each."""
    stages = [[(s * width + k,) for k in range(width)] for s in range(depth)]
    make_schedule(build_pipelines(stages, [1] * depth, 64 * width), (), (), ScheduleChoice("1f1b"))


PARTS: tuple[tuple[str, Callable[[], object], float], ...] = (
    ("400 layers priced anew", price_layers_anew, 2.0),
    ("400 layers priced again", price_layers, 1.0),
    ("1F1B, 64 stages", lambda: schedule(64, 1), 1.5),
    ("1F1B, 8 pipelines of 8 stages", lambda: schedule(8, 8), 1.5),
    ("65536 node names", lambda: expand_hostlist("n[00001-65536]"), 5.0),
    ("the text of python_docs read", read_python_docs, 1.0),
)


def measure(part: Callable[[], object]) -> float:
    """Return the CPU seconds of a part, the best of three."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        part()
        best = min(best, time.process_time() - start)
    return best


def main() -> None:
    """Print the table as Markdown."""
    print("| part | CPU seconds | expected below |")
    print("|---|---|---|")
    for name, part, expected in PARTS:
        print(f"| {name} | {measure(part):.3f} | {expected} |", flush=True)


if __name__ == "__main__":
    main()
