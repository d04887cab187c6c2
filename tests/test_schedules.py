"""Courses of the learning rate, and what weight decay concerns."""

from __future__ import annotations

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.engine.optimizer import learning_rate
from holmes_hpc.errors import ConfigurationError
from tests.engine_worlds import train_world

END = 110


def settings(*overrides: str):
    return compose(["+cluster=laptop", "optimizer.lr=1.0", "optimizer.min_lr=0.1", "optimizer.warmup_steps=10",
                    *overrides]).optimizer


def course(*overrides: str) -> list[float]:
    given = settings(*overrides)
    return [learning_rate(step, given, END) for step in range(1, END + 20)]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd", "constant"])
def test_every_schedule_warms_up_and_ends_at_its_floor(schedule):
    rates = course(f"optimizer.schedule={schedule}")
    assert rates[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    floor = 1.0 if schedule == "constant" else 0.1
    assert rates[END - 1:] == pytest.approx([floor] * 20)
    after = rates[9:END]
    assert all(first >= second for first, second in zip(after, after[1:], strict=False))


def test_the_middle_of_each_schedule():
    middle = {name: course(f"optimizer.schedule={name}")[59] for name in ("cosine", "linear", "wsd", "constant")}
    assert middle == pytest.approx({"cosine": 0.55, "linear": 0.55, "wsd": 1.0, "constant": 1.0})
    assert course("optimizer.schedule=linear")[34] == pytest.approx(1.0 - 0.9 * 0.25)
    assert course("optimizer.schedule=cosine")[34] == pytest.approx(0.1 + 0.45 * (1 + 0.5**0.5))


def test_wsd_comes_down_in_its_cooldown():
    rates = course("optimizer.schedule=wsd", "optimizer.cooldown_steps=20")
    assert rates[89] == 1.0
    assert rates[99] == pytest.approx(0.55)
    default = course("optimizer.schedule=wsd")
    assert (default[98], default[99]) == pytest.approx((1.0, 1.0 - 0.9 / 11))
    whole = course("optimizer.schedule=wsd", "optimizer.cooldown_steps=1000")
    assert whole == pytest.approx(course("optimizer.schedule=linear"))


def test_a_cooldown_without_wsd_is_refused():
    with pytest.raises(ConfigurationError, match=r"belongs to optimizer\.schedule=wsd, and it is cosine"):
        settings("optimizer.cooldown_steps=5")


def test_weight_decay_concerns_matrices_or_all(tmp_path):
    found = {}
    for decayed in ("matrices", "all"):
        world = train_world(tmp_path, ["+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=1",
                                       "train.steps=1",
                                       "optimizer.lr=1.0", "optimizer.min_lr=0.0", "optimizer.warmup_steps=0",
                                       "optimizer.decay_steps=1000000", "optimizer.weight_decay=0.5",
                                       f"optimizer.decayed={decayed}"],
                            look=lambda trainer: {name: each.detach().clone() for name, each in
                                                  trainer._model.parameters.items()})
        found[decayed] = world.seen[0]
    norm, matrix = "head.norm.weight", "layers.0.attention.query.weight"
    assert found["all"][matrix].equal(found["matrices"][matrix])
    assert (found["matrices"][norm] - found["all"][norm]).mean().item() == pytest.approx(0.5, rel=1e-3)
