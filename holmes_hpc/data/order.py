"""Which window a sample is: pure functions of (seed, step, sample), so that no layout and no resume changes them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy
from numpy.typing import NDArray

Words = NDArray[numpy.uint64]

_WORD = 2**64
# Parts of the counter space that no two uses share (the highest word of a Philox counter).
_OFFSETS, _SOURCES, _ROUND_KEYS, _PHASES = range(4)
_ROUNDS = 8


def offset_words(seed: int, step: int, first: int, count: int) -> Words:
    """Return one random 64-bit word for each of `count` samples from `first`."""
    return _words((seed, step), _OFFSETS, first + count)[first:]


def drawn_sources(weights: Sequence[Fraction], seed: int, step: int, first: int, count: int) -> list[int]:
    """Return the source of each of `count` samples from `first`, drawn with the probabilities `weights`.

    `weights` sum to 1; a probability is off by less than 2^-63.
    """
    words = _words((seed, step), _SOURCES, first + count)[first:]
    total, borders = Fraction(0), []
    for weight in weights[:-1]:
        total += weight
        borders.append(int(total * _WORD))
    return numpy.searchsorted(numpy.array(borders, dtype=numpy.uint64), words, side="right").tolist()


class Dealer:
    """Deals a sequence of samples to sources so that at any time each has had its share, and counts them.

    The first source takes item g where `floor(g * weight + phase)` grows, which is a share exact to one sample; the
    second takes so from the items that the first left, and so on. The counts have a closed form, so the position of
    any sample is known without those before it.
    """

    def __init__(self, weights: Sequence[Fraction], seed: int | None) -> None:
        """Make the dealer; `seed` shifts the pattern, None starts it with the first source that is due."""
        denominator = numpy.lcm.reduce([weight.denominator for weight in weights], dtype=object)
        parts = [int(weight * denominator) for weight in weights]
        words = _words((seed or 0, 0), _PHASES, len(parts)).tolist()
        self._levels = []
        for index, part in enumerate(parts):
            rest = sum(parts[index:])
            phase = rest - 1 if seed is None else words[index] * rest // _WORD
            self._levels.append((part, rest, phase))

    def place(self, item: int) -> tuple[int, int]:
        """Return the source of an item (from 0), and the number of earlier items of that source."""
        for source, (part, rest, phase) in enumerate(self._levels):
            before = (item * part + phase) // rest
            if ((item + 1) * part + phase) // rest > before:
                return source, before
            item -= before
        raise AssertionError("the last source takes every item that is left")


def epoch_windows(positions: Sequence[int], windows: int, seed: int, source: int) -> list[int]:
    """Return the window at each position of an endless sequence of epochs.

    Every epoch is a permutation of `windows`, chosen by (seed, epoch, source).
    """
    taken = numpy.empty(len(positions), dtype=numpy.uint64)
    epochs = numpy.array([position // windows for position in positions], dtype=numpy.int64)
    places = numpy.array([position % windows for position in positions], dtype=numpy.uint64)
    for epoch in numpy.unique(epochs):
        keys = _words((seed, int(epoch)), _ROUND_KEYS, _ROUNDS, stream=source)
        taken[epochs == epoch] = permute(places[epochs == epoch], windows, keys)
    return [int(window) for window in taken]


def permute(places: Words, size: int, round_keys: Words) -> Words:
    """Return where a keyed permutation of 0 to `size`-1 sends each place, without a table.

    A Feistel network permutes the numbers of the next larger power of two; what it sends outside is sent on until it
    is inside (cycle walking: Black and Rogaway 2002).
    """
    bits = max(2, (size - 1).bit_length())
    values = _feistel(places, bits, round_keys)
    while (outside := values >= numpy.uint64(size)).any():
        values[outside] = _feistel(values[outside], bits, round_keys)
    return values


def _feistel(values: Words, bits: int, round_keys: Words) -> Words:
    """Permute the numbers of `bits` bits. The halves may differ by one bit; an even number of rounds mends that."""
    left_bits, right_bits = bits // 2, bits - bits // 2
    left, right = values >> numpy.uint64(right_bits), values & numpy.uint64(2**right_bits - 1)
    for index, key in enumerate(round_keys):
        width = right_bits if index % 2 else left_bits
        left, right = right, left ^ (_mixed(right, key) & numpy.uint64(2**width - 1))
    return (left << numpy.uint64(right_bits)) | right


def _mixed(values: Words, key: numpy.uint64) -> Words:
    """Return the finalizer of splitmix64 (Steele, Lea and Flood 2014) of values shifted by a key."""
    mixed = values + key
    mixed = (mixed ^ (mixed >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> numpy.uint64(31))


def _words(key: tuple[int, int], purpose: int, count: int, stream: int = 0) -> Words:
    """Return the first words of a Philox stream.

    Raw words rather than Generator.integers: numpy keeps their stream the same across its versions.
    """
    counter = numpy.array([0, 0, stream, purpose], dtype=numpy.uint64)
    keys = numpy.array([word % _WORD for word in key], dtype=numpy.uint64)
    return numpy.random.Philox(key=keys, counter=counter).random_raw(count)
