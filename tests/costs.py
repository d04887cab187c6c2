"""What each test costs: its seconds, and the CPU seconds of this process, its children and its warm commands.

`make test ARGS=--costs=costs.tsv` adds a line for each test. On a busy machine the CPU seconds alone tell; where the
others are many more the test waits. What daemons compute, such as Slurm's, is not among them.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs_for_tests import WARM


class Costs:
    """A plug-in of pytest that appends to `path`; each process of a parallel run writes whole lines."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began, computed = time.monotonic(), cpu_seconds()
        result = yield
        line = f"{cpu_seconds() - computed:.2f}\t{time.monotonic() - began:.2f}\t{item.nodeid}\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(descriptor, line.encode())
        os.close(descriptor)
        return result


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return WARM.cpu_seconds + sum(each.ru_utime + each.ru_stime for each in used)
