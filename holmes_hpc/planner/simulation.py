"""A discrete-event simulation of one step: the schedule's action lists against the cost model."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holmes_hpc.planner.network_cost import Resource, Traffic
from holmes_hpc.values import Action, ActionKind, Reduction, Schedule

_SENDS = {ActionKind.SEND_ACTIVATION: (ActionKind.RECEIVE_ACTIVATION, 1),
          ActionKind.SEND_GRADIENT: (ActionKind.RECEIVE_GRADIENT, -1)}
_RECEIVES = (ActionKind.RECEIVE_ACTIVATION, ActionKind.RECEIVE_GRADIENT)
_COMPUTE = (ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.OPTIMIZER)
Message = tuple[ActionKind, int, int, int, int, int]


@dataclass(frozen=True)
class Prices:
    """What every action costs.

    `compute[kind, pipeline, stage]` in seconds; `messages[sender, receiver]`; `reductions[index]`;
    `optimizer[rank]` in seconds. `core_pools[rank]` names the pool of CPU cores that computes for a rank, and
    `cores[pool]` their number; a rank with a device of its own has no pool.
    """

    compute: Mapping[tuple[ActionKind, int, int], float]
    messages: Mapping[tuple[int, int], Traffic]
    reductions: Sequence[Traffic]
    optimizer: Mapping[int, float]
    core_pools: Mapping[int, str] = field(default_factory=dict)
    cores: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """What the simulation saw: seconds of the whole step, and of compute by rank."""

    step_seconds: float
    busy_seconds: Mapping[int, float]


def simulate(schedule: Schedule, reductions: Sequence[Reduction], prices: Prices) -> Timeline:
    """Run the action lists and return when the last rank ends.

    Sends never block their rank. Messages and reductions that share a NIC or a trunk pass one after the other.
    Ranks that share CPU cores queue for them.
    """
    return _Simulation(schedule, reductions, prices).run()


class _Simulation:
    def __init__(self, schedule: Schedule, reductions: Sequence[Reduction], prices: Prices) -> None:
        self.actions, self.reductions, self.prices = schedule.actions, reductions, prices
        self.position = dict.fromkeys(self.actions, 0)
        self.busy = dict.fromkeys(self.actions, 0.0)
        self.arrivals: dict[Message, float] = {}
        self.waiting: dict[Message, tuple[float, int]] = {}
        self.entered: dict[int, list[tuple[float, int]]] = {}
        self.free: dict[Resource, float] = {}
        self.cores = {pool: [0.0] * count for pool, count in prices.cores.items()}
        self.queue: list[tuple[float, int]] = [(0.0, rank) for rank in sorted(self.actions)]
        self.end = 0.0

    def run(self) -> Timeline:
        heapq.heapify(self.queue)
        while self.queue:
            now, rank = heapq.heappop(self.queue)
            self._advance(now, rank)
        return Timeline(self.end, self.busy)

    def _advance(self, now: float, rank: int) -> None:
        """Run a rank's actions from `now` until one takes time or has to wait."""
        actions = self.actions[rank]
        while self.position[rank] < len(actions):
            action = actions[self.position[rank]]
            if action.kind in _RECEIVES:
                key = (action.kind, action.pipeline, action.stage, action.microbatch, action.peer, rank)
                arrival = self.arrivals.get(key)
                if arrival is None:
                    self.waiting[key] = (now, rank)
                    return
                if arrival > now:
                    heapq.heappush(self.queue, (arrival, rank))
                    return
            self.position[rank] += 1
            if action.kind in _COMPUTE:
                heapq.heappush(self.queue, (self._compute(now, rank, action), rank))
                return
            if action.kind in _SENDS:
                self._send(now, rank, action)
            elif action.kind is ActionKind.REDUCE:
                self._enter(now, rank, action.reduction)
                return
        self.end = max(self.end, now)

    def _compute(self, now: float, rank: int, action: Action) -> float:
        if action.kind is ActionKind.OPTIMIZER:
            seconds = self.prices.optimizer[rank]
        else:
            seconds = self.prices.compute[action.kind, action.pipeline, action.stage]
        self.busy[rank] += seconds
        pool = self.prices.core_pools.get(rank)
        if pool is None:
            return now + seconds
        end = max(now, self.cores[pool][0]) + seconds
        heapq.heapreplace(self.cores[pool], end)
        return end

    def _send(self, now: float, rank: int, action: Action) -> None:
        receive, direction = _SENDS[action.kind]
        end = self._pass(now, self.prices.messages[rank, action.peer])
        key = (receive, action.pipeline, action.stage + direction, action.microbatch, rank, action.peer)
        self.arrivals[key] = end
        if key in self.waiting:
            since, receiver = self.waiting.pop(key)
            heapq.heappush(self.queue, (max(since, end), receiver))

    def _enter(self, now: float, rank: int, index: int) -> None:
        """Wait at a reduction; the last owner to come starts it, and all leave it together."""
        entered = self.entered.setdefault(index, [])
        entered.append((now, rank))
        if len(entered) == len(self.reductions[index].owners):
            end = self._pass(max(at for at, _ in entered), self.prices.reductions[index])
            for _, owner in entered:
                heapq.heappush(self.queue, (end, owner))

    def _pass(self, now: float, traffic: Traffic) -> float:
        """Let traffic through everything that it shares and return when it has arrived."""
        start = max([now, *(self.free.get(key, 0.0) for key in traffic.busy)])
        for key, seconds in traffic.busy.items():
            self.free[key] = start + seconds
        longest = max([traffic.seconds, *traffic.busy.values()])
        return start + longest + traffic.latency_seconds
