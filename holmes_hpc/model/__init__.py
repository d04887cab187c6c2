"""The decoder on torch: stages of it, their identical initialisation whatever the layout, and the loss."""

from holmes_hpc.model.loss import token_loss
from holmes_hpc.model.stage import StageModule, build_stage

__all__ = ["StageModule", "build_stage", "token_loss"]
