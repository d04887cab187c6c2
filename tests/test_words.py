"""Small parts of sentences: sizes, and what a fact is about."""

from __future__ import annotations

import pytest

from holmes_hpc.words import about, size_words


@pytest.mark.parametrize(("size", "words"), [
    (0, "0 B"), (64, "64 B"), (1000, "1.0 KiB"), (118_000, "0.1 MiB"), (3_400_000, "3.2 MiB"), (150 << 20, "0.15 GiB"),
    (13_476_831_232, "12.55 GiB")])
def test_a_size_that_is_not_nothing_is_not_called_nothing(size: int, words: str) -> None:
    assert size_words(size) == words


def test_what_a_fact_is_about_is_said_once() -> None:
    assert about("parallel.pipeline=3", "parallel.pipeline=3 needs 3 ranks") == "parallel.pipeline=3 needs 3 ranks"
    assert about("train.steps=1", "no room") == "train.steps=1: no room"
