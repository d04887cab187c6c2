"""A process group that torch's functions call as any other: one stream, whose operations run one after another."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from holmes_hpc.comm import gloo
from tests.strict.device import Device
from tests.strict.operation import Operation
from tests.strict.rules import ALL, FIRST

_FAR = timedelta(seconds=600)


class Work:
    """What torch returns of an operation. Waiting makes its results usable, as does a poll that sees its end."""

    def __init__(self, operation: Operation, device: Device) -> None:
        self._operation, self._device = operation, device

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let the current queue wait for the end, as NCCL does; where there is none, the host."""
        queues = self._device.queues
        if queues is not None:
            queues.hold_until(self._operation.done)
            queues.put(self._operation.deliver)
            if timeout is not None:
                queues.synchronize()
            return True
        self._device.hold(self._operation, self._operation.done, "waits")
        self._operation.deliver()
        return True

    def is_completed(self) -> bool:
        """Return whether the operation is over and was seen to be."""
        over = self._operation.done.is_set() and self._device.polls()
        if over and not self._operation.error and self._device.queues is None:
            self._operation.deliver()
        return over

    def get_future(self) -> Any:
        """Return a future that is over at once, as NCCL's is when the kernel is queued."""
        future: Any = torch.futures.Future()
        future.set_result(None)
        return future


