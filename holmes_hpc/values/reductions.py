"""Process groups, and the levels in which their ranks sum gradients and gather parameters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

FLOAT32 = "float32"
INSIDE, ACROSS = "_inside", "_across"
"""Endings of the kinds of groups that go on inside the nodes of a group, and between them."""


@dataclass(frozen=True)
class Group:
    """A process group and the network that it uses.

    `kind` is `tensor`, `data`, `pipeline` (one edge between two stages), `embedding`, `turn` (ranks of a node that
    take turns on its slow NIC, in this order), or `world`; and where the ranks of a `data` or `embedding` group sum
    inside their nodes first, `data_inside` (those of one node) and `data_across` (those at the same place of every
    node), or `embedding_inside` and `embedding_across`. `network` is the family of a NIC kind (`ib`, `roce`,
    `ethernet`, ...), or `local` inside a node. `wire` is the type in which gradients travel in it.
    """

    kind: str
    ranks: tuple[int, ...]
    network: str
    wire: str = FLOAT32

    @property
    def is_inside(self) -> bool:
        """Whether its ranks are those of one node that sum before, and gather after, the nodes do."""
        return self.kind.endswith(INSIDE)

    @property
    def whole_kind(self) -> str:
        """The kind of the group that it is a part of; its own where it is a whole one."""
        return self.kind.removesuffix(INSIDE).removesuffix(ACROSS)


class Operation(StrEnum):
    """What the groups of a level do, with gradients or, to gather, with parameters."""

    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    ALL_GATHER = "all_gather"


@dataclass(frozen=True)
class Level:
    """One level of a reduction: its groups, indices into `Plan.groups`, do the same side by side.

    `parts` is into how many equal parts the level cuts what the reduction owns:

        reduce_scatter  leaves each rank the sum of one part (of a group of more ranks, the first `parts` of them)
        all_reduce      sums all that its ranks have; of those that have all parts, group j sums part j
        broadcast       the j-th rank of each group sends part j to the others
        all_gather      gathers the parts, of which each rank has one (of a group of more ranks, the first `parts`)

    The level is done in every `every`-th step.
    """

    operation: Operation
    groups: tuple[int, ...]
    parts: int = 1
    every: int = 1


@dataclass(frozen=True)
class Reduction:
    """How the gradients of some parameters are summed over every rank that owns them.

    `owns` names units of the architecture (`embedding`, `layers.3`, `head`; `embedding.token` for the token table
    alone) or slices of them; `values.owned` has the grammar. `owners` are all ranks that hold them. `levels` sum the
    gradients, one after the other. Where the owners share the optimizer's state, the sum ends in shards, `gathers` make
    the updated parameters whole again, and `copies` are the groups of which each holds one copy of the state: its
    j-th rank shard j, and ranks beyond the last shard nothing. Without `copies` every owner holds all of it.

    `norm` are those of the copies whose ranks each count their shard in the norm of all gradients; without copies the
    first owner counts the whole gradient.
    """

    owns: tuple[str, ...]
    owners: tuple[int, ...]
    levels: tuple[Level, ...] = ()
    gathers: tuple[Level, ...] = ()
    copies: tuple[int, ...] = ()
    norm: tuple[int, ...] = ()

    @property
    def divides(self) -> bool:
        """Whether its owners share the optimizer's state."""
        return bool(self.copies)

    @property
    def shards(self) -> int:
        """Into how many shards the optimizer's state is cut; 1 where every owner holds all of it."""
        return self.gathers[0].parts if self.gathers else 1

    @property
    def groups(self) -> tuple[int, ...]:
        """All groups that sum or gather, each once, indices into `Plan.groups`."""
        return tuple(dict.fromkeys(index for level in (*self.levels, *self.gathers) for index in level.groups))

    def due(self, step: int) -> int:
        """Return the last level that is done in a step, counted from 1; -1 where none is."""
        return max((i for i, level in enumerate(self.levels) if step % level.every == 0), default=-1)
