"""Lets the ranks of a run measure the links between its nodes and the model's layers, and writes both down."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import torch

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster.measured import to_json
from holmes_hpc.cluster.nics import ETHERNET
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.probing import probe
from holmes_hpc.engine.profiling import profile, two_sizes
from holmes_hpc.foreign import read_json
from holmes_hpc.launch.rank.settings import RankSettings


def measure(settings: RankSettings, communicator: Communicator) -> None:
    """Measure every kind of link and, where that is all that the run does, the model's layers on each kind of GPU.

    All ranks call it; rank 0 writes `probe.json` into the run folder.
    """
    cluster = settings.cluster
    described = {node.fabric: node.network for node in cluster.nodes}
    # A node that goes on over Ethernet is a fabric of its own in the plan.
    families = {place.fabric: described.get(place.fabric, ETHERNET) for place in settings.plan.ranks}
    links = probe(communicator, families, settings.config.train.start_timeout_seconds)
    layers = _measure_layers(settings, communicator) if settings.config.launch.probe_only else []
    if settings.rank == 0:
        settings.folder.write_json(settings.folder.probe_path, to_json(
            links, cluster=cluster.name, time=datetime.now(UTC).isoformat(timespec="seconds"),
            backend=communicator.backend.name, emulated=settings.emulated, layers=layers))


def _measure_layers(settings: RankSettings, communicator: Communicator) -> list[object]:
    """Let one rank for each kind of GPU time the model's units, while the others wait; rank 0 returns all of them."""
    plan, config = settings.plan, settings.config
    first = {place.gpu: place.rank for place in reversed(plan.ranks)}
    if first[plan.ranks[settings.rank].gpu] == settings.rank:
        device = communicator.device or torch.device("cpu")
        units = profile(Architecture.from_config(config.model), plan.ranks[settings.rank].gpu, device,
                        str(config.train.precision), two_sizes(plan.micro_batch_size))
        settings.folder.write_json(settings.folder.profile_path(settings.rank),
                                   [dataclasses.asdict(unit) for unit in units])
    communicator.barrier()
    if settings.rank != 0:
        return []
    return [unit for rank in sorted(first.values()) for unit in read_json(settings.folder.profile_path(rank))]
