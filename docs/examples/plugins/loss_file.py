"""A tracker: the loss of every step as a line of text in the run folder, for eyes and for gnuplot."""

from collections.abc import Mapping
from typing import Any

from holmes_hpc import extend


class LossFile:
    """Writes `loss.txt`: the step, a space, and the loss."""

    def __init__(self, run: extend.TrackedRun) -> None:
        self._file = (run.folder / "loss.txt").open("a")

    def add(self, row: Mapping[str, Any]) -> None:
        """Write the line of a step."""
        self._file.write(f"{row['step']} {row['loss']}\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


extend.add_tracker("loss_file", LossFile)
