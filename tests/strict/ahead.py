"""Puts what torch computes on a device's queues, so that the host runs ahead of it as of a GPU.

A tensor lies on the device where it was made with a device given, or comes of one that lies there. What is computed of
such tensors is put on the current queue; until that is done its result is poisoned. Copies to the host hold it, as CUDA
holds it; reading without them is a violation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from holmes_hpc.checkpoint.staging import Staging
from tests.strict.operation import poison
from tests.strict.queues import Queues

_HOLDING = frozenset({"item", "tolist", "__float__", "__int__", "__bool__", "__index__", "nonzero"})
_READING = frozenset({"numpy", "__array__"})


def lies_there(tensor: Tensor) -> bool:
    """Return whether a tensor lies on the device."""
    return bool(getattr(tensor.untyped_storage(), "_on_the_device", False))


def put_there(tensor: Tensor, there: bool = True) -> None:
    """Let a tensor, with all that shares its memory, lie on the device, or no more."""
    tensor.untyped_storage()._on_the_device = there  # type: ignore[attr-defined]


class Ahead(TorchDispatchMode):
    """Puts operations on the queues."""

    def __init__(self, queues: Queues) -> None:
        super().__init__()
        self._queues = queues

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Sequence[Any] = (),
                           named: Mapping[str, Any] | None = None) -> Any:
        named = dict(named or {})
        given = list(_tensors(arguments, named))
        if not any(map(lies_there, given)):
            return function(*arguments, **named)
        schema = function._schema
        aliases = [each.alias_info for each in schema.returns]
        written = _written(schema, arguments, named)
        if written:
            for tensor in written:
                put_there(tensor)
            self._later(function, arguments, named)
            return _returned(schema, written)
        if any(alias is not None for alias in aliases):
            return function(*arguments, **named)
        made = _shaped(function, arguments, named)
        if made is None:
            self._queues.synchronize()
            return function(*arguments, **named)
        for tensor in _tensors(made):
            put_there(tensor)
        if "empty" not in function.__name__:
            self._later(function, arguments, named, made)
        return made

    def _later(self, function: Any, arguments: Sequence[Any], named: Mapping[str, Any], made: Any = None) -> None:
        # Whose `data` is set to another tensor meanwhile, as of parameters, is not what the operation was given.
        arguments, named, made = tree_map(_now, (tuple(arguments), dict(named), made))
        self._queues.put(lambda: _fill(made, _run(function, arguments, named)) if made is not None else
                         _run(function, arguments, named))


class HostReads(TorchFunctionMode):
    """Knows what lies on the device by how it was made, and holds the host where it reads from there."""

    def __init__(self, queues: Queues) -> None:
        super().__init__()
        self._queues = queues

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        named, name = named or {}, getattr(function, "__name__", "")
        there = any(map(lies_there, _tensors(arguments)))
        if there and name in _READING:
            raise RuntimeError(f"VIOLATION: the host reads a tensor of the device by {name} and does not wait for it")
        if there and name in _HOLDING:
            self._queues.synchronize()
        if there and name == "cpu":
            self._queues.synchronize()
            return _on_host(arguments[0])
        result = function(*arguments, **named)
        if isinstance(named.get("device"), torch.device) or (
                name == "to" and any(isinstance(each, torch.device) for each in arguments)):
            for tensor in _tensors(result):
                put_there(tensor)
        return result


def _on_host(tensor: Tensor) -> Tensor:
    """Return a copy on the host of a tensor that is done."""
    with torch.utils._python_dispatch._disable_current_modes():
        return tensor.detach().clone()


def _tensors(*things: Any) -> Iterator[Tensor]:
    return (each for each in tree_flatten(things)[0] if isinstance(each, Tensor))


def _written(schema: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors that an operation changes."""
    found: list[Tensor] = []
    for number, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = arguments[number] if number < len(arguments) else named.get(argument.name)
            found += _tensors(value)
    return found


def _returned(schema: Any, written: Sequence[Tensor]) -> Any:
    count = len(schema.returns)
    return None if count == 0 else written[0] if count == 1 else tuple(written[:count])


def _shaped(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Return poisoned tensors as an operation would return them; None where that depends on numbers, or is none."""
    def described(value: Any) -> Any:
        if isinstance(value, Tensor):
            return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
        return torch.device("meta") if isinstance(value, torch.device) else value

    try:
        shapes = function(*tree_map(described, arguments), **tree_map(described, dict(named)))
    except (RuntimeError, NotImplementedError):
        return None
    if not any(True for _ in _tensors(shapes)):
        return None
    if function is torch.ops.aten.native_layer_norm.default:  # whose mean and deviation have another type on CPUs
        shapes = tuple(each.to(arguments[0].dtype) for each in shapes)
    return tree_map(_poisoned, shapes)


def _poisoned(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
    if made.dtype != torch.bool:
        poison(made)
    return made


def _now(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _run(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    try:
        return function(*arguments, **named)
    except Exception as error:
        raise RuntimeError(f"{function}: {error}") from error


def _fill(made: Any, results: Any) -> None:
    for mine, result in zip(_tensors(made), _tensors(results), strict=True):
        mine.copy_(result)



def run_ahead(queues: Queues) -> None:
    """Let this thread run ahead of the queues from now on.

    What the engine does on a GPU alone is done here: a copy that is staged for a checkpoint waits for the device.
    """
    HostReads(queues).__enter__()
    Ahead(queues).__enter__()
    copy = Staging.copy

    def copied(self: Staging, entries: Any) -> Any:
        copies = copy(self, entries)
        queues.synchronize()
        for each in copies:
            put_there(each.tensor, there=False)
        return copies

    Staging.copy = copied  # type: ignore[method-assign]
