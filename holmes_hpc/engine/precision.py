"""Arithmetic of a run: the type of the computation, and the loss scale that float16 needs."""

from __future__ import annotations

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_BACKOFF, _GROWTH = 0.5, 2.0
SMALLEST_SCALE = 1.0
"""Gradients that overflow without any scale are not finite for another reason."""


class LossScale:
    """What losses are multiplied by, so that small float16 gradients do not vanish.

    It is halved when gradients overflow and doubled after `window` good steps (Micikevicius et al. 2018). All ranks
    see the same global norm, so they keep the same scale without asking each other. Outside float16 it is 1.
    """

    def __init__(self, precision: str, initial: float, window: int) -> None:
        self.dynamic = precision == "float16"
        self.value = float(initial) if self.dynamic else 1.0
        self._window = window
        self._good_steps = 0

    def good_step(self) -> None:
        """Note a step whose gradients were finite."""
        self._good_steps += 1
        if self.dynamic and self._good_steps >= self._window:
            self.value, self._good_steps = self.value * _GROWTH, 0

    def overflow(self) -> bool:
        """Note gradients that were not finite. Return whether a smaller scale may help."""
        self._good_steps = 0
        if not self.dynamic or self.value <= SMALLEST_SCALE:
            return False
        self.value = max(SMALLEST_SCALE, self.value * _BACKOFF)
        return True

    def state(self) -> dict[str, float]:
        """Return what a checkpoint keeps."""
        return {"value": self.value, "good_steps": float(self._good_steps)}

    def load(self, state: dict[str, float]) -> None:
        """Go on where `state` was taken; a run in another precision keeps its own scale."""
        if self.dynamic:
            self.value, self._good_steps = state["value"], int(state["good_steps"])
