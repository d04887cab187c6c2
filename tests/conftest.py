"""Fixtures of all tests, their options and tiers, and a cache of their own."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fuzzing
from tests.costs import Costs
from tests.order import spread
from tests.slurm_cluster.fixture import each_slurm, make_each_slurm, make_slurm, slurm, slurm_accounting

__all__ = ["each_slurm", "make_each_slurm", "make_slurm", "slurm", "slurm_accounting"]

SLURM_FIXTURES = {"make_slurm", "make_each_slurm"}
"""What starts a real Slurm; a test that takes one, or a fixture made of one, has the mark `slurm`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--examples-times", type=int, default=1, help="try so many times as many drawn examples")
    parser.addoption("--costs", type=Path, help="append the CPU seconds and seconds of each test to this file")


def pytest_configure(config: pytest.Config) -> None:
    gc.set_threshold(50_000, 20, 20)  # what is imported is large, and looking through it takes a tenth of composing
    fuzzing.times_as_many = config.getoption("--examples-times")
    is_worker_or_alone = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    if config.getoption("--costs") and is_worker_or_alone:
        config.pluginmanager.register(Costs(config.getoption("--costs")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SLURM_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("slurm")
    items[:] = spread(items)


@pytest.fixture(scope="session", autouse=True)
def interruptible_commands() -> None:
    """Let commands that the tests start take SIGINT and SIGQUIT, also where a shell runs the tests in its background.

    Such a shell lets them ignore both signals, and every command would inherit that.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests() -> Iterator[Path]:
    """Give the tests, and what they start, a cache without the CPU speed that this user's commands kept.

    What other programs keep, such as pip and matplotlib, is linked: making it again would take minutes.
    """
    given = os.environ.get("XDG_CACHE_HOME")
    users = Path(given or Path.home() / ".cache")
    folder = Path(tempfile.mkdtemp(prefix="holmes-cache-"))
    folder.chmod(0o755)
    for path in users.iterdir() if users.is_dir() else ():
        if path.name != "holmes_hpc":
            (folder / path.name).symlink_to(path)
    os.environ["XDG_CACHE_HOME"] = str(folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
    if given is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = given
