"""Run a function on several forked ranks that share a store, and bring their results back by pipe."""

import contextlib
import ctypes
import os
import pickle
import select
import signal
import socket
import time
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

PR_SET_PDEATHSIG = 1


@dataclass
class ForkedRank:
    """What a rank's function is given first. `store` connects when it is first used (rank 0 serves it)."""

    rank: int
    world_size: int
    listener: socket.socket
    timeout: timedelta
    kept: Any = field(default=None, repr=False)
    """What a rank that has returned goes on to hold, such as its connections, until all ranks are done."""
    _store: Any = field(default=None, repr=False)

    @property
    def store(self) -> dist.Store:
        if self._store is None:
            serving = {"is_master": True, "master_listen_fd": os.dup(self.listener.fileno())}
            port = self.listener.getsockname()[1]
            self._store = dist.TCPStore(
                "127.0.0.1", port, self.world_size, timeout=self.timeout, wait_for_workers=False,
                **(serving if self.rank == 0 else {"is_master": False}),
            )
        return self._store


@dataclass
class Outcome:
    """How a rank ended: its value, or its error's class name, message and traceback, or how it died."""

    value: Any = None
    error: str | None = None
    message: str = ""
    trace: str = ""


class RankFailedError(AssertionError):
    """A rank raised, died or did not end in time."""


def run_ranks(world_size, function, *arguments, timeout_seconds=60.0, check=True, awaited=None):
    """Call `function(ForkedRank, *arguments)` on forked ranks; return their values in rank order.

    With `check=False` it returns Outcomes and a failed rank is no error. Ranks that have not ended after the
    timeout, or once those of `awaited` have, are killed. A rank lives until all are done, since rank 0 serves the
    store.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        release_read, release_write = os.pipe()
        children = []
        outcomes = []
        try:
            for rank in range(world_size):
                given = ForkedRank(rank, world_size, listener, timedelta(seconds=timeout_seconds))
                children.append(_fork(given, function, arguments, release_read, release_write))
            pipes = [pipe for _, pipe in children]
            needed = pipes if awaited is None else [pipes[rank] for rank in awaited]
            outcomes = _collect(pipes, needed, timeout_seconds, stop_at_error=check)
        finally:
            os.close(release_write)
            os.close(release_read)
            done = [each.error != "unfinished" for each in outcomes] or [False] * len(children)
            _end([pid for (pid, _), ended in zip(children, done, strict=False) if ended], seconds=5.0)
            _end([pid for (pid, _), ended in zip(children, done, strict=False) if not ended], seconds=0.0)
            for _, pipe in children:
                os.close(pipe)
    if not check:
        return outcomes
    # A rank that was cut off because another one failed says less than that one.
    failed = [(rank, each) for rank, each in enumerate(outcomes) if each.error]
    for rank, each in sorted(failed, key=lambda item: item[1].error == "unfinished"):
        raise RankFailedError(f"rank {rank}: {each.error}: {each.message}\n{each.trace}")
    return [each.value for each in outcomes]


def _fork(given, function, arguments, release_read, release_write):
    read, write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    status = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.close(release_write)
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)
        _send(write, _call(given, function, arguments))
        os.read(release_read, 1)
        status = 0
    finally:
        os._exit(status)


def _call(given, function, arguments):
    try:
        return Outcome(value=function(given, *arguments))
    except BaseException as error:
        return Outcome(error=type(error).__name__, message=str(error), trace=traceback.format_exc())


def _send(pipe, outcome):
    data = pickle.dumps(outcome)
    while data:
        data = data[os.write(pipe, data):]
    os.close(pipe)


def _collect(pipes, needed, timeout_seconds, stop_at_error):
    deadline = time.monotonic() + timeout_seconds
    received = dict.fromkeys(pipes, b"")
    outcomes = {}
    while not outcomes.keys() >= set(needed):
        open_pipes = [pipe for pipe in pipes if pipe not in outcomes]
        ready, _, _ = select.select(open_pipes, [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            data = os.read(pipe, 1 << 20)
            received[pipe] += data
            if not data:
                outcomes[pipe] = pickle.loads(received[pipe]) if received[pipe] else Outcome(error="died")
        if stop_at_error and any(each.error for each in outcomes.values()):
            # The failed rank's peers may fail for their own, better reason: give them a moment.
            deadline = min(deadline, time.monotonic() + 0.5)
    return [outcomes.get(pipe, Outcome(error="unfinished", message="did not end in time")) for pipe in pipes]


def _end(pids, seconds):
    """Let the ranks go, and kill those that stay longer; only ever our own children."""
    deadline = time.monotonic() + seconds
    left = list(pids)
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if os.waitpid(pid, os.WNOHANG)[0] == 0]
        time.sleep(0.005 if left else 0)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
