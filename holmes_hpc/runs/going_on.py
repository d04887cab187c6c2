"""How a run that ended early can be gone on with, as far as the names in its folder tell."""

from __future__ import annotations

import re

from holmes_hpc.quoting import for_shell
from holmes_hpc.runs.folder import RunFolder

_COMPLETE = re.compile(r"step-([0-9]{6,})")
_SETTING = "train.resume="


def saved_step(folder: RunFolder) -> int | None:
    """Return the step of the newest complete checkpoint of a run, None where there is none."""
    names = (_COMPLETE.fullmatch(path.name) for path in folder.checkpoints.glob("step-*"))
    return max((int(name[1]) for name in names if name), default=None)


def with_way_on(folder: RunFolder, error: str) -> str:
    """Return why a run ended, and how to go on where it saved something; once alone."""
    step = saved_step(folder)
    if step is None or _SETTING in error:
        return error
    return (f"{error}; its newest checkpoint is that of step {step}: go on after it with the same settings and "
            f"{for_shell(f'{_SETTING}{folder.path}')}")
