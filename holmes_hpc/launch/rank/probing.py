"""Lets the ranks of a run measure the links between its nodes, and writes them down."""

from __future__ import annotations

from datetime import UTC, datetime

from holmes_hpc.cluster.measured import to_json
from holmes_hpc.cluster.nics import ETHERNET
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.probing import probe
from holmes_hpc.launch.rank.settings import RankSettings


def measure_links(settings: RankSettings, communicator: Communicator) -> None:
    """Measure every kind of link; all ranks call it, rank 0 writes `probe.json` into the run folder."""
    cluster = settings.cluster
    described = {node.fabric: node.network for node in cluster.nodes}
    # A node that goes on over Ethernet is a fabric of its own in the plan.
    families = {place.fabric: described.get(place.fabric, ETHERNET) for place in settings.plan.ranks}
    links = probe(communicator, families, settings.config.train.start_timeout_seconds)
    if settings.rank == 0:
        settings.folder.write_json(settings.folder.probe_path, to_json(
            links, cluster=cluster.name, time=datetime.now(UTC).isoformat(timespec="seconds"),
            backend=communicator.backend.name, emulated=settings.emulated))
