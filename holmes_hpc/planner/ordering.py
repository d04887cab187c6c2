"""The order in which every rank runs its forwards and backwards, found by simulating them in integer time.

One generator serves every plan: pipelines may differ, and a rank may serve several pipelines or stages. For alike
pipelines the 1F1B policy gives the classic order (Narayanan et al. 2021); a test compares.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holmes_hpc.values import Pipeline

FORWARD, BACKWARD = 0, 1
Work = tuple[int, int, int, int]
"""(FORWARD or BACKWARD, pipeline, stage, micro-batch)."""

_BACKWARD_FORWARDS = 2
_ARRIVE, _END = 0, 1


@dataclass(frozen=True)
class Policy:
    """What bounds the forwards of a stage, and how long its hop to the next stage takes.

    `caps[pipeline, stage]` is the number of micro-batches that may be in flight there; a missing key means no
    bound. `hop_forwards[pipeline, stage]` is the delay of a message to the next stage, in forward times.
    `backward_first` prefers a backward that is ready to a forward.
    """

    caps: Mapping[tuple[int, int], int]
    hop_forwards: Mapping[tuple[int, int], float]
    backward_first: bool = True


def gpipe_policy(pipelines: Sequence[Pipeline]) -> Policy:
    """Return GPipe's policy: all forwards, then all backwards (Huang et al. 2019)."""
    return Policy(caps={}, hop_forwards={}, backward_first=False)


def one_f_one_b_policy(pipelines: Sequence[Pipeline], slow_hops: set[tuple[int, int]],
                       warmup_extra: int) -> Policy:
    """Return the policy of 1F1B, with `warmup_extra` more forwards in flight upstream of every slow hop.

    A stage keeps at most `num_stages - stage` micro-batches in flight, plus the extra for each slow hop that is
    downstream of it. The bound is per stage, so that a rank that serves several stages of one pipeline cannot
    fill itself with the first and starve the last; over a rank it sums up. The extra forwards are only worth
    their memory while a message is on its way: a hop that deserves `k` of them takes 1.5 k forward times
    (k = 2 D / (F + B) with B = 2 F), and that is the delay that the ordering assumes.
    """
    caps, hops = {}, {}
    for p, pipeline in enumerate(pipelines):
        extra, depth = 0, len(pipeline.stages)
        for s in reversed(range(depth)):
            if (p, s) in slow_hops:
                extra += warmup_extra
                hops[p, s] = 1.5 * warmup_extra
            caps[p, s] = depth - s + extra
    return Policy(caps, hops)


def order_work(pipelines: Sequence[Pipeline], policy: Policy) -> dict[int, list[Work]]:
    """Return each rank's forwards and backwards in the order in which it runs them.

    Deterministic list scheduling: whenever all ranks of a stage are free, the one with the most urgent work
    starts. A backward takes twice a forward, and a forward of a rank takes the less the more micro-batches the
    rank serves, since the layer split is taken to have balanced the ranks.
    """
    return _Ordering(pipelines, policy).run()


def _forward_durations(pipelines: Sequence[Pipeline]) -> dict[tuple[int, int], int]:
    """Return the integer forward time of every stage; even, so that half a forward is a whole number too."""
    load: dict[int, int] = {}
    for pipeline in pipelines:
        for stage in pipeline.stages:
            for rank in stage.ranks:
                load[rank] = load.get(rank, 0) + pipeline.microbatches
    busiest = {
        (p, s): max(load[rank] for rank in stage.ranks)
        for p, pipeline in enumerate(pipelines) for s, stage in enumerate(pipeline.stages)
    }
    common = math.lcm(*busiest.values())
    return {key: 2 * common // count for key, count in busiest.items()}


class _Ordering:
    """The state of one list scheduling. A stage is known by its (pipeline, stage) pair."""

    def __init__(self, pipelines: Sequence[Pipeline], policy: Policy) -> None:
        self.pipelines, self.policy = pipelines, policy
        self.kinds = (BACKWARD, FORWARD) if policy.backward_first else (FORWARD, BACKWARD)
        self.forward = _forward_durations(pipelines)
        self.ranks = {(p, s): stage.ranks for p, pipeline in enumerate(pipelines)
                      for s, stage in enumerate(pipeline.stages)}
        self.served: dict[int, list[tuple[int, int]]] = {}
        for key, ranks in self.ranks.items():
            for rank in ranks:
                self.served.setdefault(rank, []).append(key)
        self.orders: dict[int, list[Work]] = {rank: [] for rank in sorted(self.served)}
        self.free = dict.fromkeys(self.orders, True)
        self.in_flight = dict.fromkeys(self.ranks, 0)
        self.ready: dict[tuple[int, int, int], list[int]] = {
            (kind, p, s): [] for p, s in self.ranks for kind in (FORWARD, BACKWARD)
        }
        most = math.lcm(*(pipeline.microbatches for pipeline in pipelines))
        self.progress = [most // pipeline.microbatches for pipeline in pipelines]
        self.events: list[tuple[int, int, int, Work]] = []
        self.sequence = 0

    def run(self) -> dict[int, list[Work]]:
        for p, pipeline in enumerate(self.pipelines):
            self.ready[FORWARD, p, 0] = list(range(pipeline.microbatches))
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

    def _push(self, time: int, event: int, work: Work) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (time, self.sequence, event, work))

    def _make_ready(self, work: Work) -> tuple[int, ...]:
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
        duration = self.forward[p, s] * (_BACKWARD_FORWARDS if kind == BACKWARD else 1)
        self._push(now + duration, _END, work)

    def _most_urgent(self, rank: int) -> Work | None:
        """Return the work of the preferred kind that is furthest behind its pipeline, deeper stages first."""
        for kind in self.kinds:
            best: tuple[int, int, int, int] | None = None
            for p, s in self.served[rank]:
                queue = self.ready[kind, p, s]
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

    def _end(self, now: int, work: Work) -> list[int]:
        """Free the ranks of finished work and send its result on; return the ranks that may go on."""
        kind, p, s, microbatch = work
        touched = list(self.ranks[p, s])
        for rank in touched:
            self.free[rank] = True
        if kind == BACKWARD:
            self.in_flight[p, s] -= 1
            if s > 0:
                self._push(now + self._delay(p, s - 1), _ARRIVE, (BACKWARD, p, s - 1, microbatch))
        elif s + 1 < len(self.pipelines[p].stages):
            self._push(now + self._delay(p, s), _ARRIVE, (FORWARD, p, s + 1, microbatch))
        else:
            touched += self._make_ready((BACKWARD, p, s, microbatch))
        return touched

    def _delay(self, p: int, s: int) -> int:
        """Return the delay of the hop after stage `s`, in the integer units of the forward times."""
        return round(self.policy.hop_forwards.get((p, s), 0.0) * self.forward[p, s])
