"""Plans that cannot be made, by every strategy: each refusal names its cause."""

from __future__ import annotations

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError, PlanRefusedError
from holmes_hpc.planner import plan
from tests.plans_for_tests import MIXED, make

REFUSED = {
    "more fabrics than layers": (["parallel=holmes", "model.num_layers=1"], "layers"),
    "fewer stages than fabrics": (["parallel=holmes", "parallel.pipeline=1"], "at least 2"),
    "megatron does not divide": (["parallel=megatron", "parallel.pipeline=3"], "tensor x pipeline x data must be 8"),
    "megatron data": (["parallel=megatron", "parallel.pipeline=2", "parallel.data=3"], "must be 8"),
    "fabrics thinner than data": (["parallel=holmes", "parallel.data=8"], "parallel.data=8"),
    "tensor wider than a node": (["parallel=holmes", "parallel.tensor=4"], "one of 1, 2"),
    "tensor does not divide the heads": (["parallel=holmes", "parallel.tensor=2", "model.num_heads=1"], "1 heads"),
    "fewer micro-batches than pipelines": (["parallel=holmes", "parallel.tensor=1", "parallel.pipeline=2",
                                            "train.global_batch_size=3", "parallel.micro_batch_size=1"],
                                           "each needs at least one"),
    "megatron micro-batches": (["parallel=megatron", "parallel.tensor=1", "parallel.pipeline=2",
                                "train.global_batch_size=6", "parallel.micro_batch_size=1"], "multiple"),
    "memory": (["model=gpt_145_6b", "parallel=holmes"], "memory"),
    "memory of megatron": (["model=gpt_145_6b", "parallel=megatron"], r"rank \d+ \(\w+/\d, a100-80g\) needs .* GiB"),
    "flashflex": (["parallel=flashflex", "model=gpt_145_6b"], "memory"),
    "flashflex in chunks": (["parallel=flashflex", "parallel.schedule=interleaved", "parallel.chunks=2",
                             "model.num_layers=8"], "parallel.chunks=1"),
    "more chunks than layers": (["parallel=holmes", "parallel.chunks=4"], "stages, which need at least as many layers"),
    "manual without pipelines": (["parallel=manual"], "parallel.pipelines"),
    "manual leaves ranks out": (["parallel=manual", "parallel.pipelines=[{stages: [{ranks: [0], layers: 4}]}]"],
                                "ranks 1, 2, 3, 4, 5, 6, 7 are in no stage"),
    "manual layers": (["parallel=manual", "parallel.pipelines=[{stages: [{ranks: [0], layers: 3}]}]"], "3 layers"),
    "manual rank": (["parallel=manual", "parallel.pipelines=[{stages: [{ranks: [9], layers: 4}]}]"], "0 to 7"),
    "manual tensor group over nodes": (
        ["parallel=manual", "parallel.pipelines=[{stages: [{ranks: [0, 4], layers: 4}]}]"], "one node"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why(name: str) -> None:
    overrides, words = REFUSED[name]
    with pytest.raises((PlanRefusedError, ConfigurationError), match=words):
        make(MIXED, *overrides)


@pytest.mark.parametrize("strategy", ["auto", "flashflex", "holmes", "megatron"])
@pytest.mark.parametrize("overrides", [
    ["parallel.tensor=3"], ["parallel.tensor=8"],
    ["parallel.tensor=4", "cluster.partitions.roce.gpus_per_node=4"],
    ["parallel.tensor=2", "model.num_heads=3", "model.hidden_size=96"],
], ids=" ".join)
def test_a_tensor_degree_that_does_not_fit_is_refused_by_every_strategy(strategy: str, overrides: list[str]) -> None:
    with pytest.raises(PlanRefusedError, match=r"parallel\.tensor=[0-9]+: .*Set parallel\.tensor to one of 1"):
        plan(compose(["+cluster=mixed", f"parallel={strategy}", *overrides]), mode="slurm")
