"""Which type the tokens of a file without a header have: a wrong one trains without an error, on other tokens.

Tokens of 32 bits read as 16 are every second one a zero, which even makes the loss better. So the bytes are looked at:
the high bytes of whole numbers below some vocabulary are small, and unlike the low ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.errors import DataError

_LARGEST_USUAL_VOCABULARY = 1 << 20
_CONTROL_BYTES = numpy.array([byte for byte in range(32) if byte not in b"\t\n\r\f"], dtype=numpy.uint8)
_WINDOWS, _WINDOW_BYTES, _ALIGNMENT = 16, 1 << 15, 8
_LEAST_BYTES = 64
_LEAST_BYTES_FOR_STATISTICS = 8192
_LEAST_KINDS = 5
"""Different numbers that are taken for floating-point ones: a token of 15,360 alone looks like a 1.0 of 16 bits."""
TYPES_BY_WIDTH = {1: "uint8", 2: "uint16", 4: "uint32", 8: "int64"}
"""The type of `data.dtype` for tokens of so many bytes."""
_HIGH_BYTE_SHARE = 0.1
"""The least share of its commonest value in the high byte of 16-bit tokens: the zero of the commonest tokens."""
_ALIKE = 0.05
"""Distributions whose total variation is below this are alike; the sample's own noise is about 0.02."""
_UNEVEN = 0.02
"""A byte value this common shows that bytes are no noise, in which every type looks like every other."""


def capacity(dtype: numpy.dtype[Any]) -> int:
    """Return how many tokens a type of whole numbers can tell apart."""
    return int(numpy.iinfo(dtype).max) + 1


def check_stored(settings: SourceSettings, path: Path, stored: NDArray[Any], vocab_size: int) -> None:
    """Refuse stored tokens, whose type another file states, where their bytes look like another. Raises DataError."""
    found = likely_type(sample_of(stored.view(numpy.uint8)), stored.dtype, vocab_size)
    if found is not None:
        raise DataError(f"{settings.key('path')}={settings.path}: {path} looks like {found}, and its index says "
                        f"{stored.dtype.name}: the two do not belong together. Make both files again with one type.")


def likely_type(sample: NDArray[numpy.uint8], dtype: numpy.dtype[Any], vocab_size: int) -> str | None:
    """Return the type that tokens have rather than `dtype`, such as `uint32` or `big-endian uint16`; None: none.

    `sample` are bytes of the file, [n], of windows that begin at multiples of eight.
    """
    if len(sample) < _LEAST_BYTES:
        return None
    width, limit = dtype.itemsize, max(vocab_size, _LARGEST_USUAL_VOCABULARY)
    for code in ("f8", "f4", "f2"):
        if _are_whole(_as(sample, f"<{code}"), limit):
            return numpy.dtype(code).name
    for wider in (8, 4, 2):
        for order, words in (("<", ""), (">", "big-endian ")):
            if wider > width and _looks_wide(_as(sample, f"{order}u{wider}"), wider, limit):
                return words + TYPES_BY_WIDTH[wider]
    low, high = _shares(sample[0::2]), _shares(sample[1::2])
    enough = len(sample) >= _LEAST_BYTES_FOR_STATISTICS
    if width == 1:
        found = {"uint16": _is_high_byte(high, low), "big-endian uint16": _is_high_byte(low, high)}
        return next((name for name, looks in found.items() if looks and enough), None)
    fits = int(_as(sample, f"<u{width}").max(initial=0)) < vocab_size
    if width == 2 and enough and _is_high_byte(low, high):
        return "big-endian uint16"
    alike = abs(low - high).sum() / 2 < _ALIKE and max(low.max(), high.max()) > _UNEVEN
    if enough and alike and (width == 2 or not fits):
        return "uint8"
    if fits:
        return None
    if int(_as(sample, f">u{width}").max(initial=0)) < vocab_size:
        return f"big-endian {TYPES_BY_WIDTH[width]}"
    return next((TYPES_BY_WIDTH[narrower] for narrower in (4, 2) if narrower < width
                 and int(_as(sample, f"<u{narrower}").max(initial=0)) < vocab_size), None)


def is_text(sample: NDArray[numpy.uint8]) -> bool:
    """Whether bytes are text: no control characters, most of them ASCII."""
    return len(sample) >= _LEAST_BYTES and not numpy.isin(sample, _CONTROL_BYTES).any() and bool(
        (sample < 0x80).mean() > 0.5)


def _are_whole(values: NDArray[Any], limit: int) -> bool:
    """Whether floating-point numbers are whole ones below `limit`, few of them zeros: tokens that became such."""
    with numpy.errstate(all="ignore"):  # what they are else may be anything
        whole = numpy.isfinite(values) & (values >= 0) & (values < limit) & (values == numpy.floor(values))
    return bool(whole.all() and (values > 0).mean() >= 0.25 and len(numpy.unique(values)) >= _LEAST_KINDS)


def _looks_wide(values: NDArray[Any], width: int, limit: int) -> bool:
    """Whether numbers of `width` bytes are all below `limit`, and their upper halves unlike the lower ones."""
    if int(values.max(initial=0)) >= limit:
        return False
    upper, lower = values >> (4 * width), values & ((1 << (4 * width)) - 1)
    if not upper.any():
        return bool((lower != 0).mean() >= 0.5)
    return bool(lower.max() >= 256 * upper.max())


def _is_high_byte(shares: NDArray[Any], others: NDArray[Any]) -> bool:
    """Whether bytes are the upper ones of 16-bit tokens: many are zero, as the commonest tokens have small numbers."""
    return bool(shares[0] >= _HIGH_BYTE_SHARE and shares[0] == shares.max() and shares[0] >= 2 * others.max()
                and abs(shares - others).sum() / 2 > 4 * _ALIKE)


def sample_of(stored: NDArray[Any]) -> NDArray[numpy.uint8]:
    """Return the bytes of windows that are spread evenly, each from a multiple of eight and of whole eights."""
    last = max(len(stored) - _WINDOW_BYTES, 0)
    begins: Iterable[int] = dict.fromkeys(last * window // (_WINDOWS - 1) // _ALIGNMENT * _ALIGNMENT
                                          for window in range(_WINDOWS))
    windows = [numpy.asarray(stored[begin:begin + _WINDOW_BYTES]) for begin in begins]
    return numpy.concatenate([window[:len(window) // _ALIGNMENT * _ALIGNMENT] for window in windows])


def _as(sample: NDArray[numpy.uint8], code: str) -> NDArray[Any]:
    return numpy.ascontiguousarray(sample).view(code)


def _shares(values: NDArray[numpy.uint8]) -> NDArray[Any]:
    return numpy.bincount(values, minlength=256) / max(len(values), 1)
