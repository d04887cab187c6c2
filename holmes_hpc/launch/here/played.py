"""Whether what `emulate:` says of a cluster can be played by a run on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.cluster.nics import ETHERNET
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.values.disturbances import ON_LINKS, Disturbance


def check_played(cluster: ClusterDescription) -> None:
    """Raise ConfigurationError where a run would compute otherwise than its plan says."""
    if cluster.compute == "timed":
        raise ConfigurationError(
            "cluster.emulate.compute=timed: a run on this machine computes for real, and would take other times than "
            "its plan for the GPUs as described; `holmes plan` takes it, for train set cluster.emulate.compute=real")


def played_disturbances(cluster: ClusterDescription, mode: str, *, on_gpus: bool) -> tuple[ClusterDescription, str]:
    """Return the cluster with the disturbances that a run can play, and in words which it cannot and why.

    Links are disturbed where they are emulated, compute where this machine's CPU stands for the GPU.
    """
    played: tuple[Disturbance, ...] = ()
    if mode not in ("emulated", "local"):
        why = "a job of Slurm runs on the cluster as it is; launch.mode=emulated plays them on this machine"
    elif on_gpus:
        why = "this run computes on GPUs as they are; launch.backend=gloo plays them on this machine's CPU"
    elif mode == "local":
        played = tuple(each for each in cluster.disturbances if each.kind not in ON_LINKS)
        why = "a local run has no emulated links; launch.mode=emulated has them"
    else:
        return cluster, ""
    left_out = [each.words for each in cluster.disturbances if each not in played]
    words = f"cluster.emulate.disturbances: not played ({'; '.join(left_out)}): {why}" if left_out else ""
    return dataclasses.replace(cluster, disturbances=played), words


def scale_warnings(cluster: ClusterDescription) -> Iterator[str]:
    """Yield what of `cluster.emulate.scale` plays no part, since `cluster.emulate.rates` gives the rate itself."""
    families = {ETHERNET, *(node.network for node in cluster.nodes)}
    given = sorted(families & set(cluster.rates))
    if cluster.scale > 1 and given:
        yield (f"cluster.emulate.scale={cluster.scale:g} does not change the rates of {', '.join(given)}: "
               f"cluster.emulate.rates gives them; remove those there ("
               f"{' '.join(f'~cluster.emulate.rates.{family}' for family in given)}) to scale them")
