"""Fixtures that start a real Slurm for a test; skipped, with the reason, where none can be started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from tests.slurm_cluster import ClusterSettings, SlurmCluster, start_cluster, tree_folder, unavailable_reason

MakeSlurm = Callable[..., SlurmCluster]

EACH_SLURM = ("installed", pytest.param("tree", marks=pytest.mark.long))
"""The machine's own Slurm, and that of the Debian 13 tree."""


@pytest.fixture
def make_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeSlurm]:
    """A function that starts a cluster of the given settings (`ClusterSettings`); all end with the test.

    `make_slurm(ib_nodes=3, roce_nodes=1)`, `make_slurm(accounting=True)`. A start takes about half a second, with
    accounting three.
    """
    with ExitStack() as stack:
        def make(**changes: Any) -> SlurmCluster:
            settings = ClusterSettings(**changes)
            reason = unavailable_reason(settings)
            if reason:
                pytest.skip(reason)
            return stack.enter_context(start_cluster(settings, tmp_path_factory.mktemp("slurm")))

        yield make


@pytest.fixture
def slurm(make_slurm: MakeSlurm) -> SlurmCluster:
    """A cluster of two nodes with InfiniBand and two with RoCE, without accounting."""
    return make_slurm()


@pytest.fixture
def slurm_accounting(make_slurm: MakeSlurm) -> SlurmCluster:
    """The same cluster with slurmdbd."""
    return make_slurm(accounting=True)


@pytest.fixture(params=EACH_SLURM)
def make_each_slurm(request: pytest.FixtureRequest, make_slurm: MakeSlurm) -> MakeSlurm:
    """`make_slurm` under both, that of the tree among the long tests."""
    return partial(make_slurm, tree=tree_folder() if request.param == "tree" else None)


@pytest.fixture
def each_slurm(make_each_slurm: MakeSlurm) -> SlurmCluster:
    """The cluster `slurm` under both."""
    return make_each_slurm()
