"""Where buffers are cut into buckets."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from holmes_hpc.values.buckets import bucket_cuts


@given(st.integers(0, 300), st.integers(1, 40), st.integers(1, 16))
def test_buckets_cover_the_buffer_and_end_small(steps: int, size_steps: int, step: int) -> None:
    total, size = steps * step, size_steps * step
    cuts = bucket_cuts(total, size, step)
    assert (cuts[0], cuts[-1]) == (0, total)
    lengths = [end - begin for begin, end in pairwise(cuts)]
    assert all(0 < length <= size and length % step == 0 for length in lengths)
    smallest = max(size // 4 // step, 1) * step
    if total >= smallest:
        assert lengths[-1] == smallest
    assert lengths[1:] == sorted(lengths[1:], reverse=True), "only the first one is what is left"
    assert len(lengths) <= total // size + 5


def test_a_large_buffer() -> None:
    assert bucket_cuts(100, 16) == [0, 4, 20, 36, 52, 68, 84, 92, 96, 100]
    assert bucket_cuts(100, 16, 4) == [0, 4, 20, 36, 52, 68, 84, 92, 96, 100]
    assert bucket_cuts(3, 16) == [0, 3]
