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
    emulated = bool(json.loads(path.read_text()).get("emulated"))
    links = read_measured(str(path))
    sys.stdout.write(table(links))
    if emulated:
        sys.stdout.write("These are the emulated cluster's links, so they are not kept for predictions.\n")
        return
    kept = user_folder() / "measured" / f"{cluster}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, kept)
    sys.stdout.write(f"Plans use them with `measured: {kept}` in the cluster file, or cluster.measured={kept}\n")


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


COMMAND = front.Command("probe", "Measure the links between the cluster's nodes, in a job of a few seconds.", act)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return front.main(COMMAND, argv)


if __name__ == "__main__":
    sys.exit(main())
