"""Asks Slurm again where it failed in a way that passes: after growing waits, with a word each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from holmes_hpc.submit.commands import TransientSlurmError

LOG = logging.getLogger(__name__)

FIRST_WAIT_SECONDS = 1.0
WAIT_FACTOR = 2.0
LONGEST_WAIT_SECONDS = 30.0

Answer = TypeVar("Answer")


def patiently(ask: Callable[[float], Answer], patience_seconds: float) -> Answer:
    """Return what `ask` returns; it is given how many seconds of the patience are left.

    Where it raises TransientSlurmError it is asked again after 1 s, 2 s, 4 s, ..., at most 30 s, until
    `patience_seconds` have passed; then the last error is raised.
    """
    deadline, wait_seconds = time.monotonic() + patience_seconds, FIRST_WAIT_SECONDS
    while True:
        left = deadline - time.monotonic()
        try:
            return ask(left)
        except TransientSlurmError as error:
            if time.monotonic() + wait_seconds >= deadline:
                raise
            LOG.info("%s; asking again in %g s", error, wait_seconds)
            time.sleep(wait_seconds)
            wait_seconds = min(wait_seconds * WAIT_FACTOR, LONGEST_WAIT_SECONDS)
