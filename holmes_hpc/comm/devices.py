"""Whether every rank of a node has a GPU of its own, asked before any group is built on them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from holmes_hpc.errors import ConfigurationError
from holmes_hpc.values import Plan

_HASH_BYTES = 6
"""What a float64 holds exactly."""


@dataclass(frozen=True)
class DeviceName:
    """What the driver calls a device: `card` is the whole GPU's place on the bus, `part` the GPU or a slice of it."""

    card: str
    part: str


def gpu_name(device: torch.device) -> DeviceName:
    """Return the names of a GPU, or of the slice (MIG) that this process sees in its place."""
    facts = torch.cuda.get_device_properties(device)
    place = [str(getattr(facts, name, "")) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    part = str(getattr(facts, "uuid", "")) or ":".join(place)
    return DeviceName(":".join(place) if all(place) else part, part)


def bus_address(device: torch.device) -> str | None:
    """Return a GPU's address on the PCI bus, such as `0000:3b:00.0`; None where this release of torch does not say."""
    facts: Any = torch.cuda.get_device_properties(device)
    try:
        return f"{facts.pci_domain_id:04x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}.0"
    except AttributeError:
        return None


def check_devices(plan: Plan, rank: int, name: DeviceName, world: ProcessGroup) -> None:
    """Raise ConfigurationError on all ranks where two of one node have the same GPU; all ranks call it."""
    table = torch.zeros(plan.world_size, 2, dtype=torch.float64)
    table[rank] = torch.tensor([_number(name.card), _number(name.part)], dtype=torch.float64)
    dist.all_reduce(table, group=world)
    cards: dict[tuple[str, float], list[int]] = defaultdict(list)
    for place, (card, _) in zip(plan.ranks, table.tolist(), strict=True):
        cards[place.node or place.slot, card].append(place.rank)
    for (node, _), ranks in cards.items():
        if len(ranks) > 1:
            raise ConfigurationError(_shared(node, ranks, parts=len({float(table[each, 1]) for each in ranks})))


def _shared(node: str, ranks: list[int], parts: int) -> str:
    who = f"ranks {', '.join(map(str, ranks))} on node {node}"
    if parts > 1:
        return (f"{who} have slices (MIG) of one GPU: NCCL connects whole GPUs alone; ask Slurm for whole ones "
                "(cluster.partitions.<label>.gpus_per_node or gres), or plan one rank a GPU")
    return (f"{who} all have the same GPU: each task sees only that one; ask Slurm for a GPU each "
            "(cluster.partitions.<label>.gpus_per_node or gres), and look at --gpu-bind and --gpus-per-task in "
            "launch.srun_args and at CUDA_VISIBLE_DEVICES in launch.setup")


def _number(name: str) -> float:
    return float(int.from_bytes(hashlib.sha256(name.encode()).digest()[:_HASH_BYTES], "big"))
