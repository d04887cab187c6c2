"""Doing what may never return, such as writing to a file system that hangs, in a process that holds nobody."""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holmes_hpc.emulation.context import flush_output

LOG = logging.getLogger(__name__)


class NoAnswerError(Exception):
    """The process has not ended in time. It goes on where it is held, and does its work should that ever be possible.
    """


def apart(work: Callable[[], Any], seconds: float) -> Any:
    """Return what `work` returns, a JSON value, which a forked process does; what it writes to stderr is passed on.

    A thread would not do: a process whose thread waits in the kernel cannot end. Raises NoAnswerError after so many
    seconds, RuntimeError where the process ended without an answer.
    """
    answer_reader, answer_writer = os.pipe()
    output_reader, output_writer = os.pipe()
    flush_output()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(answer_reader)
            os.close(output_reader)
            _be_apart(work, answer_writer, output_writer)
        finally:
            os._exit(1)
    os.close(answer_writer)
    os.close(output_writer)
    with os.fdopen(answer_reader, "rb") as answers, os.fdopen(output_reader, "rb") as output:
        answer = _collect(answers.fileno(), output.fileno(), time.monotonic() + seconds)
    if answer is None:
        raise NoAnswerError
    os.waitpid(pid, 0)
    if not answer:
        raise RuntimeError("the process ended without an answer")
    return json.loads(answer)


def _be_apart(work: Callable[[], Any], answer_writer: int, output_writer: int) -> None:
    """Do the work as the forked process: nobody who reads what the command prints waits for this one."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor, source in ((0, null), (1, output_writer), (2, output_writer)):
        os.dup2(source, descriptor)
    os.close(output_writer)
    found = json.dumps(work()).encode()
    flush_output()
    while found:
        found = found[os.write(answer_writer, found):]


def _collect(answers: int, output: int, deadline: float) -> bytes | None:
    """Return all of the answer, None where it is not there in time; pass the output on meanwhile."""
    answer, open_ones = b"", {answers, output}
    while open_ones:
        ready, _, _ = select.select(list(open_ones), [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        for descriptor in ready:
            data = os.read(descriptor, 1 << 16)
            if not data:
                open_ones.discard(descriptor)
            elif descriptor == answers:
                answer += data
            else:
                with suppress(OSError):
                    sys.stderr.write(data.decode(errors="replace"))
    return answer
