"""How long the search takes as the cluster grows: CPU seconds of one core, and a curve.

    python -m benchmarks.search_speed [--sizes GPUS ...] [--model NAME] [--picture docs/pictures/search_speed.png]

Two kinds of GPUs, one part A100 to three parts V100, Llama 7B unless another model is named; the strategy is `auto`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from holmes_hpc.config.compose import compose
from holmes_hpc.planner import plan

TARGETS = {16: 0.5, 64: 2.0, 512: 5.0, 4096: 20.0}
SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def measure(gpus: int, model: str = "llama_7b") -> tuple[float, float, str]:
    """Return the CPU seconds of a plan, its predicted step and its strategy."""
    fast, slow = (1, 1) if gpus == 16 else (gpus // 32, 3 * gpus // 32)
    config = compose(["+cluster=mixed_gpus", "cluster.partitions.ib.gpus_per_node=8",
                      "cluster.partitions.roce.gpus_per_node=8", f"cluster.partitions.ib.nodes={fast}",
                      f"cluster.partitions.roce.nodes={slow}", f"model={model}", "train.precision=float16",
                      f"train.global_batch_size={max(128, 2 * gpus)}"])
    start = time.process_time()
    made = plan(config, "slurm")
    return time.process_time() - start, made.predicted.step_seconds, made.strategy


def yardstick() -> float:
    """Return the milliseconds of a fixed sum, which say how fast this core is and how much others keep it busy."""
    seconds = []
    for _ in range(5):
        start = time.process_time()
        sum(range(10**6))
        seconds.append(time.process_time() - start)
    return 1e3 * sorted(seconds)[2]


def main() -> None:
    """Print the table as Markdown and draw the curve."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--model", default="llama_7b")
    parser.add_argument("--picture", type=Path, help="such as docs/pictures/search_speed.png")
    arguments = parser.parse_args()
    measure(SIZES[0])  # imports and tables that every later search finds made
    print("| GPUs | CPU seconds | aim | predicted step, s | strategy | `sum(range(10**6))`, ms |")
    print("|---|---|---|---|---|---|")
    points = []
    for gpus in arguments.sizes:
        seconds, step, strategy = measure(gpus, arguments.model)
        points.append((gpus, seconds))
        print(f"| {gpus} | {seconds:.2f} | {TARGETS.get(gpus, '')} | {step:.2f} | {strategy} | {yardstick():.0f} |",
              flush=True)
    if arguments.picture:
        draw(points, arguments.picture)


def draw(points: list[tuple[int, float]], path: Path) -> None:
    """Draw the measured points and the aims on logarithmic axes, with the slope of linear growth beside them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4))
    axes.loglog(*zip(*points, strict=True), marker="o", label="search, measured")
    axes.loglog(list(TARGETS), list(TARGETS.values()), "x", color="black", label="aim")
    (first, seconds), (last, _) = points[0], points[-1]
    axes.loglog([first, last], [seconds, seconds * last / first], ":", color="grey", label="linear growth")
    axes.set_xticks([gpus for gpus, _ in points], [str(gpus) for gpus, _ in points])
    axes.set_xlabel("GPUs")
    axes.set_ylabel("CPU seconds of one core")
    axes.grid(which="major", alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)


if __name__ == "__main__":
    main()
