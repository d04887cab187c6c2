"""The order of samples: permutations without tables, dealing by weight, and epochs."""

from collections import Counter
from fractions import Fraction

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_hpc.data import Dataset, Source
from holmes_hpc.data.order import Dealer, drawn_sources, epoch_windows, permute
from tests.fuzzing import examples

weight_lists = st.lists(st.integers(1, 1000), min_size=1, max_size=6).map(
    lambda parts: [Fraction(part, sum(parts)) for part in parts])


def keys(seed):
    return numpy.random.Philox(key=seed).random_raw(8)


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_a_permutation_takes_every_place_once(size, seed):
    taken = permute(numpy.arange(size, dtype=numpy.uint64), size, keys(seed))
    assert sorted(taken.tolist()) == list(range(size))


@pytest.mark.parametrize("size", [2**31 + 11, 2**40 + 1, 3 * 2**60])
def test_a_permutation_of_more_windows_than_memory_holds_stays_inside_and_apart(size):
    places = numpy.linspace(0, size - 1, 20_000).astype(numpy.uint64).clip(0, size - 1)
    taken = permute(places, size, keys(1))
    assert len(set(taken.tolist())) == len(set(places.tolist()))
    assert int(taken.max()) < size
    assert abs(float(taken.astype(float).mean()) / size - 0.5) < 0.02
    # Neighbours do not stay neighbours.
    near = permute(numpy.arange(1000, dtype=numpy.uint64), size, keys(1)).astype(float)
    assert numpy.abs(numpy.diff(near)).mean() > 0.25 * size


def test_every_window_comes_at_every_place_about_equally_often():
    counts = numpy.zeros((7, 7))
    for seed in range(2100):
        counts[range(7), epoch_windows(range(7), 7, seed, 0)] += 1
    assert counts.min() > 230  # 300 expected
    assert counts.max() < 370
    orders = Counter(tuple(epoch_windows(range(3), 3, seed, 0)) for seed in range(1200))
    assert len(orders) == 6
    assert min(orders.values()) > 140


def test_epochs_are_shuffled_anew_by_seed_epoch_and_source():
    first, second = epoch_windows(range(50), 50, 1, 0), epoch_windows(range(50, 100), 50, 1, 0)
    assert sorted(first) == sorted(second) == list(range(50))
    assert len({tuple(order) for order in (first, second, epoch_windows(range(50), 50, 2, 0),
                                           epoch_windows(range(50), 50, 1, 1))}) == 4
    assert epoch_windows(range(30, 70), 50, 1, 0) == first[30:] + second[:20]
    assert epoch_windows([], 50, 1, 0) == []


@given(weight_lists, st.integers(0, 2**63), st.integers(0, 10**12))
def test_dealt_items_are_counted_without_gaps_and_each_source_has_its_share(weights, seed, start):
    dealer = Dealer(weights, seed)
    seen = {}
    for item in range(start, start + 60):
        source, position = dealer.place(item)
        assert seen.get(source, position - 1) == position - 1
        seen[source] = position
        assert abs(position - item * weights[source]) <= len(weights)


@given(weight_lists, st.integers(0, 2**63))
def test_dealing_from_the_start_counts_from_zero(weights, seed):
    dealer, counts = Dealer(weights, seed), Counter()
    for item in range(100):
        source, position = dealer.place(item)
        assert position == counts[source]
        counts[source] += 1


def test_drawn_sources_have_their_weights_and_do_not_depend_on_the_batch():
    weights = [Fraction(7, 10), Fraction(1, 10), Fraction(2, 10)]
    counts = Counter(source for step in range(100) for source in drawn_sources(weights, 5, step, 0, 1000))
    for source, weight in enumerate(weights):
        assert abs(counts[source] / 100_000 - weight) < 4 * (weight * (1 - weight) / 100_000) ** 0.5
    drawn = drawn_sources(weights, 5, 3, 0, 40)
    assert drawn_sources(weights, 5, 3, 10, 20) == drawn[10:30]
    assert set(drawn_sources([Fraction(1)], 5, 3, 0, 40)) == {0}


def counting(tokens, base=0, validation=100):
    line = numpy.arange(base, base + tokens, dtype=numpy.uint32)
    return Source("data.path=x", line, numpy.arange(base, base + validation, dtype=numpy.uint32))


def test_an_epoch_reads_every_target_once_and_a_step_finds_its_place_alone():
    data = Dataset((counting(401),), (Fraction(1),), 8, 10_000, "epoch")  # 50 windows
    batches = [data.train_batch(3, step, 0, 10, 10) for step in range(1, 11)]
    for epoch in (batches[:5], batches[5:]):
        targets = sorted(token for _, targets in epoch for token in targets.flatten().tolist())
        assert targets == list(range(1, 401))
    assert [b[0].tolist() for b in batches[:5]] != [b[0].tolist() for b in batches[5:]]
    assert data.train_batch(3, 7, 4, 3, 10)[0].tolist() == batches[6][0][4:7].tolist()
    with pytest.raises(ValueError, match="from 1"):
        data.train_batch(3, 0, 0, 1, 10)


@examples(30)
@given(weight_lists, st.sampled_from(["random", "epoch"]), st.integers(0, 2**40), st.integers(1, 10**9),
       st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_samples_do_not_depend_on_how_the_batch_is_cut(weights, order, seed, step, parts):
    sources = tuple(counting(100 + 37 * index, 1000 * index) for index in range(len(weights)))
    data, size = Dataset(sources, tuple(weights), 8, 10_000, order), sum(parts)
    together, at = data.train_batch(seed, step, 0, size, size)[0].tolist(), 0
    for part in parts:
        assert data.train_batch(seed, step, at, part, size)[0].tolist() == together[at : at + part]
        at += part


def test_a_mixture_reads_every_window_of_each_source_once_before_any_again():
    data = Dataset((counting(81), counting(161, 1000)), (Fraction(1, 3), Fraction(2, 3)), 8, 10_000, "epoch")
    starts = [start for step in range(1, 7) for start in data.train_batch(9, step, 0, 5, 5)[0][:, 0].tolist()]
    assert sorted(starts) == list(range(0, 80, 8)) + list(range(1000, 1160, 8))


def test_a_mixture_of_one_source_is_that_source_and_validation_is_dealt_by_weight():
    sources = (counting(500), counting(500, 1000))
    mixed = Dataset(sources, (Fraction(3, 4), Fraction(1, 4)), 8, 10_000)
    alone = Dataset(sources[:1], (Fraction(1),), 8, 10_000)
    for ours, theirs in zip(mixed.train_batch(1, 5, 0, 50, 50)[0].tolist(),
                            alone.train_batch(1, 5, 0, 50, 50)[0].tolist(), strict=True):
        assert ours[0] >= 1000 or ours == theirs
    starts = mixed.validation_batch(0, 40)[0][:, 0].tolist()
    assert sum(start >= 1000 for start in starts) == 10
    assert mixed.validation_batch(13, 5)[0][:, 0].tolist() == starts[13:18]
    assert len(set(starts)) == 40
    assert mixed.fingerprint() != Dataset(sources, (Fraction(1, 4), Fraction(3, 4)), 8, 10_000).fingerprint()
    assert alone.fingerprint() != Dataset(sources[:1], (Fraction(1),), 8, 10_000, "epoch").fingerprint()
