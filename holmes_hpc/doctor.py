"""`python -m holmes_hpc.doctor [+cluster=NAME]`: check this machine; one line a finding, with the remedy."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from holmes_hpc import front
from holmes_hpc.errors import FAILED, HolmesError
from holmes_hpc.findings import FAIL, NOTE, OK, Finding
from holmes_hpc.quoting import for_terminal
from holmes_hpc.words import counted

if TYPE_CHECKING:
    from holmes_hpc.cluster import ClusterDescription

SLURM_SECONDS = 2.0
"""How long a controller is waited for here; `train` waits longer."""

MEMORY_GIB_PER_RANK = 0.5
"""What a rank needs at least: torch, gloo and a tiny model."""


def act(config: DictConfig) -> front.Outcome:
    """Print the findings; the exit status is 1 when something would fail."""
    checks: list[Callable[[], Finding]] = [_python, _torch, _iproute2, _namespaces, _slurm, _processors, _memory]
    findings: list[Finding] = []
    cluster = _described(config)
    for finding in itertools.chain((check() for check in checks), _cluster(cluster),
                                   _on_slurm(config, cluster, findings)):
        findings.append(finding)
        sys.stdout.write(for_terminal(f"{finding}\n"))
        sys.stdout.flush()
    return (FAILED if any(finding.state == FAIL for finding in findings) else 0), None


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Finding(OK, "python", f"{version} ({sys.executable})")


def _torch() -> Finding:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding(FAIL, "torch", "not installed", "pip install 'torch>=2.7'")
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < (2, 7):
        return Finding(FAIL, "torch", f"{version} is too old", "pip install 'torch>=2.7'")
    return Finding(OK, "torch", version)


def _iproute2() -> Finding:
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    missing = [name for name in ("ip", "tc") if shutil.which(name, path=path) is None]
    if missing:
        return Finding(NOTE, "iproute2", f"no {' and no '.join(missing)}: NICs cannot be emulated, runs are plain "
                       "local processes", "install the package iproute2")
    return Finding(OK, "iproute2", "ip and tc found")


def _namespaces() -> Finding:
    from holmes_hpc.emulation.namespaces import namespaces_available

    available, reason = namespaces_available()
    if available:
        return Finding(OK, "namespaces", reason or "the emulated cluster works here")
    return Finding(NOTE, "namespaces", f"{reason}; runs are plain local processes",
                   "run as root, or allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1)")


def _slurm() -> Finding:
    from holmes_hpc.submit.controller import PATIENCE_SECONDS, ask_controller

    controller = ask_controller(patience_seconds=SLURM_SECONDS)
    if controller.partitions is not None:
        return Finding(OK, "slurm", "the controller answers; partitions: "
                                    f"{', '.join(sorted(controller.partitions)) or 'none'}")
    if not controller.here:
        return Finding(NOTE, "slurm", f"{controller.silence}; runs stay on this machine",
                       "log in to a node of the cluster, or load its Slurm module")
    return Finding(NOTE, "slurm", controller.silence, f"`train` asks for up to {PATIENCE_SECONDS:g} s and then refuses "
                   "a cluster of your own; launch.mode=emulated plays it on this machine")


def _processors() -> Finding:
    return Finding(OK, "processors", f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}")


def _memory() -> Finding:
    return Finding(OK, "memory", f"{available_memory_gib():.1f} GiB available")


def available_memory_gib(path: Path = Path("/proc/meminfo")) -> float:
    """Return the memory that new processes can take, GiB, as the kernel estimates it."""
    for line in path.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return 0.0


def _described(config: DictConfig) -> ClusterDescription | Finding:
    """Return the cluster that the configuration describes, or what is to be said where it does not."""
    if OmegaConf.is_missing(config.cluster, "name"):
        return Finding(NOTE, "cluster", "none named", "add +cluster=NAME to check a cluster file too")
    from holmes_hpc.cluster import read_cluster

    try:
        return read_cluster(config.cluster)
    except HolmesError as error:
        return Finding(FAIL, "cluster", str(error))


def _cluster(cluster: ClusterDescription | Finding) -> Iterator[Finding]:
    if isinstance(cluster, Finding):
        yield cluster
        return
    fabrics = ", ".join(f"{name}: {counted(len(nodes), 'node')}" for name, nodes in cluster.fabrics.items())
    yield Finding(OK, "cluster", f"{cluster.name}: {counted(cluster.world_size, 'rank')}; fabrics {fabrics}")
    needed = cluster.world_size * MEMORY_GIB_PER_RANK
    if available_memory_gib() < needed:
        yield Finding(NOTE, "emulation", f"{counted(cluster.world_size, 'rank')} on this machine need some "
                                         f"{needed:.0f} GiB",
                      "name a smaller cluster, or emulate it on a larger machine")


def _on_slurm(config: DictConfig, cluster: ClusterDescription | Finding, before: Sequence[Finding]
              ) -> Iterator[Finding]:
    """Look further where a controller answered, and at this node in any case."""
    from holmes_hpc.launch.node.diagnosis import node_findings
    from holmes_hpc.submit.diagnosis import slurm_findings

    known = None if isinstance(cluster, Finding) else cluster
    if any(finding.subject == "slurm" and finding.state == OK for finding in before):
        has_cluster = not OmegaConf.is_missing(config.cluster, "name")
        yield from slurm_findings(config, os.environ, known, has_cluster=has_cluster)
    yield from node_findings(config, os.environ, known)


COMMAND = front.Command("doctor", "Check this machine: one line a finding, with the remedy.", act,
                        cluster_required=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return front.main(COMMAND, argv)


if __name__ == "__main__":
    sys.exit(main())
