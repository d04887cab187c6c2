"""The floors: a module imports only what lies below it, torch only above the line, and nothing in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.rooms import PAGE, House, circles, counted
from tests.runs_for_tests import ROOT

FLOORS = [
    {"errors", "early", "resources", "findings", "words"},
    {"quoting"},
    {"redaction"},
    {"paths", "foreign", "bounded", "troubles"},
    {"values"},
    {"registry", "families"},
    {"config"},
    {"architecture"},
    {"cluster"},
    {"emulation"},
    {"runs"},
    {"schedule"},
    {"planner"},
    {"extend"},
    {"submit"},
    # torch above this line only
    {"metrics", "data", "model", "checkpoint"},
    {"comm"},
    {"engine"},
    {"launch"},
    {"program"},
    {"api", "completion"},
    {"front"},
    {"train", "plan", "doctor", "jobs", "cancel", "sweep", "logs", "site", "probe", "compare", "calibrate",
     "tokenize", "settings", "evaluate", "sample", "export", "trace", "top"},
    {"cli", "scripted"},
]
TORCH_FROM = FLOORS.index({"metrics", "data", "model", "checkpoint"})
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}
NO_TORCH_EITHER = {"api", "scripted", "completion",
                   "front", "program", "train", "plan", "doctor", "jobs", "cancel", "sweep", "logs", "site", "probe",
                   "compare", "calibrate", "tokenize", "settings", "evaluate", "sample", "export", "trace",
                   "top", "cli"}
"""Commands, which reach torch through launch alone, once they run."""

STANDARD_LIBRARY_ONLY = {"values"}

ROOMS = {
    "planner": ("task", "layout", "cost", "simulation", "strategies", "search", "telling", "making"),
    "launch": ("node", "rank", "follow", "here", "slurm", "train", "in_turn", "submitting", "sweep"),
    "engine": ("watchdog", "saving", "trainer"),
}
"""The staircases inside parts: a room imports only rooms before it. What has no place here may use any."""

PACKAGE = ROOT / "holmes_hpc"
MODULES = sorted(path.relative_to(ROOT) for path in PACKAGE.rglob("*.py") if "_data" not in path.parts)


def part_of(path: Path) -> str:
    """Return the part that a module belongs to: its folder or file right below the package."""
    return path.parts[1].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Yield every imported module of a file, its line, and whether it is imported when the file is."""
    tree = ast.parse((ROOT / path).read_text())
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = path.parent.parts[: len(path.parent.parts) - node.level + 1]
                base = ".".join([*package, *([base] if base else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield name, node.lineno, id(node) in top


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_floor(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        assert not [name for name, _, at_import in imports(path) if at_import and name.startswith("holmes_hpc")]
        return
    assert part in FLOOR_OF, f"{part}: give it a floor in this test"
    floor = FLOOR_OF[part]
    for name, line, _ in imports(path):
        words = name.split(".")
        place = f"{path}:{line} imports {name}"
        if words[0] == "holmes_hpc" and len(words) > 1 and words[1] in FLOOR_OF and words[1] != part:
            assert FLOOR_OF[words[1]] < floor, f"{place}, from a floor that is not below"
        if words[0] == "torch":
            assert floor >= TORCH_FROM and part not in NO_TORCH_EITHER, f"{place}, below the line"
        if part in STANDARD_LIBRARY_ONLY and words[0] not in ("holmes_hpc", "__future__"):
            import sys

            assert words[0] in sys.stdlib_module_names, f"{place}, not of the standard library"


def test_one_schedule_two_interpreters() -> None:
    """The engine and the simulator meet in schedule and values alone: neither sees how the other interprets."""
    for path in MODULES:
        if part_of(path) in ("engine", "comm", "model", "checkpoint", "data", "metrics"):
            assert not [name for name, _, _ in imports(path) if name.startswith("holmes_hpc.planner")], path


def room_of(name: str) -> tuple[str, int] | None:
    """Return the part of a module's dotted name, and which step of its staircase the module stands on."""
    words = name.split(".")
    if len(words) < 3 or words[0] != "holmes_hpc" or words[2] not in ROOMS.get(words[1], ()):
        return None
    return words[1], ROOMS[words[1]].index(words[2])


@pytest.mark.parametrize("path", [path for path in MODULES if part_of(path) in ROOMS], ids=str)
def test_rooms_of_a_part_import_only_rooms_before_them(path: Path) -> None:
    own = room_of(".".join(path.with_suffix("").parts))
    for name, line, _ in imports(path):
        other = room_of(name)
        if own and other and own[0] == other[0]:
            assert other[1] <= own[1], f"{path}:{line} imports {name}, a room above its own"


def test_no_circle_of_imports() -> None:
    assert circles(House.read(ROOT).imports) == []


def test_a_circle_is_seen(tmp_path: Path) -> None:
    (tmp_path / "holmes_hpc").mkdir()
    for name, other in (("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")):
        (tmp_path / "holmes_hpc" / f"{name}.py").write_text(f"def f():\n    from holmes_hpc.{other} import x\n")
    assert circles(House.read(tmp_path).imports) == [["holmes_hpc.a", "holmes_hpc.b", "holmes_hpc.c"]]


def test_commands_import_launch_only_when_they_run() -> None:
    for part in NO_TORCH_EITHER:
        for name, line, at_import in imports(Path("holmes_hpc", f"{part}.py")):
            assert not (at_import and name.startswith("holmes_hpc.launch")), f"{part}.py:{line} imports {name}"


def test_the_test_sees_a_wrong_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "holmes_hpc" / "cluster").mkdir(parents=True)
    path = Path("holmes_hpc", "cluster", "wrong.py")
    monkeypatch.setattr("tests.test_floors.ROOT", tmp_path)
    for text in ("from holmes_hpc.planner import plan", "def f():\n    import torch.nn", "from ..launch import train",
                 "from holmes_hpc import engine"):
        (tmp_path / path).write_text(text + "\n")
        with pytest.raises(AssertionError, match=r"wrong\.py:\d"):
            test_floor(path)
    (tmp_path / path).write_text("from holmes_hpc.config import schema\nfrom . import nics\n")
    test_floor(path)


@pytest.mark.long
def test_the_page_of_the_architecture_counts_what_is_there() -> None:
    page = PAGE.read_text()
    assert page == counted(page, House.read(ROOT)), "run python -m benchmarks.rooms --write"
