"""The cluster of a run with its fabrics, and what every node sends in a step: as it was counted, and as predicted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from omegaconf import OmegaConf

from analysis.columns import size
from analysis.page.svg import Drawing
from analysis.pictures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION
from analysis.reading import Run
from holmes_hpc.cluster import ClusterDescription, Node
from holmes_hpc.config.kept import UNREADABLE
from holmes_hpc.errors import HolmesError
from holmes_hpc.planner.simulation.traffic import node_bytes
from holmes_hpc.planner.telling.restore import restore
from holmes_hpc.values import Plan

MOST_NODES, MOST_RANKS = 64, 512
"""A larger cluster is not drawn: its nodes would not be told apart, and its traffic takes long to price."""
_BOX, _GAP, _COLUMNS = 150.0, 18.0, 8
_ETHERNET = "ethernet"
_FABRICS = (SKY, GREEN, PURPLE, ORANGE, BLUE)


Sent = Mapping[tuple[str, str], float]
"""Bytes that a node sends in a step, by its slot and the network."""


@dataclass(frozen=True)
class Predicted:
    """A cluster, and what its nodes send as the plan predicts it."""

    cluster: ClusterDescription
    sent: Sent


@dataclass(frozen=True)
class Measured:
    """What the network cards of nodes counted in a step."""

    step: int
    sent: Sent


def predicted_traffic(run: Run, measured_on: str) -> Predicted | None:
    """Return the cluster of a run with the predicted bytes of a step.

    None where the plan is of another version or of more nodes than can be drawn.
    """
    if len(run.plan.get("ranks") or []) > MOST_RANKS:
        return None
    try:
        plan = Plan.from_json(json.dumps(run.plan))
        mode = measured_on if measured_on in ("emulated", "local") else None
        task, layout = restore(OmegaConf.create(run.config), plan, mode)
        if len(task.cluster.nodes) > MOST_NODES:
            return None
        return Predicted(task.cluster, node_bytes(task, layout))
    except (HolmesError, *UNREADABLE):
        return None


def measured_traffic(run: Run, cluster: ClusterDescription) -> Measured | None:
    """Return what each node sent in the last step of which a run has that; None where it has none."""
    networks = {node.slot: node.network for node in cluster.nodes}
    slots = {rank: str(place.get("slot")) for rank, place in run.places().items()}
    for record in reversed(run.metrics):
        sent: dict[tuple[str, str], float] = {}
        for name in ("bytes_ethernet_per_rank", "bytes_fabric_per_rank"):
            for rank, value in enumerate(record.get(name) or []):
                slot = slots.get(rank)
                if value is not None and slot in networks:
                    sent[slot, _ETHERNET if name == "bytes_ethernet_per_rank" else networks[slot]] = float(value)
        if sent:
            return Measured(int(record["step"]), sent)
    return None


def node_names(run: Run) -> dict[str, str]:
    """Return the names of a run's nodes by slot."""
    return {str(place.get("slot")): str(place.get("node")) for place in run.places().values()}


def caption(measured: Measured | None) -> str:
    """Return what the figures of a drawing are."""
    if measured is None:
        return "bytes that each node sends in a step: predicted by the plan; not measured"
    return (f"bytes that each node sends in a step: measured by its network cards in step {measured.step} / predicted "
            "by the plan; lines are as wide as what was measured")


def cluster_drawing(predicted: Predicted, measured: Measured | None, names: Mapping[str, str]) -> Drawing:
    """Return a drawing: one box a fabric with its nodes, its switch above them, Ethernet below all.

    `names` are those of the nodes by slot.
    """
    cluster = predicted.cluster
    columns = {fabric: min(len(nodes), _COLUMNS) for fabric, nodes in cluster.fabrics.items()}
    lines = {fabric: math.ceil(len(nodes) / _COLUMNS) for fabric, nodes in cluster.fabrics.items()}
    tallest = max(lines.values())
    width = sum(columns.values()) * _BOX + (len(columns) + 1) * _GAP
    trunk = 110.0 + tallest * 110
    drawing = Drawing(max(width, 420.0), trunk + 40, f"traffic of a step of {cluster.name}")
    figures = _Figures(predicted.sent, None if measured is None else measured.sent)
    left = _GAP
    for number, (fabric, nodes) in enumerate(cluster.fabrics.items()):
        room, colour = columns[fabric] * _BOX, _FABRICS[number % len(_FABRICS)]
        _fabric(drawing, fabric, nodes, left, room, trunk, colour)
        for index, node in enumerate(nodes):
            x, y = left + (index % _COLUMNS + 0.5) * _BOX, 108.0 + index // _COLUMNS * 110
            _node(drawing, node, names.get(node.slot, node.slot), x, y, trunk, figures, colour)
        left += room + _GAP
    drawing.shape("rect", x=_GAP, y=trunk, width=drawing.width - 2 * _GAP, height=20, rx=4, fill=VERMILION)
    drawing.write(drawing.width / 2, trunk + 10, f"Ethernet: {figures.all_nodes(_ETHERNET)} a step", anchor="middle",
                  colour="white", bold=True)
    return drawing


