"""The part of the model that one rank holds: its stages, and every parameter once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from holmes_hpc.architecture import Architecture, ParameterInfo
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.tensor import TensorExchange
from holmes_hpc.model import PretrainedWeights, StageModule, StageOptions, TensorShare, build_stage
from holmes_hpc.values import Plan, Reduction, Stage
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
    its stages uses exists once, so gradients of all of them meet in one tensor. With tensor parallelism a parameter
    is this rank's slice along its split dim. Without a communicator, stages that need one cannot compute, but all
    their parameters are there.
    """

    def __init__(self, plan: Plan, rank: int, architecture: Architecture, seed: int,
                 device: torch.device | str = "cpu", communicator: Communicator | None = None,
                 weights: PretrainedWeights | None = None) -> None:
        self._plan, self._rank, self._communicator = plan, rank, communicator
        self._infos = {info.name: info for info in architecture.parameters()}
        self.parameters: dict[str, nn.Parameter] = {}
        self._shares: dict[str, TensorShare] = {}
        self._exchanges: dict[tuple[int, ...], TensorExchange] = {}
        self._stages: dict[tuple[int, int], StageModule] = {}
        built: dict[tuple[Stage, bool, bool, StageOptions], StageModule] = {}
        for pipeline, stage in plan.stages_of(rank):
            stages = plan.pipelines[pipeline].stages
            part, first, last = stages[stage], stage == 0, stage == len(stages) - 1
            options = self._options(pipeline, stage)
            key = (part, first, last, options)
            if key not in built:
                module = build_stage(architecture, part.first_layer, part.num_layers, first=first, last=last, seed=seed,
                                     device=device, options=options, weights=weights)
                self._adopt(module, options.share)
                built[key] = module
            self._stages[pipeline, stage] = built[key]

    def stage(self, pipeline: int, stage: int) -> StageModule:
        """Return the module of a stage that this rank serves."""
        return self._stages[pipeline, stage]

    def pieces(self, reduction: Reduction) -> list[Piece]:
        """Return what `reduction` owns of this rank's parameters, in the architecture's order.

        Pieces of the other owners have the same names and sizes in the same order. Raises ValueError when the plan
        gives this rank's reduction a slice that the rank does not hold.
        """
        owned = {each.unit: each for each in map(Owned.parse, reduction.owns)}
        found = [
            self._piece(info, owned[info.unit])
            for info in self._infos.values()
            if info.name in self.parameters and info.unit in owned and _owns(owned[info.unit], info)
        ]
        # Of a vocabulary of a few tokens some of many slices have none.
        return [piece for piece in found if piece.dim is None or piece.length]

    def gradient_scale(self, name: str) -> float:
        """Return what to multiply this rank's gradient of a parameter by before it is summed over its owners.

        Tensor-parallel ranks all compute the whole gradient of a parameter that they all hold, unless each saw only
        its shard of the sequence, or used it for its own heads.
        """
        share, info = self._shares[name], self._infos[name]
        alike = info.split_dim is None and not info.by_head and not share.sequence_parallel
        return 1.0 / share.degree if alike else 1.0

    def global_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the global parameter that a local one is, or is a part of."""
        return self._infos[name].shape

    def rectangle(self, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return where the local parameter lies in the global one: offsets and sizes for each dim."""
        sizes, info = tuple(self.parameters[name].shape), self._infos[name]
        offsets = [0] * len(sizes)
        if info.split_dim is not None:
            offsets[info.split_dim] = self._shares[name].bounds(info.shape[info.split_dim])[0]
        return tuple(offsets), sizes

    def _options(self, pipeline: int, stage: int) -> StageOptions:
        plan, stages = self._plan, self._plan.pipelines[pipeline].stages
        ranks, degree = stages[stage].ranks, stages[stage].tensor
        if degree == 1:
            return StageOptions(recompute=plan.recompute)
        share = TensorShare(degree, ranks.index(self._rank), plan.sequence_parallel, self._exchange(ranks))
        return StageOptions(
            share, plan.recompute,
            receives_shards=stage == 0 or plan.boundary_shards(pipeline, stage - 1) > 1,
            sends_shards=stage == len(stages) - 1 or plan.boundary_shards(pipeline, stage) > 1,
        )

    def _exchange(self, ranks: tuple[int, ...]) -> TensorExchange | None:
        if self._communicator is None:
            return None
        if ranks not in self._exchanges:
            index = next((i for i, group in enumerate(self._plan.groups)
                          if group.kind == "tensor" and group.ranks == ranks), None)
            if index is None:
                raise ValueError(f"the plan has no tensor group of the ranks {ranks}, which form a stage")
            self._exchanges[ranks] = TensorExchange(self._communicator, index)
        return self._exchanges[ranks]

    def _piece(self, info: ParameterInfo, owned: Owned) -> Piece:
        if not owned.of or info.split_dim is None:
            return Piece(info.name)
        whole, local = info.shape[info.split_dim], self.parameters[info.name].shape[info.split_dim]
        share = self._shares[info.name]
        first, _ = share.bounds(whole)
        begin, end = (cut - first for cut in owned.bounds(whole))
        if not 0 <= begin <= end <= local:
            raise ValueError(f"the plan gives rank {self._rank} the slice {owned}, and its part of {info.name} is "
                             f"{share.index + 1} of {share.degree}")
        return Piece(info.name) if end - begin == local else Piece(info.name, info.split_dim, begin, end - begin)

    def _adopt(self, module: StageModule, share: TensorShare) -> None:
        for path, parameter in list(module.named_parameters()):
            known = self.parameters.setdefault(path, parameter)
            place = self._shares.setdefault(path, share)
            if (place.degree, place.index) != (share.degree, share.index):
                raise ValueError(f"rank {self._rank} would hold two different slices of {path}")
            if known is not parameter:
                owner_path, _, name = path.rpartition(".")
                setattr(module.get_submodule(owner_path), name, known)


def _owns(owned: Owned, info: ParameterInfo) -> bool:
    if owned.replicated:
        return info.split_dim is None
    return not owned.of or info.split_dim is not None
