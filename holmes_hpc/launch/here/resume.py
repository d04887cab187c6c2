"""Looks at what `train.resume` names before anything is started, so that a wrong path costs no job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holmes_hpc.architecture import Architecture
from holmes_hpc.checkpoint.index import read_index
from holmes_hpc.checkpoint.model import check_model, check_optimizer
from holmes_hpc.checkpoint.naming import candidates, looking_again
from holmes_hpc.checkpoint.refusals import Refusals
from holmes_hpc.errors import CheckpointError, ConfigurationError
from holmes_hpc.paths import unreadable

WORDS = ("auto", "never")


def resolve_resume(config: Any) -> str:
    """Return `train.resume`, a path made absolute.

    Raises ConfigurationError when no checkpoint lies there, none that is there can be used, or nothing is left to
    train after it. What its shards hold is checked by the ranks, which read them.
    """
    wanted = str(config.train.resume)
    if wanted in WORDS:
        return wanted
    path = Path(wanted).expanduser().absolute()
    try:
        found = candidates(path)
    except OSError as error:
        raise unreadable(error, setting=f"train.resume={wanted}") from error
    if not found:
        raise ConfigurationError(
            f"train.resume={wanted}: no checkpoint lies there. Name a checkpoint such as "
            "runs/mixed/ID/checkpoints/step-000010 or its run folder, or set train.resume to auto or never."
        )
    architecture = Architecture.from_config(config.model)
    refused = Refusals()
    for checkpoint in looking_again(lambda: candidates(path)):
        try:
            index = read_index(checkpoint)
            index.check_texts(checkpoint)
            check_model(index, architecture)
            check_optimizer(index, str(config.optimizer.name))
        except CheckpointError as error:
            refused.add(checkpoint.name, str(error))
            continue
        if index.step >= config.train.steps:
            raise ConfigurationError(
                f"train.resume={wanted}: {checkpoint.name} was made after step {index.step}, and train.steps="
                f"{config.train.steps}, so nothing is left to train; raise train.steps."
            )
        return str(path)
    raise ConfigurationError(
        f"train.resume={wanted}: no checkpoint there can be used. {refused}. Name another one, set model and optimizer "
        "to those it is of, or start anew by train.resume=never."
    )