class _Figures:
    """The figures of a drawing: measured where something was, else predicted."""

    def __init__(self, predicted: Sent, measured: Sent | None) -> None:
        self._predicted, self._measured = predicted, measured
        self.most = max([1.0, *(predicted if measured is None else measured).values()])

    def width(self, key: tuple[str, str]) -> float:
        """Return the bytes that decide how wide a line is."""
        return (self._predicted if self._measured is None else self._measured).get(key, 0.0)

    def words(self, key: tuple[str, str]) -> str:
        """Return the figures beside a line, measured / predicted; "" where there is nothing to be told."""
        predicted = self._predicted.get(key, 0.0)
        if self._measured is None:
            return size(predicted) if predicted else ""
        measured = self._measured.get(key)
        if not measured and not predicted:
            return ""
        return f"{'?' if measured is None else size(measured)} / {size(predicted)}"

    def tip(self, key: tuple[str, str]) -> str:
        """Return the figures in words."""
        if self._measured is None:
            return f"{size(self._predicted.get(key, 0.0))} predicted"
        known = self._measured.get(key)
        told = "not measured" if known is None else f"{size(known)} measured"
        return f"{told}, {size(self._predicted.get(key, 0.0))} predicted"

    def all_nodes(self, network: str) -> str:
        """Return what all nodes together send over a network."""
        sums = [sum(value for (_, of), value in sent.items() if of == network)
                for sent in (self._measured, self._predicted) if sent is not None]
        return " / ".join(map(size, sums)) + (" predicted" if self._measured is None else " (measured / predicted)")


def _fabric(drawing: Drawing, fabric: str, nodes: tuple[Node, ...], left: float, room: float, trunk: float,
            colour: str) -> None:
    drawing.shape("rect", x=left, y=8, width=room, height=trunk - 24, rx=8, fill="#F5F7F9", stroke="#D5D9DE")
    drawing.shape("rect", x=left + 10, y=18, width=room - 20, height=20, rx=4, fill=colour)
    drawing.write(left + room / 2, 28, f"{fabric} ({nodes[0].nic})", anchor="middle", bold=True)


def _node(drawing: Drawing, node: Node, name: str, x: float, y: float, trunk: float, figures: _Figures,
          colour: str) -> None:
    """Draw a node with a line up to its fabric and one down to Ethernet, as wide as what they carry."""
    inside, outside = (node.slot, node.network), (node.slot, _ETHERNET)
    # Fabrics of Ethernet NICs: there is only one kind of wire.
    keys = [(outside, trunk, VERMILION, 0.27)] + [(inside, 38.0, colour, -0.27)] * (node.network != _ETHERNET)
    for key, end, shade, side in keys:
        value = figures.width(key)
        tip = f"{name}: {figures.tip(key)}, a step by {node.network if end < y else 'Ethernet'}"
        place = x + side * _BOX
        drawing.shape("line", tip, x1=place, y1=y + 20, x2=place, y2=end, stroke=shade if value else "#D5D9DE",
                      stroke_width=1 + 11 * value / figures.most)
    drawing.shape("rect", x=x - 0.44 * _BOX, y=y, width=0.88 * _BOX, height=42, rx=5, fill="white", stroke=GREY)
    drawing.write(x, y + 13, _cut(name), anchor="middle", bold=True)
    drawing.write(x, y + 29, f"{node.gpus} x {node.gpu}", anchor="middle", size=10)
    if node.network != _ETHERNET and (words := figures.words(inside)):
        drawing.write(x - 0.27 * _BOX + 8, y - 10, words, size=10)
    if words := figures.words(outside):
        drawing.write(x + 0.27 * _BOX - 8, y + 54, words, anchor="end", size=10)


def _cut(words: str) -> str:
    return words if len(words) <= 20 else f"{words[:9]}...{words[-8:]}"
