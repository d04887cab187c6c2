"""One operation of a communicator: what it carries, what it must meet, and whether its result may be used."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tests.strict.communicator import Communicator

KINDS = ("allreduce", "broadcast", "allgather", "reducescatter", "alltoall", "send", "recv", "barrier")
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8)


class Operation:
    """Runs on copies: inputs as they are where the caller's queue comes to it, outputs when they are waited for.

    `takes` are pairs of a copy and what it is taken of, `results` of a caller's tensor and the one that receives; until
    then the caller's is poisoned, and so is what the operation `spoils`. `inputs` may not change before. `place`: which
    operation of its communicator it is, so that members' can be matched.
    """

    def __init__(self, communicator: Communicator, kind: str, run: Callable[[], None], inputs: Sequence[Tensor],
                 results: Sequence[tuple[Tensor, Tensor]], takes: Sequence[tuple[Tensor, Tensor]] = (),
                 spoils: Sequence[Tensor] = (), *, peer: int = -1, detail: int = 0) -> None:
        self.communicator, self.kind, self.run, self.peer = communicator, kind, run, peer
        self.number, self.place, self.detail = -1, -1, detail
        first = next(iter([*inputs, *(mine for mine, _ in results)]), torch.zeros(0))
        self.elements = 0 if kind == "alltoall" else first.numel()
        self.type = TYPES.index(first.dtype)
        self.state = "queued"
        self.error = ""
        self.ready, self.met, self.done = threading.Event(), threading.Event(), threading.Event()
        self.tensors = [*inputs, *(mine for mine, _ in results), *spoils]
        self._given, self._inputs = list(inputs), list[tuple[Tensor, int]]()
        self._results, self._takes, self._spoils = list(results), list(takes), list(spoils)
        self._delivery = threading.Lock()

    def take(self) -> None:
        """Take the inputs as they are now."""
        for copy, tensor in self._takes:
            copy.copy_(tensor.view(copy.shape))
        self._inputs = [(tensor, _checksum(tensor)) for tensor in self._given]
        for tensor in [*self._spoils, *(mine for mine, _ in self._results)]:
            poison(tensor)
        self.ready.set()

    @property
    def header(self) -> list[int]:
        """What all members must agree on; a receive's counterpart is a send."""
        kind = "send" if self.kind == "recv" else self.kind
        return [KINDS.index(kind), self.elements, self.type, self.detail]

    def deliver(self) -> None:
        """Give the caller its results, once. Raises RuntimeError where an input changed meanwhile."""
        with self._delivery:
            for mine, received in self._results:
                mine.copy_(received.view(mine.shape))
            changed = any(_checksum(tensor) != before for tensor, before in self._inputs)
            self._results, self._inputs = [], []
        if changed:
            raise RuntimeError(f"VIOLATION: what {self} sends changed before it was waited for")

    def __str__(self) -> str:
        way = "to" if self.kind == "send" else "from"
        peer = "" if self.peer < 0 else f" {way} {self.communicator.ranks[self.peer]}"
        return (f"{self.kind}{peer} of {self.elements} {str(TYPES[self.type])[6:]} on {self.communicator.label}, "
                f"its number {self.place}")


def poison(tensor: Tensor) -> None:
    """Fill a tensor with what no calculation survives."""
    with torch.no_grad():
        tensor.fill_(float("nan") if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max)


def _checksum(tensor: Tensor) -> int:
    data = tensor.detach()
    flat = data.contiguous().view(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else 0
