"""Runs commands in forks of a process that has imported torch and the package, and nothing else.

A command of its own takes one to four CPU seconds to import what it needs; a fork takes none. It is as fresh as a
process of its own: only modules are there already, never a command's own, and working folder, environment, arguments
and streams are the given ones. Tests of what is imported, and of how processes end, start real ones.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODULES = ("holmes_hpc.launch.rank.rank", "holmes_hpc.launch.train", "holmes_hpc.front", "hydra.compose",
           "analysis.throughput", "analysis.reading", "analysis.tables", "analysis.printing", "analysis.by_rank",
           "torch.fx.experimental.symbolic_shapes", "torch._dynamo")
"""What is imported once: all that a run of ours imports, in its command and in its ranks."""


class WarmCommands:
    """The process that forks the commands; it starts with the first one, and ends with the process that has it."""

    def __init__(self) -> None:
        self.cpu_seconds = 0.0
        """What all commands have computed, and their imports: they are no children of this process."""
        self._server: subprocess.Popen[str] | None = None

    def run(self, module: str, arguments: Sequence[str], cwd: Path, environment: Mapping[str, str],
            timeout_seconds: float) -> subprocess.CompletedProcess[str]:
        """Run `python -m module` to its end, with nothing on its standard input.

        Raises subprocess.TimeoutExpired, and has killed it then.
        """
        words = [sys.executable, "-m", module, *arguments]
        with tempfile.TemporaryDirectory() as folder:
            streams = [Path(folder, name) for name in ("stdout", "stderr")]
            asked = {"module": module, "arguments": list(arguments), "cwd": str(cwd),
                     "environment": dict(environment), "umask": _umask(), "streams": list(map(str, streams))}
            try:
                pid = int(self._ask(asked))
                late = threading.Timer(timeout_seconds, _kill, [pid])
                late.start()
                try:
                    status, used = self._ask({"wait": pid}).split()
                finally:
                    was_late = late.finished.is_set()
                    late.cancel()
            except BaseException:  # a test's own timeout too: the answer that still comes belongs to no later request
                self._drop()
                raise
            self.cpu_seconds += float(used)
            texts = [stream.read_text() for stream in streams]
        if was_late:
            raise subprocess.TimeoutExpired(words, timeout_seconds, *texts)
        return subprocess.CompletedProcess(words, int(status), *texts)

    def _ask(self, request: Mapping[str, Any]) -> str:
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.warm_commands"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}, start_new_session=True)
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(f"{json.dumps(request)}\n")
        self._server.stdin.flush()
        return self._server.stdout.readline()

    def _drop(self) -> None:
        """End the process and all that it has forked; the next command starts another."""
        if self._server is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)
            self._server.communicate()
            self._server = None


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended a moment ago
        os.kill(pid, signal.SIGKILL)


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def serve() -> dict[str, Any] | None:
    """Answer requests from standard input; return one in a fork that is to run it, None where no more come.

    A command is answered with its process id, and a wait for it with its status and the CPU seconds since the last one.
    """
    told = 0.0
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            _, status, used = os.wait4(request["wait"], 0)
            own = time.process_time()
            answer = f"{os.waitstatus_to_exitcode(status)} {used.ru_utime + used.ru_stime + own - told:.3f}"
            told = own
        elif pid := os.fork():
            answer = str(pid)
        else:
            return request
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    return None


def become(request: Mapping[str, Any]) -> None:
    """Make this fork what a process of its own would be at its start."""
    for descriptor, path in enumerate((os.devnull, *request["streams"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC if descriptor else os.O_RDONLY, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 - until it ends
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    os.environ.clear()
    os.environ.update(request["environment"])
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]
    sys.argv[1:] = request["arguments"]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    importlib.import_module("holmes_hpc.launch.rank.torch_log").errors_only(os.environ)
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()
    asked = serve()
    if asked is not None:
        become(asked)
        runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
