"""Small parts of sentences: sizes, durations, and what a fact is about."""

from __future__ import annotations

import pytest

from holmes_hpc.words import about, seconds_words, size_words


@pytest.mark.parametrize(("size", "words"), [
    (0, "0 B"), (64, "64 B"), (1000, "1.0 KiB"), (118_000, "0.1 MiB"), (3_400_000, "3.2 MiB"), (150 << 20, "0.15 GiB"),
    (13_476_831_232, "12.55 GiB")])
def test_a_size_that_is_not_nothing_is_not_called_nothing(size: int, words: str) -> None:
    assert size_words(size) == words


@pytest.mark.parametrize(("seconds", "words"), [
    (0, "0 ms"), (0.0212, "21.2 ms"), (0.9999, "1,000 ms"), (6.3, "6.3 s"), (119.2, "119 s"), (120, "2 min"),
    (2700, "45 min"), (7200, "2 h"), (4.5e7, "12,500 h")])
def test_a_duration_is_told_in_the_unit_that_fits(seconds: float, words: str) -> None:
    assert seconds_words(seconds) == words


def test_what_a_fact_is_about_is_said_once() -> None:
    assert about("parallel.pipeline=3", "parallel.pipeline=3 needs 3 ranks") == "parallel.pipeline=3 needs 3 ranks"
    assert about("train.steps=1", "no room") == "train.steps=1: no room"
