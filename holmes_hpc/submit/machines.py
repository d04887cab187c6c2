"""Runs of machines without Slurm, as `holmes jobs` tells of them: a line each, once or until all are over."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from holmes_hpc.foreign import number, read_object
from holmes_hpc.quoting import for_shell, for_terminal
from holmes_hpc.runs import RunFolder, last_metrics, read_result
from holmes_hpc.runs.circumstances import circumstances, speed_words
from holmes_hpc.runs.job import main_is_alive
from holmes_hpc.runs.life import Life
from holmes_hpc.submit.board import planned_steps
from holmes_hpc.submit.live import LINE_SECONDS, LOOK_SECONDS
from holmes_hpc.submit.watch import LIFELESS_SECONDS


def on_a_machine(folder: RunFolder) -> str:
    """Return how a run is that is no job of Slurm."""
    host = (read_object(folder.job_path) or {}).get("host")
    what = f"is no job of Slurm but a run of the machine {host}" if isinstance(host, str) else (
        f"says in no {folder.job_path.name} that can be read where it was started")
    how = circumstances(folder)
    what += f", {how}" if how else ""
    return f"{folder.path} {what}: {_state(folder)}; its logs: `holmes logs {for_shell(str(folder.path))}`"


def has_begun(folder: RunFolder) -> bool:
    """Say whether a run was started: it says where, or has made steps although that was lost.

    One that was set aside to be submitted again (`job-ID.json`) was not yet.
    """
    return os.path.lexists(folder.job_path) or (last_metrics(folder) is not None
                                                and not any(folder.path.glob("job-*.json")))


def show_machines_until_over(folders: Sequence[RunFolder], stream: TextIO,
                             clock: Callable[[], float] = time.monotonic,
                             sleep: Callable[[float], None] = time.sleep) -> None:
    """Write a line about each run now, at its end, and now and then while it goes on, until all are over.

    A run of another machine without a result counts as over when it has given no sign of life for LIFELESS_SECONDS.
    """
    lives = {folder.path: Life(folder, clock) for folder in folders}
    said: dict[RunFolder, tuple[str, float]] = {}
    left = list(folders)
    while left:
        for folder in list(left):
            over = _is_over(folder, lives[folder.path])  # asked before the line is made, which then tells of the end
            line, (before, at) = on_a_machine(folder), said.get(folder, ("", clock()))
            if not before or over or (clock() - at >= LINE_SECONDS and line != before):
                if line != before:
                    stream.write(f"{for_terminal(line)}\n")
                said[folder] = line, clock()
            if over:
                left.remove(folder)
        stream.flush()
        if left:
            sleep(LOOK_SECONDS)


def _is_over(folder: RunFolder, life: Life) -> bool:
    if read_result(folder) is not None:
        return True
    alive = main_is_alive(read_object(folder.job_path) or {})
    return alive is False or (alive is None and life.silent_seconds() > LIFELESS_SECONDS)


def _state(folder: RunFolder) -> str:
    job, result, last = read_object(folder.job_path) or {}, read_result(folder), last_metrics(folder) or {}
    steps = planned_steps(folder)
    step = f"step {last.get('step', 0)}" + (f" of {steps}" if steps else "")
    done = result is not None and result.get("status") == "completed"
    speed = number((result or {}).get("tokens_per_second_median") if done else last.get("tokens_per_second"))
    loss = number(last.get("loss"))
    told = speed_words(result, speed)
    step += (f", {told}" if told else "") + ("" if loss is None else f", loss {loss:.3f}")
    if result is not None:
        return f"{result['status']} at {step}"
    alive = main_is_alive(job)
    if alive is False:
        return f"its command has ended without a word at {step}"
    return f"at {step}" + (", going on" if alive else f", as far as {socket.gethostname()} can know")
