"""What a search asks for more than once and works out at the first question: objects of its own keep it.

A task has them, and so passes them on. They hold as long as it: a task with other settings or nodes begins anew, and
only the prices of a machine are taken over by tasks on the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from holmes_hpc.cluster import Machine

Key = TypeVar("Key")
Value = TypeVar("Value")


class Once(dict[Key, Value]):
    """Values by key, each made when it is first asked for."""

    def of(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of a key, made by `make` where there is none yet."""
        if key not in self:
            self[key] = make()
        return self[key]


class OncePerLayout(Generic[Value]):
    """Values of layouts, each made when it is first asked for. Layouts are told apart as objects, which is fast."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, Hashable], tuple[object, Value]] = {}

    def has(self, layout: object, what: Hashable = None) -> bool:
        """Return whether the value of a layout, or of it and `what`, was made."""
        return (id(layout), what) in self._made

    def of(self, layout: object, make: Callable[[], Value], what: Hashable = None) -> Value:
        """Return the value of a layout, or of it and `what`, made by `make` where there is none yet."""
        key = id(layout), what
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = layout, make()  # with the layout, so that no other one gets its number
        return made[1]


@dataclass(eq=False)
class KnownPrices:
    """What is priced on one machine: seconds and shares of hops and rings, latencies, and the compute of models."""

    machine: Machine | None = None
    hops: Once[tuple[str, str, str], tuple[float, float, dict[tuple[str, str], float]]] = field(default_factory=Once)
    rings: Once[tuple[str, tuple[int, ...]], tuple[float, float, dict[tuple[str, str], float]]] = field(
        default_factory=Once)
    tensor_rings: Once[tuple[str, ...], Any] = field(default_factory=Once)
    latencies: Once[tuple[str, tuple[int, ...]], float] = field(default_factory=Once)
    compute: Once[Hashable, Any] = field(default_factory=Once)


@dataclass(eq=False)
class KnownLayouts:
    """What was found of the layouts of one task: what stands for what and its prices, shares of memory, predictions.

    `layouts` has the layouts themselves by what they were made of, so that all ways that lead to one share the rest;
    `actions` says how many a simulation has.
    """

    layouts: Once[Hashable, Any] = field(default_factory=Once)
    replicas: OncePerLayout[Any] = field(default_factory=OncePerLayout)
    actions: OncePerLayout[int] = field(default_factory=OncePerLayout)
    representatives: OncePerLayout[Any] = field(default_factory=OncePerLayout)
    updated_parameters: OncePerLayout[dict[int, float]] = field(default_factory=OncePerLayout)
    predictions: OncePerLayout[Any] = field(default_factory=OncePerLayout)


@dataclass(eq=False)
class KnownVariants:
    """What was made of one task: the same on some of its nodes, by their slots, and the spaces of its strategies."""

    on_nodes: Once[frozenset[str], Any] = field(default_factory=Once)
    spaces: Once[str, Any] = field(default_factory=Once)
