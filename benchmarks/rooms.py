"""The structure of the package as it is: rooms, arrows, circles and lines, counted and drawn from the code's imports.

    python -m benchmarks.rooms [PART] [--root FOLDER] [--picture FILE.png]
    python -m benchmarks.rooms --write      the counts and both pictures of docs/architecture.md

A room is a folder or a module right below PART (default: the package itself; such as `planner`). An arrow leads from a
room to another one that it imports, wherever in its modules; imports for type checkers alone do not count. A circle is
a set of modules that reach each other by imports.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "holmes_hpc"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"
_COUNTED = ("planner", "launch", "engine")
_WIDTH, _HEIGHT, _GAP = 16.0, 1.0, 0.75

Ways = dict[str, set[str]]


@dataclass(frozen=True)
class House:
    """The modules of a package by dotted name: what each imports, and how many lines it has."""

    imports: Ways
    lines: dict[str, int]

    @classmethod
    def read(cls, root: Path) -> House:
        """Read the package below `root`."""
        paths = {_name(path.relative_to(root)): path for path in sorted((root / PACKAGE).rglob("*.py"))
                 if "_data" not in path.parts}
        texts = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
        ways = {name: {_module(each, paths) for each in _imported(ast.parse(text))} - {name, "", PACKAGE}
                for name, text in texts.items()}
        return cls(ways, {name: text.count("\n") for name, text in texts.items()})

    def rooms(self, part: str) -> tuple[dict[str, int], Ways]:
        """Return the lines of every room below a part, and which rooms each imports."""
        below = f"{part}."
        lines: dict[str, int] = {}
        ways: Ways = {}
        for name, imported in self.imports.items():
            if not name.startswith(below):
                continue
            own = name.removeprefix(below).partition(".")[0]
            lines[own] = lines.get(own, 0) + self.lines[name]
            others = {each.removeprefix(below).partition(".")[0] for each in imported if each.startswith(below)}
            ways.setdefault(own, set()).update(others - {own})
        return lines, ways


def _name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _module(name: str, known: Mapping[str, object]) -> str:
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from _imported(node)


def circles(ways: Ways) -> list[list[str]]:
    """Return the sets of names that reach each other (Kosaraju's two passes)."""
    order: list[str] = []
    seen: set[str] = set()
    for start in ways:
        _finish(start, ways, seen, order)
    backward: Ways = {name: set() for name in ways}
    for name, others in ways.items():
        for other in others & ways.keys():
            backward[other].add(name)
    found, seen = [], set()
    for start in reversed(order):
        if start not in seen:
            members: list[str] = []
            _finish(start, backward, seen, members)
            if len(members) > 1:
                found.append(sorted(members))
    return found


def _finish(start: str, ways: Ways, seen: set[str], order: list[str]) -> None:
    stack = [(start, iter(ways[start]))] if start not in seen else []
    seen.add(start)
    while stack:
        name, others = stack[-1]
        for other in others:
            if other in ways and other not in seen:
                seen.add(other)
                stack.append((other, iter(ways[other])))
                break
        else:
            order.append(name)
            stack.pop()


def floors(ways: Ways) -> dict[str, int]:
    """Return how many rooms stand below each, on the longest way down; rooms in a circle count once."""
    level: dict[str, int] = {}

    def find(name: str, open_rooms: tuple[str, ...]) -> int:
        if name not in level:
            below = [find(other, (*open_rooms, name)) for other in ways.get(name, ()) if other not in open_rooms]
            level[name] = 1 + max(below, default=-1)
        return level[name]

    for name in sorted(ways):
        find(name, (name,))
    return level


def direct(ways: Ways) -> Ways:
    """Return the arrows that no longer way implies."""
    def reach(name: str, seen: set[str]) -> set[str]:
        for other in ways.get(name, ()):
            if other not in seen:
                seen.add(other)
                reach(other, seen)
        return seen

    return {name: {other for other in others if not any(other in reach(via, set()) for via in others - {other})}
            for name, others in ways.items()}


def draw(title: str, lines: Mapping[str, int], ways: Ways, path: Path) -> None:
    """Draw the rooms on their floors, as wide as they have lines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import FancyArrowPatch, Rectangle

    level = floors(ways)
    by_floor: dict[int, list[str]] = {}
    for name in sorted(lines, key=lambda name: -lines[name]):
        by_floor.setdefault(level[name], []).append(name)
    widths = {name: max(1.15, 0.105 * len(name) + 0.35, lines[name] / 700) for name in lines}
    figure, axes = plt.subplots(figsize=(_WIDTH, 1.0 + 0.85 * len(by_floor)))
    place: dict[str, tuple[float, float]] = {}
    for floor, names in by_floor.items():
        total = sum(widths[name] + _GAP for name in names) - _GAP
        left = -total / 2
        for name in names:
            place[name] = left + widths[name] / 2, floor * (_HEIGHT + 0.9)
            left += widths[name] + _GAP
    for name, others in direct(ways).items():
        for other in others:
            (x, y), (to_x, to_y) = place[name], place[other]
            axes.add_patch(FancyArrowPatch((x, y - _HEIGHT / 2), (to_x, to_y + _HEIGHT / 2), arrowstyle="-|>",
                                           mutation_scale=7, color="#8a94a6", linewidth=0.7,
                                           connectionstyle="arc3,rad=0.04"))
    for name, (x, y) in place.items():
        axes.add_patch(Rectangle((x - widths[name] / 2, y - _HEIGHT / 2), widths[name], _HEIGHT, facecolor="#dbe7f6",
                                 edgecolor="#33415c", linewidth=0.9, zorder=3))
        axes.text(x, y + 0.12, name, ha="center", va="center", fontsize=8.5, weight="bold", zorder=4)
        axes.text(x, y - 0.25, f"{lines[name]:,} lines", ha="center", va="center", fontsize=6.5, zorder=4)
    axes.set_title(title, fontsize=10, loc="left")
    axes.autoscale_view()
    axes.axis("off")
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def summary(house: House, part: str) -> str:
    """Return the counts of a part in a line."""
    rooms, levels, arrows = counts(house, part)
    inside = {name: others for name, others in house.imports.items() if name.startswith(part)}
    lines, ways = house.rooms(part)
    return (f"{part}: {sum(lines.values()):,} lines, {rooms} rooms on {levels} floors, {arrows} arrows of "
            f"{rooms * (rooms - 1) // 2} possible pairs, {len(circles(ways))} circles of rooms, {len(circles(inside))} "
            "of modules")


def counts(house: House, part: str) -> tuple[int, int, int]:
    """Return how many rooms, floors and arrows a part has."""
    _, ways = house.rooms(part)
    return len(ways), max(floors(ways).values()) + 1, sum(map(len, ways.values()))


def counted(page: str, house: House) -> str:
    """Return the page of the architecture with the counts of now in the last column of its table."""
    for part in _COUNTED:
        now = ", ".join(map(str, counts(house, f"{PACKAGE}.{part}")))
        page = re.sub(rf"(\| {part}: rooms, floors, arrows \| [^|]*\|)[^|]*\|", rf"\1 {now} |", page)
    return re.sub(r"(\| circles of modules \| [^|]*\|)[^|]*\|", rf"\1 {len(circles(house.imports))} |", page)


def write_page(house: House) -> None:
    """Put the counts of now and both pictures into the page of the architecture."""
    PAGE.write_text(counted(PAGE.read_text(), house))
    for part, name in ((PACKAGE, "rooms"), (f"{PACKAGE}.planner", "planner_rooms")):
        draw(summary(house, part), *house.rooms(part), PAGE.parent / "pictures" / f"{name}.png")


def main() -> None:
    """Print the counts of a part and draw it where asked, or write the page's."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--write", action="store_true", help="the counts and pictures of docs/architecture.md")
    arguments = parser.parse_args()
    house = House.read(arguments.root)
    part = f"{PACKAGE}.{arguments.part}" if arguments.part else PACKAGE
    print(summary(house, part))
    if arguments.picture:
        draw(summary(house, part), *house.rooms(part), arguments.picture)
        print(f"wrote {arguments.picture}")
    if arguments.write:
        write_page(house)
        print(f"wrote {PAGE} and its pictures")


if __name__ == "__main__":
    main()
