"""A vocabulary that tensor ranks cannot divide evenly: its checkpoint is the model's and goes to any layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from holmes_hpc.checkpoint.index import read_index
from tests.engine_worlds import World, train_world

VOCABULARY, WIDTH, STEPS, SAVED_AT = 1027, 16, 16, 4
COMMON = [f"train.steps={STEPS}", f"train.checkpoint_every={SAVED_AT}", f"model.vocab_size={VOCABULARY}",
          f"model.hidden_size={WIDTH}", "model.num_layers=2", "model.num_heads=4", "parallel.micro_batch_size=4",
          "train.timeline_every=0", "train.keep_checkpoints=9"]
UNTIED = "model.tied_embeddings=false"
ONE = ["+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=1"]
TWO, FOUR = (["+cluster=uniform", "cluster.nodes=1", f"cluster.gpus_per_node={n}", "parallel=megatron",
              f"parallel.tensor={n}"] for n in (2, 4))


def checkpoint(world: World, step: int) -> Path:
    return world.folder.checkpoints / f"step-{step:06d}"


@pytest.mark.parametrize("tied", [[], pytest.param([UNTIED], marks=pytest.mark.long)], ids=["tied", "untied"])
def test_a_checkpoint_of_an_odd_vocabulary_goes_to_tensor_ranks_and_back(tied: list[str], tmp_path: Path) -> None:
    """From one process to two ranks, from those to four, and back to one: the curve is the uninterrupted one's."""
    whole = train_world(tmp_path, [*ONE, *COMMON, *tied])
    source = checkpoint(whole, SAVED_AT)
    for layout, begin in ((TWO, SAVED_AT), (FOUR, 2 * SAVED_AT), (ONE, 3 * SAVED_AT)):
        resumed = train_world(tmp_path, [*layout, *COMMON, *tied, f"train.resume={source}"])
        assert [row["step"] for row in resumed.rows] == list(range(begin + 1, STEPS + 1))
        for key in ("loss", "grad_norm"):
            expected = [row[key] for row in whole.rows[begin:]]
            assert [row[key] for row in resumed.rows] == pytest.approx(expected, rel=1e-5)
        source = checkpoint(resumed, begin + SAVED_AT)
        shapes = read_index(source).shapes("model/")
        assert shapes["embedding.token.weight"] == (VOCABULARY, WIDTH), "no padded row is stored"
        assert shapes.get("head.output.weight", (VOCABULARY, WIDTH)) == (VOCABULARY, WIDTH)
        rows = sum(shard.sizes[0] for shard in read_index(source).shards
                   if shard.key == "model/embedding.token.weight" and shard.sizes[1] == WIDTH)
        assert rows == VOCABULARY, "every row once"
