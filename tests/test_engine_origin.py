"""Numbers that are not finite are traced to the rank that had them first, not to the one that says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from holmes_hpc.engine.origin import GRADIENTS, OUTPUTS, WEIGHTS, Origin, OwnNumbers, find_origin
from holmes_hpc.engine.trainer import Trainer
from tests.engine_worlds import train_world
from tests.forked import RankFailedError
from tests.run_folders import make_plan

PLAN = make_plan()
"""Ranks 0 to 3 hold the first stages of four pipelines, 4 to 7 the second."""
ALL = range(8)
TWO = ["+cluster=uniform", "parallel=holmes", "cluster.nodes=2", "cluster.gpus_per_node=1"]


def odd(**ranks: int) -> list[int]:
    return [ranks.get(f"rank{rank}", 0) for rank in ALL]


@pytest.mark.parametrize(("had", "origin"), [
    (odd(), None),
    (odd(rank2=GRADIENTS), Origin((2,), GRADIENTS, True)),
    # What rank 1 sends spoils the second stage, and the gradients that come back.
    (odd(rank1=OUTPUTS | GRADIENTS, rank5=OUTPUTS | GRADIENTS), Origin((1,), OUTPUTS, True)),
    (odd(rank1=GRADIENTS, rank5=GRADIENTS), Origin((5,), GRADIENTS, True)),
    (odd(rank1=GRADIENTS | OUTPUTS, rank5=GRADIENTS | OUTPUTS, rank6=WEIGHTS), Origin((6,), WEIGHTS, True)),
    ([OUTPUTS | GRADIENTS] * 8, Origin((0, 1, 2, 3), OUTPUTS, False)),
    (odd(rank0=GRADIENTS, rank1=GRADIENTS, rank2=GRADIENTS), Origin((0, 1, 2), GRADIENTS, False)),
    ([WEIGHTS] * 8, Origin(tuple(ALL), WEIGHTS, False)),
])
def test_the_first_of_all_is_found(had: list[int], origin: Origin | None) -> None:
    assert find_origin(PLAN, had) == origin


def test_a_rank_is_described_by_its_node_and_gpu() -> None:
    assert Origin((3,), GRADIENTS, True).describe(PLAN) == (
        "rank 3 on node ib-1 (GPU 1, a100-80g) alone had gradients that were not finite, before anything was summed")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_a_rank_made_is_noted_whatever_follows(bad: float, dtype: torch.dtype) -> None:
    own, good = OwnNumbers(torch.device("cpu")), torch.full((70000,), 100.0, dtype=dtype)
    own.note_output(good)
    own.note_gradients(good)
    assert own.odd([good]) == 0, "a sum beyond what float16 holds is finite"
    wrong = good.clone()
    wrong[5] = bad
    own.note_output(wrong)
    own.note_output(good)
    assert own.odd([good]) == OUTPUTS
    own.note_gradients(wrong)
    assert own.odd([good, wrong]) == OUTPUTS | GRADIENTS | WEIGHTS
    own.start()
    assert own.odd([good]) == 0


def spoil_weight(trainer: Trainer) -> None:
    trainer._gatherer.finish()  # else what arrives from others mends it
    with torch.no_grad():
        next(iter(trainer._model.parameters.values())).view(-1)[0] = math.nan


def spoil_gradient(trainer: Trainer) -> None:
    trainer._gradients.flats[0].gradients[3] = math.nan


def in_step_2(spoil: Callable[[Trainer], None], rank: int) -> Callable[[Trainer], None]:
    """Spoil something of one rank once its second step has begun."""
    def before(trainer: Trainer) -> None:
        real, calls = trainer._gradients.start, []

        def start(timeline: object) -> None:
            calls.append(1)
            real(timeline)  # type: ignore[arg-type]
            if len(calls) == 2 and trainer._job.rank == rank:
                spoil(trainer)

        trainer._gradients.start = start  # type: ignore[method-assign]

    return before


@pytest.mark.parametrize(("stages", "spoil", "rank", "had"), [
    (1, spoil_weight, 1, "weights"),
    (2, spoil_weight, 1, "weights"),
    (2, spoil_gradient, 0, "gradients"),
])
def test_the_rank_is_named_whatever_it_spoilt(tmp_path: Path, stages: int, spoil: Callable[[Trainer], None],
                                              rank: int, had: str) -> None:
    with pytest.raises(RankFailedError) as ended:
        train_world(tmp_path, [*TWO, f"parallel.pipeline={stages}"], before=in_step_2(spoil, rank))
    text = str(ended.value)
    assert "step 2: " in text and f"rank {rank} on node " in text and f"had {had} that were not finite" in text
    assert ("hardware is likely" in text) == (had == "weights"), text
