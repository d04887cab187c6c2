"""What a run on this machine leaves behind when it ends early: clears it away, and says how to go on."""

from __future__ import annotations

import logging
from pathlib import Path

from holmes_hpc.checkpoint.index import Index, read_index
from holmes_hpc.checkpoint.naming import newest_first, tidy
from holmes_hpc.errors import CheckpointError
from holmes_hpc.foreign import ForeignError, read_yaml
from holmes_hpc.launch.here.resume import WORDS
from holmes_hpc.quoting import for_shell
from holmes_hpc.runs import RunFolder, last_metrics

LOG = logging.getLogger(__name__)

RESERVE, RESERVED_BYTES = ".reserve", 16384
"""A file that keeps space for the result until the run has ended."""


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
    if found.step >= found.extra.get("settings", {}).get("train.steps", float("inf")):
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
