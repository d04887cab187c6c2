"""Variables of the submitting environment that would break a run on its nodes are refused before it waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_hpc.cluster import read_cluster
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.slurm.travelling import check_travelling, exported

NET = {"NCCL_NET": "Socket"}
HCA = {"NCCL_IB_HCA": "mlx5_0"}


def check(environment: dict[str, str], *overrides: str, cluster: str = "mixed", submitted: bool = True) -> None:
    config = compose([f"+cluster={cluster}", *overrides])
    check_travelling(config, read_cluster(config.cluster), environment, submitted=submitted)


@pytest.mark.parametrize(("environment", "overrides"), [
    (NET, []),
    (HCA, []),
    ({"NCCL_COMM_ID": "10.0.0.1:1"}, []),
    ({"NCCL_IB_DISABLE": "1"}, []),
    (HCA, ["cluster.partitions.ib.hca=mlx5_0"]),
    (NET, ["+launch.sbatch.export=ALL"]),
    (NET, ["+launch.sbatch.export='HOME,NCCL_NET'"]),
    ({}, ["+launch.sbatch.export='ALL,NCCL_NET=IB'"]),
    (NET, ["launch.setup=[unset NCCL_NETWORK]"]),
    (NET, ["+launch.sbatch.export=NONE", "+cluster.partitions.ib.sbatch.export=ALL"]),
])
def test_what_would_reach_the_ranks_is_refused(environment: dict[str, str], overrides: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="in the environment of this command, which the ranks get: NCCL_"):
        check(environment, *overrides)


@pytest.mark.parametrize(("environment", "overrides", "cluster"), [
    (NET, ["+launch.sbatch.export=NONE"], "mixed"),
    (NET, ["+launch.sbatch.export=NIL"], "mixed"),
    (NET, ["+launch.sbatch.export='HOME,PATH'"], "mixed"),
    (NET, ["launch.srun_args=['--export=HOME,PATH']"], "mixed"),
    (NET, ["launch.srun_args=[--export, NONE]"], "mixed"),
    (NET, ["launch.setup=[module load cuda, 'unset A NCCL_NET']"], "mixed"),
    (NET, ["launch.backend=gloo"], "mixed"),
    (NET, [], "laptop"),
    (HCA, [], "ib"),
    ({"NCCL_DEBUG": "INFO", "NCCL_IB_DISABLE": "0"}, [], "mixed"),
    (HCA, ["cluster.partitions.ib.hca=mlx5_0", "cluster.partitions.roce.hca=mlx5_1"], "mixed"),
])
def test_what_does_not_reach_them_or_does_no_harm_is_none_of_ours(environment: dict[str, str], overrides: list[str],
                                                                  cluster: str) -> None:
    check(environment, *overrides, cluster=cluster)


def test_inside_an_allocation_the_options_of_sbatch_are_no_matter() -> None:
    with pytest.raises(ConfigurationError, match="NCCL_NET=Socket"):
        check(NET, "+launch.sbatch.export=NONE", submitted=False)


def test_exports_are_read_as_slurm_reads_them() -> None:
    given: dict[str, Any] = {"A": "1", "B": "2"}
    assert exported(given, None) == exported(given, "ALL") == given
    assert exported(given, "ALL,B=3,C=4") == {"A": "1", "B": "3", "C": "4"}
    assert exported(given, "A,X") == {"A": "1"}
    assert exported(given, "NONE") == exported(given, "NIL") == {}
