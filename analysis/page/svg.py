"""Drawings as SVG text that stands in a page: shapes, axes, and colours that the pictures have too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from analysis.pictures import GREY, INK
from holmes_hpc.quoting import for_html

GRID = "#E3E6EA"
SMALL = 11
"""Size of most text, in units of a drawing: pixels where it is shown as large as it is."""


class Drawing:
    """Collects shapes; `text` is the `svg` element. Coordinates are pixels from the upper left corner."""

    def __init__(self, width: float, height: float, name: str) -> None:
        """`name` is what readers of the screen are told, and the caption of the enlarged drawing."""
        self.width, self.height, self.name = width, height, name
        self._shapes: list[str] = []

    def shape(self, tag: str, tip: str = "", **attributes: Any) -> None:
        """Add a shape; underscores in names of attributes stand for hyphens, `tip` is shown under the mouse."""
        words = _attributes(attributes)
        self._shapes.append(f"<{tag}{words}><title>{for_html(tip)}</title></{tag}>" if tip else f"<{tag}{words}/>")

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: float = 1.5, **attributes: Any) -> None:
        """Add a line through points."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.shape("polyline", points=path, fill="none", stroke=colour, stroke_width=width, **attributes)

    def write(self, x: float, y: float, words: str, *, anchor: str = "start", size: float = SMALL, colour: str = INK,
              bold: bool = False) -> None:
        """Add words, whose middle is at the height `y`."""
        attributes = {"x": round(x, 1), "y": round(y, 1), "dy": "0.35em", "text_anchor": anchor, "font_size": size,
                      "fill": colour, **({"font_weight": "bold"} if bold else {})}
        self._shapes.append(f"<text{_attributes(attributes)}>{for_html(words)}</text>")

    def text(self) -> str:
        """Return the element."""
        return (f'<svg viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}" role="img" '
                f'aria-label="{for_html(self.name)}">{"".join(self._shapes)}</svg>')


def figure(drawing: Drawing, caption: str = "") -> str:
    """Return a drawing as a figure of the page, which a click enlarges."""
    below = f"<figcaption>{for_html(caption)}</figcaption>" if caption else ""
    return (f'<figure><button class=zoom type=button aria-label="enlarge: {for_html(drawing.name)}">{drawing.text()}'
            f"</button>{below}</figure>")


def ticks(high: float, most: int = 5) -> list[float]:
    """Return round values from 0 to at most `high`, about `most` of them."""
    rough = high / most
    if not (rough > 0 and math.isfinite(rough)):  # the least number above 0 by 5 is 0
        return [0.0]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [number * step for number in range(math.floor(high / step + 1e-9) + 1)]


def across(drawing: Drawing, values: Sequence[float], place: Callable[[float], float], top: float, bottom: float,
           words: Callable[[float], str]) -> None:
    """Draw the ticks of a horizontal axis: lines from `top` to `bottom`, and values below."""
    for value in values:
        drawing.line([(place(value), top), (place(value), bottom)], GRID, 1)
        drawing.write(place(value), bottom + 10, words(value), anchor="middle")


def legend(drawing: Drawing, x: float, y: float, entries: Sequence[tuple[str, str]]) -> None:
    """Write what colours mean, one beside the other."""
    for colour, words in entries:
        drawing.shape("rect", x=x, y=y - 5, width=10, height=10, fill=colour)
        drawing.write(x + 14, y, words)
        x += 14 + 6.3 * len(words) + 16


def thinned(points: Sequence[tuple[float, float]], most: int) -> Iterator[tuple[float, float]]:
    """Yield the points of a line; of more than `most` the lowest and the highest of as many neighbours as it takes."""
    if len(points) <= most:
        yield from points
        return
    size = math.ceil(2 * len(points) / most)
    for begin in range(0, len(points), size):
        few = points[begin : begin + size]
        yield from sorted({min(few, key=lambda point: point[1]), max(few, key=lambda point: point[1])})


def no_room(drawing: Drawing, words: str) -> None:
    """Say why a drawing is empty."""
    drawing.write(drawing.width / 2, drawing.height / 2, words, anchor="middle", colour=GREY)


def _attributes(attributes: dict[str, Any]) -> str:
    shown = {name.replace("_", "-"): f"{value:g}" if isinstance(value, float) else str(value)
             for name, value in attributes.items()}
    return "".join(f' {name}="{for_html(value)}"' for name, value in shown.items())
