"""`holmes calibrate RUN...`: correct how fast the planner takes GPUs to be, by what finished runs measured."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from holmes_hpc.cluster.calibrated import CalibratedGpu
from holmes_hpc.config.folders import own_place
from holmes_hpc.errors import ConfigurationError, HolmesError
from holmes_hpc.paths import check_output
from holmes_hpc.planner.calibration import FinishedRun, calibrate, read_run, step_with, write_calibrated
from holmes_hpc.program import report, run_program
from holmes_hpc.runs import read_result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 2 for wrong arguments, and for runs that tell nothing."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="holmes calibrate", description=(
        "Compare what ranks measured in finished runs with the cost model, and write one factor for each GPU kind and "
        "precision, which later plans use. Links are measured by `holmes probe`."))
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path,
                        help="a run folder whose steps were recorded (train.timeline_every)")
    parser.add_argument("--output", type=Path, metavar="FILE", help=(
        "the file to write (default: calibrated/CLUSTER.json in the folder of your own cluster files; of emulated runs "
        "none)"))
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        runs = [read_run(path) for path in arguments.runs]
        name = None if arguments.output else _cluster_name(runs)
        found = calibrate(runs)
        sys.stdout.write(gpu_table(found) + "\n" + step_table(runs, found) + "\n")
        if arguments.output is None and any(map(_is_emulated, runs)):
            sys.stdout.write("These are factors of an emulated cluster's ranks, so they are not kept for predictions; "
                             "--output FILE writes them.\n")
            return 0
        path = arguments.output or own_place("--output") / "calibrated" / f"{name}.json"
        _write(path, found, runs)
    except HolmesError as error:
        return report("calibrate", error)
    sys.stdout.write(f"written: {path}\nPlans use it with `calibrated: {path}` in the cluster file, or "
                     f"cluster.calibrated={path}\n")
    return 0


def _is_emulated(run: FinishedRun) -> bool:
    return bool((read_result(run.folder) or {}).get("emulated"))


def _write(path: Path, found: Sequence[CalibratedGpu], runs: Sequence[FinishedRun]) -> None:
    check_output(path, "--output")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_calibrated(path, found, runs)
    except (OSError, HolmesError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        raise ConfigurationError(f"{path} cannot be written: {getattr(cause, 'strerror', None) or cause}; name another "
                                 "file by --output") from error


def _cluster_name(runs: Sequence[FinishedRun]) -> str:
    """Return the name of the cluster that all runs are of, which names a file. Raises ConfigurationError."""
    names = list(dict.fromkeys(str(run.config.cluster.name) for run in runs))
    if len(names) > 1:
        raise ConfigurationError(f"the runs are of several clusters ({', '.join(names)}): name the file to write by "
                                 "--output, or calibrate each cluster by itself")
    if "/" in names[0]:  # the run may be another user's
        raise ConfigurationError(f"{runs[0].folder.path}: its cluster is called {names[0]!r}, which names no file; "
                                 "name one by --output")
    return names[0]


def gpu_table(found: Sequence[CalibratedGpu]) -> str:
    """Return the factors as lines of text."""
    lines = [f"{'GPU':<12} {'precision':<10} {'actions':>8} {'measured / modelled':>20}   of single stages"]
    lines += [f"{each.gpu:<12} {each.precision:<10} {each.actions:>8} {each.slowdown:>20.3f}   "
              f"{each.lowest:.3f} to {each.highest:.3f}" for each in found]
    return "\n".join(lines) + "\n"


def step_table(runs: Sequence[FinishedRun], found: Sequence[CalibratedGpu]) -> str:
    """Return each run's step as measured, as modelled, and as predicted by the factors of the other runs."""
    lines = [f"{'step of run':<44} {'measured':>11} {'modelled':>11} {'calibrated':>11}  by"]
    for run in runs:
        others = [other for other in runs if other is not run]
        with_factors = step_with(run, calibrate(others) if others else found)
        measured = "-" if run.measured_step_seconds is None else f"{run.measured_step_seconds:.4g} s"
        name = f"{run.folder.name}/{run.folder.id}"
        lines.append(f"{name:<44} {measured:>11} {run.modelled_step_seconds:>9.4g} s {with_factors:>9.4g} s  "
                     f"{'the other runs' if others else 'itself'}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(run_program("calibrate", main))
