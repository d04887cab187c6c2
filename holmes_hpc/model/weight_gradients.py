"""A backward in two parts: gradients of a stage's input first, those of its matrices later.

Inside `putting_off`, every matrix product gives its backward only the gradient of its input and keeps what the
gradient of its weight needs (zero bubble, Qi et al. 2024). `accumulate` computes these in one autograd call, so hooks
on a parameter see its gradient as they always do. Norms, tables and biases beside other sums are cheap and get their
gradients with the first part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class WeightWork:
    """What the weight gradients of one micro-batch of a stage still need: inputs and gradients of its products."""

    def __init__(self) -> None:
        self._products: list[tuple[Tensor, Tensor | None, Tensor, Tensor]] = []

    def keep(self, weight: Tensor, bias: Tensor | None, source: Tensor, gradient: Tensor) -> None:
        """Keep the input of a product and the gradient of its output."""
        self._products.append((weight, bias, source, gradient))

    def accumulate(self) -> None:
        """Add the weight gradients to the parameters' and forget what they needed."""
        products, self._products = self._products, []
        roots = [cast(Tensor, _WeightGradient.apply(*each))  # type: ignore[no-untyped-call]
                 for each in products]
        if roots:
            torch.autograd.backward(roots)


class putting_off(TorchFunctionMode):  # noqa: N801 - a context manager
    """While this is entered, products of parameters put their weight gradients off to `work`.

    Not those of `tied`: a table that is also looked up would get its gradient in two parts.
    """

    def __init__(self, work: WeightWork, tied: Tensor | None = None) -> None:
        super().__init__()
        self._work, self._tied = work, tied

    def __enter__(self) -> putting_off:
        """Begin to put off."""
        self._token = _current.set(self)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop putting off."""
        super().__exit__(*error)
        _current.reset(self._token)

    def again(self) -> putting_off:
        """Return a context that puts off to the same work."""
        return putting_off(self._work, self._tied)

    def __torch_function__(self, function: Callable[..., Any], types: Sequence[type], arguments: Sequence[Any] = (),
                           keywords: Mapping[str, Any] | None = None) -> Any:
        """Run one function of torch, products with a weight that is a leaf in our own way."""
        keywords = keywords or {}
        if function is not functional.linear or keywords or not torch.is_grad_enabled():
            return function(*arguments, **keywords)
        source, weight, *rest = arguments
        bias = rest[0] if rest else None
        mine = source.requires_grad and weight.is_leaf and weight.requires_grad and weight is not self._tied
        if not mine:
            return function(*arguments)
        # In a tuple, so that autograd knows of no edge to the parameters and calls none of their hooks yet.
        return _Product.apply(source, (weight, bias), self._work)  # type: ignore[no-untyped-call]


_current: ContextVar[putting_off | None] = ContextVar("putting_off", default=None)


def as_now(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that puts off wherever it runs what it would put off now: what a backward recomputes too."""
    entered = _current.get()
    if entered is None:
        return function

    def run(*inputs: Any) -> Tensor:
        with entered.again():
            return function(*inputs)

    return run


class _Product(torch.autograd.Function):
    """Forward: source times weight, plus bias; backward: the gradient of the source, the rest is put off."""

    @staticmethod
    def forward(context: Any, source: Tensor, parameters: tuple[Tensor, Tensor | None], work: WeightWork) -> Tensor:
        context.save_for_backward(source)
        # Parameters do not change between forward and backward.
        context.parameters, context.work = parameters, work
        return functional.linear(source, *parameters)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        gradient, = gradients
        source, = context.saved_tensors
        weight, bias = context.parameters
        context.work.keep(weight, bias, source.detach(), gradient.detach())
        return gradient @ weight.to(gradient.dtype), None, None


class _WeightGradient(torch.autograd.Function):
    """A zero whose gradients are those of a product's weight and bias."""

    @staticmethod
    def forward(context: Any, weight: Tensor, bias: Tensor | None, source: Tensor, gradient: Tensor) -> Tensor:
        context.save_for_backward(source, gradient)
        context.dtypes = weight.dtype, None if bias is None else bias.dtype
        return torch.zeros((), device=gradient.device)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        source, gradient = context.saved_tensors
        weight_dtype, bias_dtype = context.dtypes
        rows = gradient.reshape(-1, gradient.shape[-1])
        weight = rows.T @ source.reshape(-1, source.shape[-1]).to(rows.dtype)
        return (weight.to(weight_dtype), None if bias_dtype is None else rows.sum(0).to(bias_dtype), None, None)
