"""The cluster of a run with its fabrics, and what every node sends in a step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

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


def traffic(run: Run, measured_on: str) -> Drawing | None:
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
        names = {str(place.get("slot")): str(place.get("node")) for place in run.places().values()}
        return cluster_drawing(task.cluster, node_bytes(task, layout), names)
    except (HolmesError, *UNREADABLE):
        return None


def cluster_drawing(cluster: ClusterDescription, sent: Mapping[tuple[str, str], float],
                    names: Mapping[str, str]) -> Drawing:
    """Return a drawing: one box a fabric with its nodes, its switch above them, Ethernet below all.

    `sent`: bytes that a node sends in a step, by its slot and the network. `names` are those of the nodes by slot.
    """
    columns = {fabric: min(len(nodes), _COLUMNS) for fabric, nodes in cluster.fabrics.items()}
    lines = {fabric: math.ceil(len(nodes) / _COLUMNS) for fabric, nodes in cluster.fabrics.items()}
    tallest = max(lines.values())
    width = sum(columns.values()) * _BOX + (len(columns) + 1) * _GAP
    trunk = 110.0 + tallest * 110
    drawing = Drawing(max(width, 420.0), trunk + 40, f"traffic of a step of {cluster.name}")
    most = max([1.0, *sent.values()])
    left = _GAP
    for number, (fabric, nodes) in enumerate(cluster.fabrics.items()):
        room, colour = columns[fabric] * _BOX, _FABRICS[number % len(_FABRICS)]
        _fabric(drawing, fabric, nodes, left, room, trunk, colour)
        for index, node in enumerate(nodes):
            x, y = left + (index % _COLUMNS + 0.5) * _BOX, 108.0 + index // _COLUMNS * 110
            _node(drawing, node, names.get(node.slot, node.slot), x, y, trunk, sent, most, colour)
        left += room + _GAP
    drawing.shape("rect", x=_GAP, y=trunk, width=drawing.width - 2 * _GAP, height=20, rx=4, fill=VERMILION)
    whole = sum(value for (_, network), value in sent.items() if network == _ETHERNET)
    drawing.write(drawing.width / 2, trunk + 10, f"Ethernet: {size(whole)} a step", anchor="middle", colour="white",
                  bold=True)
    return drawing


def _fabric(drawing: Drawing, fabric: str, nodes: tuple[Node, ...], left: float, room: float, trunk: float,
            colour: str) -> None:
    drawing.shape("rect", x=left, y=8, width=room, height=trunk - 24, rx=8, fill="#F5F7F9", stroke="#D5D9DE")
    drawing.shape("rect", x=left + 10, y=18, width=room - 20, height=20, rx=4, fill=colour)
    drawing.write(left + room / 2, 28, f"{fabric} ({nodes[0].nic})", anchor="middle", bold=True)


def _node(drawing: Drawing, node: Node, name: str, x: float, y: float, trunk: float,
          sent: Mapping[tuple[str, str], float], most: float, colour: str) -> None:
    """Draw a node with a line up to its fabric and one down to Ethernet, as wide as what they carry."""
    inside, outside = sent.get((node.slot, node.network), 0.0), sent.get((node.slot, _ETHERNET), 0.0)
    # Fabrics of Ethernet NICs: there is only one kind of wire.
    inside = 0.0 if node.network == _ETHERNET else inside
    for value, end, shade, side in ((inside, 38.0, colour, -0.27), (outside, trunk, VERMILION, 0.27)):
        tip = f"{name}: {size(value)} a step by {node.network if end < y else 'Ethernet'}"
        place = x + side * _BOX
        drawing.shape("line", tip, x1=place, y1=y + 20, x2=place, y2=end, stroke=shade if value else "#D5D9DE",
                      stroke_width=1 + 11 * value / most)
    drawing.shape("rect", x=x - 0.44 * _BOX, y=y, width=0.88 * _BOX, height=42, rx=5, fill="white", stroke=GREY)
    drawing.write(x, y + 13, _cut(name), anchor="middle", bold=True)
    drawing.write(x, y + 29, f"{node.gpus} x {node.gpu}", anchor="middle", size=10)
    if inside:
        drawing.write(x - 0.27 * _BOX + 8, y - 10, size(inside), size=10)
    if outside:
        drawing.write(x + 0.27 * _BOX - 8, y + 54, size(outside), anchor="end", size=10)


def _cut(words: str) -> str:
    return words if len(words) <= 20 else f"{words[:9]}...{words[-8:]}"
