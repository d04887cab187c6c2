"""What documentation, docstrings and comments name exists: files, modules, and what modules define."""

from __future__ import annotations

import ast
import functools
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs_for_tests import ROOT

CODE = ("holmes_hpc", "analysis", "benchmarks", "hydra_plugins", "tests", "tools")
PAGES = sorted([*ROOT.glob("*.md"), *(path for path in ROOT.joinpath("docs").rglob("*.md")
                                      if "generated" not in path.parts)])  # what `make docs` leaves
SOURCES = sorted(path for folder in CODE for path in ROOT.joinpath(folder).rglob("*.py"))

BASES = [ROOT, *(ROOT / base for base in (
    "holmes_hpc", "holmes_hpc/planner", "holmes_hpc/engine", "holmes_hpc/launch", "docs", "docs/examples", "tests"))]
"""Where a path may begin, beside the folder of what names it."""
ELSEWHERE = {"parallel_state.py", "pipeline_parallel_layer_layout.py", "training/arguments.py",
             "megatron/training/arguments.py", "world_group.py", "out/run.sh"}
"""Files of Megatron-LM, and those that an export for it writes."""

FILE = re.compile(r"(?<![\w/.:*{}<-])((?:[\w-]+/)+[\w.-]*\w\.(?:py|md|yaml|sh)|[a-z_]\w*\.py)\b")
MODULE = re.compile(r"(?<![\w./-])((?:holmes_hpc|analysis|benchmarks|tests|hydra_plugins)"
                    r"(?:\.[a-z_]\w*)+(?:\.[A-Z]\w*)?)")
RELATIVE = re.compile(r"`([a-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`")
NO_MODULES = {"cluster", "data", "model", "parallel", "train", "launch", "schedule", "optimizer", "plan", "config",
              "metrics", "predicted", "run", "site", "jobs", "probe", "sweep", "job", "result"}
"""Groups of settings and fields of a plan: what stands before a dot there is mostly not the module's name."""
OTHERS = {*sys.stdlib_module_names, "torch", "numpy", "hydra", "parallel_state", "embedding", "layers"}
"""Modules of others, and the units of a model."""
ENDINGS = {"py", "json", "jsonl", "yaml", "md", "log", "sh", "j2", "conf", "html", "png", "txt"}


def test_every_file_that_a_text_names_exists() -> None:
    missing = [f"{place}: {name}" for place, text in _texts() for name in FILE.findall(text)
               if name not in ELSEWHERE and not Path(name).stem.isupper()  # such as conf/parallel/NAME.yaml
               and not _is_file(name, ROOT / place.partition(":")[0])]
    assert not missing, "\n".join(missing)


def test_every_module_that_a_text_names_exists() -> None:
    missing = [f"{place}: {name}" for place, text in _texts() for name in MODULE.findall(text)
               if name != "benchmarks.md" and not _is_defined(name)]  # which is a page beside the package
    assert not missing, "\n".join(missing)


def test_every_neighbour_that_a_docstring_names_exists() -> None:
    """A text may leave the beginning of a name out: `flops.forward_flops`. Pages name settings in the same way."""
    missing = [f"{place}: {name}" for place, text in _texts() for name in RELATIVE.findall(text)
               if _is_relative(name, in_page=".md:" in place) and not _is_defined_somewhere(name)]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(("text", "pattern"), [
    ("see `planner/nowhere.py`", FILE), ("(docs/nowhere.md)", FILE), ("nowhere.py, line 3", FILE)])
def test_a_missing_file_is_found(text: str, pattern: re.Pattern[str]) -> None:
    assert [name for name in pattern.findall(text) if not _is_file(name, ROOT / "docs" / "planner.md")]


def test_a_missing_name_is_found() -> None:
    assert not _is_defined("holmes_hpc.planner.nowhere") and not _is_defined("holmes_hpc.planner.making.nowhere")
    assert _is_defined("holmes_hpc.planner.plan") and _is_defined("holmes_hpc.values.Plan.from_json")
    assert _is_relative("flops.nowhere") and not _is_defined_somewhere("flops.nowhere")
    assert _is_defined_somewhere("flops.forward_flops") and _is_relative("folding.fold")
    assert not _is_relative("plan.json") and not _is_relative("torch.float32") and not _is_relative("parallel.tensor")


@functools.cache
def _texts() -> tuple[tuple[str, str], ...]:
    """Return every line of the pages, and of the sources' comments and docstrings, with its place."""
    found = [(f"{path.relative_to(ROOT)}:{number}", line) for path in PAGES
             for number, line in enumerate(path.read_text().splitlines(), start=1)]
    return (*found, *((f"{path.relative_to(ROOT)}:{number}", line) for path in SOURCES
                      for number, line in _spoken(path)))


def _spoken(path: Path) -> Iterator[tuple[int, str]]:
    source = path.read_text()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from enumerate(node.value.value.splitlines(), start=node.lineno)


def _is_file(name: str, place: Path) -> bool:
    """Say whether a file is there: by its path, or, where no folder is named, by its name alone."""
    return any((base / name).exists() for base in (*BASES, place.parent)) or (
        "/" not in name and any(path.name == name for path in SOURCES))


def _is_defined(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = _module(ROOT.joinpath(*parts[:length]))
        if module is not None:
            return length == len(parts) or parts[length] in _names(module)
    return False


def _is_relative(name: str, *, in_page: bool = False) -> bool:
    """Say whether a dotted name is one of ours. In a page only those are that begin with a module's name."""
    first, last = name.split(".")[0], name.rpartition(".")[2]
    ours = (first in _modules() or not in_page) and first not in OTHERS | NO_MODULES
    return ours and last not in ENDINGS


def _is_defined_somewhere(name: str) -> bool:
    parts = name.split(".")
    return any(_is_defined(".".join((*path.relative_to(ROOT).with_suffix("").parts, *parts[1:])))
               for path in _modules().get(parts[0], ()))


@functools.cache
def _modules() -> dict[str, list[Path]]:
    """Return the modules and folders of modules by their own name."""
    found: dict[str, list[Path]] = {}
    for path in SOURCES:
        where = path.parent if path.name == "__init__.py" else path
        found.setdefault(where.stem, []).append(where)
    return found


def _module(path: Path) -> Path | None:
    if path.is_dir():
        return path
    return path.with_suffix(".py") if path.with_suffix(".py").exists() else None


@functools.cache
def _names(module: Path) -> frozenset[str]:
    """Return what a module, or a folder of modules, has by name."""
    found: set[str] = set()
    source = module / "__init__.py" if module.is_dir() else module
    if module.is_dir():
        found |= {path.stem for path in module.iterdir()}
    if source.exists():
        for node in ast.walk(ast.parse(source.read_text())):
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.Name(id=name, ctx=ast.Store()):
                    found.add(name)
                case ast.ImportFrom(names=names) | ast.Import(names=names):
                    found |= {alias.asname or alias.name for alias in names}
                case ast.Constant(value=str(name)):
                    found.add(name)  # such as those that a module gets for whoever asks
    return frozenset(found)
