"""Layers by torch's compiler (`train.compile`), compiled at the start by all ranks at once.

Done in the first step instead, the stages of a pipeline would compile one after the other, and each would seem to hang.
"""

from __future__ import annotations

import torch

from holmes_hpc.engine.local_model import LocalModel
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.model import StageModule
from holmes_hpc.model.layers import DecoderLayer
from holmes_hpc.values import Plan

_ERROR_CHARACTERS = 300


def compile_layers(model: LocalModel, plan: Plan, rank: int, sequence_length: int, dtype: torch.dtype,
                   device: torch.device) -> None:
    """Compile the layers of a rank, and run one of each stage forward and backward.

    Layers of one model have the same code, so the others find it compiled. Raises ConfigurationError where the
    compiler cannot, such as without a C++ compiler on CPUs or Triton on GPUs.
    """
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # a pool of processes on each rank would outlive it
    for stage in dict.fromkeys(model.stage(p, s) for p, s in plan.stages_of(rank)):
        layers = [layer for layer in stage.layers.values() if isinstance(layer, DecoderLayer)]
        for layer in layers:
            layer.compile_forward()
        try:
            _run(stage, layers[0], (plan.micro_batch_size, sequence_length), dtype, device)
        except Exception as error:
            raise ConfigurationError(
                f"train.compile=true: torch's compiler failed on rank {rank}: {type(error).__name__}: "
                f"{str(error).strip()[:_ERROR_CHARACTERS]}; set train.compile=false, or install what it lacks (a C++ "
                "compiler on CPUs, Triton on GPUs)") from error


def _run(stage: StageModule, layer: DecoderLayer, size: tuple[int, int], dtype: torch.dtype, device: torch.device
         ) -> None:
    """Run a layer as training does, on zeros; no gradient is kept."""
    hidden = torch.zeros(*size, stage.architecture.hidden_size, dtype=dtype, device=device, requires_grad=True)
    rotation = None if stage.rotation is None else stage.rotation[:, :size[1]]
    with torch.enable_grad():
        output = layer(hidden, rotation)
        torch.autograd.grad(output.sum(), [hidden, *layer.parameters()])
