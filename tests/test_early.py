"""Ctrl-C while a command imports what it needs ends it in a line, with the status of an interruption."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs_for_tests import ROOT, environment

INTERRUPTING = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
HOLMES = "import sys\nfrom holmes_hpc.cli import main\nsys.exit(main())\n"


def interrupted(tmp_path: Path, module: str, words: list[str]) -> tuple[int, str]:
    """Run a program that is interrupted as it imports `module`; return its status and stderr."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / f"{module}.py").write_text(INTERRUPTING)
    path = f"{tmp_path / 'first'}:{ROOT}"
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=tmp_path,
                          env=environment() | {"PYTHONPATH": path})
    return done.returncode, done.stderr


@pytest.mark.parametrize(("module", "words", "says"), [
    ("hydra", ["-m", "holmes_hpc.train", "+cluster=laptop"], "holmes: interrupted\n"),
    ("argparse", ["-m", "holmes_hpc.jobs"], "holmes: interrupted\n"),
    ("select", ["holmes", "jobs"], "holmes: interrupted\n"),
    ("hydra", ["holmes", "plan", "+cluster=laptop"], "holmes plan: interrupted\n"),
    ("argparse", ["holmes", "jobs"], "holmes jobs: interrupted\n"),
])
def test_a_command_that_is_interrupted_as_it_begins_says_so(
        tmp_path: Path, module: str, words: list[str], says: str) -> None:
    (tmp_path / "holmes").write_text(HOLMES)
    assert interrupted(tmp_path, module, words) == (130, says)


def test_a_script_that_imports_the_package_keeps_its_own_way(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import holmes_hpc\ntry:\n    import hydra\nexcept KeyboardInterrupt:\n"
                                        "    raise SystemExit(7)\n")
    assert interrupted(tmp_path, "hydra", ["script.py"]) == (7, "")
