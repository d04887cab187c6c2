"""The alternatives that a plan names: such as can be told apart, and how each differs."""

import dataclasses

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.planner.layout.groups import GroupRules
from holmes_hpc.planner.making import plan
from holmes_hpc.planner.search.candidate import evaluate_layout, evaluate_schedule
from holmes_hpc.planner.strategies.proposals import LayoutFacts
from holmes_hpc.planner.task import task_of
from holmes_hpc.planner.telling.alternatives import MOST_REJECTED, alternatives
from holmes_hpc.values import Pipeline, Stage

TASK = task_of(compose(["+cluster=mixed", "model.tied_embeddings=false"]), "auto")
"""Ranks 0 to 3 on two ib nodes, 4 to 7 on two roce nodes; 4 layers, a batch of 32."""
ACROSS = [(0, 4), (1, 5), (2, 6), (3, 7)]


def evaluated(pairs, layers=(2, 2), size=4, strategy="holmes", words="words"):
    pipelines = tuple(Pipeline(32 // len(pairs) // size, (Stage((first,), 0, layers[0]),
                                                         Stage((second,), layers[0], layers[1])))
                      for first, second in pairs)
    return evaluate_layout(TASK, LayoutFacts(strategy, words, size), pipelines, size, GroupRules())


def reasons(best, *others):
    return {other.layout: other.reason for other in alternatives(best, [best, *others], {})}


def test_what_looks_the_same_is_named_once_or_not_at_all():
    best = evaluated(ACROSS)
    permuted = evaluated(ACROSS[::-1], words="other order of pipelines")
    swapped = [evaluated([pair[::-1] for pair in pairs], words=f"roce first {i}")
               for i, pairs in enumerate((ACROSS, ACROSS[::-1]))]
    found = reasons(best, permuted, *swapped)
    assert len(found) == 1
    (reason,) = found.values()
    assert reason.startswith("as fast: ") and reason.endswith("stages on roce, then ib")


def test_of_other_schedules_of_a_layout_the_best_is_named():
    best = evaluated(ACROSS, size=1)
    slower = [evaluate_schedule(TASK, best.facts, best.layout, best.rules,
                             dataclasses.replace(best.schedule, name="gpipe", warmup_extra=extra))
              for extra in (0, 1)]
    found = alternatives(best, [best, *slower], {})
    assert len(found) == 1 and "gpipe" in found[0].reason
    assert found[0].predicted.step_seconds == min(each.seconds for each in slower)


@pytest.mark.parametrize(("other", "words"), [
    ({"layers": (1, 3)}, "layers 1+3"),
    ({"size": 2}, "micro-batches of 2"),
    ({"pairs": [(0, 1), (2, 3), (4, 5), (6, 7)]}, "stages on "),
])
def test_a_reason_says_how_an_alternative_differs(other, words):
    found = reasons(evaluated(ACROSS), evaluated(**{"pairs": ACROSS, **other}))
    assert len(found) == 1
    (reason,) = found.values()
    speed, _, difference = reason.replace(" (level: within the error)", "").partition(": ")
    assert speed == "as fast" or speed.endswith(("% slower", "% faster"))
    assert difference.startswith(words)


def test_the_best_of_every_other_strategy_is_among_them():
    best = evaluated(ACROSS)
    same = evaluated(ACROSS, strategy="flashflex", words="same")
    many = [evaluated(ACROSS, layers=(first, 4 - first), size=size, words=f"{first} {size}")
            for first in (1, 2, 3) for size in (1, 2, 4, 8)]
    found = alternatives(best, [best, same, *many], {"megatron": ["does not divide"]})
    assert len(found) == MOST_REJECTED
    reason = next(each for each in found if each.layout == "same, micro-batch 4").reason
    assert reason == "as fast: comes to the same layout"
    assert (found[-1].strategy, found[-1].reason) == ("megatron", "does not divide")


def test_a_plan_names_no_two_alike():
    made = plan(compose(["+cluster=mixed"]), "auto")
    assert not any("later in order" in each.reason for each in made.rejected)
    shown = [(each.layout, each.reason) for each in made.rejected]
    assert len(set(shown)) == len(shown)
    assert all(": " in each.reason for each in made.rejected)
