"""The process tree of an emulated or local run: main, mid, init, ranks.

main forks mid, mid enters new namespaces and forks init, init builds the network and forks the ranks. Each
process dies by SIGKILL when its parent does, and with init (PID 1) the kernel ends its whole PID namespace;
so after `kill -9` of any of them no process, namespace or file is left. Without namespaces (local mode) the
tree is the same and mid, which adopts orphans, ends what init leaves behind.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from holmes_hpc.emulation import network as network_module
from holmes_hpc.emulation import system_calls
from holmes_hpc.emulation.context import ENDING_SIGNALS, WorldContext, flush_output
from holmes_hpc.emulation.namespaces import Isolation, find_isolation
from holmes_hpc.emulation.network import EmulatedNetwork
from holmes_hpc.errors import HolmesError, LaunchImpossibleError

Body = Callable[[WorldContext], int]

_KILL_SECONDS = 10.0
_POLL_SECONDS = 0.01
_SHELL_SIGNAL = 128


def start_world(network: EmulatedNetwork | None, body: Body) -> World:
    """Fork the process tree and run `body` in init, which has built `network` (None: local processes).

    Call it from the main thread, before any other thread starts: the tree dies with the thread that forks it.
    `body` returns init's exit status. What fails in init before or in `body` arrives as the event
    {"event": "failed", "message": ...}, and `World.poll` then gives 1. Raises LaunchImpossibleError where no
    namespaces can be made.
    """
    isolation = None
    if network is not None:
        isolation, reason = find_isolation()
        if isolation is None:
            raise LaunchImpossibleError(f"the cluster cannot be emulated here: {reason}; or choose "
                                        f"launch.mode=local")
    event_reader, event_writer = os.pipe()
    pid_reader, pid_writer = os.pipe()
    flush_output()
    main = os.getpid()
    mid = os.fork()
    if mid == 0:
        status = 1
        try:
            os.close(event_reader)
            os.close(pid_reader)
            status = _be_mid(main, isolation, network, body, event_writer, pid_writer)
        finally:
            os._exit(status)
    os.close(event_writer)
    os.close(pid_writer)
    with os.fdopen(pid_reader, "rb") as stream:
        init = stream.read()
    return World(mid, int(init) if init else None, event_reader)


class World:
    """The main process's end of a running tree."""

    def __init__(self, mid_pid: int, init_pid: int | None, event_reader: int) -> None:
        os.set_blocking(event_reader, False)
        self.mid_pid = mid_pid
        self.init_pid = init_pid
        """init as seen from outside; None when it could not be started"""
        self._event_reader = event_reader
        self._unread = b""
        self._status: int | None = None
        self.ended_by = ""
        """what ended the tree from outside, once it has ended; "" where nothing did"""
        self.events_ended = False
        """True when every process that could send has gone and all events were read"""

    def fileno(self) -> int:
        """Return the descriptor that is readable when events wait, for select."""
        return self._event_reader

    def events(self, timeout_seconds: float = 0.0) -> Iterator[dict[str, Any]]:
        """Yield the events that are there; wait up to `timeout_seconds` for the first, never for more."""
        if not self.events_ended and timeout_seconds > 0:
            select.select([self._event_reader], [], [], timeout_seconds)
        while not self.events_ended:
            try:
                read = os.read(self._event_reader, 1 << 16)
            except BlockingIOError:
                break
            if not read:
                self.events_ended = True
                os.close(self._event_reader)
            self._unread += read
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            yield json.loads(line)

    def poll(self) -> int | None:
        """Return the exit status once the tree has ended (128 + signal where one ended it), else None."""
        if self._status is None:
            pid, status = os.waitpid(self.mid_pid, os.WNOHANG)
            if pid != 0:
                code = os.waitstatus_to_exitcode(status)
                self._status = shell_status(code)
                self.ended_by = self._name_signal(code)
        return self._status

    def _name_signal(self, code: int) -> str:
        """Return which of the processes above the ranks was ended by which signal, "" where none was."""
        if code < 0:
            return f"the parent of the ranks' parent (holmes-mid, pid {self.mid_pid}) was ended by {_signal(-code)}"
        if code > _SHELL_SIGNAL and self.init_pid is not None:
            return f"the ranks' parent (holmes-init, pid {self.init_pid}) was ended by {_signal(code - _SHELL_SIGNAL)}"
        return ""

    def wait(self, timeout_seconds: float) -> int | None:
        """Wait for the tree's end; return as `poll` does."""
        deadline = time.monotonic() + timeout_seconds
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return self._status

    def kill(self) -> None:
        """End every process of the tree at once and wait until all are gone."""
        if self.poll() is not None:
            return
        os.kill(self.mid_pid, signal.SIGUSR1)  # mid kills init and returns when nothing is left
        os.kill(self.mid_pid, signal.SIGCONT)
        if self.wait(_KILL_SECONDS) is None:
            os.kill(self.mid_pid, signal.SIGKILL)
            self.wait(_KILL_SECONDS)

    def outer_pids(self) -> dict[int, int]:
        """Return for each child of init its pid inside, as `fork_rank` returned it, to its pid outside."""
        if self.init_pid is None:
            return {}
        pids = {}
        for outer in children(self.init_pid):
            inner = _inner_pid(outer)
            if inner is not None:
                pids[inner] = outer
        return pids


