"""Which cores the ranks of a run on this machine compute on."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_hpc.emulation.cores import bind_to_cores, share_of_cores
from tests.forked import run_ranks


@given(st.integers(1, 12), st.sets(st.integers(0, 63), min_size=1))
def test_shares_are_equal_and_apart_where_there_are_enough(ranks: int, cores: set[int]) -> None:
    shares = [share_of_cores(number, ranks, cores) for number in range(ranks)]
    if len(cores) < ranks:
        assert shares == [cores] * ranks
        return
    assert {len(share) for share in shares} == {len(cores) // ranks}
    assert len(set().union(*shares)) == ranks * (len(cores) // ranks)
    assert set().union(*shares) <= cores


def bound(given_rank) -> set[int]:
    bind_to_cores(given_rank.rank, given_rank.world_size)
    return os.sched_getaffinity(0)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this machine has one core")
def test_two_ranks_share_no_core() -> None:
    first, second = run_ranks(2, bound)
    assert first and second and first.isdisjoint(second)
