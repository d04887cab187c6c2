"""The layout of a run folder: `<base>/<run name>/<id>/` and the names in it."""

from __future__ import annotations

import secrets
import shutil
import string
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holmes_hpc.errors import ConfigurationError, HolmesError
from holmes_hpc.paths import at_home, is_folder, is_there
from holmes_hpc.runs.files import storage_error, write_json_atomic, write_text_atomic
from holmes_hpc.runs.metrics import MetricsWriter
from holmes_hpc.runs.place import check_name, missing_folders
from holmes_hpc.runs.private import open_folder

__all__ = ["RunFolder", "new_run_id", "write_json_atomic"]

_RANDOM_CHARACTERS = string.ascii_lowercase + string.digits


@dataclass(frozen=True)
class RunFolder:
    """One run on disk; the attributes name its files, which may not exist yet."""

    path: Path

    @classmethod
    def create(cls, base: Path, name: str, files: Mapping[str, str] | None = None, *,
               group_readable: bool = False) -> RunFolder:
        """Make a new run folder with its sub-folders and its first `files`, text by name, in this order, and return it.

        Nobody but the user may look into it; with `group_readable` the group may read the results. Raises
        ConfigurationError for a name that is no single folder name or a place that cannot be written, and
        RunFailedError where the disk is full; then nothing that was made stays.
        """
        check_name(name)
        parent = at_home(base, "run.folder").absolute() / name
        made: list[Path] = []
        path = None
        try:
            made = missing_folders(parent)
            for each in reversed(made):
                each.mkdir(0o775, exist_ok=True)  # others could put another run in a run's place
            folder = cls(path := _make_unique(parent))
            for file, text in (files or {}).items():
                folder.write_text(folder.path / file, text)
            for part in (folder.ranks, folder.logs, folder.checkpoints):
                part.mkdir()
                open_folder(part, to_group=group_readable)
            open_folder(folder.path, to_group=group_readable)
        except (OSError, HolmesError) as error:
            _remove(path, made)
            if isinstance(error, OSError):
                raise storage_error(Path(error.filename or parent), error) from error
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return the run folder at `path`; raises ConfigurationError where there is none or it may not be searched."""
        folder = cls(at_home(path).absolute())
        if not is_folder(folder.path):
            raise ConfigurationError(f"{folder.path} is no run folder: it does not exist; name a folder "
                                     f"such as runs/mixed/{new_run_id()}")
        if not any(is_there(known) for known in (folder.config_path, folder.job_path, folder.metrics_path,
                                                folder.result_path, folder.ranks)):
            raise ConfigurationError(f"{folder.path} is no run folder: it has neither config.yaml nor "
                                     f"job.json; name the folder of one run, two levels below run.folder")
        return folder

    @property
    def id(self) -> str:
        """The run's id: the UTC time of its start and four random characters."""
        return self.path.name

    @property
    def name(self) -> str:
        """The run's name (`run.name`)."""
        return self.path.parent.name

    @property
    def config_path(self) -> Path:
        """The composed configuration."""
        return self.path / "config.yaml"

    @property
    def plan_path(self) -> Path:
        """The newest plan."""
        return self.path / "plan.json"

    @property
    def job_path(self) -> Path:
        """Which processes and which Slurm job belong to the run."""
        return self.path / "job.json"

    @property
    def metrics_path(self) -> Path:
        """One object for each step."""
        return self.path / "metrics.jsonl"

    @property
    def result_path(self) -> Path:
        """How the run ended; missing while it runs."""
        return self.path / "result.json"

    @property
    def ranks(self) -> Path:
        """The folder of the ranks' timelines and errors."""
        return self.path / "ranks"

    @property
    def logs(self) -> Path:
        """The folder of the ranks' output."""
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    def log_path(self, rank: int) -> Path:
        """Return the file of a rank's output and error output."""
        return self.logs / f"rank-{rank}.log"

    @property
    def notes_path(self) -> Path:
        """The file of what ranks say to whoever follows the run."""
        return self.logs / "notes.log"

    def timeline_path(self, rank: int) -> Path:
        """Return the file of a rank's measured actions."""
        return self.ranks / f"rank-{rank}.jsonl"

    def rank_error_path(self, rank: int) -> Path:
        """Return the file in which a rank that fails says why."""
        return self.ranks / f"rank-{rank}.error.json"

    def beat_path(self, rank: int) -> Path:
        """Return the file in which a rank gives signs of life."""
        return self.ranks / f"rank-{rank}.beat"

    def restart_plan_path(self, restart: int) -> Path:
        """Return the file of the plan that the run made at its restart with this number (from 1 on)."""
        return self.path / f"plan-{restart}.json"

    @property
    def probe_path(self) -> Path:
        """The links, and the model's layers, as they were measured."""
        return self.path / "probe.json"

    def profile_path(self, rank: int) -> Path:
        """The model's layers as one rank timed them, before `probe.json` has them all."""
        return self.path / f"profile-{rank}.json"

    @property
    def starts(self) -> Path:
        """The folder of what the ranks of each start of a Slurm job told each other."""
        return self.path / "starts"

    @property
    def excluded_path(self) -> Path:
        """The nodes that the job goes without from its next start on."""
        return self.path / "excluded.json"

    @property
    def rendezvous_path(self) -> Path:
        """Where rank 0 says how to reach it."""
        return self.path / "rendezvous.json"

    def forget_attempt(self) -> None:
        """Remove what the last attempt of a run that goes on left for its own ranks and readers."""
        for path in (self.rendezvous_path, self.result_path, *self.ranks.glob("rank-*.error.json"),
                     *self.ranks.glob("rank-*.beat")):
            path.unlink(missing_ok=True)

    def write_json(self, path: Path, value: Any) -> None:
        """Write a JSON file of this run whole; raises as `files.storage_error` says."""
        write_json_atomic(path, value)

    def write_text(self, path: Path, text: str) -> None:
        """Write a text file of this run whole; raises as `files.storage_error` says."""
        write_text_atomic(path, text)

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Append one step to metrics.jsonl; raises as `files.storage_error` says."""
        with MetricsWriter(self.metrics_path) as writer:
            writer.write(record)

    def append_timeline(self, rank: int, records: Sequence[Mapping[str, Any]]) -> None:
        """Append a rank's actions of a step to its timeline, all or none; raises as `files.storage_error` says."""
        path = self.timeline_path(rank)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(path.parent, error) from error
        with MetricsWriter(path) as writer:
            writer.write(*records)


def new_run_id() -> str:
    """Return an id such as 20261129-201530-x7k2, which sorts by time."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{''.join(secrets.choice(_RANDOM_CHARACTERS) for _ in range(4))}"


def _remove(path: Path | None, made: list[Path]) -> None:
    """Remove a run folder and those of the folders `made` for it that hold nothing else, the innermost first."""
    if path is not None:
        shutil.rmtree(path, ignore_errors=True)
    for folder in made:
        with suppress(OSError):
            folder.rmdir()


def _make_unique(parent: Path) -> Path:
    while True:
        path = parent / new_run_id()
        try:
            path.mkdir(0o700)
        except FileExistsError:
            continue
        return path
