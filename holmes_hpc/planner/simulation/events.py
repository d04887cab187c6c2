"""A discrete-event simulation of one step: the schedule's action lists against the cost model."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from holmes_hpc.planner.cost.network import Traffic
from holmes_hpc.planner.simulation.collectives import Bucket, Collectives, last_backwards
from holmes_hpc.planner.simulation.links import Flow, Links
from holmes_hpc.values import Action, ActionKind, Reduction, Schedule
from holmes_hpc.values.schedule import COMPUTES, RECEIVES, SENDS

_SENT = {receive: send for send, (receive, _) in SENDS.items()}
_FORWARD, _REDUCE, _GATHER = ActionKind.FORWARD, ActionKind.REDUCE, ActionKind.GATHER
_RECEIVE_ACTIVATION, _RECEIVE_GRADIENT = RECEIVES
_TAKE_TURN, _PASS_TURN = ActionKind.TAKE_TURN, ActionKind.PASS_TURN
"""Names of the module's own: Python 3.11 takes ten times as long to look a member up in its enumeration."""
Message = tuple[ActionKind, int, int, int, int, int]
Transfer = tuple[str, float, Callable[[float], None]]
"""What it is, when it began, whom to tell when it has moved."""


@dataclass(frozen=True)
class Prices:
    """What every action costs. This is all that the simulation knows of a machine.

    `compute[kind, pipeline, stage]` in seconds, tensor-parallel exchanges, recomputation and launches included;
    `messages[sender, receiver]`; `reductions[index]` of those without buckets; `optimizer[rank]` in seconds.
    `core_pools[rank]` names the pool of CPU cores that computes for a rank, and `cores[pool]` their number; a rank
    with a device of its own has no pool.

    `buckets[index]` are the parts of a reduction that start under the backward, each as soon as its gradients are
    there on all owners; without them the reduction starts where its action stands. `gathers[index]` are the parts of
    the gather of parameters after the optimizer's step: with `overlap_gathers` they run from the start of the step,
    which then stands for those of the step before, under the forwards that need them; without, at its end.
    With `blocking_sends` a rank goes on only when what it sends has moved. `waits[kind, pipeline, stage]` is what of
    the seconds of `compute` a rank only waits, as one that is slowed down on purpose: it leaves its core to others.
    """

    compute: Mapping[tuple[ActionKind, int, int], float]
    messages: Mapping[tuple[int, int], Traffic]
    reductions: Sequence[Traffic]
    optimizer: Mapping[int, float]
    core_pools: Mapping[int, str] = field(default_factory=dict)
    cores: Mapping[str, int] = field(default_factory=dict)
    buckets: Mapping[int, Sequence[Bucket]] = field(default_factory=dict)
    gathers: Mapping[int, Sequence[Bucket]] = field(default_factory=dict)
    overlap_gathers: bool = False
    blocking_sends: bool = False
    waits: Mapping[tuple[ActionKind, int, int], float] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """What the simulation saw: seconds of the whole step, of compute by rank; with a trace every action's times.

    `records` are (rank, action, start, end), receives and reductions counted from when the rank waits for them;
    `transfers` are (what, start, end) of what links carried: `0>4 F0.0.3` for messages, `R2` and `G2` for parts of
    reductions and gathers.
    """

    step_seconds: float
    busy_seconds: Mapping[int, float]
    records: Sequence[tuple[int, Action, float, float]] = ()
    transfers: Sequence[tuple[str, float, float]] = ()


def simulate(schedule: Schedule, reductions: Sequence[Reduction], prices: Prices, *, trace: bool = False) -> Timeline:
    """Run the action lists and return when the last rank ends.

    Sends do not block their rank, unless the prices say so. The messages of one pair of ranks travel one after the
    other, and everything that shares a NIC or a trunk shares its time. The optimizer starts on all ranks together,
    since it needs the norm of all gradients. Ranks that share CPU cores queue for them.
    """
    return _Simulation(schedule, reductions, prices, trace).run()


