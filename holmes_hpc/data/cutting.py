"""How samples are cut out of a part of a source: windows of one long line, or whole documents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy
from numpy.typing import NDArray

from holmes_hpc.data.tokens import TokenArray
from holmes_hpc.values.packings import INSIDE, WHOLE

# 2^64 divided by the golden ratio: multiples of it, modulo 2^64, are spread evenly however many are taken.
_GOLDEN_STEP = 0x9E3779B97F4A7C15
# Of more places than this, so many samples as a validation may have (10^6) never take one twice.
_MOST_ORDERED = 4 * 10**6


@dataclass(frozen=True)
class Borders:
    """Where documents end in the part from `begin` to `end` of a line of tokens; `ends` are places in the line."""

    ends: TokenArray
    begin: int
    end: int

    def inside(self, first: int, last: int) -> NDArray[numpy.int64]:
        """Return the ends from token `first` + 1 of the part up to `last`, counted from `first`, each once."""
        ends = self._ends_array
        low, high = (int(numpy.searchsorted(ends, numpy.uint64(self.begin + place), side="right"))
                     for place in (first, last))
        return numpy.unique(ends[low:high].astype(numpy.int64)) - (self.begin + first)

    def documents(self) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
        """Return where documents begin and end in the part; empty ones are left out."""
        ends = numpy.append(self.inside(0, self.end - self.begin), self.end - self.begin)
        ends = numpy.unique(ends[ends > 0])
        return numpy.concatenate(([0], ends[:-1])).astype(numpy.int64), ends

    @cached_property
    def _ends_array(self) -> NDArray[numpy.uint64]:
        return numpy.asarray(self.ends)


@dataclass(frozen=True)
class Cut:
    """One sample: `tokens` [s + 1]; `counts` [s] says which targets count, None where all do.

    `documents` are the lengths of the documents among its s inputs; less than s together where the rest is padding.
    """

    tokens: NDArray[numpy.int64]
    counts: NDArray[numpy.bool_] | None
    documents: tuple[int, ...]


@dataclass(frozen=True)
class Cutter:
    """Cuts samples of `length` tokens out of a part.

    `borders` are known where attention stays inside documents; `counted` says by token whether it counts as a target,
    None where all do; `rows` [n, 2] are begin and end of each sample where samples are of whole documents.
    """

    tokens: TokenArray
    length: int
    borders: Borders | None = None
    counted: TokenArray | None = None
    rows: NDArray[numpy.int64] | None = None

    @property
    def choices(self) -> int:
        """Return how many places a sample may be drawn at."""
        return len(self.tokens) - self.length if self.rows is None else len(self.rows)

    @property
    def windows(self) -> int:
        """Return how many samples an epoch has."""
        return (len(self.tokens) - 1) // self.length if self.rows is None else len(self.rows)

    def spread(self, index: int) -> int:
        """Return the place of sample `index` of samples that, however many are taken, lie evenly over the part.

        Samples of whole documents are all taken once before any is taken again.
        """
        if self._evenly is None:
            return (index * _GOLDEN_STEP % 2**64) * self.choices >> 64
        return int(self._evenly[index % self.choices])

    @cached_property
    def _evenly(self) -> NDArray[numpy.int64] | None:
        """The places of whole documents in the order of `spread`; None where two samples cannot have the same."""
        if self.rows is None or len(self.rows) > _MOST_ORDERED:
            return None
        order = numpy.argsort(numpy.arange(len(self.rows), dtype=numpy.uint64) * numpy.uint64(_GOLDEN_STEP))
        evenly = numpy.empty_like(order)
        evenly[order] = numpy.arange(len(order))
        return evenly

    def window(self, number: int) -> int:
        """Return the place of a sample of an epoch."""
        return number * self.length if self.rows is None else number

    def once(self) -> Cutter:
        """Return what cuts each token out as a target once, by its places in order; the last sample may be padded."""
        if self.rows is not None:
            return self
        begins = numpy.arange(0, max(len(self.tokens) - 1, 0), self.length, dtype=numpy.int64)
        ends = numpy.minimum(begins + self.length + 1, len(self.tokens))
        return replace(self, rows=numpy.stack((begins, ends), axis=1))

    def cut(self, place: int) -> Cut:
        """Return the sample at a place."""
        begin, end = self._range(place)
        tokens = numpy.zeros(self.length + 1, dtype=numpy.int64)
        tokens[:end - begin] = self.tokens[begin:end]
        borders = self._borders(begin, end)
        inputs = min(end - begin, self.length)
        cuts = [0, *borders[borders < inputs].tolist(), inputs]
        return Cut(tokens, self._counts(begin, end, borders), tuple(after - cut for cut, after in pairwise(cuts)))

    def count(self, place: int) -> int:
        """Return how many targets of the sample at a place count."""
        begin, end = self._range(place)
        if self.counted is None:
            borders = self._borders(begin, end)
            return end - begin - 1 - int((borders < end - begin).sum())
        counts = self._counts(begin, end, self._borders(begin, end))
        return self.length if counts is None else int(counts.sum())

    def cut_off(self) -> tuple[int, int]:
        """Return how many documents are longer than a sample, where these begin with documents, and what they lose."""
        if self.rows is None or self.borders is None:
            return 0, 0
        begins, ends = self.borders.documents()
        beyond = ends - begins - (self.length + 1)
        return int((beyond > 0).sum()), int(beyond[beyond > 0].sum())

    @property
    def counts_all(self) -> bool:
        """Tell whether every target of every sample counts."""
        return self.borders is None and self.counted is None and self.rows is None

    def _range(self, place: int) -> tuple[int, int]:
        if self.rows is None:
            return place, place + self.length + 1
        begin, end = self.rows[place].tolist()
        return begin, end

    def _borders(self, begin: int, end: int) -> NDArray[numpy.int64]:
        if self.borders is None:
            return numpy.empty(0, dtype=numpy.int64)
        found = self.borders.inside(begin, end)
        return found[found < end - begin]

    def _counts(self, begin: int, end: int, borders: NDArray[numpy.int64]) -> NDArray[numpy.bool_] | None:
        """Say which targets count: target j is token j + 1, and the first token of a document follows from nothing."""
        if self.counts_all:
            return None
        counts = numpy.zeros(self.length, dtype=numpy.bool_)
        counts[:end - begin - 1] = True if self.counted is None else numpy.asarray(self.counted[begin + 1:end]) != 0
        counts[borders - 1] = False
        return counts


def cutter(tokens: TokenArray, length: int, packing: str, borders: Borders | None,
           counted: TokenArray | None) -> Cutter:
    """Return what cuts samples out of a part as `packing` says; without known borders all of it is one document."""
    if packing in WHOLE:
        borders = borders or Borders(numpy.array([len(tokens)], dtype=numpy.uint64), 0, len(tokens))
        return Cutter(tokens, length, borders, counted, _rows(*borders.documents(), length, several=packing == "whole"))
    return Cutter(tokens, length, borders if packing in INSIDE else None, counted)


def _rows(begins: NDArray[numpy.int64], ends: NDArray[numpy.int64], length: int, *,
          several: bool) -> NDArray[numpy.int64]:
    """Return begin and end of samples of documents in their order: as many as fit into each, or one.

    A sample has `length` inputs, so its last token is a target alone; documents of more than `length` + 1 tokens are
    cut there. Documents of one token, of which nothing can be learned, are left out where they would be alone.
    """
    limits = begins + length + 1
    if several:
        reached = numpy.maximum(numpy.searchsorted(ends, limits, side="right"), numpy.arange(len(ends)) + 1).tolist()
        first, firsts = 0, []
        while first < len(ends):
            firsts.append(first)
            first = reached[first]
        starts = numpy.array(firsts, dtype=numpy.int64)
        lasts = numpy.array([reached[each] - 1 for each in firsts], dtype=numpy.int64)
    else:
        starts = lasts = numpy.arange(len(ends))
    rows = numpy.stack((begins[starts], numpy.minimum(ends[lasts], limits[starts])), axis=1)
    return rows[rows[:, 1] - rows[:, 0] > 1]
