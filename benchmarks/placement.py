"""Holmes's placement against Megatron's on the emulated cluster, side by side in one run.

    python -m benchmarks.placement [--steps N] [--repetitions N] [--out FOLDER]

Three models fixed beforehand, ranks numbered node by node and alternately, the same degrees, layer split,
micro-batch, precision and schedule on both sides. All results are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
HIDDEN_SIZES = (128, 256, 384)
ORDERS = ("grouped", "alternate")
STRATEGIES = ("holmes", "megatron")
WARM_UP_STEPS = 3
COMMON = (
    "+cluster=mixed", "parallel.pipeline=2", "parallel.layer_split=uniform", "parallel.micro_batch_size=4",
    "parallel.schedule=1f1b", "parallel.warmup_extra=0", "model.num_layers=8", "train.validate_every=0",
    "train.validation_samples=4", "train.timeline_every=0",
)


def run(folder: Path, strategy: str, order: str, hidden: int, steps: int) -> list[float]:
    """Train once and return the tokens per second of each step after the warm-up."""
    name = f"{strategy}-{order}-{hidden}"
    command = [sys.executable, "-m", "holmes_hpc.train", *COMMON, f"parallel={strategy}", f"cluster.order={order}",
               f"model.hidden_size={hidden}", f"train.steps={steps}", f"run.name={name}", f"run.folder={folder}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    metrics = max((folder / name).glob("*/metrics.jsonl"), key=lambda path: path.stat().st_mtime)
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [row["tokens_per_second"] for row in rows[WARM_UP_STEPS:]]


def main() -> None:
    """Run every pair, print the table as Markdown, draw the picture."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--repetitions", type=int, default=2, help="runs of each pair, in turn")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "benchmark")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results: dict[tuple[int, str], dict[str, list[float]]] = {}
    print("| hidden | ranks numbered | holmes tokens/s | megatron tokens/s | holmes / megatron |")
    print("|---|---|---|---|---|")
    for hidden in HIDDEN_SIZES:
        for order in ORDERS:
            rates: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
            for _ in range(arguments.repetitions):
                for strategy in STRATEGIES:
                    rates[strategy] += run(arguments.runs, strategy, order, hidden, arguments.steps)
            results[hidden, order] = rates
            fast, slow = (median(rates[strategy]) for strategy in STRATEGIES)
            print(f"| {hidden} | {order} | {fast:,.0f} | {slow:,.0f} | {fast / slow:.2f} |", flush=True)
    draw(results, arguments.out / "holmes_and_megatron.png")


def draw(results: dict[tuple[int, str], dict[str, list[float]]], path: Path) -> None:
    """Draw median tokens per second as bars, the quartiles as whiskers."""
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    colours = {"holmes": "#0072B2", "megatron": "#E69F00"}
    for offset, strategy in enumerate(STRATEGIES):
        for position, rates in enumerate(results.values()):
            values = sorted(rates[strategy])
            middle = median(values)
            low, high = values[len(values) // 4], values[3 * len(values) // 4]
            axes.bar(position + 0.38 * (offset - 0.5), middle, 0.36, color=colours[strategy],
                     label=strategy if position == 0 else None, yerr=[[middle - low], [high - middle]], capsize=2)
    axes.set_xticks(range(len(results)), [f"hidden {hidden}\n{order}" for hidden, order in results])
    axes.set_ylabel("tokens per second")
    axes.set_title("+cluster=mixed, emulated: the same job with each placement", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
