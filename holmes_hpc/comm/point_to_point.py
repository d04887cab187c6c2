"""Transfers of activations and gradients between neighbouring stages.

On gloo a send ends only when its receive has been posted, and messages are matched by tag, so the order in
which they are posted does not matter. NCCL ignores tags: there, the messages of one edge in one direction
must be received in the order in which they are sent; the two directions are independent
(`Communicator.towards`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from holmes_hpc.comm.groups import Communicator

_Key = tuple[ProcessGroup, int, int]


class Transfers:
    """The sends and receives of one rank. `peer` is always a rank of the world."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._receives: dict[_Key, tuple[Tensor, Work | None]] = {}
        self._sends: list[tuple[Tensor, Work | None, ProcessGroup, str]] = []

    def post_receive(
        self,
        group: ProcessGroup,
        peer: int,
        tag: int,
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Make a buffer ready for the message `tag` from `peer`, so that its send can end at any time.

        Shape and type must be those of the sent tensor: gloo ends the process where they differ.
        Raises ValueError when the same message is already awaited.
        """
        key = (group, peer, tag)
        if key in self._receives:
            raise ValueError(f"message {tag} from rank {peer} is already awaited")
        buffer = torch.empty(tuple(shape), dtype=dtype, device=self._communicator.device)
        carrier = self._communicator.towards(group, peer, self._communicator.rank)
        with self._communicator.naming(group, f"expecting message {tag} from rank {peer}"):
            self._receives[key] = (buffer, dist.irecv(buffer, src=peer, group=carrier, tag=tag))

    def receive(self, group: ProcessGroup, peer: int, tag: int) -> Tensor:
        """Wait for a message that was posted before and return it.

        Raises ValueError when it was not posted, NetworkError when it does not come within the training
        timeout.
        """
        if (group, peer, tag) not in self._receives:
            raise ValueError(f"message {tag} from rank {peer} was never posted: call post_receive first")
        buffer, work = self._receives.pop((group, peer, tag))
        self._communicator.wait(work, group, f"waiting for message {tag} from rank {peer}")
        return buffer

    def send(self, tensor: Tensor, group: ProcessGroup, peer: int, tag: int) -> None:
        """Start to send and go on at once. The tensor must not be changed before it is received.

        It is kept until then, as far as that is seen, at most until `finish`: a step's messages together may be larger
        than the model.
        """
        self._let_go()
        kept = tensor.detach().contiguous()
        carrier = self._communicator.towards(group, self._communicator.rank, peer)
        doing = f"sending message {tag} to rank {peer}"
        with self._communicator.naming(group, doing):
            self._sends.append((kept, dist.isend(kept, dst=peer, group=carrier, tag=tag), group, doing))

    def _let_go(self) -> None:
        """Drop what was received; sends of one rank end about in their order."""
        while self._sends and (work := self._sends[0][1]) is not None and work.is_completed():
            _, work, group, doing = self._sends.pop(0)
            self._communicator.wait(work, group, doing)

    def finish(self) -> None:
        """Wait until every send has been received. Raises NetworkError when one is not within the timeout."""
        while self._sends:
            _, work, group, doing = self._sends.pop(0)
            self._communicator.wait(work, group, doing)
