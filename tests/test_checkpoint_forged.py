"""Indices of checkpoints that somebody forged together with their checksums: refused in words, whatever they say."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_hpc.checkpoint.index import INDEX_NAME, pack, read_index
from holmes_hpc.checkpoint.model import check_optimizer, states_of
from holmes_hpc.errors import CheckpointError
from holmes_hpc.launch.here.ended import how_to_go_on
from holmes_hpc.runs import RunFolder
from tests.checkpoint_folders import make_checkpoint
from tests.checkpoints_for_tests import load, save
from tests.fuzzing import examples

EXTRA = {"parts": {"model": {}, "optimizer": {"name": "adamw", "steps": 10, "numbers": {
    "optimizer.steps": 10.0, "skipped_steps": 0.0}}}, "settings": {"train.steps": 20}, "serial": 1}
NONSENSE = [None, True, -1, 0, 3, 2**63, 10**40, 1.5, float("nan"), float("inf"), -1e308, "", "x", "..", "a/b", [], [1],
            {}, {"a": 1}, "rank-0001.safetensors", [[]], "float32", "int64"]


def content_of(path: Path) -> Any:
    return json.loads((path / INDEX_NAME).read_text())["content"]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value inside a JSON value."""
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield from places(each, (*path, key))


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    found = copy.deepcopy(content)
    place = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return found


def take(path: Path) -> None:
    """Do with a checkpoint what a resume does before it trains."""
    index = read_index(path)
    check_optimizer(index, "adamw")
    states_of(index)
    index.check_texts(path)
    load(path)


@pytest.fixture(scope="module")
def forgery(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, list[tuple[Any, ...]]]:
    path = save(tmp_path_factory.mktemp("forged"), 10, extra=EXTRA)
    content = content_of(path)
    return path, content, list(places(content))


@examples(300)
@given(data=st.data())
def test_any_value_of_an_index_may_be_anything(forgery: tuple[Path, Any, list[tuple[Any, ...]]],
                                               data: st.DataObject) -> None:
    path, content, ways = forgery
    for _ in range(data.draw(st.integers(1, 2))):
        way, value = data.draw(st.sampled_from(ways)), data.draw(st.sampled_from(NONSENSE))
        try:
            content = changed(content, way, value)
        except (KeyError, IndexError, TypeError):
            return  # the first change took the place of the second away
    (path / INDEX_NAME).write_text(pack(content))
    try:
        take(path)
    except CheckpointError as error:
        assert 0 < len(str(error)) < 400


@pytest.mark.parametrize(("numbers", "words"), [
    ({"optimizer.steps": -5.0}, "its index says optimizer.steps='-5.0' of the optimizer"),
    ({"optimizer.steps": "many"}, "optimizer.steps='many'"), ({"skipped_steps": float("nan")}, "skipped_steps='nan'"),
    ({"loss_scale.value": float("inf")}, "loss_scale.value='inf'"), ([1], "numbers in its index is '[1]'"),
])
def test_numbers_that_would_be_trained_on_are_refused(tmp_path: Path, numbers: Any, words: str) -> None:
    path = make_checkpoint(tmp_path / "step-000001", 1, {"parts": {"model": {}, "optimizer": {
        "name": "adamw", "numbers": numbers}}})
    with pytest.raises(CheckpointError, match="it is foreign") as error:
        check_optimizer(read_index(path), "adamw")
    assert words in str(error.value)


@pytest.mark.parametrize("settings", [None, 3, [], {"train.steps": "x"}, {"train.steps": None}, {"train.steps": [1]}])
def test_nonsense_in_a_checkpoint_stops_no_advice_at_the_end_of_a_run(tmp_path: Path, settings: Any) -> None:
    folder = RunFolder.create(tmp_path, "mixed")
    make_checkpoint(folder.checkpoints / "step-000002", 2, {"settings": settings})
    assert "its newest checkpoint is that of step 2: go on after it" in how_to_go_on(folder)
