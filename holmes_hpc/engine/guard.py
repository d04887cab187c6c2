"""Decides, on all ranks alike, whether a step may update the weights."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from holmes_hpc.engine.origin import WEIGHTS, Origin
from holmes_hpc.engine.precision import LossScale
from holmes_hpc.errors import RunFailedError
from holmes_hpc.values import Plan

LOG = logging.getLogger(__name__)

MOST_SKIPPED_IN_A_ROW = 50
"""A run whose steps are all left out has ended, whatever the setting says."""


class Guard:
    """Watches loss and norm, which all ranks know; a step that is not finite is left out or ends the run.

    `skipped` counts the steps left out, and rank 0 tells `say` of each. In float16 gradients overflow now and then by
    design: such a step is left out with a smaller loss scale, whatever `train.on_nonfinite` says, until there is no
    scale left to lower. `origin` asks all ranks, which all call it then, where such numbers began.
    """

    def __init__(self, train: Any, optimizer: Any, rank: int, say: Callable[[str], None] = LOG.warning,
                 plan: Plan | None = None, origin: Callable[[], Origin | None] = lambda: None) -> None:
        self.scale = LossScale(train.precision, train.loss_scale, train.loss_scale_window)
        self.skipped = 0
        self._in_a_row = 0
        self._stops, self._lr = train.on_nonfinite == "stop", optimizer.lr
        self._say = say if rank == 0 else None
        self._plan, self._origin = plan, origin

    def allows(self, step: int, loss: float, norm: float) -> bool:
        """Return whether the step may update the weights.

        Raises RunFailedError when it may not and that ends the run.
        """
        if math.isfinite(loss) and math.isfinite(norm):
            self._in_a_row = 0
            self.scale.good_step()
            return True
        before = self.scale.value
        helps = math.isfinite(loss) and self.scale.overflow()
        what = f"the gradients are not finite (norm {norm})" if math.isfinite(loss) else f"the loss is {loss}"
        origin = None if helps else self._origin()
        if origin is not None and self._plan is not None:
            what += f": {origin.describe(self._plan)}"
        self.skipped += 1
        self._in_a_row += 1
        if (self._stops and not helps) or self._in_a_row > MOST_SKIPPED_IN_A_ROW:
            error = RunFailedError(self._ending(step, what, origin))
            error.names_rank = origin is not None  # which the rank that says so is not
            raise error
        if self._say is not None:
            self._say(f"step {step}: {what}; left out"
                      + (f", the loss scale is now {self.scale.value:g} (was {before:g})" if helps else ""))
        return False

    def row(self) -> dict[str, Any]:
        """Return what the metrics say of it."""
        scale = {"loss_scale": self.scale.value} if self.scale.dynamic else {}
        return {"skipped_steps": self.skipped, **scale}

    def _ending(self, step: int, what: str, origin: Origin | None) -> str:
        """Return why the run ends, with what may help: leaving steps out helps no run that has just done so."""
        often = f" for {self._in_a_row} steps in a row" if self._in_a_row > 1 else ""
        most = f", and at most {MOST_SKIPPED_IN_A_ROW} are left out" if self._in_a_row > MOST_SKIPPED_IN_A_ROW else ""
        also = ", or leave single steps out with train.on_nonfinite=skip" if self._stops and not often else ""
        remedy = f"lower optimizer.lr (now {self._lr}) or lengthen optimizer.warmup_steps{also}"
        if origin is not None and (origin.alone or origin.what == WEIGHTS):
            return (f"step {step}: {what}{often}{most}; other ranks had none, so hardware is likely: look at that "
                    f"node's logs and memory errors, and go on without it; where it is not, {remedy}")
        return f"step {step}: {what}{often}{most}; {remedy}"
