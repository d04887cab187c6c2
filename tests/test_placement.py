"""Which NIC the traffic takes, proven by the kernel's counters."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from tests.runs_for_tests import Finished, train

pytestmark = pytest.mark.emulated

FLOAT_BYTES = 4
HIDDEN = 64
COMMON = [
    "+cluster=mixed", "train.steps=4", "train.validate_every=0", "train.timeline_every=0",
    "train.validation_samples=4", "train.global_batch_size=16", "parallel.micro_batch_size=2",
    "parallel.pipeline=2", "model.sequence_length=32", f"model.hidden_size={HIDDEN}", "model.num_heads=2",
    "model.tied_embeddings=false",
]
LAYER_PARAMETERS = 12 * HIDDEN**2 + 13 * HIDDEN


def bytes_per_step(finished: Finished, key: str) -> float:
    """Return the mean without the first step, which gathers nothing: what one step leaves on its way is the next's."""
    return mean(row[key] for row in finished.rows[1:])


Pair = tuple[Finished, Finished]


def run_pair(folder: Path, strategy: str, *further: str) -> Pair:
    finished = []
    for layers in (4, 8):
        (folder / str(layers)).mkdir()
        finished.append(train(folder / str(layers), [*COMMON, f"parallel={strategy}", f"model.num_layers={layers}",
                                                     *further]))
    return finished[0], finished[1]


@pytest.fixture(scope="module")
def holmes(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Runs of four and eight layers on single GPUs."""
    return run_pair(tmp_path_factory.mktemp("holmes"), "holmes", "cluster.partitions.ib.gpus_per_node=1",
                    "cluster.partitions.roce.gpus_per_node=1")


def test_holmes_keeps_gradients_off_ethernet(holmes: Pair) -> None:
    small, large = holmes
    ethernet = [bytes_per_step(run, "bytes_ethernet") for run in (small, large)]
    fabric = [bytes_per_step(run, "bytes_fabric") for run in (small, large)]
    assert ethernet[1] == pytest.approx(ethernet[0], rel=0.03)
    added = 4 * LAYER_PARAMETERS * FLOAT_BYTES
    assert fabric[1] - fabric[0] > added, "the added gradients cross the fabric NICs"
    activations = 2 * 16 * 32 * HIDDEN * FLOAT_BYTES
    assert ethernet[0] > activations, "activations and their gradients cross Ethernet once each way"


@pytest.mark.parametrize(("sharded", "crossings"), [
    (False, 2 * 1.5), (True, 2 * 1.0)])
@pytest.mark.long
def test_megatron_sends_gradients_over_ethernet(tmp_path: Path, sharded: bool, crossings: float) -> None:
    # Whole sums: a ring of four ranks on two nodes passes 2 * 3/4 of the gradients over each of its two crossings.
    # Shards: summed inside each node first, so each node sends half of the gradients and then half of the parameters.
    # The steps counted may hold one gather more or less than there are steps, so there are many.
    small, large = run_pair(tmp_path, "megatron", f"optimizer.sharded={str(sharded).lower()}", "train.steps=16")
    added = 4 * LAYER_PARAMETERS * FLOAT_BYTES
    grown = bytes_per_step(large, "bytes_ethernet") - bytes_per_step(small, "bytes_ethernet")
    assert grown == pytest.approx(crossings * added, rel=0.12)
    assert bytes_per_step(large, "bytes_fabric") < 0.01 * grown


def test_groups_name_their_network(holmes: Pair) -> None:
    networks = {(group["kind"], group["network"]) for group in holmes[0].plan["groups"]}
    assert ("data", "ib") in networks
    assert ("data", "roce") in networks
    assert {network for kind, network in networks if kind == "pipeline"} == {"ethernet"}
