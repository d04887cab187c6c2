"""Judges predictions in the wind tunnel: simulated against measured steps of plans, every run shown.

    python -m benchmarks.wind_tunnel [--runs 1] [--steps 6] [--nodes 2] [--gpus 4] [NAME ...]

Each plan is trained with `cluster.emulate.compute=timed`. A run whose steps are not valid has no figure, and says why;
other programs on the machine are the usual cause. Names choose plans.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.order import tau
from benchmarks.tables import table
from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.files import read_json
from holmes_hpc.runs.result import read_metrics

COMMON = ("model=gpt_3_6b", "train.precision=bfloat16", "parallel.micro_batch_size=4", "train.global_batch_size=256",
          "parallel.bucket_mib=256", "cluster.emulate.compute=timed", "cluster.emulate.scale=1000",
          "launch.mode=emulated", "train.timeline_every=0", "run.pictures=false")
PLANS = {
    "holmes": ("parallel=holmes", "parallel.pipeline=2"),
    "holmes, 1F1B without turns": ("parallel=holmes", "parallel.pipeline=2", "parallel.schedule=1f1b",
                                   "parallel.turns=false"),
    "holmes, 1F1B": ("parallel=holmes", "parallel.pipeline=2", "parallel.schedule=1f1b"),
    "holmes, no overlap": ("parallel=holmes", "parallel.pipeline=2", "parallel.overlap_grad_reduce=false",
                           "parallel.overlap_param_gather=false"),
    "megatron": ("parallel=megatron", "parallel.pipeline=2"),
    "megatron, overlap": ("parallel=megatron", "parallel.pipeline=2", "parallel.overlap_grad_reduce=true"),
    "holmes, 4 stages": ("parallel=holmes", "parallel.pipeline=4"),
    "data parallel": ("parallel=megatron", "parallel.pipeline=1"),
}
"""Plans of two fabrics, by what tells them apart."""
_LONGEST_SECONDS = 900


@dataclass(frozen=True)
class Measured:
    """A run: seconds of the cluster, predicted and of every valid step; `why` is what makes the others not valid."""

    name: str
    predicted: float
    steps: tuple[float, ...]
    dilation: float
    why: str

    @property
    def seconds(self) -> float | None:
        """The median step; None where fewer than half of the steps behind the first are valid."""
        return statistics.median(self.steps) if self.steps else None

    @property
    def error_percent(self) -> float | None:
        """How far the prediction is off."""
        return None if self.seconds is None else 100 * (self.predicted / self.seconds - 1)


def measure(name: str, words: Sequence[str], folder: Path) -> Measured:
    """Train one plan in the tunnel and return what was measured."""
    command = [sys.executable, "-m", "holmes_hpc.train", *words, f"run.folder={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST_SECONDS)
    found = sorted(folder.glob("*/*/plan.json"))
    if done.returncode or not found:
        return Measured(name, 0.0, (), 0.0, (done.stderr.strip().splitlines() or ["it did not start"])[-1])
    run = RunFolder(found[-1].parent)
    rows = [row for row in read_metrics(run) if row["step"] > 1]
    valid = tuple(row["step_seconds"] for row in rows if row["step_seconds"] is not None)
    why = next((row["not_valid"] for row in rows if row.get("not_valid")), "")
    result = read_json(run.result_path)
    if isinstance(result, dict) and result.get("others_held_cores"):
        valid, why = (), f"other programs held {result['others_held_cores']:g} cores"
    plan = read_json(run.plan_path)
    if not isinstance(plan, dict):
        return Measured(name, 0.0, (), 0.0, "its plan is gone")
    return Measured(name, plan["predicted"]["step_seconds"], valid if 2 * len(valid) >= len(rows) else (),
                    rows[0]["dilation"] if rows else 0.0, why)


def line(each: Measured) -> tuple[str, ...]:
    """Return the line of a run in the table."""
    steps = ", ".join(f"{seconds:.3f}" for seconds in each.steps) or "none valid"
    error = "" if each.error_percent is None else f"{each.error_percent:+.1f}"
    return each.name, f"{each.predicted:.3f}", steps, error, f"{each.dilation:g}", each.why


def verdict(found: Sequence[Measured]) -> str:
    """Return the errors of all valid runs together, and how well predictions order them."""
    valid = [(each, each.seconds) for each in found if each.seconds is not None]
    errors = [abs(each.predicted / seconds - 1) * 100 for each, seconds in valid]
    if len(valid) < 2:
        return f"{len(valid)} of {len(found)} runs are valid: nothing is said"
    order = tau([(each.predicted, seconds) for each, seconds in valid])
    return (f"{len(valid)} of {len(found)} runs are valid: mean error {statistics.fmean(errors):.1f} %, worst "
            f"{max(errors):.1f} %, Kendall's tau {order:.2f}")


def main() -> None:
    """Measure plans, and print a table of all runs as Markdown."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--nodes", type=int, default=2, help="nodes of each of two fabrics")
    parser.add_argument("--gpus", type=int, default=4, help="GPUs of each node")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    size = ["+cluster=holmes_paper", f"train.steps={arguments.steps}",
            *(f"cluster.partitions.{label}.{key}" for label in ("ib", "roce")
              for key in (f"nodes={arguments.nodes}", f"gpus_per_node={arguments.gpus}"))]
    found = []
    for name in arguments.names or PLANS:
        for _ in range(arguments.runs):
            with tempfile.TemporaryDirectory() as folder:
                found.append(measure(name, [*size, *COMMON, *PLANS[name]], Path(folder)))
            print(" | ".join(line(found[-1])), file=sys.stderr, flush=True)
    print(table(("plan", "predicted, s", "measured steps, s", "error %", "dilation", "why steps have no figures"),
                map(line, found)))
    print(verdict(found))


if __name__ == "__main__":
    main()
