"""NICs that become slow in mid-run: judged against what the same NIC sent before, where bytes wait in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holmes_hpc.metrics.step import NOT_MEASURED, RankReport
from holmes_hpc.values import Plan

WINDOW_SECONDS = 10.0
WINDOW_STEPS = 3
"""Of at least so many seconds and steps a NIC's rate is the mean."""

SHARE_OF_BEST = 0.4
"""A NIC that sends less than this share of its best rate is slow, if that is not for want of something to send."""

BUSY_SHARE = 0.5
"""Bytes must have waited in it for this share of the time."""

FULLEST_SHARE = 0.75
"""Of several that are slow in one window those are accused in which bytes wait nearly as long as in the fullest: one
that sends to a slow NIC's node waits for confirmations that stand in that NIC's queue."""

_KINDS = ("Ethernet", "fabric")


@dataclass
class _Nic:
    """One NIC: bytes sent and seconds with bytes waiting in the present window, and its best rate in bytes/s."""

    sent: float = 0.0
    busy_seconds: float = 0.0
    best: float = 0.0
    slow: bool = False


class SlowNics:
    """Follows the NICs of all nodes, by the reports of the ranks that count for their node.

    `say` is told of one that has become slow, and when it is no more. While ranks are stragglers nobody is accused:
    one that does not read fills the queues of those that send to it.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._plan, self._say = plan, say
        self._nics: dict[tuple[int, str], _Nic] = {}
        self._seconds, self._steps = 0.0, 0

    def add(self, step: int, reports: Sequence[RankReport], step_seconds: float, *, stragglers: bool) -> None:
        """Take the reports of a step."""
        for rank, report in enumerate(reports):
            measured = ((report.bytes_ethernet, report.busy_ethernet), (report.bytes_fabric, report.busy_fabric))
            for kind, (sent, busy) in zip(_KINDS, measured, strict=True):
                if sent != NOT_MEASURED:
                    nic = self._nics.setdefault((rank, kind), _Nic())
                    nic.sent, nic.busy_seconds = nic.sent + sent, nic.busy_seconds + busy
        self._seconds, self._steps = self._seconds + step_seconds, self._steps + 1
        if self._seconds < WINDOW_SECONDS or self._steps < WINDOW_STEPS:
            return
        looks_slow = {key: not stragglers and self._looks_slow(nic) for key, nic in self._nics.items()}
        fullest = max((nic.busy_seconds for key, nic in self._nics.items() if looks_slow[key]), default=0.0)
        for (rank, kind), nic in self._nics.items():
            is_slow = looks_slow[rank, kind] and nic.busy_seconds >= FULLEST_SHARE * fullest
            self._judge(step, rank, kind, nic, is_slow=is_slow)
            nic.sent = nic.busy_seconds = 0.0
        self._seconds, self._steps = 0.0, 0

    def _looks_slow(self, nic: _Nic) -> bool:
        return (nic.sent / self._seconds < SHARE_OF_BEST * nic.best
                and nic.busy_seconds / self._seconds >= BUSY_SHARE)

    def _judge(self, step: int, rank: int, kind: str, nic: _Nic, *, is_slow: bool) -> None:
        rate, share = nic.sent / self._seconds, nic.busy_seconds / self._seconds
        place = self._plan.ranks[rank]
        name = f"the {kind} NIC of node {place.node or place.slot}, or the link behind it,"
        if is_slow and not nic.slow:
            self._say(f"step {step}: {name} has become slow: it sends {_rate(rate)}, at best it sent "
                      f"{_rate(nic.best)} in this run, and bytes wait in it for {share:.0%} of the time")
        elif nic.slow and not is_slow and rate >= SHARE_OF_BEST * nic.best:
            self._say(f"step {step}: {name} is slow no more")
        elif nic.slow:
            is_slow = True  # neither seen to be slow nor seen to be well
        nic.slow, nic.best = is_slow, max(nic.best, rate)


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second * 8 / 1e6:,.2f} Mbit/s"
