"""The part of the model that one rank holds: its stages, and every parameter once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from holmes_hpc.architecture import Architecture
from holmes_hpc.model import StageModule, build_stage
from holmes_hpc.values import Plan, Reduction
from holmes_hpc.values.owned import Owned


@dataclass(frozen=True)
class Piece:
    """The part of one local parameter that a reduction owns: `length` entries from `begin` along `dim`.

    `dim` None means the whole local parameter.
    """

    name: str
    dim: int | None = None
    begin: int = 0
    length: int = 0

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this part of a tensor shaped as the local parameter, as a view."""
        return tensor if self.dim is None else tensor.narrow(self.dim, self.begin, self.length)


class LocalModel:
    """The stages of one rank.

    A rank may serve several stages, and the same layers in several pipelines. A parameter that more than one of
    its stages uses exists once, so gradients of all of them meet in one tensor.
    """

    def __init__(self, plan: Plan, rank: int, architecture: Architecture, seed: int,
                 device: torch.device | str = "cpu") -> None:
        self._architecture = architecture
        self.parameters: dict[str, nn.Parameter] = {}
        self._stages: dict[tuple[int, int], StageModule] = {}
        built: dict[tuple[int, int, bool, bool], StageModule] = {}
        for pipeline, stage in plan.stages_of(rank):
            stages = plan.pipelines[pipeline].stages
            part = stages[stage]
            key = (part.first_layer, part.num_layers, stage == 0, stage == len(stages) - 1)
            if key not in built:
                first_layer, num_layers, first, last = key
                module = build_stage(architecture, first_layer, num_layers, first=first, last=last, seed=seed,
                                     device=str(device))
                self._adopt(module)
                built[key] = module
            self._stages[pipeline, stage] = built[key]

    def stage(self, pipeline: int, stage: int) -> StageModule:
        """Return the module of a stage that this rank serves."""
        return self._stages[pipeline, stage]

    def pieces(self, reduction: Reduction) -> list[Piece]:
        """Return what `reduction` owns of this rank's parameters, in the architecture's order."""
        units = {Owned.parse(entry).unit for entry in reduction.owns}
        return [
            Piece(info.name)
            for info in self._architecture.parameters()
            if info.unit in units and info.name in self.parameters
        ]

    def gradient_scale(self, name: str) -> float:
        """Return what to multiply this rank's gradient of a parameter by before it is summed over its owners."""
        return 1.0

    def rectangle(self, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return where the local parameter lies in the global one: offsets and sizes for each dim."""
        shape = tuple(self.parameters[name].shape)
        return (0,) * len(shape), shape

    def _adopt(self, module: StageModule) -> None:
        for path, parameter in list(module.named_parameters()):
            known = self.parameters.setdefault(path, parameter)
            if known is not parameter:
                owner_path, _, name = path.rpartition(".")
                setattr(module.get_submodule(owner_path), name, known)
