"""The tables of faults in the documentation: every row names a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.runs_for_tests import ROOT

TABLES = (ROOT / "docs" / "faults.md", ROOT / "docs" / "slurm.md")
_TEST = re.compile(r"(test_\w+\.py)(?:::(test_\w+))?")


def rows() -> list[list[str]]:
    """Return the cells of every row of the tables whose first column is headed `fault`, heads and rules left out."""
    found, counted = [], False
    for line in (line for table in TABLES for line in table.read_text().splitlines()):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        if not line.startswith("|"):
            counted = False
        elif cells[0] == "fault":
            counted = True
        elif counted and not set(cells[0]) <= {"-"}:
            found.append(cells)
    return found


def functions_of(path: Path) -> set[str]:
    """Return the names of the test functions in a file."""
    return {node.name for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_promise_of_security_names_tests_that_exist() -> None:
    named = _TEST.findall((ROOT / "docs" / "security.md").read_text())
    assert len(named) >= 10
    for file, test in named:
        assert test in functions_of(ROOT / "tests" / file), f"{file}::{test} does not exist"


def test_every_row_says_what_happens_and_names_tests_that_exist() -> None:
    assert len(rows()) > 20
    for row in rows():
        assert len(row) == 3, f"three cells: {row}"
        fault, happens, _ = row
        assert fault and happens, row
        named = _TEST.findall(row[2])
        assert named, f"no test: {row}"
        for file, test in named:
            assert (ROOT / "tests" / file).is_file(), f"{file} of {fault!r} does not exist"
            assert not test or test in functions_of(ROOT / "tests" / file), f"{file}::{test} does not exist"
