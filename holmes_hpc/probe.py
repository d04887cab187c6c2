"""`holmes probe +cluster=NAME`: measure latency and bandwidth of every kind of link between the cluster's nodes."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from holmes_hpc import front
from holmes_hpc.cluster.measured import MeasuredLink, read_measured
from holmes_hpc.cluster.profiled import read_profiled
from holmes_hpc.cluster.timed_units import OPTIMIZER, ProfiledUnit
from holmes_hpc.config.folders import user_folder
from holmes_hpc.paths import is_there


def act(config: DictConfig) -> front.Outcome:
    """Start a run that measures and ends; print what it found and keep it beside the user's cluster files."""
    from holmes_hpc.launch.train import run

    config.launch.probe_only = True
    status, folder = run(config)
    if folder is not None and is_there(folder.probe_path):
        _show(folder.probe_path, config.cluster.name)
    return status, None


def _show(path: Path, cluster: str) -> None:
    found = json.loads(path.read_text())
    emulated, has_layers = bool(found.get("emulated")), bool(found.get("layers"))
    sys.stdout.write(table(read_measured(str(path))))
    if has_layers:
        sys.stdout.write("\n" + layer_table(read_profiled(str(path))))
    if emulated:
        sys.stdout.write("These are the emulated cluster's links, so they are not kept for predictions.\n")
    own = user_folder()
    kept = path if own is None else own / "measured" / f"{cluster}{'-emulated' * emulated}.json"
    names = ["profiled"] * has_layers if emulated else ["measured", *["profiled"] * has_layers]
    if names and kept != path:
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, kept)
    for name in names:
        what = "the links" if name == "measured" else "the layers' times, for this model"
        sys.stdout.write(f"Plans use {what} with `{name}: {kept}` in the cluster file, or cluster.{name}={kept}\n")


def table(links: Sequence[MeasuredLink]) -> str:
    """Return the links as lines of text."""
    lines = [f"{'network':<10} {'between':<24} {'nodes':<24} {'latency':>10} {'bandwidth':>12}  together"]
    for link in links:
        together = "" if link.together_gbps is None else f"{link.together_gbps:.3g} Gb/s by {link.pairs} pairs" + (
            ", a shared trunk" if link.trunk_gbps else "")
        lines.append(f"{link.network:<10} {' - '.join(dict.fromkeys(link.between)):<24} "
                     f"{' - '.join(dict.fromkeys(link.nodes)):<24} {link.latency_us:>7.0f} us "
                     f"{link.bandwidth_gbps:>7.3g} Gb/s  {together}")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def layer_table(units: Sequence[ProfiledUnit]) -> str:
    """Return the units of a model as they were timed, as lines of text."""
    lines = [f"{'GPU':<12} {'precision':<10} {'unit':<10} {'tensor':>6} {'samples':>8} {'forward':>12} "
             f"{'backward':>12}"]
    for unit in units:
        if unit.unit == OPTIMIZER:
            lines.append(f"{unit.gpu:<12} {unit.precision:<10} {unit.unit:<10} {'':>6} {'':>8} "
                         f"{1e9 * unit.forward_seconds:>9.3g} ns   for each parameter")
        else:
            lines.append(f"{unit.gpu:<12} {unit.precision:<10} {unit.unit:<10} {unit.tensor:>6} {unit.samples:>8} "
                         f"{1e3 * unit.forward_seconds:>9.3f} ms {1e3 * unit.backward_seconds:>9.3f} ms")
    return "\n".join(lines) + "\n"


COMMAND = front.Command("probe", "Measure the cluster's links, and the model's layers on each kind of GPU.", act)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return front.main(COMMAND, argv)


if __name__ == "__main__":
    sys.exit(main())
