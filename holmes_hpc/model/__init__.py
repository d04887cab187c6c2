"""The decoder on torch: stages of it, their identical initialisation whatever the layout, and the loss."""

from holmes_hpc.model.loss import token_loss
from holmes_hpc.model.pretrained import PretrainedWeights
from holmes_hpc.model.share import Exchange, TensorShare
from holmes_hpc.model.stage import StageModule, StageOptions, build_stage

__all__ = ["Exchange", "PretrainedWeights", "StageModule", "StageOptions", "TensorShare", "build_stage", "token_loss"]
