"""Times the units of a model on this rank's GPU, or on a core: each alone, without collectives.

What a unit is here is what the engine computes: the model's own modules, gradients added to those before, and the
kernels of the optimizer. On a CPU the thread's own time counts, so that other processes on the cores do not.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster.profiled import layer_words
from holmes_hpc.cluster.timed_units import EMBEDDING, HEAD, LAYER, OPTIMIZER, ProfiledUnit
from holmes_hpc.model.layers import DecoderLayer
from holmes_hpc.model.loss import token_loss
from holmes_hpc.model.rotary import rotation_table
from holmes_hpc.model.share import TensorShare
from holmes_hpc.model.stage import Embedding, Head

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_MOST_SECONDS = 30.0
"""For everything; what does not fit in is left out, the optimizer last."""
_UNIT_SECONDS = 1.2
_FEWEST, _MOST = 3, 40
"""Repetitions of a unit."""
_PARAMETERS = 1 << 20
_TENSORS = (1, 2, 4, 8)


class _Alone:
    """Stands for the other tensor ranks: every exchange takes no time."""

    def __init__(self, degree: int) -> None:
        self._degree = degree

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the tensor."""
        return tensor

    def maximum(self, tensor: Tensor) -> Tensor:
        """Return the tensor."""
        return tensor

    def gather(self, tensor: Tensor, dim: int) -> Tensor:
        """Return the tensor as if every rank had the same."""
        return torch.cat([tensor] * self._degree, dim)

    def scatter_sum(self, tensor: Tensor, dim: int) -> Tensor:
        """Return this rank's part."""
        return tensor.chunk(self._degree, dim)[0].contiguous()


@dataclass(frozen=True)
class _Case:
    """One unit to time: a forward that returns what its backward begins at, and the gradient there."""

    unit: str
    tensor: int
    samples: int
    forward: Callable[[], Tensor]
    gradient: Tensor | None


def profile(architecture: Architecture, gpu: str, device: torch.device, precision: str, samples: tuple[int, int]
            ) -> list[ProfiledUnit]:
    """Return the seconds of every unit for two sizes of a micro-batch and all tensor degrees that divide the model.

    What does not fit into memory is left out.
    """
    words, found = layer_words(architecture), list[ProfiledUnit]()
    end = time.monotonic() + _MOST_SECONDS
    for make in _cases(architecture, device, _DTYPES[precision], samples):
        if time.monotonic() > end:
            break
        try:
            case = make()
            forward, backward = _timed(case, device)
        except torch.OutOfMemoryError:
            continue
        found.append(ProfiledUnit(gpu, precision, words, case.unit, case.tensor, case.samples, forward, backward))
    found.append(ProfiledUnit(gpu, precision, words, OPTIMIZER, 1, 1, _optimizer(device, precision), 0.0))
    return found


def _cases(architecture: Architecture, device: torch.device, dtype: torch.dtype, samples: tuple[int, int]
           ) -> Iterator[Callable[[], _Case]]:
    """Yield what makes each unit, the most telling first."""
    whole = [tensor for tensor in _TENSORS if not any(size % tensor for size in (
        architecture.num_heads, architecture.num_kv_heads, architecture.ffn_hidden_size))]
    makers = (_layer, _head, _embedding)
    for tensor in whole:
        for maker in makers:
            for size in dict.fromkeys(samples):
                yield partial(maker, architecture, device, dtype, tensor, size)


def _share(tensor: int) -> TensorShare:
    return TensorShare(tensor, 0, exchange=_Alone(tensor) if tensor > 1 else None)


def _layer(architecture: Architecture, device: torch.device, dtype: torch.dtype, tensor: int, samples: int) -> _Case:
    module = _prepared(DecoderLayer(architecture, _share(tensor), "none"), device, dtype)
    rotary = architecture.position_embedding == "rotary"
    rotation = rotation_table(architecture).to(device) if rotary else None
    hidden = _hidden(architecture, device, dtype, samples)
    return _Case(LAYER, tensor, samples, lambda: module(hidden, rotation), torch.full_like(hidden, 1e-3).detach())


