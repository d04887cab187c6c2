"""How many examples the tests with drawn input try: enough for every day, and more in `make test-long`."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

times_as_many = 1
"""Set from `--examples-times` before the tests are read."""


def examples(number: int, **others: Any) -> settings:
    """Return the settings of a test that tries `number` examples, or `--examples-times` as many; `others` are added."""
    return settings(max_examples=number * times_as_many, deadline=None, **others)
