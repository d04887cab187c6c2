"""Who makes the others wait: what the signs of life of all ranks say when one of them has waited too long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holmes_hpc.cluster.link_state import is_well
from holmes_hpc.comm.activity import OUTSIDE, Wait
from holmes_hpc.runs.beats import Beat
from holmes_hpc.values import Plan

_SHOWN = 8
"""Ranks that a message lists one by one."""


@dataclass(frozen=True)
class Evidence:
    """What one rank knows when it has waited too long.

    `silent`: seconds without a sign of life, of the ranks that give none; `group`: the group that the rank waits in, in
    words; `logs`: the folder of the ranks' logs.
    """

    plan: Plan
    rank: int
    wait: Wait
    group: str
    beats: Mapping[int, Beat]
    silent: Mapping[int, float]
    timeout_seconds: float
    logs: Path


@dataclass(frozen=True)
class Hang:
    """The ranks that all others wait for (none where they wait for each other), and the message for the user."""

    culprits: tuple[int, ...]
    message: str
    of_suspension: bool = False


def find_culprits(evidence: Evidence) -> tuple[int, ...]:
    """Return the ranks that the others wait for: the silent ones, else those that compute, longest first.

    None of them is a rank that itself waits in a group, since somebody else keeps it there.
    """
    left = {rank for rank, beat in evidence.beats.items() if beat.ended}
    silent = tuple(sorted(set(evidence.silent) - left - {evidence.rank}))
    if silent:
        return silent
    busy = {rank: beat.seconds for rank, beat in evidence.beats.items()
            if rank != evidence.rank and rank not in left and beat.group == OUTSIDE}
    if not busy:
        return ()
    longest = max(busy.values())
    return tuple(sorted(rank for rank, seconds in busy.items() if seconds >= longest / 2))


def explain(evidence: Evidence) -> Hang:
    """Say who is to blame, what this rank waits for, and which ranks of that group are not there."""
    culprits = find_culprits(evidence)
    waited = (f"rank {evidence.rank} on node {_node(evidence.plan, evidence.rank)} waited "
              f"{evidence.wait.seconds:.1f} s (train.timeout_seconds={evidence.timeout_seconds:g}) in step "
              f"{evidence.wait.doing.step}, {evidence.wait.doing.action}, {evidence.wait.doing.operation}, for "
              f"{evidence.group}; {_absent(evidence)}")
    if not culprits:
        bad = _bad_links(evidence)
        where = f"{bad}; " if bad else ""
        return Hang((), f"all ranks wait, none computes: {where}{waited}{_ends(evidence)}; check that network and the "
                        f"ranks' logs in {evidence.logs}, or raise train.timeout_seconds if it is only slow")
    who = _names(evidence.plan, culprits, slots=True)
    verb = "hangs" if len(culprits) == 1 else "hang"
    log = evidence.logs / f"rank-{culprits[0]}.log"
    return Hang(culprits, f"{who} {verb}: {_state(evidence, culprits[0])}; {waited}; look at that node and at {log}, "
                          "or raise train.timeout_seconds if it is only slow")


def _state(evidence: Evidence, rank: int) -> str:
    beat = evidence.beats.get(rank)
    last = "" if beat is None else f", last seen in step {beat.step}, {beat.action}"
    if rank in evidence.silent:
        return (f"no sign of life for at least {evidence.silent[rank]:.1f} s (stopped, or its node is gone){last}")
    if beat is None:
        return "no sign of life"
    return f"busy outside any process group for {beat.seconds:.1f} s in step {beat.step}, {beat.action}"


def _absent(evidence: Evidence) -> str:
    """Say which members of the awaited group have not arrived at it."""
    index = evidence.wait.doing.group
    if index == OUTSIDE:
        return "in no group"
    absent = []
    for member in evidence.plan.groups[index].ranks:
        beat = evidence.beats.get(member)
        if member != evidence.rank and (member in evidence.silent or beat is None or beat.group != index):
            absent.append(member)
    if not absent:
        return "all its ranks have arrived, so its network is at fault"
    return f"not arrived there: {_names(evidence.plan, tuple(absent))}"


def _bad_links(evidence: Evidence) -> str:
    """Return which interfaces of which nodes are not up, "" where none is known to be."""
    bad: dict[str, None] = {}
    for rank, beat in sorted(evidence.beats.items()):
        for name, state in beat.links.items():
            if not is_well(state):
                kind = "adapter" if "/" in name else "interface"
                bad[f"the {kind} {name} of node {_node(evidence.plan, rank)} is {state}"] = None
    words = list(bad)
    return ", ".join(words[:_SHOWN]) + (f" and {len(words) - _SHOWN} more" if words[_SHOWN:] else "")


def _ends(evidence: Evidence) -> str:
    """Return the state of the interfaces at the ends of the awaited group, to be put behind the wait for it."""
    if evidence.wait.doing.group == OUTSIDE:
        return ""
    ends: dict[str, str] = {}
    for member in evidence.plan.groups[evidence.wait.doing.group].ranks:
        beat = evidence.beats.get(member)
        if beat is not None and beat.links:
            ends[_node(evidence.plan, member)] = ", ".join(f"{name} {state}" for name, state in beat.links.items())
    if len(ends) < 2:
        return ""
    return "; its ends: " + "; ".join(f"{node}: {states}" for node, states in list(ends.items())[:_SHOWN])


def _names(plan: Plan, ranks: tuple[int, ...], *, slots: bool = False) -> str:
    places = {place.rank: place for place in plan.ranks}
    words = [f"{rank} on node {_node(plan, rank)}" + (f" (slot {places[rank].slot})" if slots else "")
             for rank in ranks[:_SHOWN]]
    if len(ranks) > _SHOWN:
        words.append(f"{len(ranks) - _SHOWN} more")
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(words)


def _node(plan: Plan, rank: int) -> str:
    place = next(place for place in plan.ranks if place.rank == rank)
    return place.node or place.slot
