"""code.json: which code a run was submitted with, and what of it a job that starts later finds changed.

A job waits, and imports the live checkout when it starts: an edit in between changes a run that nobody meant to change.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holmes_hpc import __version__
from holmes_hpc.bounded import TooMuchOutputError, run_bounded
from holmes_hpc.foreign import ForeignError, read_bytes, read_object
from holmes_hpc.runs.folder import RunFolder
from holmes_hpc.runs.job import git_state

CODE_FILE, DIFF_FILE = "code.json", "code.diff"
_PACKAGE = Path(__file__).resolve().parents[1]
_MOST_DIFF_BYTES = 4 * 2**20
_GIT_SECONDS = 20.0
_MOST_NAMES = 3


def code_root() -> Path:
    """Return the folder that holds the package which runs now: a checkout, or where packages are installed."""
    return _PACKAGE.parent


@dataclass(frozen=True)
class Code:
    """The code of a submission: what code.json holds, and the changes against the commit as `git diff` prints them."""

    record: dict[str, Any]
    diff: str | None

    @classmethod
    def now(cls, plugins: Iterable[str] = ()) -> Code:
        """Return the code that this process runs, with the files of `plugins` that are named by their paths."""
        root = code_root()
        own = [str(path) for path in plugins if str(path).endswith(".py")]
        git = git_state(root)
        return cls({"version": __version__, "root": str(root), "git": git, "files": digests(_PACKAGE),
                    "plugins": {path: _digest(Path(path)) for path in own}},
                   _diff(root) if git is not None and git["changed"] else None)

    def keep(self, folder: RunFolder) -> None:
        """Write it into a run folder."""
        folder.write_json(folder.path / CODE_FILE, self.record)
        if self.diff is not None:
            folder.write_text(folder.path / DIFF_FILE, self.diff)


def other_code(folder: RunFolder) -> str | None:
    """Return in words how the code of this process differs from that of the run's submission; None where it does not.

    None too where the run folder does not say, as that of an earlier release.
    """
    kept = read_object(folder.path / CODE_FILE)
    files = kept.get("files") if kept is not None else None
    if kept is None or not isinstance(files, dict):
        return None
    now = digests(_PACKAGE)
    changed = sorted(name for name in files.keys() | now.keys() if files.get(name) != now.get(name))
    plugins = kept.get("plugins")
    changed += [path for path, digest in (plugins if isinstance(plugins, dict) else {}).items()
                if _digest(Path(path)) != digest]
    if not changed:
        return None
    shown = ", ".join(changed[:_MOST_NAMES]) + (f" and {len(changed) - _MOST_NAMES} more"
                                                if len(changed) > _MOST_NAMES else "")
    version = f"version {kept.get('version')} then, {__version__} now; " if kept.get("version") != __version__ else ""
    return f"{version}{code_root()} differs in {shown}"


def digests(package: Path) -> dict[str, str]:
    """Return the digest of every Python file of a package by its path in it."""
    return {str(path.relative_to(package)): _digest(path) for path in sorted(package.rglob("*.py"))}


def git_output(root: Path, *words: str) -> bytes | None:
    """Return what git prints for a folder; None where it fails, is missing, takes too long or has no end."""
    try:
        done = run_bounded(["git", "--no-optional-locks", "-C", str(root), *words], _GIT_SECONDS,
                           env={**os.environ, "GIT_PAGER": "cat"})
    except (OSError, subprocess.TimeoutExpired, TooMuchOutputError):
        return None
    return done.output if done.status == 0 else None


def listed_files(root: Path, *, untracked: bool) -> list[str] | None:
    """Return the tracked files below a folder, or those that git would track; None where it is no git repository."""
    which: Sequence[str] = ("--others", "--exclude-standard") if untracked else ("--cached",)
    listed = git_output(root, "ls-files", "-z", *which)
    return None if listed is None else [os.fsdecode(name) for name in listed.split(b"\0") if name]


def _diff(root: Path) -> str | None:
    diff = git_output(root, "diff", "--no-ext-diff", "HEAD")
    if diff is None:
        return None
    cut = "" if len(diff) <= _MOST_DIFF_BYTES else f"\n(cut after {_MOST_DIFF_BYTES:,} bytes)\n"
    return diff[:_MOST_DIFF_BYTES].decode(errors="replace") + cut


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()[:16]
    except ForeignError:
        return "unreadable"
