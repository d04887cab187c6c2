"""Programs that print what a test says and write down how they were called, in place of Slurm's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


def printing_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return what makes a program of a name that prints a text, and returns the file of its calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name: str, text: str, status: int = 0) -> Path:
        (tmp_path / f"{name}.text").write_text(text)
        calls = tmp_path / f"{name}.calls"
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "$*" >> {calls}\ncat {tmp_path}/{name}.text\nexit {status}\n')
        program.chmod(0o755)
        return calls

    return make
