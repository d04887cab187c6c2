"""The device of one rank: the log of what was issued, and which operation may start."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from pathlib import Path

from tests.strict.ahead import put_there
from tests.strict.operation import Operation
from tests.strict.queues import Queues
from tests.strict.rules import Rules


class Device:
    """Starts operations by the rules; where nothing moves any more it writes down who waits for what, and gives up.

    `seen` are the kinds of fault that were noticed without being an error.
    """

    def __init__(self, rules: Rules, folder: Path) -> None:
        self.rank, self.rules, self._folder = -1, rules, folder
        self.lock = threading.Condition()
        self.waiting: list[Operation] = []
        self.running: list[Operation] = []
        self.most_running = 0
        self.communicators = 0
        self.issued = 0
        self.dead = ""
        self.host = ""
        self._host_waits: Operation | None = None
        self.queues = Queues(lambda: self.dead, self._fail, rules.queues) if rules.ahead else None
        self._random = random.Random(rules.seed)
        self._progress = time.monotonic()
        threading.Thread(target=self._watch, name="strict-watch", daemon=True).start()

    def belongs_to(self, rank: int) -> None:
        """Say whose device it is."""
        if self.rank != rank:
            self.rank, self._random = rank, random.Random(self.rules.seed * 1009 + rank)

    def issue(self, operation: Operation) -> None:
        """Take an operation into the log. Raises RuntimeError on a device that gave up."""
        if self.queues is None:
            operation.take()
        with self.lock:
            if self.dead:
                raise RuntimeError(self.dead)
            operation.number = self.issued
            self.issued += 1
            if not self.waiting and not self.running:
                self._progress = time.monotonic()
            self.waiting.append(operation)
            self.lock.notify_all()
        if self.queues is None:
            return
        for tensor in operation.tensors:
            put_there(tensor)
        self.queues.put(operation.take)
        self.queues.put(self._look)

    def start_next(self, communicator: object) -> Operation | None:
        """Wait until the next operation of a communicator may start and return it; None once the device gave up."""
        with self.lock:
            while not self.dead:
                head = next((each for each in self.waiting if each.communicator is communicator), None)
                if head is not None and head.ready.is_set() and self.blocker(head) is None:
                    self.waiting.remove(head)
                    self.running.append(head)
                    self.most_running = max(self.most_running, len(self.running))
                    head.state = "started"
                    self._moved()
                    return head
                self.lock.wait()
        return None

    def blocker(self, operation: Operation) -> Operation | None:
        """Return what keeps an operation from starting: the first found of what stands before it, or runs."""
        for other in self.running:
            if other.communicator is operation.communicator:
                return other
        for other in self.waiting:
            if other is operation:
                break
            if self.rules.in_order or other.communicator is operation.communicator or self._shares(other, operation):
                return other
            if self.rules.resident and self._is_ready(other):
                return other
        if self.rules.resident and len(self.running) >= self.rules.resident:
            return self.running[0]
        return None

    def end(self, operation: Operation, error: str) -> None:
        """Take the end of an operation; an error ends the device."""
        with self.lock:
            self.running.remove(operation)
            operation.state = "done" if not error else "failed"
            operation.error = error
            self._moved()
            if error:
                self._give_up(error)
            operation.done.set()
            operation.met.set()

    def hold(self, operation: Operation, event: threading.Event, doing: str) -> None:
        """Hold the host until an event of an operation. Raises RuntimeError on an error or a device that gave up."""
        self._host_waits, self.host = operation, doing
        event.wait()
        self._host_waits, self.host = None, ""
        if operation.error or self.dead:
            raise RuntimeError(operation.error or self.dead)

    def jitter(self) -> float:
        """Return the seconds by which the next operation starts later."""
        return self._random.random() * self.rules.jitter_seconds

    def polls(self) -> bool:
        """Return whether a poll sees the truth this time."""
        return self.rules.seen >= 1 or self._random.random() < self.rules.seen

    def _look(self) -> None:
        with self.lock:
            self._moved()

    def _fail(self, why: str) -> None:
        with self.lock:
            self._give_up(why)

    def _shares(self, one: Operation, other: Operation) -> bool:
        queues = self.rules.queues
        return queues > 0 and one.communicator.number % queues == other.communicator.number % queues

    def _is_ready(self, operation: Operation) -> bool:
        if not operation.ready.is_set():
            return False
        before = [*self.running, *self.waiting[:self.waiting.index(operation)]]
        return all(each.communicator is not operation.communicator for each in before)

    def _moved(self) -> None:
        self._progress = time.monotonic()
        self.lock.notify_all()

    def _watch(self) -> None:
        while not self.dead:
            time.sleep(0.1)
            with self.lock:
                if (self.waiting or self.running) and time.monotonic() - self._progress > self.rules.stall_seconds:
                    self._give_up(f"DEADLOCK: nothing moved for {self.rules.stall_seconds:g} s")

    def _give_up(self, why: str) -> None:
        if self.dead:
            return
        self.dead = f"strict backend, rank {self.rank}: {why}"
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"dead-{self.rank}.json").write_text(json.dumps(self._state(why)))
        if self.rules.abort:
            os.abort()
        for operation in [*self.running, *self.waiting]:
            operation.error = operation.error or self.dead
            operation.done.set()
            operation.met.set()
        self.lock.notify_all()

    def _state(self, why: str) -> dict[str, object]:
        held = self._host_waits
        return {
            "rank": self.rank, "why": why, "host": None if held is None else held.number, "doing": self.host,
            "operations": [{
                "number": each.number, "text": str(each), "state": each.state,
                "ready": each.ready.is_set(), "communicator": each.communicator.key,
                "kind": each.kind, "place": each.place, "members": each.communicator.ranks,
                "peer": -1 if each.peer < 0 else each.communicator.ranks[each.peer],
                "blocker": None if each in self.running or (blocker := self.blocker(each)) is None else blocker.number,
            } for each in [*self.running, *self.waiting]],
        }
