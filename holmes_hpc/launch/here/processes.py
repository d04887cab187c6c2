"""What the kernel says of the processes of a run on this machine."""

from __future__ import annotations

from pathlib import Path

_STATES = {
    "T": "is stopped (SIGSTOP)",
    "t": "is stopped by a debugger",
    "D": "waits for a disk or a file system",
    "Z": "has ended, and its parent does not ask for it",
    "X": "has ended",
}


def state_of(pid: int) -> str:
    """Return the letter that the kernel gives the state of a process, "" where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return stat[stat.rindex(")") + 2]
    except (OSError, ValueError, IndexError):
        return ""


def describe_process(pid: int | None, name: str) -> str:
    """Return what keeps a process from going on, in words; "" where nothing does or it is not known."""
    state = "" if pid is None else _STATES.get(state_of(pid), "")
    return f"{name}, pid {pid}, {state}" if state else ""
