"""The folder of a run's checkpoints: how they are named, found, made whole, and removed. Needs no torch.

    step-000010                   a checkpoint; it has this name only when all of it is on disk
    .step-000010.TOKEN.partial    one that is being written
    .step-000010.TOKEN.old        one that a new checkpoint of the same step is taking the place of
    .step-000010.TOKEN.removed    one that is being removed
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from holmes_hpc.checkpoint.index import INDEX_NAME, read_index
from holmes_hpc.errors import CheckpointError
from holmes_hpc.paths import at_home

_COMPLETE = re.compile(r"step-(\d{6,})")
_MOST_LOOKS = 5
_HIDDEN = re.compile(r"\.step-(\d{6,})\.\w+\.(partial|old|removed)")


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of the complete checkpoint of a step."""
    return folder / f"step-{step:06d}"


def partial_path(folder: Path, step: int, token: str) -> Path:
    """Return the path of the checkpoint of a step while the attempt called `token` writes it."""
    return _hidden(checkpoint_path(folder, step), token, "partial")


def newest_first(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, whole or not, the newest first; [] where there is no folder."""
    found = [(step, path) for step, path in _matching(folder, _COMPLETE)]
    return [path for _, path in sorted(found, reverse=True)]


def candidates(path: Path) -> list[Path]:
    """Return the checkpoints that `path` names, the newest first: a checkpoint itself, or all of a run folder.

    [] where it names none.
    """
    path = at_home(path).absolute()
    if (path / INDEX_NAME).exists() or _COMPLETE.fullmatch(path.name):
        return [path] if path.is_dir() else []
    return newest_first(path / "checkpoints") or newest_first(path)


def looking_again(look: Callable[[], Sequence[Path]]) -> Iterator[Path]:
    """Yield the checkpoints that `look` finds; once all were tried, those that are new where a tried one has gone.

    A run that goes on saving removes older checkpoints, also while they are read. Ask for the next only when the one
    before could not be used. Raises OSError as the first look does.
    """
    tried: list[Path] = []
    found = look()
    for _ in range(_MOST_LOOKS):
        for path in found:
            tried.append(path)
            yield path
        if all(path.exists() for path in tried):
            return
        try:
            found = [path for path in look() if path not in tried]
        except OSError:
            return


def publish(partial: Path, step: int, token: str) -> Path:
    """Give the checkpoint in `partial`, whose files are all on disk, its name, in place of an older one of that step.

    Raises OSError.
    """
    final = checkpoint_path(partial.parent, step)
    old = _hidden(final, token, "old")
    if final.exists():
        final.rename(old)
    partial.rename(final)
    sync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)
    return final


def remove_older(folder: Path, step: int, keep: int, token: str) -> list[Path]:
    """Remove checkpoints up to `step`, all but the newest `keep`; return those that could not be removed.

    Later ones, which a resume has refused, are not counted: the run replaces them when it gets there.
    """
    stuck = []
    found = sorted((s, path) for s, path in _matching(folder, _COMPLETE) if s <= step)
    for _, path in found[:-keep]:
        removed = _hidden(path, token, "removed")
        try:
            path.rename(removed)
            shutil.rmtree(removed)
        except OSError:
            stuck.append(path)
    return stuck


def tidy(folder: Path) -> list[Path]:
    """Clear away what ended writers left; return the checkpoints that were whole but had not got their name.

    Only the one run that writes into `folder` may call it. Raises OSError.
    """
    rescued = []
    for kind in ("partial", "old", "removed"):
        for step, path in list(_matching(folder, _HIDDEN)):
            if not path.name.endswith(f".{kind}"):
                continue
            final = checkpoint_path(folder, step)
            if kind != "removed" and not final.exists() and _is_whole(path):
                path.rename(final)
                rescued.append(final)
            else:
                shutil.rmtree(path)
    return rescued


def probe(folder: Path, token: str) -> None:
    """Make and remove a folder in `folder`, as a save will. Raises OSError where that is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".probe.{token}"
    path.mkdir()
    path.rmdir()


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to disk, on file systems that can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hidden(path: Path, token: str, kind: str) -> Path:
    return path.with_name(f".{path.name}.{token}.{kind}")


def _matching(folder: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, Path]]:
    try:
        paths = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in paths:
        match = pattern.fullmatch(path.name)
        if match:
            yield int(match[1]), path


def _is_whole(path: Path) -> bool:
    try:
        read_index(path)
    except CheckpointError:
        return False
    return True
