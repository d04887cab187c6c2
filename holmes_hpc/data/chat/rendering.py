"""The parent's side of `renderer`: asks it for conversations, and ends it where it does not answer."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holmes_hpc.errors import DataError

SECONDS = 5.0
"""CPU seconds that one conversation may take."""
_MEMORY_BYTES = 512 << 20
_CHARACTERS = 16 << 20
_SILENT_SECONDS = 120.0
"""A renderer that neither computes nor answers (it was stopped, say) is given up after this."""
_PIPE_BYTES = 1 << 16
_PROGRAM = Path(__file__).with_name("renderer.py")


class RenderingError(Exception):
    """One conversation cannot be rendered; the words say what it does, after its place."""


class Renderer:
    """Renders conversations by a chat template, in a process that is bounded; used as a context.

    A template that cannot be read raises DataError. After a conversation that took too much, the process is another.
    """

    def __init__(self, template: str, variables: dict[str, Any], origin: str) -> None:
        """Take a template, the values that it is given beside the messages, and what names it in messages."""
        self._first = json.dumps({"template": template, "variables": variables, "seconds": SECONDS,
                                  "memory_bytes": _MEMORY_BYTES, "characters": _CHARACTERS})
        self._origin = origin
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, messages: list[dict[str, Any]], tools: Any = None) -> tuple[str, list[tuple[int, int]], bool]:
        """Return the text of a conversation, begin and end of each part that the assistant wrote, and whether the
        template itself says so. `tools` is what the template is given by that name.

        Raises RenderingError, whose text follows the place of the row, and DataError where the template is none.
        """
        found = self._ask(json.dumps({"messages": messages, "tools": tools}))
        if found is None:
            raise RenderingError(f"takes the chat template of {self._origin} {self._end()}")
        if "error" in found:
            raise RenderingError(found["error"])
        return found["text"], [(begin, end) for begin, end in found["spans"]], found["exact"]

    def _ask(self, line: str) -> dict[str, Any] | None:
        if self._process is None:
            self._process = subprocess.Popen([sys.executable, "-P", str(_PROGRAM)], stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
                                             bufsize=0)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    os.set_blocking(pipe.fileno(), False)
            found = self._exchange(self._first)
            if found is None or "error" in found:
                why = f"was not read: {self._end()}" if found is None else f"is no template: {found['error']}"
                raise DataError(f"the chat template of {self._origin} {why}. Name a file with another one as the "
                                "chat template.")
        return self._exchange(line)

    def _exchange(self, line: str) -> dict[str, Any] | None:
        """Send a line and return the answer, None where none comes."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        out, back = process.stdin.fileno(), process.stdout.fileno()
        left, answer = memoryview(line.encode() + b"\n"), bytearray()
        try:
            while not answer.endswith(b"\n"):
                # It may be stopped in the midst of a line too: neither a write nor a read may wait for the rest of one.
                readable, writable, _ = select.select([back], [out] if left else [], [], _SILENT_SECONDS)
                if writable:
                    left = left[os.write(out, left):]
                piece = os.read(back, _PIPE_BYTES) if readable else b""
                if not piece and not writable:
                    return None
                answer += piece
        except OSError:
            return None
        return json.loads(answer)

    def _end(self) -> str:
        """End the process and return how it had ended, in words."""
        process, self._process = self._process, None
        if process is None:
            return "no time"
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            status = process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"more than {_SILENT_SECONDS:g} s without an answer"
        if status == -signal.SIGPROF:
            return f"more than {SECONDS:g} s of a CPU"
        return f"to an end of its own (status {status}), as too much memory does"

    def __enter__(self) -> Self:
        """Return this; the process begins with the first conversation."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        """End the process."""
        self._end()
