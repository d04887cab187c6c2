"""Whether what `emulate:` says of a cluster can be played by a run on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.cluster.nics import ETHERNET
from holmes_hpc.errors import ConfigurationError


def check_played(cluster: ClusterDescription) -> None:
    """Raise ConfigurationError where a run would compute otherwise than its plan says."""
    if cluster.compute == "timed":
        raise ConfigurationError(
            "cluster.emulate.compute=timed: a run on this machine computes for real, and would take other times than "
            "its plan for the GPUs as described; `holmes plan` takes it, for train set cluster.emulate.compute=real")


def scale_warnings(cluster: ClusterDescription) -> Iterator[str]:
    """Yield what of `cluster.emulate.scale` plays no part, since `cluster.emulate.rates` gives the rate itself."""
    families = {ETHERNET, *(node.network for node in cluster.nodes)}
    given = sorted(families & set(cluster.rates))
    if cluster.scale > 1 and given:
        yield (f"cluster.emulate.scale={cluster.scale:g} does not change the rates of {', '.join(given)}: "
               f"cluster.emulate.rates gives them; remove those there ("
               f"{' '.join(f'~cluster.emulate.rates.{family}' for family in given)}) to scale them")