def shell_status(exit_code: int) -> int:
    """Turn minus a signal's number into 128 plus it, as shells do."""
    return exit_code if exit_code >= 0 else _SHELL_SIGNAL - exit_code


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def children(parent: int) -> list[int]:
    """Return the pids whose parent is `parent`, from /proc."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            stat = Path("/proc", name, "stat").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if int(stat[stat.rindex(b")") + 2:].split()[1]) == parent:
            found.append(int(name))
    return sorted(found)


def _inner_pid(outer: int) -> int | None:
    try:
        status = Path(f"/proc/{outer}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return outer  # a kernel without PID namespaces


def _be_mid(main: int, isolation: Isolation | None, network: EmulatedNetwork | None, body: Body,
            event_writer: int, pid_writer: int) -> int:
    """Enter the namespaces, fork init, wait for it; return the status of the tree."""
    os.setsid()
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    system_calls.die_with_parent()
    system_calls.name_process("holmes-mid")
    context = WorldContext(None, event_writer)
    try:
        if isolation is not None:
            isolation.enter()
            system_calls.die_with_parent()  # new credentials cleared it
        if os.getppid() != main:
            return 1
        system_calls.adopt_orphans()
        lifeline, held = os.pipe()
        init = os.fork()
    except OSError as error:
        context.send({"event": "failed", "message": f"the processes could not be started: {error}"})
        return 1
    if init == 0:
        status = 1
        try:
            os.close(held)
            os.close(pid_writer)
            status = _be_init(lifeline, isolation, network, body, context)
        finally:
            flush_output()
            os._exit(status)
    os.close(event_writer)
    _pass_signals_on(init)
    os.write(pid_writer, str(init).encode())
    os.close(pid_writer)
    _, status = os.waitpid(init, 0)
    _end_children()
    return shell_status(os.waitstatus_to_exitcode(status))


def _pass_signals_on(init: int) -> None:
    """Let mid's SIGTERM end init in order and its SIGUSR1 at once; init's pid is ours until we reap it."""
    def send(number: signal.Signals) -> Callable[[int, FrameType | None], None]:
        return lambda received, frame: os.kill(init, number)

    signal.signal(signal.SIGTERM, send(signal.SIGTERM))
    signal.signal(signal.SIGUSR1, send(signal.SIGKILL))


def _end_children() -> None:
    """Kill and reap what init left to mid, until there is nothing; with a PID namespace there is nothing."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    while True:
        for pid in children(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def _be_init(lifeline: int, isolation: Isolation | None, network: EmulatedNetwork | None, body: Body,
             context: WorldContext) -> int:
    """Build the network and run the body; what fails reaches main as an event."""
    system_calls.die_with_parent()
    if select.select([lifeline], [], [], 0)[0]:
        return 1  # mid died before the line above: its end of the pipe is closed
    os.close(lifeline)
    system_calls.name_process("holmes-init")
    context.handle_ending_signals()
    try:
        if isolation is not None and isolation.pid:
            system_calls.mount_own_proc()
        if network is not None:
            context.node_networks = network_module.create(network)
        return int(body(context))
    except HolmesError as error:
        context.send({"event": "failed", "message": str(error)})
        return error.exit_status
    except BaseException as error:
        context.send({"event": "failed", "message": f"{type(error).__name__}: {error}",
                      "traceback": traceback.format_exc()})
        return 1
