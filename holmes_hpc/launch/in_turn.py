"""A sweep on this machine: its runs one after another, a line for each, and a table of all at the end."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holmes_hpc.errors import INTERRUPTED, HolmesError
from holmes_hpc.launch.train import run
from holmes_hpc.runs import RunFolder, last_metrics, read_result
from holmes_hpc.runs.circumstances import circumstances, is_busy, speed_words
from holmes_hpc.submit.board import aligned
from holmes_hpc.words import about

LOG = logging.getLogger(__name__)

COLUMNS = ("run", "state", "step", "tokens/s", "loss", "overrides")
REFUSED = "refused"
NOT_STARTED = "not started"


@dataclass(frozen=True)
class Ended:
    """A run of the sweep that is over, or never began; `folder` is None where none was made."""

    words: str
    status: int
    steps: int
    folder: RunFolder | None = None
    begun: bool = True

    @property
    def tokens_per_second(self) -> float | None:
        """The median over its steps, where it has completed."""
        result = (self.folder and read_result(self.folder)) or {}
        return result.get("tokens_per_second_median") if self.status == 0 else None

    def cells(self) -> tuple[str, ...]:
        """Return the cells of COLUMNS."""
        if self.folder is None:
            return ("-", REFUSED if self.begun else NOT_STARTED, "", "", "", self.words)
        result, last = read_result(self.folder) or {}, last_metrics(self.folder) or {}
        speed, loss = result.get("tokens_per_second_median") or last.get("tokens_per_second"), last.get("loss")
        told = "-" if result.get("no_speed") or speed is None else f"{speed:,.0f}" + " (busy)" * is_busy(result)
        return (_name(self.folder), str(result.get("status") or "unknown"),
                f"{last.get('step', 0)}/{self.steps}", told,
                "" if loss is None else f"{loss:.3f}", self.words)


def remarks(ended: Sequence[Ended]) -> list[str]:
    """Return what has to be said below the table: what measured the runs, and why some have no tokens/s."""
    begun = [each.folder for each in ended if each.folder is not None]
    how: dict[str, list[RunFolder]] = {}
    for folder in begun:
        how.setdefault(circumstances(folder), []).append(folder)
    lines = [f"{words}: {'all runs' if len(folders) == len(begun) else ', '.join(map(_name, folders))}"
             for words, folders in how.items() if words]
    results = [(folder, read_result(folder) or {}) for folder in begun]
    lines += [f"{_name(folder)} has {words}" for folder, result in results if (words := speed_words(result, None))]
    if any(is_busy(result) and not result.get("no_speed") for _, result in results):
        lines.append("busy: other programs held cores of this machine meanwhile; such a speed compares with no other")
    return lines


def _name(folder: RunFolder) -> str:
    return f"{folder.name}/{folder.id}"


def run_in_turn(configs: Sequence[Any], words: Sequence[str]) -> list[tuple[int, float | None]]:
    """Run the configurations of a sweep; return the exit status and the tokens per second of each.

    `words` tell the runs apart. A run that cannot start or fails does not end the sweep. Raises SystemExit where one is
    interrupted, after the table, which names those that were not started too.
    """
    ended: list[Ended] = []
    for number, (config, text) in enumerate(zip(configs, words, strict=True), start=1):
        LOG.info("run %d of %d: %s", number, len(configs), text)
        try:
            status, folder = run(config, brief=True)
            ended.append(Ended(text, status, config.train.steps, folder))
        except HolmesError as error:
            LOG.error("%s", about(text, error))
            ended.append(Ended(text, error.exit_status, config.train.steps))
        if ended[-1].status == INTERRUPTED:
            break
    left = [Ended(text, INTERRUPTED, config.train.steps, begun=False)
            for config, text in list(zip(configs, words, strict=True))[len(ended):]]
    sys.stderr.write("\n" + aligned([COLUMNS, *(each.cells() for each in (*ended, *left))]))
    sys.stderr.write("".join(f"{line}\n" for line in remarks(ended)))
    if ended[-1].status == INTERRUPTED:
        raise SystemExit(INTERRUPTED)
    return [(each.status, each.tokens_per_second) for each in ended]
