"""Runs the main command as a user would, in a process of its own or a warm one, and reads what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.warm_commands import ROOT, WarmCommands

WARM = WarmCommands()
"""Whose commands all tests of this process share."""


@dataclass(frozen=True)
class Finished:
    """A finished command: its status, what it printed, and the run folder where there is one."""

    status: int
    stdout: str
    stderr: str
    folder: Path | None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl."""
        assert self.folder is not None, self.stderr
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def plan(self) -> dict[str, Any]:
        """The plan's JSON."""
        assert self.folder is not None, self.stderr
        return json.loads((self.folder / "plan.json").read_text())

    @property
    def result(self) -> dict[str, Any]:
        """The content of result.json."""
        assert self.folder is not None, self.stderr
        return json.loads((self.folder / "result.json").read_text())


def open_to_all(folder: Path) -> None:
    """Let every user enter a folder that pytest made."""
    for each in (folder, *folder.parents):
        if each == Path(tempfile.gettempdir()):
            return
        each.chmod(each.stat().st_mode | 0o055)


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Access files as an ordinary user meanwhile, where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def environment() -> dict[str, str]:
    """Return the environment of a run: one thread a process, this checkout first."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "120"}


def command(verb: str, overrides: list[str]) -> list[str]:
    """Return the command line of a verb; a run draws no pictures at its end unless the overrides ask for them."""
    plain = ["run.pictures=false"] if verb == "train" and any("+cluster=" in text for text in overrides) else []
    return [sys.executable, "-m", f"holmes_hpc.{verb}", *plain, *overrides]


def run(cwd: Path, verb: str, overrides: list[str], timeout: float = 480) -> Finished:
    """Run a verb in `cwd` to its end: as this process's user, or one whose rights it has taken meanwhile."""
    if os.geteuid() == os.getuid():
        done = WARM.run(f"holmes_hpc.{verb}", overrides, cwd, environment(), timeout)
    else:
        done = subprocess.run(command(verb, overrides), cwd=cwd, env=environment(), capture_output=True, text=True,
                              timeout=timeout, stdin=subprocess.DEVNULL, check=False)
    return Finished(done.returncode, done.stdout, done.stderr, newest_run(cwd))


def train(cwd: Path, overrides: list[str], timeout: float = 480) -> Finished:
    """Train to the end, without pictures unless the overrides ask for them; the run must complete."""
    finished = run(cwd, "train", ["run.pictures=false", *overrides], timeout)
    assert finished.status == 0, finished.stderr[-3000:]
    return finished


def newest_run(cwd: Path) -> Path | None:
    """Return the newest run folder below `cwd`, None when there is none."""
    found = sorted((cwd / "runs").glob("*/*/config.yaml"), key=lambda path: path.stat().st_mtime)
    return found[-1].parent.resolve() if found else None  # not the link slurm-ID to it
