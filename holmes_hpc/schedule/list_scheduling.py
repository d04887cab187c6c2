"""The order in which every rank runs its forwards and backwards, found by simulating them in integer time.

One generator serves every plan: pipelines may differ, and a rank may serve several pipelines or stages. For alike
pipelines the 1F1B policy gives the usual order (Narayanan et al. 2021); a test compares.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from holmes_hpc.schedule.policies import Place, Policy
from holmes_hpc.values import Pipeline

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
Pass = tuple[int, int, int, int]
"""A micro-batch's pass through a stage: (FORWARD, BACKWARD or WEIGHT, pipeline, stage, micro-batch).

BACKWARD is the input part where WEIGHT exists."""

_ARRIVE, _END = 0, 1


def order_passes(pipelines: Sequence[Pipeline], policy: Policy) -> dict[int, list[Pass]]:
    """Return each rank's work in the order in which it runs it.

    Deterministic list scheduling: whenever all ranks of a stage are free, the one with the most urgent work starts.
    """
    return _Ordering(pipelines, policy).run()


class _Ordering:
    """The state of one list scheduling. A stage is known by its (pipeline, stage) pair."""

    def __init__(self, pipelines: Sequence[Pipeline], policy: Policy) -> None:
        self.pipelines, self.policy = pipelines, policy
        self.kinds = (BACKWARD, FORWARD, WEIGHT) if policy.backward_first else (FORWARD, BACKWARD, WEIGHT)
        self.ranks = {(p, s): stage.ranks for p, pipeline in enumerate(pipelines)
                      for s, stage in enumerate(pipeline.stages)}
        self.served: dict[int, list[tuple[int, int]]] = {}
        for key, ranks in self.ranks.items():
            for rank in ranks:
                self.served.setdefault(rank, []).append(key)
        self.orders: dict[int, list[Pass]] = {rank: [] for rank in sorted(self.served)}
        self.free = dict.fromkeys(self.orders, True)
        self.in_flight = dict.fromkeys(self.ranks, 0)
        self.ready: dict[tuple[int, int, int], list[int]] = {
            (kind, p, s): [] for p, s in self.ranks for kind in self.kinds
        }
        self.choices = {rank: [(kind, [(self.ready[kind, p, s], p, s) for p, s in places]) for kind in self.kinds]
                        for rank, places in self.served.items()}
        most = math.lcm(*(pipeline.microbatches for pipeline in pipelines))
        self.progress = [most // pipeline.microbatches for pipeline in pipelines]
        self.links: dict[tuple[int, int, int], int] = {}
        self.events: list[tuple[int, int, int, Pass]] = []
        self.sequence = 0

    def run(self) -> dict[int, list[Pass]]:
        for p, pipeline in enumerate(self.pipelines):
            self.ready[FORWARD, p, 0].extend(range(pipeline.microbatches))
        for rank in self.orders:
            self._start(rank, 0)
        while self.events:
            now = self.events[0][0]
            touched: list[int] = []
            while self.events and self.events[0][0] == now:
                _, _, event, work = heapq.heappop(self.events)
                touched += self._end(now, work) if event == _END else self._make_ready(work)
            for rank in dict.fromkeys(touched):
                self._start(rank, now)
        return self.orders

    def _push(self, time: int, event: int, work: Pass) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (time, self.sequence, event, work))

    def _make_ready(self, work: Pass) -> tuple[int, ...]:
        kind, p, s, microbatch = work
        heapq.heappush(self.ready[kind, p, s], microbatch)
        return self.ranks[p, s][:1]

    def _start(self, rank: int, now: int) -> None:
        """Start the most urgent work of a free rank, if there is any that may start."""
        work = self._most_urgent(rank) if self.free[rank] else None
        if work is None:
            return
        kind, p, s, _ = work
        heapq.heappop(self.ready[kind, p, s])
        if kind == FORWARD:
            self.in_flight[p, s] += 1
        for each in self.ranks[p, s]:
            self.free[each] = False
            self.orders[each].append(work)
        self._push(now + self.policy.times[p, s][kind], _END, work)

    def _most_urgent(self, rank: int) -> Pass | None:
        """Return the work of the preferred kind that is furthest behind its pipeline, deeper stages first."""
        for kind, places in self.choices[rank]:
            best: tuple[int, int, int, int] | None = None
            for queue, p, s in places:
                if queue and self._may_start(kind, p, s):
                    urgency = (queue[0] * self.progress[p], -s, p, queue[0])
                    best = urgency if best is None else min(best, urgency)
            if best is not None:
                return kind, best[2], -best[1], best[3]
        return None

    def _may_start(self, kind: int, p: int, s: int) -> bool:
        if kind == FORWARD and self.in_flight[p, s] >= self.policy.caps.get((p, s), math.inf):
            return False
        ranks = self.ranks[p, s]
        return len(ranks) == 1 or all(self.free[rank] for rank in ranks)

    def _end(self, now: int, work: Pass) -> list[int]:
        """Free the ranks of finished work and send its result on; return the ranks that may go on."""
        kind, p, s, microbatch = work
        touched = list(self.ranks[p, s])
        for rank in touched:
            self.free[rank] = True
        if kind == (WEIGHT if self.policy.split else BACKWARD):
            self.in_flight[p, s] -= 1
        if kind == BACKWARD:
            if self.policy.split:
                touched += self._make_ready((WEIGHT, p, s, microbatch))
            if s > 0:
                self._send(now, (p, s - 1), (BACKWARD, p, s - 1, microbatch))
        elif kind == FORWARD and s + 1 < len(self.pipelines[p].stages):
            self._send(now, (p, s), (FORWARD, p, s + 1, microbatch))
        elif kind == FORWARD:
            touched += self._make_ready((BACKWARD, p, s, microbatch))
        return touched

    def _send(self, now: int, hop: Place, work: Pass) -> None:
        """Let a message travel, behind those that its hop carries in its direction."""
        delay, busy = self.policy.hops.get(hop, (0, 0))
        start = max(now, self.links.get((work[0], *hop), 0))
        self.links[work[0], *hop] = start + busy
        self._push(start + delay, _ARRIVE, work)