def _head(architecture: Architecture, device: torch.device, dtype: torch.dtype, tensor: int, samples: int) -> _Case:
    share = _share(tensor)
    module = _prepared(Head(architecture, share), device, dtype)
    begin, end = share.bounds(architecture.vocab_size)
    table = nn.Parameter(torch.randn(end - begin, architecture.hidden_size, device=device).mul_(0.02).to(dtype))
    table.grad = torch.zeros_like(table)
    hidden = _hidden(architecture, device, dtype, samples)
    targets = torch.randint(architecture.vocab_size, hidden.shape[:2], device=device)
    return _Case(HEAD, tensor, samples,
                 lambda: token_loss(module(hidden, table), targets, architecture.vocab_size, share), None)


def _embedding(architecture: Architecture, device: torch.device, dtype: torch.dtype, tensor: int, samples: int
               ) -> _Case:
    positions = architecture.position_embedding == "learned"
    module = _prepared(Embedding(architecture, _share(tensor), positions=positions), device, dtype)
    tokens = torch.randint(architecture.vocab_size, (samples, architecture.sequence_length), device=device)
    gradient = torch.full((*tokens.shape, architecture.hidden_size), 1e-3, device=device, dtype=dtype)
    return _Case(EMBEDDING, tensor, samples, lambda: module(tokens), gradient)


def _hidden(architecture: Architecture, device: torch.device, dtype: torch.dtype, samples: int) -> Tensor:
    size = samples, architecture.sequence_length, architecture.hidden_size
    return torch.randn(size, device=device).to(dtype).requires_grad_()


def _prepared(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Return a module with small random parameters, and gradients that a backward adds to."""
    module.to(device=device, dtype=dtype)
    for parameter in module.parameters():
        parameter.data.normal_(std=0.02)
        parameter.grad = torch.zeros_like(parameter)
    return module


def _timed(case: _Case, device: torch.device) -> tuple[float, float]:
    """Return the median seconds of forward and backward."""
    forwards, backwards = list[float](), list[float]()
    end = time.monotonic() + _UNIT_SECONDS
    while len(forwards) <= _FEWEST or (len(forwards) < _MOST and time.monotonic() < end):
        start = _now(device)
        output = case.forward()
        middle = _now(device)
        output.backward(case.gradient)  # type: ignore[no-untyped-call]
        forwards.append(middle - start)
        backwards.append(_now(device) - middle)
    return statistics.median(forwards[1:]), statistics.median(backwards[1:])


def _optimizer(device: torch.device, precision: str) -> float:
    """Return the seconds of an AdamW step for each parameter, with the norm, clipping, and rounding to 16 bit."""
    values, gradient, *moments = (torch.full((_PARAMETERS,), 1e-3, device=device) for _ in range(4))
    lower = None if precision == "float32" else torch.empty(_PARAMETERS, device=device, dtype=_DTYPES[precision])
    steps: list[Any] = [torch.ones((), device=device)]
    seconds = []
    for _ in range(_FEWEST + 8):
        start = _now(device)
        torch.linalg.vector_norm(gradient)
        gradient.mul_(0.999)
        torch._fused_adamw_([values], [gradient], [moments[0]], [moments[1]], [], steps, lr=1e-4, beta1=0.9,
                            beta2=0.95, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False)
        if lower is not None:
            lower.copy_(values)
        gradient.add_(0.0)  # as it is zeroed
        seconds.append((_now(device) - start) / _PARAMETERS)
    return statistics.median(seconds[1:])


def _now(device: torch.device) -> float:
    if device.type == "cpu":
        return time.thread_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def two_sizes(micro_batch_size: int) -> tuple[int, int]:
    """Return the sizes that are timed: one sample, and what the plan takes, at least two and at most sixteen."""
    return 1, min(16, max(2, 2 ** math.floor(math.log2(micro_batch_size))))
