"""What a run starts from: drawn weights, or those of a published model where it takes up no checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holmes_hpc.architecture import Architecture
from holmes_hpc.checkpoint.naming import candidates, newest_first
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.engine.sharing import share_numbers
from holmes_hpc.errors import CheckpointError
from holmes_hpc.model import PretrainedWeights
from holmes_hpc.runs import RunFolder


@contextmanager
def starting_weights(pretrained: str | None, architecture: Architecture, train: Any, folder: RunFolder,
                     communicator: Communicator) -> Iterator[PretrainedWeights | None]:
    """Give the weights in the folder `pretrained`, open; None where there is none, or a checkpoint will be taken up.

    All ranks call it. Raises ConfigurationError for a folder that cannot be used.
    """
    if pretrained is None or _has_checkpoints(train, folder, communicator):
        yield None
        return
    with PretrainedWeights(pretrained, architecture) as weights:
        yield weights


def check_started(pretrained: str | None, weights: PretrainedWeights | None, step: int) -> None:
    """Raise CheckpointError where the published weights were left for a checkpoint that then was not there."""
    if pretrained is not None and weights is None and step == 0:
        raise CheckpointError("the checkpoints that were there when the run started have gone, and it would begin at "
                              "random weights; start it again")


def _has_checkpoints(train: Any, folder: RunFolder, communicator: Communicator) -> bool:
    """Ask rank 0 whether there is anything to resume from."""
    found = False
    if communicator.rank == 0 and train.resume != "never":
        found = bool(newest_first(folder.checkpoints)) or (
            train.resume != "auto" and bool(candidates(Path(train.resume))))
    return any(share_numbers(float(found), communicator))
