"""Small things that all ranks tell each other: numbers and short texts."""

from __future__ import annotations

import torch

from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.reduce import all_reduce_scalars

LONGEST_TEXT_BYTES = 2048


def share_numbers(number: float, communicator: Communicator) -> list[float]:
    """Return the number of every rank, in rank order."""
    numbers = torch.zeros(communicator.world_size, dtype=torch.float64)
    numbers[communicator.rank] = number
    all_reduce_scalars(numbers, communicator.world, communicator)
    return numbers.tolist()


def share_texts(text: str, communicator: Communicator) -> list[str]:
    """Return the text of every rank, in rank order; longer ones than 2048 bytes are cut."""
    rows = torch.zeros(communicator.world_size, LONGEST_TEXT_BYTES, dtype=torch.uint8)
    data = bytearray(text.encode()[:LONGEST_TEXT_BYTES])
    if data:
        rows[communicator.rank, :len(data)] = torch.frombuffer(data, dtype=torch.uint8)
    all_reduce_scalars(rows, communicator.world, communicator)
    return [bytes(row.numpy()).rstrip(b"\0").decode(errors="ignore") for row in rows]
