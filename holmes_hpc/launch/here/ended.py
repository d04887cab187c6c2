"""What a run on this machine leaves behind when it ends early: clears it away, and says how to go on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holmes_hpc.checkpoint.index import Index, read_index
from holmes_hpc.checkpoint.naming import newest_first, tidy
from holmes_hpc.errors import CheckpointError, HolmesError
from holmes_hpc.foreign import ForeignError, number, read_yaml
from holmes_hpc.launch.here.apart import NoAnswerError, apart
from holmes_hpc.launch.here.resume import WORDS
from holmes_hpc.quoting import for_shell
from holmes_hpc.runs import RunFolder, last_metrics, write_result

LOG = logging.getLogger(__name__)

RESERVE, RESERVED_BYTES = ".reserve", 16384
"""A file that keeps space for the result until the run has ended."""
_FAILED_SECONDS = 30.0
"""How long the result of a run that failed may take to be written."""


@dataclass(frozen=True)
class RunEnd:
    """Writes how a run ended, all of whose processes are gone, into the space that was kept for it.

    So a full disk cannot hide it. A file system that does not answer for `seconds` holds nobody.
    """

    folder: RunFolder
    emulated: bool
    seconds: float
    others_held_cores: float | None = None
    """as `write_result` takes it"""

    def write(self, status: str, error: Callable[[], str | None], known: str | None = None) -> tuple[str | None, bool]:
        """Write the result; return the error, and with it how to go on, and whether the run's end is as it should be.

        `error` may read the folder; `known` is what of it is known without.
        """
        seconds = self.seconds if status == "completed" else min(self.seconds, _FAILED_SECONDS)
        try:
            said = apart(lambda: self._write(status, error()), seconds)
            return said, status != "completed" or said is None
        except (NoAnswerError, RuntimeError) as failed:
            cause = f"{known}; " if known else ""
            why = f"did not answer for {seconds:.0f} s" if isinstance(failed, NoAnswerError) else "could not be written"
            return f"{cause}the run folder {self.folder.path} {why}, so its result was not written", False

    def _write(self, status: str, error: str | None) -> str | None:
        if not self.folder.path.exists():
            return error or f"the run folder {self.folder.path} was removed while the run went on"
        clear_ended(self.folder)
        if error is not None:
            error = with_way_on(self.folder, error)
        try:
            write_result(self.folder, status=status, error=error, emulated=self.emulated,
                         others_held_cores=self.others_held_cores)
        except HolmesError as refused:
            if error is None:  # nobody could tell that the run ended well
                return f"the run's result was not written: {refused}"
            LOG.error("the result was not written: %s", refused)
        return error


def clear_and_advise(folder: RunFolder) -> str:
    """Clear away what a run whose processes are all gone left unfinished, and return how to go on with it."""
    clear_ended(folder)
    return how_to_go_on(folder)


def clear_ended(folder: RunFolder) -> None:
    """Remove the space kept for the result and the halves of checkpoints; whole ones without a name get theirs.

    Only for a run whose processes are all gone. What cannot be removed is said and stays.
    """
    try:
        (folder.path / RESERVE).unlink(missing_ok=True)
        for path in tidy(folder.checkpoints):
            LOG.info("checkpoint %s was whole when its writer ended, and has its name now", path)
    except OSError as error:
        LOG.warning("what the run left in %s cannot be cleared away: %s", folder.path, error.strerror or error)


def how_to_go_on(folder: RunFolder) -> str:
    """Return how to take a run up that ended early: from its newest checkpoint, or else anew."""
    found = _newest_whole(folder)
    if found is None:
        before = _resumed_from(folder)
        where = "anew at step 1" if before is None else f"once more after the checkpoint of train.resume={before}"
        return f"its folder holds no complete checkpoint, so a new start begins {where}"
    settings = found.extra.get("settings")
    steps = number(settings.get("train.steps")) if isinstance(settings, dict) else None
    if steps is not None and found.step >= steps:
        return f"its last step is done and saved: {folder.checkpoints / f'step-{found.step:06d}'}"
    return (f"its newest checkpoint is that of step {found.step}: go on after it with the same settings and "
            f"{for_shell(f'train.resume={folder.path.absolute()}')}")


def with_way_on(folder: RunFolder, error: str) -> str:
    """Return why a run ended, and how to go on where it did a step or saved one: something to keep or to lose."""
    try:
        if last_metrics(folder) is None and not newest_first(folder.checkpoints):
            return error
        return f"{error}; {how_to_go_on(folder)}"
    except OSError:
        return error  # the folder cannot be read any more, and why the run ended is said all the same


def _newest_whole(folder: RunFolder) -> Index | None:
    for path in newest_first(folder.checkpoints):
        try:
            return read_index(path)
        except CheckpointError:
            continue
    return None


def _resumed_from(folder: RunFolder) -> Path | None:
    """Return the path that the run's own `train.resume` named, None where it named none."""
    try:
        train = read_yaml(folder.config_path)["train"]
        resume = str(train.get("resume") or WORDS[0])
    except (ForeignError, KeyError, TypeError, AttributeError):
        return None
    return None if resume in WORDS else Path(resume)
