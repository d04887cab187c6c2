"""One report of a deadlock from what every rank wrote down: the cycle of operations that wait for each other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Node = tuple[int, int]
"""A rank and the number of its operation."""


class Report:
    """What the ranks of a world wrote when they gave up. `faults` are their reasons by rank."""

    def __init__(self, folder: Path) -> None:
        ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("dead-*.json"))]
        self.faults: Mapping[int, str] = {each["rank"]: each["why"] for each in ranks}
        self._operations = {(each["rank"], one["number"]): one for each in ranks for one in each["operations"]}
        self._hosts = {each["rank"]: (each["host"], each["doing"]) for each in ranks}

    @property
    def cycle(self) -> list[str]:
        """The operations of the first cycle in words, each with why it waits for the next; none: empty."""
        for start in sorted(self._operations):
            if found := self._cycle_from(start):
                return found
        return []

    def __str__(self) -> str:
        violations = {why for why in self.faults.values() if "VIOLATION" in why}
        return "\n".join([*sorted(violations or set(self.faults.values())), *self.cycle])

    def _cycle_from(self, start: Node) -> list[str]:
        path: list[Node] = []
        words: list[str] = []
        node: Node | None = start
        while node is not None and node not in path:
            path.append(node)
            reason, node = self._waits_for(node)
            words.append(f"rank {path[-1][0]}: {self._text(path[-1])} {reason}")
        return words[path.index(node):] if node is not None else []

    def _waits_for(self, node: Node) -> tuple[str, Node | None]:
        rank, operation = node[0], self._operations[node]
        if operation["blocker"] is not None:
            return "cannot start before its", (rank, operation["blocker"])
        if not operation["ready"]:
            return "waits for what is computed before it", None
        for peer in self._peers(rank, operation):
            counterpart = next((other for other in self._operations if other[0] == peer
                                and _match(operation, rank, self._operations[other], peer)), None)
            if counterpart is not None and self._operations[counterpart]["state"] != "started":
                return f"waits for rank {peer}'s", counterpart
            if counterpart is None and (held := self._hosts.get(peer, (None, ""))[0]) is not None:
                return f"waits for rank {peer}, whose host {self._hosts[peer][1]} for", (peer, held)
        return "waits", None

    def _peers(self, rank: int, operation: Mapping[str, Any]) -> Iterator[int]:
        yield from ([operation["peer"]] if operation["peer"] >= 0 else
                    [each for each in operation["members"] if each != rank])

    def _text(self, node: Node) -> str:
        return str(self._operations[node]["text"])


def _match(one: Mapping[str, Any], rank: int, other: Mapping[str, Any], peer: int) -> bool:
    if one["communicator"] != other["communicator"] or one["place"] != other["place"]:
        return False
    if one["peer"] < 0:
        return bool(other["peer"] < 0)
    return {one["kind"], other["kind"]} == {"send", "recv"} and one["peer"] == peer and other["peer"] == rank
