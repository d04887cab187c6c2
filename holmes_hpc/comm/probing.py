"""Measures latency and bandwidth of each kind of link between the nodes of a run, in a few seconds.

All ranks call it with the same plan. For every class of node pairs (inside a node, inside a fabric, between two
fabrics) one pair is measured alone, and where there are more, disjoint pairs at once, which shows a trunk that they
share. Groups are the run's own kind, on the interface that the plan's groups of that network use.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from holmes_hpc.cluster.cluster import LOCAL
from holmes_hpc.cluster.measured import MeasuredLink
from holmes_hpc.cluster.nics import ETHERNET
from holmes_hpc.comm.causes import first_line
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.reduce import all_reduce_scalars
from holmes_hpc.errors import NetworkError

_PINGS = 40
_FIRST_BYTES = 64 * 1024
_LARGEST_BYTES = 64 * 1024 * 1024
_ENOUGH_SECONDS = 0.2
_MOST_PAIRS = 8


@dataclass(frozen=True)
class LinkClass:
    """Pairs of ranks, on disjoint nodes, that a class of links joins; `between` are its two fabrics or one label."""

    network: str
    between: tuple[str, str]
    pairs: tuple[tuple[int, int], ...]


def link_classes(communicator: Communicator, families: Mapping[str, str]) -> list[LinkClass]:
    """Return what there is to measure; `families` gives the network family of each fabric of the plan."""
    first_of_node: dict[str, list[int]] = {}
    labels: dict[str, list[int]] = {}
    by_slot: dict[str, list[int]] = {}
    for place in communicator.plan.ranks:
        by_slot.setdefault(place.slot, []).append(place.rank)
    for slot, ranks in by_slot.items():
        first_of_node.setdefault(communicator.plan.ranks[ranks[0]].fabric, []).append(ranks[0])
        if len(ranks) > 1:
            labels.setdefault(slot.rpartition("/")[0], ranks[:2])
    classes = [LinkClass(LOCAL, (label, label), ((ranks[0], ranks[1]),)) for label, ranks in labels.items()]
    for fabric, ranks in first_of_node.items():
        if len(ranks) > 1:
            pairs = tuple(zip(ranks[::2], ranks[1::2], strict=False))[:_MOST_PAIRS]
            classes.append(LinkClass(families[fabric], (fabric, fabric), pairs))
    for (fabric_a, ranks_a), (fabric_b, ranks_b) in itertools.combinations(first_of_node.items(), 2):
        pairs = tuple(zip(ranks_a, ranks_b, strict=False))[:_MOST_PAIRS]
        classes.append(LinkClass(ETHERNET, (fabric_a, fabric_b), pairs))
    return classes


def probe(communicator: Communicator, families: Mapping[str, str], timeout_seconds: float,
          report: Callable[[int, int, str], None] = lambda done, total, text: None) -> list[MeasuredLink]:
    """Measure every class of links, one after another, and return what was found; all ranks return the same.

    Raises NetworkError that names the links which could not be measured.
    """
    classes = link_classes(communicator, families)
    timeout = timedelta(seconds=timeout_seconds)
    found = []
    for number, link in enumerate(classes):
        report(number, len(classes), f"{link.network} {' - '.join(dict.fromkeys(link.between))}")
        with _naming(link, timeout_seconds):
            found.append(_measure_class(communicator, link, timeout))
    return found


@contextmanager
def _naming(link: LinkClass, timeout_seconds: float) -> Iterator[None]:
    """Turn torch's errors while a class of links is measured into ours."""
    try:
        yield
    except RuntimeError as error:
        pairs = ", ".join(f"{a} and {b}" for a, b in link.pairs)
        where = " and ".join(dict.fromkeys(link.between))
        raise NetworkError(
            f"the links over {link.network} of {where} could not be measured between ranks {pairs}: "
            f"{first_line(error)}; check with `python -m holmes_hpc.doctor` that these nodes reach each other "
            f"by {link.network}; if one is only slow, raise train.start_timeout_seconds (now {timeout_seconds:g})"
        ) from error


