"""job.json: which processes and which Slurm job belong to a run, and what was started."""

from __future__ import annotations

import os
import platform
import pwd
import socket
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from holmes_hpc import __version__
from holmes_hpc.runs.files import read_json, write_json_atomic
from holmes_hpc.runs.folder import RunFolder

_PACKAGES = ("torch", "hydra-core", "omegaconf", "submitit", "pandas", "numpy")
_GIT_SECONDS = 5.0


def write_job(folder: RunFolder, command: Sequence[str], *, mode: str, emulated: bool, job_id: str | None = None,
              components: Sequence[Mapping[str, Any]] = (), restarts: int = 0) -> None:
    """Write job.json for the calling process, the run's main process.

    `job_id` and `components` are Slurm's; `mode` is the launch mode that was decided. Call it before ranks
    start, since inside a user namespace neither git nor the user's name can be asked for. No environment is
    recorded. Raises as `files.storage_error` says.
    """
    write_json_atomic(folder.job_path, {
        "job_id": job_id,
        "components": list(components),
        "restarts": restarts,
        "ranks": [],
        "mode": mode,
        "emulated": emulated,
        "main_pid": os.getpid(),
        "main_start": process_start(os.getpid()),
        "host": socket.gethostname(),
        "user": _user_name(),
        "command": list(command),
        "folder": os.getcwd(),
        "versions": _versions(),
        "git": git_state(Path.cwd()),
    })


def update_job(folder: RunFolder, **fields: Any) -> None:
    """Replace fields of job.json, such as `ranks`: a list of {"rank", "node", "pid" as seen from outside}."""
    write_json_atomic(folder.job_path, {**(read_json(folder.job_path) or {}), **fields})


def process_start(pid: int) -> int | None:
    """Return when a living process started, in clock ticks after boot; None where it is dead or hidden.

    A pid is used again after its process ended; pid and start together are not (proc_pid_stat(5), field 22).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name in field 2 may hold spaces and brackets: count from the last bracket on, where field 3 begins.
    fields = stat[stat.rindex(b")") + 2:].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def main_is_alive(job: Mapping[str, Any]) -> bool | None:
    """Say whether the main process of a job.json lives; None where this host cannot know."""
    pid = job.get("main_pid")
    if job.get("host") != socket.gethostname() or not isinstance(pid, int) or pid <= 0:
        return None
    start = process_start(pid)
    if start is not None:
        return start == job.get("main_start")
    return False if Path(f"/proc/{pid}").exists() else _may_be_hidden(pid)


def _may_be_hidden(pid: int) -> bool:
    """Say whether a process that /proc does not show lives: with `hidepid` other users' processes are hidden."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return Path(f"/proc/{pid}").exists()


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return commit, branch and whether tracked files were changed, or None outside a git repository."""
    try:
        done = subprocess.run(["git", "--no-optional-locks", "-C", str(folder), "status", "--porcelain=v2",
                               "--branch", "--untracked-files=no"], stdin=subprocess.DEVNULL, check=False,
                              capture_output=True, text=True, errors="replace", timeout=_GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    lines = done.stdout.splitlines()
    headers = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# "))
    return {"commit": headers.get("branch.oid"), "branch": headers.get("branch.head"),
            "changed": any(not line.startswith("# ") for line in lines)}


def _versions() -> dict[str, str]:
    versions = {"holmes_hpc": __version__, "python": platform.python_version(), "kernel": platform.release()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
