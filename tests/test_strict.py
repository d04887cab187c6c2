"""The strict backend catches what NCCL would punish, and the engine does none of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from holmes_hpc.cluster.nccl import DEFAULTS
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.point_to_point import Transfers
from holmes_hpc.comm.stepwise import Collective, Lane
from holmes_hpc.engine import Trainer
from holmes_hpc.engine.executor import Executor
from holmes_hpc.engine.origin import OwnNumbers
from tests.engine_worlds import train_world
from tests.strict import backend
from tests.strict.queues import Queues
from tests.strict.random_plans import random_plan
from tests.strict.rules import FIRST, Rules
from tests.strict.worlds import RELATIVE, StrictError, difference, train_strictly
from tests.test_equality import COMMON, HOLMES, LAYOUTS, TIED, UNTIED, mixed, uniform

QUICK = Rules(stall_seconds=2)
AHEAD = dataclasses.replace(QUICK, ahead=True)
PIPELINE = [*mixed((1, 1), (1, 1)), HOLMES, TIED, "parallel.schedule=1f1b", "train.steps=2"]
IN_ORDER = [*COMMON, *LAYOUTS["pp2"], "train.steps=2"]
DATA = [*uniform(2, 1), HOLMES, "parallel.pipeline=1", UNTIED, "train.steps=1"]


@contextmanager
def two_sends_swapped() -> Iterator[None]:
    send, held = Transfers.send, []

    def swapped(self: Transfers, *message: Any) -> None:
        held.append(message)
        if len(held) == 2:
            held.reverse()
        if len(held) > 1:
            for each in held:
                send(self, *each)
            held[:] = [()] if len(held) == 2 else []
        if held and held[-1] and len(held) > 2:
            send(self, *held.pop())

    with mock.patch.object(Transfers, "send", swapped):
        yield


@contextmanager
def two_buckets_exchanged() -> Iterator[None]:
    add, held = Lane.add, []

    def exchanged(self: Lane, collective: Collective) -> None:
        if dist.get_rank() == 1 and len(held) < 2:
            held.append(collective)
            for each in reversed(held) if len(held) == 2 else ():
                add(self, each)
            return
        add(self, collective)

    with mock.patch.object(Lane, "add", exchanged):
        yield


@contextmanager
def a_wait_left_out() -> Iterator[None]:
    wait = Communicator.wait

    def careless(self: Communicator, work: Any, group: Any, doing: str, **further: Any) -> None:
        if not doing.startswith("waiting for message"):
            wait(self, work, group, doing, **further)

    with mock.patch.object(Communicator, "wait", careless):
        yield


@contextmanager
def a_message_changed_on_its_way() -> Iterator[None]:
    send = Transfers.send

    def hasty(self: Transfers, tensor: Any, *message: Any) -> None:
        send(self, tensor, *message)
        tensor.detach().add_(1)

    with mock.patch.object(Transfers, "send", hasty):
        yield


@contextmanager
def a_host_read_without_a_wait() -> Iterator[None]:
    note = OwnNumbers.note_output

    def reading(self: OwnNumbers, tensor: Any) -> None:
        tensor.detach().numpy()
        note(self, tensor)

    with mock.patch.object(OwnNumbers, "note_output", reading):
        yield


@contextmanager
def a_sum_that_does_not_wait_for_its_backward() -> Iterator[None]:
    backward = Executor._backward

    def slow(self: Executor, action: Any) -> None:
        self._communicator.streams.put(lambda: time.sleep(0.2))  # type: ignore[union-attr]
        backward(self, action)

    with mock.patch.object(Queues, "wait", lambda self, point: None), mock.patch.object(Executor, "_backward", slow):
        yield


@contextmanager
def later_steps_that_wait_for_nothing() -> Iterator[None]:
    wait = Communicator.wait

    def careless(self: Communicator, work: Any, group: Any, doing: str, *, noted: bool = True) -> None:
        if noted:
            wait(self, work, group, doing)

    with mock.patch.object(Communicator, "wait", careless):
        yield


@contextmanager
def warm_up_of_one_operation() -> Iterator[None]:
    with mock.patch.object(backend, "ABILITIES", dataclasses.replace(backend.ABILITIES, connects_late=False)):
        yield


@contextmanager
def two_receives_ahead() -> Iterator[None]:
    with mock.patch.object(backend, "ABILITIES", dataclasses.replace(backend.ABILITIES, receives_ahead=2)):
        yield


@contextmanager
def nothing() -> Iterator[None]:
    yield


@pytest.mark.parametrize(("fault", "layout", "rules", "said"), [
    (two_sends_swapped, PIPELINE, QUICK, r"VIOLATION: meets another one.*recv from [01]"),
    (nothing, PIPELINE, dataclasses.replace(QUICK, one_group_an_edge=True), "DEADLOCK"),
    (two_buckets_exchanged, DATA, QUICK, "VIOLATION: meets another one"),
    (a_wait_left_out, PIPELINE, QUICK, "nan|NaN|finite"),
    (a_message_changed_on_its_way, PIPELINE, QUICK, "VIOLATION: what send to [01] .* changed before it was waited for"),
    (a_wait_left_out, PIPELINE, AHEAD, "nan|NaN|finite"),
    (a_host_read_without_a_wait, PIPELINE, AHEAD, "VIOLATION: the host reads a tensor of the device by numpy"),
    (later_steps_that_wait_for_nothing, DATA, AHEAD, "nan|NaN|finite"),
])
def test_planted_faults_are_caught(fault: Any, layout: list[str], rules: Rules, said: str, tmp_path: Path) -> None:
    with fault(), pytest.raises(StrictError, match=f"(?s){said}"):
        train_strictly(tmp_path, layout, rules)


def test_a_sum_that_begins_before_its_backward_shows(tmp_path: Path) -> None:
    (tmp_path / "gloo").mkdir()
    expected = train_world(tmp_path / "gloo", DATA)
    with a_sum_that_does_not_wait_for_its_backward():
        try:
            found = difference(train_strictly(tmp_path / "strict", DATA, AHEAD), expected)
        except StrictError:
            return
    assert found > 1e-3, "what is summed was not computed yet"


@pytest.mark.parametrize(("before", "layout", "rules", "cycle"), [
    # What is first used in mid-step holds a rank that has not yet sent what the other one waits for.
    (warm_up_of_one_operation, PIPELINE, dataclasses.replace(QUICK, hold=FIRST),
     r"rank 1: reducescatter .* waits for rank 0.*"),
    # On one queue two receives that were posted ahead hold up the send behind them (CUDA_DEVICE_MAX_CONNECTIONS=1).
    (two_receives_ahead, IN_ORDER, dataclasses.replace(QUICK, in_order=True),
     r"rank 0: send to 1 .* cannot start before its\nrank 0: recv from 1 "),
])
def test_deadlocks_are_told_as_a_cycle_and_the_engine_has_none(before: Any, layout: list[str], rules: Rules,
                                                               cycle: str, tmp_path: Path) -> None:
    with before(), pytest.raises(StrictError, match=f"(?s)DEADLOCK.*{cycle}"):
        train_strictly(tmp_path / "before", layout, rules)
    (tmp_path / "gloo").mkdir()
    expected = train_world(tmp_path / "gloo", layout)
    found = train_strictly(tmp_path / "after", layout, dataclasses.replace(rules, stall_seconds=20))
    assert difference(found, expected) <= RELATIVE


MORE_GROUPS_THAN_QUEUES = 16
"""The seed of a plan whose ranks have up to 13 communicators: sums wait in the queue of a send."""


@pytest.mark.long
def test_groups_that_share_hardware_queues_deadlock_and_have_each_its_own(tmp_path: Path) -> None:
    layout = random_plan(MORE_GROUPS_THAN_QUEUES)
    with pytest.raises(StrictError, match="DEADLOCK"):
        train_strictly(tmp_path / "before", layout, Rules(ahead=True, queues=8, stall_seconds=4))
    (tmp_path / "gloo").mkdir()
    found = train_strictly(tmp_path / "after", layout,
                           Rules(ahead=True, queues=int(DEFAULTS["CUDA_DEVICE_MAX_CONNECTIONS"])))
    assert difference(found, train_world(tmp_path / "gloo", layout)) <= RELATIVE


HARDER = ("pp2-dp2-tied-sgd", "interleaved-pp2-dp2", "zero-bubble-pp4", "three-beside-one", "dp4", "tp2-pp2-sequence",
          "unlike-tensor-degrees-sequence", "turns-pp2-dp4")
"""Layouts of each kind; `python -m benchmarks.strict` trains all."""


@pytest.mark.parametrize("name", [HARDER[0], *(pytest.param(name, marks=pytest.mark.long) for name in HARDER[1:])])
def test_layouts_train_by_all_rules_as_on_gloo(name: str, tmp_path: Path) -> None:
    layout = [*COMMON, *LAYOUTS[name], "train.steps=2"]
    rules = Rules(hold=FIRST, queues=4, resident=6, seen=0.5, jitter_seconds=0.001, seed=len(name))
    (tmp_path / "gloo").mkdir()
    found = train_strictly(tmp_path / "strict", layout, rules)
    assert difference(found, train_world(tmp_path / "gloo", layout)) <= RELATIVE


@pytest.mark.parametrize("name", ["three-beside-one", *(
    pytest.param(name, marks=pytest.mark.long) for name in ("tp2-pp2-sequence", "zero-bubble-pp4", "dp4"))])
def test_layouts_train_where_the_host_runs_ahead_as_on_gloo(name: str, tmp_path: Path) -> None:
    layout = [*COMMON, *LAYOUTS[name], "train.steps=2"]
    rules = Rules(ahead=True, hold=FIRST, queues=32, resident=8, jitter_seconds=0.001, seed=len(name))
    (tmp_path / "gloo").mkdir()
    found = train_strictly(tmp_path / "strict", layout, rules)
    assert difference(found, train_world(tmp_path / "gloo", layout)) <= RELATIVE


@pytest.mark.parametrize("seed", [7, *(pytest.param(seed, marks=pytest.mark.long) for seed in (8, 9))])
def test_drawn_plans_train_by_all_rules_as_on_gloo(seed: int, tmp_path: Path) -> None:
    rules = Rules(hold=FIRST, queues=8, resident=8, seen=0.5, jitter_seconds=0.001, seed=seed)
    (tmp_path / "gloo").mkdir()
    found = train_strictly(tmp_path / "strict", random_plan(seed), rules)
    assert difference(found, train_world(tmp_path / "gloo", random_plan(seed))) <= RELATIVE


class Reads(TorchFunctionMode):
    """Counts what makes a host wait for its GPU: numbers and copies that leave the device."""

    LEAVING = frozenset({"item", "tolist", "__float__", "__int__", "__bool__", "__index__", "cpu", "numpy", "nonzero"})

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if getattr(function, "__name__", "") in self.LEAVING:
            self.found.append(function.__name__)
        return function(*arguments, **(named or {}))


def counting(reads: dict[str, list[str]], trainer: Trainer) -> None:
    """Let a trainer count the reads of a step, and those among its actions."""
    step, run = trainer.step, trainer._executor.run

    def counted(name: str, function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            with Reads() as mode:
                result = function(*arguments, **named)
            reads.setdefault(name, []).extend(mode.found)
            return result
        return call

    trainer.step, trainer._executor.run = counted("step", step), counted("actions", run)  # type: ignore[method-assign]


@pytest.mark.parametrize("microbatches", [2, 6])
def test_the_host_waits_for_the_device_once_a_step(microbatches: int, tmp_path: Path) -> None:
    layout = [*PIPELINE, "parallel.micro_batch_size=1", f"train.global_batch_size={microbatches}", "train.steps=3"]
    reads: dict[str, list[str]] = {}
    world = train_world(tmp_path, layout, before=partial(counting, reads), look=lambda trainer: reads)
    for rank in world.seen:
        assert rank["actions"] == []
        assert rank["step"].count("tolist") == 2 * 3, "norms with the loss, and the reports, which are on the CPU"
        assert set(rank["step"]) <= {"tolist", "__float__", "__int__"}, "integers are of the data, on the CPU"
        assert rank["step"].count("__float__") == 3, "the norm's sum over the reports, on the CPU"


@pytest.mark.parametrize(("devices", "said"), [
    ((("bus 1", "GPU-a"), ("bus 1", "GPU-a")), r"ranks 0, 1 on node .* have the same GPU: .*--gpu-bind"),
    ((("bus 1", "MIG-a"), ("bus 1", "MIG-b")), r"ranks 0, 1 on node .* have slices \(MIG\) of one GPU"),
])
def test_ranks_that_share_a_gpu_are_named(devices: Any, said: str, tmp_path: Path) -> None:
    one_node = [*uniform(1, 2), HOLMES, UNTIED, "train.steps=1"]
    with pytest.raises(StrictError, match=f"ConfigurationError: {said}"):
        train_strictly(tmp_path / "one", one_node, Rules(devices=devices))
    assert train_strictly(tmp_path / "two", DATA, Rules(devices=devices)).rows, "another node has another bus 1"