def _measure_class(communicator: Communicator, link: LinkClass, timeout: timedelta) -> MeasuredLink:
    groups: list[ProcessGroup | None] = []
    for pair in link.pairs:  # every rank of the world makes every group
        groups.append(communicator.backend.new_group(pair, "probe", link.network, timeout))
    alone = _measure(communicator, link.pairs[:1], groups)
    together = _measure(communicator, link.pairs, groups) if len(link.pairs) > 1 else None
    rank_a, rank_b = link.pairs[0]
    places = communicator.plan.ranks
    nodes = (places[rank_a].node or places[rank_a].slot, places[rank_b].node or places[rank_b].slot)
    return MeasuredLink(link.network, link.between, nodes, alone[1], alone[0], len(link.pairs),
                        together[1] if together is not None else None)


def _measure(communicator: Communicator, pairs: Sequence[tuple[int, int]], groups: Sequence[ProcessGroup | None]
             ) -> tuple[float, float]:
    """Return the latency (microseconds, the largest) and the sum of the bandwidths (10^9 bit/s) of pairs at once."""
    communicator.barrier()
    row = torch.zeros(communicator.world_size, 2, dtype=torch.float64)
    for pair, group in zip(pairs, groups, strict=False):
        if communicator.rank in pair and group is not None:
            latency_seconds, bits_per_second = _Pair(communicator, group, pair).measure()
            if communicator.rank == pair[0]:
                row[communicator.rank] = torch.tensor([latency_seconds * 1e6, bits_per_second / 1e9],
                                                      dtype=torch.float64)
    all_reduce_scalars(row, communicator.world, communicator)
    return float(row[:, 0].max()), float(row[:, 1].sum())


class _Pair:
    """One pair of ranks: the first one measures, the second one answers."""

    def __init__(self, communicator: Communicator, group: ProcessGroup, pair: tuple[int, int]) -> None:
        self._communicator, self._group, self._pair = communicator, group, pair
        self._first = communicator.rank == pair[0]
        self._word = torch.zeros(1, dtype=torch.int64, device=communicator.device)

    def measure(self) -> tuple[float, float]:
        """Return the one-way latency in seconds and the bandwidth in bit/s; both ranks call it."""
        self._ping()  # the first message also connects
        times = [time.perf_counter()]
        for _ in range(_PINGS):
            self._ping()
            times.append(time.perf_counter())
        latency = statistics.median(end - begin for begin, end in itertools.pairwise(times)) / 2
        rate = 0.0
        for size in self._sizes():
            data = torch.zeros(size, dtype=torch.uint8, device=self._communicator.device)
            began = time.perf_counter()
            self._send(data, self._pair[0], self._pair[1])
            self._send(self._word, self._pair[1], self._pair[0])
            self._seconds = time.perf_counter() - began
            rate = 8 * size / max(self._seconds - 2 * latency, 1e-9)
        return latency, rate

    def _sizes(self) -> Iterator[int]:
        """Yield growing sizes, as the first rank chooses them, until one takes long enough to be sure of."""
        size, self._seconds = _FIRST_BYTES, 0.0
        while True:
            more = self._seconds < _ENOUGH_SECONDS and size <= _LARGEST_BYTES
            self._word[0] = size if self._first and more else 0
            self._send(self._word, self._pair[0], self._pair[1])
            chosen = int(self._word[0])
            if chosen == 0:
                return
            yield chosen
            size *= 4

    def _ping(self) -> None:
        self._send(self._word, self._pair[0], self._pair[1])
        self._send(self._word, self._pair[1], self._pair[0])

    def _send(self, data: torch.Tensor, source: int, destination: int) -> None:
        if self._communicator.rank == source:
            work = dist.isend(data, dst=destination, group=self._group)
        else:
            work = dist.irecv(data, src=source, group=self._group)
        if work is not None:
            work.wait()
        if data.device.type == "cuda":
            torch.cuda.synchronize(data.device)
