"""Looks at what `train.resume` names before anything is started, so that a wrong path costs no job."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from holmes_hpc.architecture import Architecture
from holmes_hpc.checkpoint.index import INDEX_NAME, read_index
from holmes_hpc.checkpoint.model import check_model, check_optimizer
from holmes_hpc.checkpoint.naming import candidates, looking_again
from holmes_hpc.checkpoint.refusals import Refusals
from holmes_hpc.config.describe import near
from holmes_hpc.errors import CheckpointError, ConfigurationError
from holmes_hpc.paths import at_home, unreadable
from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.circumstances import no_weights
from holmes_hpc.runs.find import find_runs
from holmes_hpc.runs.private import exposed

LOG = logging.getLogger(__name__)

WORDS = ("auto", "never")


def resolve_resume(config: Any) -> str:
    """Return `train.resume`: a path made absolute, or the folder of the run that it names below `run.folder`.

    Raises ConfigurationError when no checkpoint lies there, none that is there can be used, or nothing is left to
    train after it. What its shards hold is checked by the ranks, which read them.
    """
    wanted = str(config.train.resume)
    if wanted in WORDS:
        return wanted
    if not wanted.strip():
        raise ConfigurationError("train.resume is empty; set it to auto, never, a run folder or a checkpoint.")
    path = at_home(wanted, "train.resume").absolute()
    try:
        found = candidates(path)
    except OSError as error:
        raise unreadable(error, setting=f"train.resume={wanted}") from error
    if not found and (run := _run_named(wanted, at_home(config.run.folder, "run.folder"))) is not None:
        path = run.path
        found = candidates(path)
        LOG.info("train.resume=%s: %s", wanted, path)
    if not found and (why := no_weights(RunFolder(path))):
        raise ConfigurationError(f"train.resume={wanted}: no checkpoint lies there: {why}")
    if not found:
        meant = near(wanted.strip().casefold(), WORDS)
        raise ConfigurationError(
            f"train.resume={wanted}: no checkpoint lies there.{meant} Name a checkpoint such as "
            "runs/mixed/ID/checkpoints/step-000010, its run folder, or a run's id or name, or set train.resume to auto "
            "or never."
        )
    architecture = Architecture.from_config(config.model)
    refused, of_another = Refusals(), False
    for checkpoint in looking_again(lambda: candidates(path)):
        try:
            index = read_index(checkpoint)
            index.check_texts(checkpoint)
        except CheckpointError as error:
            refused.add(checkpoint.name, str(error))
            continue
        try:
            check_model(index, architecture)
            check_optimizer(index, str(config.optimizer.name))
        except CheckpointError as error:
            refused.add(checkpoint.name, str(error))
            of_another = True
            continue
        if index.step >= config.train.steps:
            raise ConfigurationError(
                f"train.resume={wanted}: {checkpoint.name} was made after step {index.step}, and train.steps="
                f"{config.train.steps}, so nothing is left to train; raise train.steps."
            )
        if words := exposed(checkpoint, [checkpoint / name for name in (INDEX_NAME, *index.files)]):
            LOG.warning("train.resume=%s: %s", wanted, words)
        return str(path)
    remedy = "set model and optimizer to those it is of" if of_another else "mend what is said of it"
    raise ConfigurationError(f"train.resume={wanted}: no checkpoint there can be used. {refused}. Name another one, "
                             f"{remedy}, or start anew by train.resume=never.")


def _run_named(text: str, base: Path) -> RunFolder | None:
    """Return the newest run of this job id, id or name that has a checkpoint; None where there is none."""
    try:
        runs = find_runs([text], base)
    except ConfigurationError:
        return None
    return max((run for run in runs if candidates(run.path)), key=lambda run: run.id, default=None)
