"""How long the search takes as the cluster grows: CPU seconds of one core, and a curve.

    python -m benchmarks.search_speed [--most GPUS] [--picture FILE]

Two kinds of GPUs, one part A100 to three parts V100, Llama 7B; the strategy is `auto`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from holmes_hpc.config.compose import compose
from holmes_hpc.planner import plan

TARGETS = {16: 0.5, 64: 2.0, 512: 5.0, 4096: 20.0}
SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def measure(gpus: int) -> tuple[float, float, str]:
    """Return the CPU seconds of a plan, its predicted step and its strategy."""
    fast, slow = (1, 1) if gpus == 16 else (gpus // 32, 3 * gpus // 32)
    config = compose(["+cluster=mixed_gpus", "cluster.partitions.ib.gpus_per_node=8",
                      "cluster.partitions.roce.gpus_per_node=8", f"cluster.partitions.ib.nodes={fast}",
                      f"cluster.partitions.roce.nodes={slow}", "model=llama_7b", "train.precision=float16",
                      f"train.global_batch_size={max(128, 2 * gpus)}"])
    start = time.process_time()
    made = plan(config, "slurm")
    return time.process_time() - start, made.predicted.step_seconds, made.strategy


def main() -> None:
    """Print the table as Markdown and draw the curve where a file is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--most", type=int, default=max(SIZES))
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    print("| GPUs | CPU seconds | aim | predicted step, s | strategy |")
    print("|---|---|---|---|---|")
    points = []
    for gpus in (size for size in SIZES if size <= arguments.most):
        seconds, step, strategy = measure(gpus)
        points.append((gpus, seconds))
        print(f"| {gpus} | {seconds:.2f} | {TARGETS.get(gpus, '')} | {step:.2f} | {strategy} |", flush=True)
    if arguments.picture:
        draw(points, arguments.picture)


def draw(points: list[tuple[int, float]], path: Path) -> None:
    """Draw the measured points and the aims on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4))
    axes.loglog(*zip(*points, strict=True), marker="o", label="search")
    axes.loglog(list(TARGETS), list(TARGETS.values()), "x", label="aim")
    axes.set_xlabel("GPUs")
    axes.set_ylabel("CPU seconds, one core")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