class _Simulation:
    def __init__(self, schedule: Schedule, reductions: Sequence[Reduction], prices: Prices, trace: bool) -> None:
        self.actions, self.prices, self.trace = schedule.actions, prices, trace
        self.compute, self.core_pools, self.waits = prices.compute, prices.core_pools, prices.waits
        self.position = dict.fromkeys(self.actions, 0)
        self.busy = dict.fromkeys(self.actions, 0.0)
        self.began = dict.fromkeys(self.actions, 0.0)
        self.arrived: set[Message] = set()
        self.waiting: dict[Message, int] = {}
        self.closed = _closed_by_turns(schedule)
        self.has_turns = bool(self.closed)
        self.free_at: dict[tuple[int, int], float] = {}
        self.pairs: dict[tuple[int, int], deque[Message]] = {}
        self.at_optimizer: list[int] = []
        self.links = Links()
        self.moving: dict[int, Transfer] = {}
        self.sequence = 0
        self.queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self.cores = {pool: [0.0] * count for pool, count in prices.cores.items()}
        self.collectives = Collectives(schedule, reductions, prices.reductions, prices.buckets, prices.gathers,
                                       prices.overlap_gathers, self._move, self._advance, self._at)
        self.last = last_backwards(schedule) if prices.buckets else {}
        self.end = 0.0
        self.records: list[tuple[int, Action, float, float]] = []
        self.transfers: list[tuple[str, float, float]] = []

    def run(self) -> Timeline:
        self.collectives.begin()
        for rank in sorted(self.actions):
            self._at(0.0, self._advance, rank)
        while self.queue:
            now, _, call, arguments = heapq.heappop(self.queue)
            call(now, *arguments)
        stuck = [rank for rank, at in self.position.items() if at < len(self.actions[rank])]
        if stuck:
            rank = stuck[0]
            raise ValueError(f"rank {rank} waits for ever at {self.actions[rank][self.position[rank]]}")
        self.transfers.sort(key=lambda transfer: transfer[2])
        del self.collectives  # which knows this object: together they would be garbage that is found late
        return Timeline(self.end, self.busy, self.records, self.transfers)

    def _at(self, time: float, call: Callable[..., None], *arguments: object) -> None:
        self.sequence += 1
        heapq.heappush(self.queue, (time, self.sequence, call, arguments))

    def _advance(self, now: float, rank: int) -> None:
        """Run a rank's actions from `now` until one takes time or has to wait."""
        actions, position, goes_on, arrived = self.actions[rank], self.position, self._goes_on, self.arrived
        for at in range(position[rank], len(actions)):
            action = actions[at]
            kind = action.kind
            if kind is _RECEIVE_ACTIVATION or kind is _RECEIVE_GRADIENT:
                key = kind, action.pipeline, action.stage, action.microbatch, action.peer, rank
                if key not in arrived:
                    self.waiting[key] = rank
                    return
            elif not goes_on(now, rank, action):
                return
            position[rank] = at + 1
            if self.trace:
                self.records.append((rank, action, self.began[rank], now))
            self.began[rank] = now
        self.end = max(self.end, now)

    def _goes_on(self, now: float, rank: int, action: Action) -> bool:
        """Do at once what an action that is no receive does; return whether the rank may go on to the next."""
        kind = action.kind
        if kind in COMPUTES:
            return self._compute(now, rank, action)
        if kind in SENDS:
            return self._is_sent(now, rank, action)
        if kind is _TAKE_TURN:
            return self._take_turn(now, rank, action)
        if kind is _PASS_TURN:
            self._at(now, self._arrive, _token(rank, action.peer))
            return True
        if kind is _REDUCE:
            return self.collectives.is_reduced(now, rank, action.reduction)
        if kind is _GATHER:
            return self.prices.overlap_gathers or self.collectives.is_gathered(now, rank, action.reduction)
        return self._optimize(now, rank)

    def _has(self, key: Message, rank: int) -> bool:
        if key in self.arrived:
            return True
        self.waiting[key] = rank
        return False

    def _take_turn(self, now: float, rank: int, action: Action) -> bool:
        if not self._has(_token(action.peer, rank), rank):
            return False
        for pair in self.closed.pop((rank, action.pipeline, action.stage, action.microbatch)):
            self._next_message(now, pair)
        return True

    def _compute(self, now: float, rank: int, action: Action) -> bool:
        kind, place = action.kind, (action.pipeline, action.stage)
        gathers = kind is _FORWARD and (rank, place) in self.collectives.needs
        if gathers and not self.collectives.is_gathered_for(rank, place):
            return False
        seconds = self.compute[kind, action.pipeline, action.stage]
        waits = self.waits.get((kind, action.pipeline, action.stage), 0.0)
        if gathers:
            # It began when its first layers were there, and only now all of it is known.
            at_best = self._occupy(self.began[rank], rank, seconds, waits)
            end = max(now, at_best, self.collectives.forward_end(rank, place, seconds))
        else:
            end = self._occupy(now, rank, seconds, waits)
        if kind is not _FORWARD and self.last.get((rank, place)) == self.position[rank]:
            for fraction, index, bucket in self.collectives.ready_after(rank, place):
                self.collectives.enter(end - (1 - fraction) * seconds, index, bucket, rank)
        self._at(end, self._finish_compute, rank, action)
        return False

    def _occupy(self, now: float, rank: int, seconds: float, waits: float = 0.0) -> float:
        """Compute for some seconds, on the rank's device or behind others on the cores; return the end.

        What of them it only waits leaves the core to others.
        """
        self.busy[rank] += seconds
        pool = self.core_pools.get(rank)
        if pool is None:
            return now + seconds
        end = max(now, self.cores[pool][0]) + seconds
        heapq.heapreplace(self.cores[pool], end - waits)
        return end

    def _finish_compute(self, now: float, rank: int, action: Action) -> None:
        self.position[rank] += 1
        if self.trace:
            self.records.append((rank, action, self.began[rank], now))
        self.began[rank] = now
        self._advance(now, rank)

    def _optimize(self, now: float, rank: int) -> bool:
        """Wait for all ranks, then let each take its optimizer's time."""
        self.at_optimizer.append(rank)
        if len(self.at_optimizer) == len(self.actions):
            for each in sorted(self.at_optimizer):
                end = self._occupy(now, each, self.prices.optimizer[each])
                self._at(end, self._finish_compute, each, self.actions[each][self.position[each]])
        return False

    def _is_sent(self, now: float, rank: int, action: Action) -> bool:
        """Send, unless that was done before; return whether the rank may go on."""
        receive, direction = SENDS[action.kind]
        key = (receive, action.pipeline, action.stage + direction, action.microbatch, rank, action.peer)
        if not self.prices.blocking_sends:
            self._send(now, key)
            return True
        if _receipt(key) not in self.arrived:
            self.waiting[_receipt(key)] = rank
            self._send(now, key)
            return False
        return True

    def _send(self, now: float, key: Message) -> None:
        pair = key[4], key[5]
        traffic = self.prices.messages[pair]
        if not traffic.busy and not self.has_turns:
            # Nothing else slows it down, so that its end is known.
            begin = max(now, self.free_at.get(pair, 0.0))
            end = self.free_at[pair] = begin + traffic.seconds
            if self.trace:
                self.transfers.append((_message_words(key), begin, end))
            self._moved(end, key, traffic)
            return
        waiting = self.pairs.setdefault(pair, deque())
        waiting.append(key)
        if len(waiting) == 1:
            self._next_message(now, pair)

    def _next_message(self, now: float, pair: tuple[int, int]) -> None:
        """Start the first message of a pair, unless its receiver has not got its turn yet."""
        waiting = self.pairs.get(pair)
        if not waiting:
            return
        kind, p, s, microbatch, _, receiver = key = waiting[0]
        gate = self.closed.get((receiver, p, s, microbatch)) if kind is ActionKind.RECEIVE_ACTIVATION else None
        if gate is not None:
            gate.add(pair)
            return
        traffic = self.prices.messages[pair]

        def moved(end: float) -> None:
            waiting.popleft()
            self._moved(end, key, traffic)
            self._next_message(end, pair)

        self._move(now, traffic, moved, _message_words(key) if self.trace else "")

    def _moved(self, end: float, key: Message, traffic: Traffic) -> None:
        self._at(end + traffic.latency_seconds, self._arrive, key)
        if self.prices.blocking_sends:
            self._at(end, self._arrive, _receipt(key))

    def _arrive(self, now: float, key: Message) -> None:
        self.arrived.add(key)
        rank = self.waiting.pop(key, None)
        if rank is not None:
            self._advance(now, rank)

    def _move(self, now: float, traffic: Traffic, moved: Callable[[float], None], what: str) -> None:
        """Let traffic through everything that it shares, then call `moved`; its latency is the caller's."""
        if not traffic.busy:
            self._at(now + traffic.seconds, self._end_transfer, (what, now, moved))
            return
        self.sequence += 1
        self.moving[self.sequence] = what, now, moved
        self._reschedule(self.links.start(self.sequence, now, traffic))

    def _reschedule(self, flows: Sequence[Flow]) -> None:
        for flow in flows:
            self._at(flow.end, self._end_flow, flow, flow.changes)

    def _end_flow(self, now: float, flow: Flow, changes: int) -> None:
        if flow.changes == changes:
            self._reschedule(self.links.finish(flow.number, now))
            self._end_transfer(now, self.moving.pop(flow.number))

    def _end_transfer(self, now: float, transfer: Transfer) -> None:
        what, began, moved = transfer
        if self.trace:
            self.transfers.append((what, began, now))
        moved(now)


def _message_words(key: Message) -> str:
    kind, p, s, microbatch, sender, receiver = key
    return f"{sender}>{receiver} {'F' if kind is ActionKind.RECEIVE_ACTIVATION else 'B'}{p}.{s}.{microbatch}"


def _receipt(key: Message) -> Message:
    """Return what tells the sender of a message that it has moved."""
    kind, p, s, microbatch, sender, receiver = key
    return _SENT[kind], p, s, microbatch, receiver, sender


def _token(giver: int, taker: int) -> Message:
    return ActionKind.TAKE_TURN, -1, -1, -1, giver, taker


def _closed_by_turns(schedule: Schedule) -> dict[tuple[int, int, int, int], set[tuple[int, int]]]:
    """Return, by receiver and place, what waits for a turn: pairs of ranks, none yet."""
    return {(rank, action.pipeline, action.stage, action.microbatch): set()
            for rank, actions in schedule.actions.items() for action in actions
            if action.kind is ActionKind.TAKE_TURN}
