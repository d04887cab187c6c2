"""Reading `cluster.emulate.disturbances`: every name looked up, and each one said as what it does to which nodes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from holmes_hpc.cluster.cluster import ClusterDescription, Node
from holmes_hpc.cluster.lookup import unknown
from holmes_hpc.cluster.nics import ETHERNET
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.values.disturbances import DELAY, LOSS, MOST_TRAFFIC, RATE, SLOWDOWN, TRAFFIC, Disturbance
from holmes_hpc.words import shorten

_PATH = "cluster.emulate.disturbances"
_AMOUNTS = {"rate": RATE, "traffic": TRAFFIC, "delay_ms": DELAY, "jitter_ms": DELAY, "loss": LOSS, "slowdown": SLOWDOWN}
_KEYS = "rate, traffic, delay_ms (with jitter_ms, or that alone), loss and slowdown"
_PLACES = {RATE: ("network", "nodes"), TRAFFIC: ("network", "nodes"), SLOWDOWN: ("nodes", "ranks"),
           DELAY: ("network", "nodes", "between"), LOSS: ("network", "nodes", "between")}
"""What says where a kind of disturbance acts."""
_OTHER = {RATE: "another factor than 1, such as 0.2 for a fifth", SLOWDOWN: "a factor above 1, such as 2"}


def read_disturbances(items: Sequence[Any], cluster: ClusterDescription) -> tuple[Disturbance, ...]:
    """Return the disturbances of a cluster in the order of its file.

    Raises ConfigurationError for one that is none or two kinds at once, for a node, fabric or rank that is not there,
    for a place that does not belong to its kind, and for what changes nothing or leaves nothing of a link.
    """
    found = tuple(_read(item, cluster, f"{_PATH}.{number}") for number, item in enumerate(items))
    _check_traffic(found)
    return found


def _check_traffic(found: Sequence[Disturbance]) -> None:
    """Refuse other traffic that takes nearly all of a link, several together: each node of one sends and receives."""
    for step in sorted({each.first_step for each in found}):
        shares: dict[tuple[str, str], list[int]] = {}
        for number, each in enumerate(found):
            for slot in each.touched if each.kind == TRAFFIC and each.acts_at(step) else ():
                shares.setdefault((each.network, slot), []).append(number)
        for (network, slot), numbers in sorted(shares.items()):
            taken = sum(found[number].amount for number in numbers)
            if taken > MOST_TRAFFIC + 1e-9:
                these = " and ".join(f"{_PATH}.{number}.traffic={found[number].amount:g}" for number in numbers)
                raise ConfigurationError(f"{these}: take {taken:g} of the {network} link of {slot} together in step "
                                         f"{step}; valid: {MOST_TRAFFIC:g} in all. Lower one, or let them act in other "
                                         "steps or on other nodes")


def _read(item: Any, cluster: ClusterDescription, path: str) -> Disturbance:
    kind = _kind(item, path)
    for key in ("network", "nodes", "between", "ranks"):
        value = getattr(item, key)
        if value not in (None, []) and key not in _PLACES[kind]:
            raise ConfigurationError(f"{path}.{key}={value}: does not say where {kind} acts; leave it out, and give "
                                     f"{' or '.join(f'{path}.{each}' for each in _PLACES[kind])}")
    first, last = int(item.from_step), None if item.until_step is None else int(item.until_step)
    if last is not None and last < first:
        raise ConfigurationError(f"{path}.until_step={last}: comes before {path}.from_step={first}; valid: {first} and "
                                 "more, or leave it out for the rest of the run")
    if kind == SLOWDOWN:
        return _slowdown(item, cluster, path, first, last)
    return _on_links(kind, item, cluster, path, first, last)


def _kind(item: Any, path: str) -> str:
    """Return the kind of a disturbance, which the one amount that is given says."""
    given = [key for key in _AMOUNTS if getattr(item, key) is not None]
    kinds = {_AMOUNTS[key] for key in given}
    if len(kinds) != 1:
        what = "nothing" if not given else " and ".join(f"{key}={getattr(item, key)}" for key in given)
        raise ConfigurationError(f"{path} gives {what}; give exactly one of {_KEYS}")
    (kind,) = kinds
    if kind == DELAY and not (item.delay_ms or item.jitter_ms):
        raise ConfigurationError(f"{path}.{given[0]}=0: delays nothing; give {path}.delay_ms or {path}.jitter_ms above "
                                 "0, or leave the disturbance out")
    if kind in (RATE, SLOWDOWN) and getattr(item, given[0]) == 1:
        raise ConfigurationError(f"{path}.{given[0]}=1: changes nothing; give {_OTHER[kind]}, or leave the disturbance "
                                 "out")
    return kind


def _slowdown(item: Any, cluster: ClusterDescription, path: str, first: int, last: int | None) -> Disturbance:
    if bool(item.ranks) == bool(item.nodes):
        raise ConfigurationError(f"{path}.slowdown={item.slowdown:g}: says not who is slow; give either {path}.ranks, "
                                 f"such as [0], or {path}.nodes, such as [{cluster.nodes[0].slot}]")
    for rank in item.ranks:
        if rank >= cluster.world_size:
            raise ConfigurationError(f"{path}.ranks={list(item.ranks)}: there is no rank {rank}; valid: 0 to "
                                     f"{cluster.world_size - 1}")
    nodes = _nodes(item.nodes, cluster.nodes, f"{path}.nodes")
    slow = (((cluster.node_of(rank).slot, cluster.local_rank(rank)) for rank in item.ranks) if item.ranks else
            ((node.slot, local) for node in nodes for local in range(node.gpus)))
    who = (f"rank{'s' * (len(item.ranks) > 1)} {', '.join(map(str, item.ranks))}" if item.ranks
           else shorten(node.slot for node in nodes))
    return Disturbance(SLOWDOWN, float(item.slowdown), first, last, f"{who} {item.slowdown:g} times slower",
                       ranks=frozenset(slow))


def _on_links(kind: str, item: Any, cluster: ClusterDescription, path: str, first: int, last: int | None
              ) -> Disturbance:
    family, having = _network(item.network, cluster, path)
    nodes = _nodes(item.nodes, having, f"{path}.nodes")
    where, slots = str(item.network or ETHERNET), [node.slot for node in nodes]
    if item.nodes:
        where += f" of {shorten(slots)}"
    amount = float(getattr(item, next(key for key, of in _AMOUNTS.items() if of == kind)) or 0.0)
    if kind == RATE:
        return Disturbance(kind, amount, first, last, f"{where} at {amount:g} of its rate", family, frozenset(slots))
    if kind == TRAFFIC:
        if len(slots) < 2:
            raise ConfigurationError(f"{path}.nodes={list(item.nodes)}: traffic flows between two nodes and more; "
                                     f"valid: {', '.join(node.slot for node in having)}")
        return Disturbance(kind, amount, first, last, f"other traffic takes {amount:g} of {where}", family,
                           pairs=tuple(zip(slots, [*slots[1:], slots[0]], strict=True)))
    if item.between:
        pairs = _between(item, having, path)
        where += f" between {item.between[0]} and {item.between[1]}"
    else:
        pairs = [(a.slot, b.slot) for a, b in itertools.permutations(having, 2) if {a.slot, b.slot} & set(slots)]
    jitter = float(item.jitter_ms or 0.0)
    return Disturbance(kind, amount, first, last, f"{where} {_late_or_lost(kind, amount, jitter)}", family,
                       pairs=tuple(pairs), jitter_ms=jitter)


def _late_or_lost(kind: str, amount: float, jitter_ms: float) -> str:
    if kind == LOSS:
        return f"loses {100 * amount:g} % of the packets"
    words = [f"{amount:g} ms later"] * bool(amount) + [f"with {jitter_ms:g} ms of jitter"] * bool(jitter_ms)
    return " ".join(words)


def _network(name: str | None, cluster: ClusterDescription, path: str) -> tuple[str, list[Node]]:
    """Return the family of the links that a disturbance names, and the nodes that have them."""
    if name in (None, ETHERNET) and name not in cluster.fabrics:
        family, nodes = ETHERNET, list(cluster.nodes)
    elif name in cluster.fabrics:
        nodes = list(cluster.fabrics[name])
        family = nodes[0].network
    else:
        valid = dict.fromkeys((ETHERNET, *cluster.fabrics))
        raise ConfigurationError(unknown(str(name), valid, "network", f"{path}.network"))
    if len(nodes) < 2:
        raise ConfigurationError(f"{path}.network={name or ETHERNET}: joins no two nodes of this cluster; "
                                 f"its fabrics are {_sizes(cluster.fabrics)}")
    return family, nodes


def _sizes(fabrics: Mapping[str, Sequence[Node]]) -> str:
    return ", ".join(f"{name} ({len(nodes)} node{'s' * (len(nodes) > 1)})" for name, nodes in fabrics.items())


def _nodes(slots: Sequence[str], having: Sequence[Node], path: str) -> list[Node]:
    """Return the nodes of these slots, all that have the network where none is named."""
    by_slot = {node.slot: node for node in having}
    for slot in slots:
        if slot not in by_slot:
            raise ConfigurationError(unknown(str(slot), by_slot, "node", path))
    return [by_slot[slot] for slot in dict.fromkeys(slots)] if slots else list(having)


def _between(item: Any, having: Sequence[Node], path: str) -> list[tuple[str, str]]:
    """Return the pairs, both ways, between two ends, each a node or all nodes of a fabric."""
    ends = [str(end) for end in item.between]
    if len(ends) != 2 or ends[0] == ends[1] or item.nodes:
        raise ConfigurationError(f"{path}.between={ends}: give two different slots or fabrics, and no {path}.nodes")
    known: dict[str, list[str]] = {}
    for node in having:
        known.setdefault(node.fabric, []).append(node.slot)
    known |= {node.slot: [node.slot] for node in having}
    for end in ends:
        if end not in known:
            raise ConfigurationError(unknown(end, known, "node or fabric", f"{path}.between"))
    return [pair for a, b in itertools.product(known[ends[0]], known[ends[1]]) if a != b for pair in ((a, b), (b, a))]
