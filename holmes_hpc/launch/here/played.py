"""Whether what `emulate:` says of a cluster can be played by a run on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.cluster.nics import ETHERNET
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.values.disturbances import ON_LINKS, RATE, SLOWDOWN, Disturbance


def check_played(cluster: ClusterDescription, mode: str) -> None:
    """Raise ConfigurationError where a run in this mode, `emulated` or `local`, would take other times than its plan.

    A wind tunnel needs the links whose rates it plays, and it plays no trunk that nodes share.
    """
    if cluster.compute != "timed":
        return
    if mode != "emulated":
        raise ConfigurationError(
            f"cluster.emulate.compute=timed: {mode} processes have no links of the rates that the plan counts with; "
            "set launch.mode=emulated, or cluster.emulate.compute=real")
    if cluster.links:
        names = ", ".join(" and ".join(link.between) for link in cluster.links)
        raise ConfigurationError(
            f"cluster.emulate.compute=timed: the emulation has no links of their own between fabrics ({names}), so a "
            "run would take other times than its plan; leave cluster.links out, or set cluster.emulate.compute=real")


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
    elif cluster.compute == "timed":
        played = tuple(each for each in cluster.disturbances if each.kind in (RATE, SLOWDOWN))
        why = ("a wind tunnel (cluster.emulate.compute=timed) plays rate and slowdown: packets of scaled messages "
               "stand for many, and bytes are compared with the plan's")
    else:
        return cluster, ""
    left_out = [each.words for each in cluster.disturbances if each not in played]
    words = f"cluster.emulate.disturbances: not played ({'; '.join(left_out)}): {why}" if left_out else ""
    return dataclasses.replace(cluster, disturbances=played), words


def scale_warnings(cluster: ClusterDescription) -> Iterator[str]:
    """Yield what of `cluster.emulate.scale` plays no part, since `cluster.emulate.rates` gives the rate itself."""
    families = {ETHERNET, *(node.network for node in cluster.nodes)}
    given = sorted(families & set(cluster.rates))
    if cluster.compute == "timed":
        if given:
            yield (f"cluster.emulate.rates of {', '.join(given)} play no part with cluster.emulate.compute=timed: "
                   f"rates are those described, divided by cluster.emulate.scale={cluster.scale:g}")
        return
    if cluster.scale > 1 and given:
        yield (f"cluster.emulate.scale={cluster.scale:g} does not change the rates of {', '.join(given)}: "
               f"cluster.emulate.rates gives them; remove those there ("
               f"{' '.join(f'~cluster.emulate.rates.{family}' for family in given)}) to scale them")
