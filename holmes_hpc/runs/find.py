"""Finds runs by what a user has at hand: a folder, a job id, a run's id or name, a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

from holmes_hpc.errors import ConfigurationError
from holmes_hpc.paths import at_home, is_listed, is_there
from holmes_hpc.runs.files import read_json
from holmes_hpc.runs.folder import RunFolder

SWEEP_FILE = "sweep.json"
"""In the folder of a sweep: its runs and their overrides."""


def find_runs(texts: Sequence[str], base: Path) -> list[RunFolder]:
    """Return the runs that `texts` name, oldest first, each once; all runs below `base` where there are none.

    A text is a run folder, a folder of runs or of a sweep, or below `base` a job id, a run's id or a run's name.
    Raises ConfigurationError for a text that names no run, and for folders that may not be read.
    """
    is_listed(base)
    if not texts:
        return _runs_below(base, "*/*")
    found: dict[Path, RunFolder] = {}
    for text in texts:
        runs = _named(text, base)
        if not runs:
            raise ConfigurationError(
                f"{text}: no run has this folder, job id, id or name; looked in {base.absolute()} too (--folder "
                "names another), where the runs are " + (", ".join(_names(base)) or "none"))
        found |= {folder.path: folder for folder in runs}
    return list(found.values())


def find_run(text: str, base: Path) -> RunFolder:
    """Return the newest run that `text` names. Raises ConfigurationError as `find_runs` does."""
    return max(find_runs([text], base), key=lambda folder: folder.id)


def refuse_two(text: str, base: Path) -> None:
    """Raise ConfigurationError where `text` is a folder here and a run below `base` too, and so could mean either."""
    here = at_home(text)
    if "/" in text or not is_listed(here) or here.resolve() == (base / text).resolve():
        return
    runs = _in_folder((base / text).resolve()) if is_listed(base / text) else []
    if runs:
        raise ConfigurationError(f"{text} is a folder here, {here.absolute()}, and the name of runs in "
                                 f"{base.absolute()}: write ./{text} for the folder, or {base / text} for the newest "
                                 "of the runs")


def _named(text: str, base: Path) -> list[RunFolder]:
    for path in (at_home(text), base / text):
        if is_listed(path) and (runs := _in_folder(path.resolve())):
            return runs  # a folder without any, such as of data, hides no run of its name
    linked = sorted(base.glob(f"*/slurm-{text}")) if text.replace("_", "").isdigit() else []
    if linked:
        return [RunFolder(path.resolve()) for path in linked]
    return [RunFolder(path) for path in base.glob(f"*/{text}") if (path / "config.yaml").exists()] \
        if "/" not in text and text not in ("", ".", "..") and not set(text) & set("*?[") else []


def _in_folder(path: Path) -> list[RunFolder]:
    if is_there(path / "config.yaml") or is_there(path / "job.json"):
        return [RunFolder(path)]
    sweep = read_json(path / SWEEP_FILE)
    if isinstance(sweep, dict):
        runs = sweep.get("runs")
        return [RunFolder(Path(run)) for run in runs if is_run_path(run)] if isinstance(runs, list) else []
    return _runs_below(path, "*") or _runs_below(path, "*/*")


def is_run_path(value: Any) -> TypeGuard[str]:
    """Say whether a value of a sweep's file is a folder as it is written there: a whole path."""
    return isinstance(value, str) and value.startswith("/") and value.isprintable()


def _runs_below(base: Path, pattern: str) -> list[RunFolder]:
    found = [path.parent for path in base.glob(f"{pattern}/config.yaml") if not path.parent.is_symlink()]
    return [RunFolder(path.absolute()) for path in sorted(found, key=lambda path: path.name)]


def _names(base: Path) -> list[str]:
    return sorted({folder.name for folder in _runs_below(base, "*/*")})
