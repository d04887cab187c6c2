"""sweep.json: the runs of a sweep, written as they are made, so that whoever is interrupted can go on."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from omegaconf import OmegaConf

from holmes_hpc.config.kept import read_kept
from holmes_hpc.config.places import text_to_keep
from holmes_hpc.errors import ConfigurationError, LaunchImpossibleError
from holmes_hpc.foreign import read_object, whole_number
from holmes_hpc.paths import at_home
from holmes_hpc.quoting import for_shell
from holmes_hpc.runs.files import storage_error, write_json_atomic, write_text_atomic
from holmes_hpc.runs.find import SWEEP_FILE, is_run_path
from holmes_hpc.runs.folder import RunFolder
from holmes_hpc.runs.lease import LEASE_SECONDS, HeldError, Lease, LeasedError, held, is_renewed, lease_path
from holmes_hpc.runs.private import check_own, is_own
from holmes_hpc.runs.result import read_result

LOG = logging.getLogger(__name__)

_ONLY_HERE = ("wait", "max_jobs", "new_sweep", "dry_run")
"""Settings of `launch` that change nothing of the runs: with others a command goes on with the same sweep."""


@dataclass
class Sweep:
    """A sweep in its folder: the overrides of each run, and the run folders made so far.

    The configurations lie beside, each as the `config.yaml` of a folder below `configs/`, for the user alone.
    """

    place: Path
    words: list[str]
    fingerprint: str
    folders: dict[int, RunFolder] = field(default_factory=dict)
    max_jobs: int | None = None
    """how many of its jobs may run at a time, as the command that submitted last was told"""
    for_room: bool = False
    """whether runs wait for room in the queue, and are submitted as jobs end, by these jobs too"""

    @classmethod
    def begin(cls, place: Path, configs: Sequence[Any], words: Sequence[str]) -> Sweep:
        """Make a sweep in a new folder. Raises as `storage_error` says."""
        sweep = cls(place, list(words), fingerprint(configs, words))
        for number, config in enumerate(configs):
            path = sweep._config_path(number)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise storage_error(place, error) from error
            write_text_atomic(path, text_to_keep(config))
        sweep.save()
        return sweep

    @classmethod
    def read(cls, place: Path) -> Sweep | None:
        """Return the sweep in a folder; None where there is none, a damaged one, or one that was written at its end."""
        kept = read_object(place / SWEEP_FILE) or {}
        words, numbers, runs = kept.get("words"), kept.get("numbers"), kept.get("runs")
        if not (_is_list(words, str) and words and _are_numbers(numbers, len(words)) and isinstance(runs, list)
                and all(map(is_run_path, runs)) and len(runs) == len(numbers)):
            return None
        return cls(place, words, str(kept.get("fingerprint")),
                   {number: RunFolder(Path(run)) for number, run in zip(numbers, runs, strict=True)},
                   whole_number(kept.get("max_jobs"), 1), kept.get("for_room") is True)

    def save(self) -> None:
        """Write the file. Raises as `storage_error` says."""
        numbers = sorted(self.folders)
        write_json_atomic(self.place / SWEEP_FILE, {
            "fingerprint": self.fingerprint, "words": self.words, "numbers": numbers,
            "runs": [str(self.folders[number].path) for number in numbers],
            "overrides": [self.words[number] for number in numbers],
            "max_jobs": self.max_jobs, "for_room": self.for_room})

    def configs(self) -> list[Any]:
        """Return the configuration of every run.

        Raises ConfigurationError where one is missing, or others could have written it: its plug-ins run as this user.
        """
        paths = [self._config_path(number) for number in range(len(self.words))]
        missing = [path for path in paths if not path.is_file()]
        if missing:
            raise ConfigurationError(f"{missing[0]} is missing, so this sweep cannot go on; start it anew")
        for folder in (self.place, self.place / "configs", *(path.parent for path in paths)):
            check_own(folder)
        return [read_kept(path, LOG.info if number == 0 else lambda text: None)  # each lacks the same settings
                for number, path in enumerate(paths)]

    @property
    def completed(self) -> bool:
        """Whether every run is complete."""
        return len(self.folders) == len(self.words) and all(
            (read_result(folder) or {}).get("status") == "completed" for folder in self.folders.values())

    @property
    def waiting(self) -> list[int]:
        """The runs that have a folder and no job, and that nobody cancelled."""
        return [number for number, folder in self.folders.items()
                if not folder.job_path.exists() and not folder.result_path.exists()]

    @property
    def submitting(self) -> Path:
        """What a command holds while it submits runs of the sweep (`lease.held`)."""
        return self.place / "submitting"

    @contextmanager
    def alone(self, *, stays: bool = True, wait_seconds: float = 0.0) -> Iterator[Lease]:
        """Hold the sweep for one command, so that no two submit its runs. Raises LaunchImpossibleError.

        `stays`: the command follows the sweep and submits what is left of it; another one is waited for at most so
        long. One that was killed on another machine is waited for until its lease is over.
        """
        with ExitStack() as stack:
            try:
                try:
                    lease = stack.enter_context(held(self.submitting, wait_seconds, stays=stays))
                except LeasedError as error:
                    LOG.info("%s held the sweep a moment ago; waiting for up to %g s, in case it was killed", error,
                             LEASE_SECONDS)
                    if is_renewed(lease_path(self.submitting)):
                        raise
                    lease = stack.enter_context(held(self.submitting, stays=stays))
            except HeldError as error:
                raise LaunchImpossibleError(f"another command submits the runs of {self.place} now ({error}); `holmes "
                                            f"jobs {for_shell(str(self.place))} --watch` shows them") from error
            except OSError as error:
                raise storage_error(self.submitting, error) from error
            yield lease

    def _config_path(self, number: int) -> Path:
        return self.place / "configs" / str(number) / "config.yaml"


def sweep_of(folder: RunFolder) -> Sweep | None:
    """Return the sweep that a submitted run belongs to; None where it belongs to none."""
    place = (read_object(folder.job_path) or {}).get("sweep")
    return Sweep.read(Path(place)) if isinstance(place, str) else None


def sweep_named(name: str, base: Path) -> Sweep | None:
    """Return the sweep in the folder `name`, or in that folder below `base`; None where neither holds one."""
    return next((sweep for place in (at_home(name), base / name, base / "sweeps" / name)
                 if (sweep := Sweep.read(place.absolute()))), None)


def find_sweep(base: Path, wanted: str) -> Sweep | None:
    """Return the newest sweep below `base` with this fingerprint that is not complete; None where there is none."""
    places = sorted((path.parent for path in base.glob(f"*/{SWEEP_FILE}")), key=lambda place: place.name, reverse=True)
    newest = next((sweep for place in places
                   if is_own(place) and (sweep := Sweep.read(place)) and sweep.fingerprint == wanted), None)
    return None if newest is None or newest.completed else newest


def fingerprint(configs: Sequence[Any], words: Sequence[str]) -> str:
    """Return a digest of what the runs of a sweep are, whoever waits for them."""
    digest = hashlib.sha256()
    for config, text in zip(configs, words, strict=True):
        plain = OmegaConf.to_container(config)
        launch = plain.get("launch") if isinstance(plain, dict) else None
        if isinstance(plain, dict) and isinstance(launch, Mapping):
            plain["launch"] = {name: value for name, value in launch.items() if name not in _ONLY_HERE}
        digest.update(f"{text}\n{OmegaConf.to_yaml(OmegaConf.create(plain))}\n".encode())
    return digest.hexdigest()[:32]


def _is_list(value: Any, kind: type) -> TypeGuard[list[Any]]:
    return isinstance(value, list) and all(isinstance(each, kind) for each in value)


def _are_numbers(value: Any, count: int) -> TypeGuard[list[int]]:
    """Say whether a value is a list of runs' numbers, each once, of so many."""
    return (_is_list(value, int) and len(set(value)) == len(value)
            and all(whole_number(number, 0, count - 1) is not None for number in value))
