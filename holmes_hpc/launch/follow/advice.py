"""What one would do next with a run that ended well: the last line that a command says."""

from __future__ import annotations

import shlex

from holmes_hpc.runs import RunFolder


def next_steps(folder: RunFolder, checkpoint_every: int, *, has_weights: bool = True) -> str:
    """Return how to look at a completed run, and how to go on from it, or that nothing was kept to go on from."""
    place = shlex.quote(str(folder.path))
    if not has_weights:
        return (f"next: `holmes report {place}` makes one page of it; a wind tunnel has no weights, so there is "
                "nothing to go on with, to evaluate or to export")
    kept = sorted(path.name for path in folder.checkpoints.glob("step-*") if path.is_dir())
    if kept:
        on = f"train.resume={place} with more train.steps goes on after {kept[-1]}"
    elif checkpoint_every:
        on = "no checkpoint is left in it, so it cannot be gone on with"
    else:
        on = ("no checkpoint was kept (train.checkpoint_every=0), so it cannot be gone on with; a number such as "
              "train.checkpoint_every=50 keeps some, the last step among them")
    return f"next: `holmes report {place}` makes one page of it; {on}"
