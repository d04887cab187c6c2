"""The process that disturbs an emulated network: it changes the links when the ranks come to a step that is told so.

Ranks that begin such a step say so through a pipe and wait. When all have, the links are changed, and a number in
shared memory lets them go on. So a step is disturbed as a whole, and what the change takes is in no step's time.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from holmes_hpc.emulation.context import WorldContext
from holmes_hpc.emulation.disturbed_links import DisturbedLinks
from holmes_hpc.emulation.network import EmulatedNetwork
from holmes_hpc.emulation.other_traffic import TICK_SECONDS
from holmes_hpc.errors import RunFailedError
from holmes_hpc.values.disturbances import acting_at

_STEP = struct.Struct("q")
_POLL_SECONDS = 0.0005
_IDLE_SECONDS = 1.0


class Disturber:
    """Made by init before it forks the ranks, of which there are `ranks`; they call `wait_for_links`."""

    def __init__(self, network: EmulatedNetwork, ranks: int) -> None:
        self._network, self._ranks = network, ranks
        self._reached = mmap.mmap(-1, _STEP.size)
        self._steps, self._told = os.pipe()

    def start(self, context: WorldContext, descriptors: Mapping[str, int]) -> int:
        """Fork the process and return its pid; it must not end before the ranks do."""
        return context.fork_helper("holmes-disturb", lambda: self._serve(context, descriptors))

    def wait_for_links(self, step: int, timeout_seconds: float) -> None:
        """Wait, as a rank, until the links are as they are to be in a step; call it in every step that changes them.

        Raises RunFailedError where that takes longer than `timeout_seconds`.
        """
        os.write(self._told, _STEP.pack(step))
        deadline = time.monotonic() + timeout_seconds
        while _STEP.unpack_from(self._reached)[0] < step:
            if time.monotonic() > deadline:
                raise RunFailedError(f"step {step}: the emulated links were not changed in {timeout_seconds:.0f} s, or "
                                     "a rank did not come to this step; look into the other ranks' logs, or leave "
                                     "cluster.emulate.disturbances out")
            time.sleep(_POLL_SECONDS)

    def _serve(self, context: WorldContext, descriptors: Mapping[str, int]) -> None:
        with suppress(OSError):  # it sends in time even where ranks keep all cores busy; only the real root may
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        links = DisturbedLinks(self._network, descriptors)
        arrived: Counter[int] = Counter()
        poll = select.poll()
        poll.register(self._steps, select.POLLIN)
        watched: set[int] = set()
        lost = 0
        while True:
            timeout = self._pass_on(links)
            for number, _ in poll.poll(1000 * timeout):
                if number == self._steps:
                    arrived.update(step for (step,) in _STEP.iter_unpack(os.read(self._steps, 512 * _STEP.size)))
            for step in sorted(step for step, count in arrived.items() if count == self._ranks):
                lost += sum(relay.lost() for relay in links.relays.values())
                links.act(acting_at(self._network.disturbances, step))
                if lost:
                    context.send({"event": "said", "text": _too_slow(step, lost)})
                    lost = 0
                _STEP.pack_into(self._reached, 0, step)
                del arrived[step]
                for number in watched:
                    poll.unregister(number)
                watched = {relay.fileno() for relay in links.relays.values()}
                for number in watched:
                    poll.register(number, select.POLLIN)

    def _pass_on(self, links: DisturbedLinks) -> float:
        """Send and relay what is due; return the seconds for which nothing is."""
        now = time.monotonic()
        timeout = _IDLE_SECONDS
        for relay in links.relays.values():
            relay.take(now)
            due = relay.put(now)
            if due is not None:
                timeout = min(timeout, due - now)
        for stream in links.streams:
            stream.send(now)
            timeout = min(timeout, TICK_SECONDS)
        return max(0.0, timeout)


def _too_slow(step: int, lost: int) -> str:
    return (f"before step {step} the relay of delayed packets lost {lost} of them, since this machine is too slow for "
            "the buffer that it may have: these steps had a loss as well; lower cluster.emulate.rates, delay fewer "
            "nodes, raise net.core.rmem_max, or run as root")
