"""Runs whose cluster is disturbed in mid-run: what a step takes before, during and after, predicted and measured.

    python -m benchmarks.disturbances [--case NAME ...] [--steps N] [--folder FOLDER]

Four ranks on four emulated nodes of two fabrics. Every case is run twice with the same disturbance in the middle third
of its steps: with the plan for the undisturbed cluster, and with what the planner would have chosen under it
(`cluster.emulate.plan_for_step`). Losses are compared with those of an undisturbed run of the same plan, bit for bit.
Then come the lines of `holmes compare` of both runs. Times are medians, and in brackets the fastest step, which says
more where the machine is busy; the first step of a third is left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from analysis.disturbed import disturbed
from benchmarks.tables import table
from holmes_hpc.compare import read
from holmes_hpc.planner.telling.compare import compare
from holmes_hpc.planner.telling.describe import in_a_line
from holmes_hpc.runs import RunFolder, read_metrics
from holmes_hpc.runs.find import find_run
from holmes_hpc.runs.result import read_result

ROOT = Path(__file__).resolve().parent.parent
COMMON = ("+cluster=mixed", "cluster.partitions.ib.gpus_per_node=1", "cluster.partitions.roce.gpus_per_node=1",
          "model.num_heads=2", "model.vocab_size=512", "model.tied_embeddings=false",
          "train.validate_every=0", "train.checkpoint_every=0", "train.timeline_every=0", "run.pictures=false",
          "launch.mode=emulated")
LINKS = ("model.num_layers=2", "model.hidden_size=64", "model.sequence_length=256", "train.global_batch_size=16",
         "cluster.emulate.rates={ib: 0.04, roce: 0.03, ethernet: 0.006}")
"""Little to compute and slow links, so that a step is what its links make of it."""
COMPUTE = ("model.num_layers=4", "model.hidden_size=256", "model.sequence_length=128", "train.global_batch_size=16")
CASES = {
    "rate to a fifth": ("{rate: 0.2%s}", LINKS),
    "1 % loss": ("{loss: 0.01%s}", LINKS),
    "20 ms of jitter": ("{jitter_ms: 20%s}", LINKS),
    "half of the trunk taken": ("{traffic: 0.5%s}", LINKS),
    "a rank 2 times slower": ("{slowdown: 2, ranks: [1]%s}", COMPUTE),
}
HEAD = ("case", "plan", "before, ms", "during, ms", "after, ms", "during / before", "predicted during / before",
        "losses", "cores held by others")


@dataclass(frozen=True)
class Case:
    """One disturbance in the middle third of a run."""

    name: str
    steps: int
    folder: Path

    @property
    def third(self) -> int:
        """Steps of a third."""
        return self.steps // 3

    @property
    def overrides(self) -> tuple[str, ...]:
        """What the run is given beside its disturbance."""
        return (*COMMON, *CASES[self.name][1], f"train.steps={self.steps}", f"run.folder={self.folder}")

    @property
    def schedule(self) -> str:
        """The override that disturbs it."""
        steps = f", from_step: {self.third + 1}, until_step: {2 * self.third}"
        return f"cluster.emulate.disturbances=[{CASES[self.name][0] % steps}]"

    def run(self, name: str, *overrides: str) -> RunFolder:
        """Train once and return its folder."""
        command = [sys.executable, "-m", "holmes_hpc.train", *self.overrides, f"run.name={name}", *overrides]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{self.name}: {done.stderr[-2000:]}")
        return find_run(name, self.folder)

    def seconds(self, run: RunFolder) -> list[tuple[float, float]]:
        """Return the median and the least seconds of a step in each third, without its first step."""
        steps, third = [row["step_seconds"] for row in read_metrics(run)], self.third
        thirds = steps[1:third], steps[third + 1:2 * third], steps[2 * third + 1:]
        return [(median(each), min(each)) for each in thirds]


def measure(case: Case) -> list[list[object]]:
    """Run a case, and tell its runs."""
    label = case.name.replace(" ", "-").replace("%", "percent")
    plain = case.run(f"{label}-plain")
    usual = case.run(f"{label}-usual", case.schedule)
    chosen = case.run(f"{label}-chosen", case.schedule, f"cluster.emulate.plan_for_step={case.third + 1}")
    return tell(case, plain, usual, chosen)


def tell(case: Case, plain: RunFolder, usual: RunFolder, chosen: RunFolder) -> list[list[object]]:
    """Return the lines of a case's runs, and print what `holmes compare` says of both plans."""
    same = losses(plain) == losses(usual)
    lines: list[list[object]] = []
    for what, run in (("undisturbed", usual), ("disturbance", chosen)):
        before, during, after = case.seconds(run)
        predicted = predicted_seconds(run)
        ratio = predicted[1] / predicted[0] if predicted else None
        lines.append([case.name, f"for the {what}: {plan_words(run)}",
                      *(f"{1000 * seconds:.0f} ({1000 * least:.0f})" for seconds, least in (before, during, after)),
                      f"{during[0] / before[0]:.2f} ({during[1] / before[1]:.2f})",
                      "-" if ratio is None else f"{ratio:.2f}",
                      ("equal" if same else "**differ**") if run is usual else "",
                      (read_result(run) or {}).get("others_held_cores", 0)])
    sides = [replace(read(str(run.path), case.folder), name=name)
             for name, run in (("undisturbed", usual), ("disturbance", chosen))]
    print(f"{case.name}: holmes compare of both plans", flush=True)
    for row in compare(*sides):
        if row.differs and row.label.startswith(("measured", "predicted step", "pipelines", "schedule", "layers")):
            ratio = "" if row.ratio is None else f" | {row.ratio:.3g}"
            print(f"  {row.label}: {row.first} | {row.second}{ratio}", flush=True)
    return lines


def losses(run: RunFolder) -> list[float]:
    """Return the loss of every step."""
    return [row["loss"] for row in read_metrics(run)]


def plan_words(run: RunFolder) -> str:
    """Return what a run's plan is."""
    return in_a_line(read(str(run.path), run.path).plan).partition(", predicted")[0].partition(" ranks, ")[2]


def predicted_seconds(run: RunFolder) -> tuple[float, float] | None:
    """Return the predicted step of a run's plan, undisturbed and disturbed; None where there is none."""
    found = disturbed(run.path)
    acting = found[found["disturbed"] != ""]["predicted_step_seconds"].tolist()
    usual = found[found["disturbed"] == ""]["predicted_step_seconds"].tolist()
    return (usual[0], acting[0]) if acting and usual else None


def main() -> None:
    """Measure the cases and print the table."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description="Runs that are disturbed on purpose.")
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch)
        lines = [line for name in arguments.case or CASES
                 for line in measure(Case(name, arguments.steps, folder.absolute()))]
    print(table(HEAD, lines))


if __name__ == "__main__":
    main()