class Communicator(ProcessGroup):
    """One communicator of one rank over a gloo group of its own, which carries data and what members compare."""

    def __init__(self, given: Any, options: gloo.GlooOptions, device: Device, described: str) -> None:
        super().__init__(given.group_rank, given.group_size)
        self._gloo = gloo.create(given, options)
        self._me, self._size, self._device = given.group_rank, given.group_size, device
        self.ranks = list(given.global_ranks_in_group)
        self.key = str(given.group_id)
        self.label = f"the {described} communicator of {self.ranks}"
        self.limit = timedelta(seconds=120)
        self.number, device.communicators = device.communicators, device.communicators + 1
        self._places: Counter[tuple[str, int]] = Counter()
        self._connected: set[tuple[str, int]] = set()
        threading.Thread(target=self._stream, name="strict-stream", daemon=True).start()

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        """Return the name that torch asks for."""
        return "strict"

    def allreduce(self, tensors: list[Tensor], options: Any = None) -> Any:
        """Combine a tensor over all members, in place."""
        mine = tensors[0]
        carried = torch.empty_like(mine.detach())
        asked = dist.AllreduceOptions()
        asked.reduceOp = options.reduceOp
        return self._put("allreduce", lambda: self._gloo.allreduce([carried], asked).wait(_FAR), [],
                         [(mine.detach(), carried)], [(carried, mine.detach())],
                         detail=_operation_number(options.reduceOp))

    def broadcast(self, tensors: list[Tensor], options: Any = None) -> Any:
        """Give all members the root's tensor."""
        mine, is_root = tensors[0].detach(), options.rootRank == self._me
        carried = torch.empty_like(mine)
        asked = dist.BroadcastOptions()
        asked.rootRank, asked.rootTensor = options.rootRank, options.rootTensor
        return self._put("broadcast", lambda: self._gloo.broadcast([carried], asked).wait(_FAR),
                         [mine] if is_root else [], [] if is_root else [(mine, carried)], [(carried, mine)],
                         detail=options.rootRank)

    def all_gather_single(self, output: Tensor, source: Tensor, options: Any = None) -> Any:
        """Put equal parts of all members behind one another."""
        _expect(output.numel() == self._size * source.numel(), f"gathers {source.numel()} into {output.numel()}")
        carried = torch.empty_like(source.detach())
        whole = torch.empty(output.numel(), dtype=output.dtype)

        def run() -> None:
            parts = [torch.empty_like(carried) for _ in range(self._size)]
            self._gloo.allgather([parts], [carried]).wait(_FAR)
            torch.cat([part.view(-1) for part in parts], out=whole)

        # In place the own part is both: it stays as it is.
        flat, size = output.detach().view(-1), source.numel()
        in_place = source.data_ptr() == flat[self._me * size:].data_ptr() if size else False
        results = [(flat[j * size:(j + 1) * size], whole[j * size:(j + 1) * size]) for j in range(self._size)
                   if not (in_place and j == self._me)]
        return self._put("allgather", run, [source], results, [(carried, source.detach())])

    _allgather_base = all_gather_single

    def reduce_scatter_single(self, output: Tensor, source: Tensor, options: Any = None) -> Any:
        """Give each member its part of the sum; an input that holds the output is undefined afterwards."""
        _expect(source.numel() == self._size * output.numel(), f"scatters {source.numel()} into {output.numel()}")
        whole, mine = torch.empty_like(source.detach()).view(-1), output.detach().view(-1)
        received, size = torch.empty_like(mine), mine.numel()
        flat = source.detach().view(-1)
        in_place = size > 0 and 0 <= mine.data_ptr() - flat.data_ptr() < flat.numel() * flat.element_size()
        asked = dist.AllreduceOptions()
        asked.reduceOp = options.reduceOp

        def run() -> None:
            self._gloo.allreduce([whole], asked).wait(_FAR)
            received.copy_(whole[self._me * size:(self._me + 1) * size])

        return self._put("reducescatter", run, [] if in_place else [source], [(mine, received)],
                         [(whole, flat)], spoils=[flat] if in_place else [],
                         detail=_operation_number(options.reduceOp))

    _reduce_scatter_base = reduce_scatter_single

    def alltoall_base(self, output: Tensor, source: Tensor, output_sizes: Sequence[int], source_sizes: Sequence[int],
                      options: Any = None) -> Any:
        """Exchange parts between all members."""
        carried, received = torch.empty_like(source.detach()), torch.empty_like(output)
        sizes = list(output_sizes), list(source_sizes)
        return self._put("alltoall", lambda: self._gloo.alltoall_base(
            received, carried, *sizes, dist.AllToAllOptions()).wait(_FAR), [source], [(output.detach(), received)],
            [(carried, source.detach())])

    all_to_all_single = alltoall_base

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> Any:
        """Send to a member; over once it has received."""
        mine = tensors[0].detach()
        carried = torch.empty_like(mine)
        return self._put("send", lambda: self._gloo.send([carried], peer, 1).wait(_FAR), tensors, [],
                         [(carried, mine)], peer=peer, detail=tag)

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> Any:
        """Receive what a member sends next, whatever its tag."""
        mine = tensors[0].detach()
        received = torch.empty_like(mine)
        return self._put("recv", lambda: self._gloo.recv([received], peer, 1).wait(_FAR), [], [(mine, received)], [],
                         peer=peer, detail=tag)

    def barrier(self, options: Any = None) -> Any:
        """Wait for all members."""
        nothing = torch.zeros(1)
        return self._put("barrier", lambda: self._gloo.allreduce([nothing]).wait(_FAR), [], [], [])

    def _put(self, kind: str, run: Callable[[], object], inputs: Sequence[Tensor],
             results: Sequence[tuple[Tensor, Tensor]], takes: Sequence[tuple[Tensor, Tensor]], *,
             spoils: Sequence[Tensor] = (), peer: int = -1, detail: int = 0) -> Any:
        _expect(peer != self._me, f"{kind} with itself")
        operation = Operation(self, kind, lambda: _do(run), inputs, results, takes, spoils, peer=peer,
                              detail=detail)
        counted = (kind, peer) if peer >= 0 else ("", -1)
        operation.place, self._places[counted] = self._places[counted], self._places[counted] + 1
        self._device.issue(operation)
        rules, use = self._device.rules, (kind, peer)
        first, self._connected = use not in self._connected, self._connected | {use}
        if (rules.hold == FIRST and first) or (rules.hold == ALL and peer < 0):
            self._device.hold(operation, operation.met, "is held by its first use")
        return Work(operation, self._device)

    def _stream(self) -> None:
        while (operation := self._device.start_next(self)) is not None:
            time.sleep(self._device.jitter())
            error = ""
            try:
                self._meet(operation)
                operation.met.set()
                operation.run()
            except Exception as fault:  # whatever it is, it is told
                error = f"{operation}: {fault}"
            self._device.end(operation, error)

    def _meet(self, operation: Operation) -> None:
        """See that what meets is alike: kind, elements, type, and root, sum or tag. Raises RuntimeError otherwise."""
        own = torch.tensor(operation.header, dtype=torch.int64)
        if operation.kind == "send":
            self._gloo.send([own], operation.peer, 0).wait(_FAR)
            return
        if operation.kind == "recv":
            found = [torch.empty_like(own)]
            self._gloo.recv(found, operation.peer, 0).wait(_FAR)
        else:
            found = [torch.empty_like(own) for _ in range(self._size)]
            self._gloo.allgather([found], [own]).wait(_FAR)
        others = [each.tolist() for each in found]
        _expect(all(other == operation.header for other in others),
                f"meets another one: {operation.header} and {others} (kind, elements, type, tag or root)")


def _do(run: Callable[[], object]) -> None:
    run()


def _operation_number(operation: Any) -> int:
    return {"SUM": 0, "MAX": 1, "MIN": 2}.get(str(operation).rsplit(".", 1)[-1].rstrip(">").split(":")[0], 3)


def _expect(holds: bool, fault: str) -> None:
    if not holds:
        raise RuntimeError(f"VIOLATION: {fault}")
