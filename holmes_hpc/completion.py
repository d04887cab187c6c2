"""What completes the words of verbs that compose no configuration: their flags, and run folders."""

from __future__ import annotations

import glob
import io
import os
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path

from holmes_hpc.config.folders import default_runs_folder

WITH_RUNS = ("jobs", "cancel", "logs", "compare", "calibrate", "throughput", "report", "sweep", "trace", "top",
             "evaluate", "sample", "export")
"""Verbs whose words are run folders, or folders of published models."""


def completions(verb: str, word: str, main: Callable[[list[str]], int]) -> list[str]:
    """Return what `word` may become after a verb whose program is `main`."""
    if word.startswith("-"):
        return [flag for flag in _flags(main) if flag.startswith(word)]
    return _folders(word) if verb in WITH_RUNS else []


def _flags(main: Callable[[list[str]], int]) -> Sequence[str]:
    """Return the flags of a command as its own help names them."""
    told = io.StringIO()
    with redirect_stdout(told), suppress(SystemExit):
        main(["--help"])
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", told.getvalue())))


def _folders(word: str) -> list[str]:
    """Return the folders and names of runs that begin with a word: of no word the newest runs, first of all."""
    if not word:
        runs = [path for path in default_runs_folder().glob("*/*") if path.is_dir() and not path.is_symlink()]
        return [str(path) for path in sorted(runs, key=lambda path: path.name, reverse=True)]
    start = os.path.expanduser(word)
    found = sorted(path for path in glob.glob(f"{glob.escape(start)}*") if Path(path).is_dir())
    names = {path.parents[1].name for path in default_runs_folder().glob("*/*/config.yaml")}
    return [f"{word}{path[len(start):]}/" for path in found] + sorted(name for name in names if name.startswith(word))
