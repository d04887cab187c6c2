"""What the process that starts the ranks (init) offers to its body: fork a rank, wait, tell main."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from holmes_hpc.emulation import system_calls

_POLL_SECONDS = 0.02
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
                  signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU)
"""What ends a process that does not handle it, and may be handled: people, timers and limits send them."""


class WorldContext:
    """Handed to the body of a world; lives in init, and in each rank as a copy that can only `send`."""

    def __init__(self, node_networks: Mapping[str, int] | None, event_writer: int) -> None:
        self.node_networks = node_networks
        """node name to network namespace descriptor; None in local mode"""
        self.ranks: dict[int, tuple[int, str]] = {}
        """the living ranks: inner pid to (rank, node name)"""
        self._event_writer = event_writer
        self._lock = os.memfd_create("holmes-events")

    def send(self, event: Mapping[str, Any]) -> None:
        """Send one event to the main process as a JSON line; init and the ranks may both do so."""
        line = (json.dumps(event) + "\n").encode()
        # Writes above 4 KiB to a pipe may interleave; the kernel drops this lock when its holder dies.
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            while line:
                line = line[os.write(self._event_writer, line):]
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def fork_rank(self, rank: int, node_name: str, function: Callable[[], int], log_path: Path) -> int:
        """Fork a rank on a node and return its pid as init sees it.

        The rank's output goes to `log_path`, whose folder exists. Its exit status is what `function` returns,
        1 on an exception, whose traceback goes to the log. Raises KeyError for an unknown node.
        """
        network = self.node_networks[node_name] if self.node_networks is not None else None
        init = os.getpid()
        flush_output()
        # No ending signal may come between the fork and the entry in `ranks`, or in the child before its
        # defaults.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    status = _be_rank(init, network, f"rank{rank} {node_name}", function, log_path)
                except _NoLogError as error:
                    why = f"{error.strerror} ({error.filename})"
                    self.send({"event": "failed",
                               "message": f"rank {rank} on node {node_name} could not be started: {why}"})
                finally:
                    os._exit(status)
            self.ranks[pid] = (rank, node_name)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
        return pid

    def fork_helper(self, name: str, function: Callable[[], None]) -> int:
        """Fork a process that works for the network with all rights, and return its pid as init sees it.

        It ends with init. An exception ends it with status 1 and is sent as the event `failed`.
        """
        flush_output()
        init = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    status = self._be_helper(init, name, function)
                finally:
                    os._exit(status)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
        return pid

    def _be_helper(self, init: int, name: str, function: Callable[[], None]) -> int:
        _take_default_signals()
        system_calls.die_with_parent()
        if os.getppid() != init:
            return 1
        system_calls.name_process(name)
        try:
            function()
        except BaseException as error:
            self.send({"event": "failed", "message": f"{name}: {type(error).__name__}: {error}",
                       "traceback": traceback.format_exc()})
            return 1
        return 0

    def wait(self, timeout_seconds: float | None = None) -> tuple[int, int] | None:
        """Wait for any child and return (pid, status): the exit status, or minus the signal that killed it.

        Returns None when `timeout_seconds` pass first. Orphans are reaped and returned too; `ranks` says
        which pids are ranks, and forgets them here. Raises ChildProcessError when there is no child.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            pid, status = os.waitpid(-1, 0 if deadline is None else os.WNOHANG)
            if pid != 0:
                self.ranks.pop(pid, None)
                return pid, os.waitstatus_to_exitcode(status)
            if deadline is not None and time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_SECONDS)

    def end_ranks(self, grace_seconds: float = 5.0) -> None:
        """Send SIGTERM to all ranks, after `grace_seconds` SIGKILL, and wait until they are gone."""
        self._signal_ranks(signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        while self.ranks and time.monotonic() < deadline:
            self._reap_ranks(os.WNOHANG)
            time.sleep(_POLL_SECONDS)
        self._signal_ranks(signal.SIGKILL)
        self._reap_ranks(0)

    def _signal_ranks(self, number: signal.Signals) -> None:
        for pid in self.ranks:
            os.kill(pid, number)  # a dead child that is not reaped yet keeps its pid

    def _reap_ranks(self, options: int) -> None:
        for pid in list(self.ranks):
            try:
                reaped, _ = os.waitpid(pid, options)
            except ChildProcessError:
                reaped = pid
            if reaped == pid:
                self.ranks.pop(pid, None)

    def handle_ending_signals(self) -> None:
        """End all ranks and then this process on a signal; PID 1 ignores those that it does not handle."""
        def end(number: int, frame: FrameType | None) -> None:
            for ending in ENDING_SIGNALS:
                signal.signal(ending, signal.SIG_IGN)
            self.end_ranks()
            os._exit(128 + number)

        for number in ENDING_SIGNALS:
            signal.signal(number, end)


class _NoLogError(OSError):
    """The log of a rank could not be opened, so that it cannot say itself why it ends."""


def flush_output() -> None:
    """Flush standard output and error, so that a fork does not copy what they hold."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


def _take_default_signals() -> None:
    """Give up init's handlers, as a child that was just forked with these signals blocked."""
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)


def _be_rank(init: int, network: int | None, name: str, function: Callable[[], int], log_path: Path) -> int:
    _take_default_signals()
    system_calls.die_with_parent()
    if os.getppid() != init:
        return 1
    try:
        _redirect_output(log_path)
    except OSError as error:
        raise _NoLogError(error.errno, error.strerror, error.filename or str(log_path)) from error
    try:
        if network is not None:
            system_calls.join_network(network)
            system_calls.drop_privileges()
        system_calls.name_process(name)
        return int(function())
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        sys.stderr.write(f"{leaving.code}\n")
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        flush_output()


def _redirect_output(log_path: Path) -> None:
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o664)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(descriptor, "w", closefd=False), errors="backslashreplace",
                         line_buffering=True, write_through=True)
        for descriptor in (1, 2))
