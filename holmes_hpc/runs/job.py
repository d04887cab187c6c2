"""job.json: which processes and which Slurm job belong to a run, and what was started."""

from __future__ import annotations

import os
import platform
import pwd
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from holmes_hpc import __version__
from holmes_hpc.bounded import TooMuchOutputError, run_bounded
from holmes_hpc.errors import HolmesError
from holmes_hpc.foreign import whole_number
from holmes_hpc.redaction import is_secret, redact, redact_value
from holmes_hpc.runs.files import read_json, write_json_atomic
from holmes_hpc.runs.folder import RunFolder

_PACKAGES = ("torch", "hydra-core", "omegaconf", "submitit", "pandas", "numpy")
_GIT_SECONDS = 5.0
_MOST_PID = 2**22
"""PID_MAX_LIMIT of Linux on 64-bit machines (proc(5), pid_max)."""
_TOLD = re.compile(
    r"(SLURM|SBATCH|SRUN|NCCL|GLOO|TORCH|PYTORCH|CUDA|NVIDIA|OMP|MKL|KMP|UCX|FI|HYDRA|HOLMES|CONDA|PYTHON)_.*"
    r"|PYTHON(PATH|HASHSEED)|VIRTUAL_ENV|LD_(LIBRARY_PATH|PRELOAD)|PATH|LOADEDMODULES|LANG|TZ"
)


def write_job(folder: RunFolder, ranks: Sequence[tuple[int, str, int | None]] = (), *,
              command: Sequence[str] | None = None, emulated: bool | None = None,
              job_id: str | None = None, cluster: str | None = None, components: Sequence[Mapping[str, Any]] = (),
              restarts: int = 0, environment: Mapping[str, str] | None = None, sweep: Path | None = None) -> None:
    """Write job.json for the calling process, the run's main process.

    `ranks` holds (rank, node, pid as seen from outside or None); `job_id`, `cluster` (where it is not this machine's
    own) and `components` are Slurm's; `sweep` is the folder of the sweep that the run belongs to; `command` defaults to
    this process's arguments. A later call by the same process replaces the ranks alone. Make the first before ranks
    start, so that a run that is killed while it starts can be healed. Of `environment` is recorded what
    `told_environment` lets through, and the command with its secrets hidden.
    Raises as `files.storage_error` says.
    """
    rows = [{"rank": rank, "node": node, "pid": pid} for rank, node, pid in ranks]
    job = read_json(folder.job_path)
    pid, start = os.getpid(), process_start(os.getpid())
    if isinstance(job, dict) and (job.get("main_pid"), job.get("main_start")) == (pid, start):
        write_json_atomic(folder.job_path, {**job, "ranks": rows})
        return
    record = describe_job(command=command, emulated=emulated, environment=environment)
    elsewhere = {name: value for name, value in (("cluster", cluster), ("sweep", sweep and str(sweep))) if value}
    write_json_atomic(folder.job_path, {**record, "job_id": job_id, **elsewhere, "components": list(components),
                                        "restarts": restarts, "ranks": rows})


def describe_job(*, command: Sequence[str] | None = None, emulated: bool | None = None,
                 environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what job.json says of a run whose main process is the calling one, before it has ranks.

    The arguments are those of `write_job`.
    """
    return {
        "job_id": None,
        "components": [],
        "restarts": 0,
        "ranks": [],
        "emulated": emulated,
        "main_pid": os.getpid(),
        "main_start": process_start(os.getpid()),
        "host": socket.gethostname(),
        "user": _user_name(),
        "command": redact_value(list(sys.argv if command is None else command)),
        "folder": os.getcwd(),
        "environment": told_environment(environment or {}),
        "versions": _versions(),
        "git": git_state(Path.cwd()),
    }


def update_job(folder: RunFolder, ranks: Sequence[tuple[int, str, int | None]], restarts: int, job_id: str) -> None:
    """Write ranks and restarts into job.json; called in a Slurm job, which another process has submitted.

    Raises as `files.storage_error` says.
    """
    job = read_json(folder.job_path)
    rows = [{"rank": rank, "node": node, "pid": pid} for rank, node, pid in ranks]
    known = {"components": [], **(job if isinstance(job, dict) else {})}
    known["job_id"] = known.get("job_id") or job_id
    known.pop("slurm_state", None)  # of an earlier start
    write_json_atomic(folder.job_path, {**known, "restarts": restarts, "ranks": rows})


def note_final_state(folder: RunFolder, state: str) -> None:
    """Keep in job.json in which state Slurm ended the job, since the queue forgets it within minutes.

    Where the folder cannot be written, as another user's, it is left.
    """
    job = read_json(folder.job_path)
    if isinstance(job, dict) and job.get("slurm_state") != state:
        with suppress(HolmesError):
            write_json_atomic(folder.job_path, {**job, "slurm_state": state})


def final_state(folder: RunFolder) -> str | None:
    """Return what `note_final_state` kept."""
    job = read_json(folder.job_path)
    state = job.get("slurm_state") if isinstance(job, dict) else None
    return state if isinstance(state, str) else None


def told_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that say how a run was started and what its libraries were told, without secrets.

    A list of what may pass, since nobody can list all names of secrets; of those that pass, names such as SLURM_JWT
    are left out still.
    """
    return {name: redact(value) for name, value in sorted(environment.items())
            if _TOLD.fullmatch(name) and not is_secret(name)}


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


def job_ranks(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the ranks of a job.json that are whole: each has a `rank`."""
    rows = job.get("ranks")
    return [row for row in rows if isinstance(row, dict) and whole_number(row.get("rank")) is not None] \
        if isinstance(rows, list) else []


def main_is_alive(job: Mapping[str, Any]) -> bool | None:
    """Say whether the main process of a job.json lives; None where this host cannot know."""
    pid = whole_number(job.get("main_pid"), 1, _MOST_PID)
    if job.get("host") != socket.gethostname() or pid is None:
        return None
    start = process_start(pid)
    if start is not None:
        return start == job.get("main_start")
    return False if Path(f"/proc/{pid}").exists() else _may_be_hidden(pid)


def ranks_are_alive(job: Mapping[str, Any]) -> bool:
    """Say whether a rank of a job.json of this host still ends, which takes a moment after its main process died.

    Ranks name themselves `rank3 NODE`, which tells them from a process that was given the pid since.
    """
    for row in job_ranks(job):
        pid, name = whole_number(row.get("pid"), 1, _MOST_PID), f"rank{row['rank']} "
        if pid is not None and process_start(pid) is not None:
            with suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text(errors="replace").startswith(name):
                    return True
    return False


def _may_be_hidden(pid: int) -> bool:
    """Say whether a process lives that /proc does not show, as other users' with `hidepid`."""
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
        done = run_bounded(["git", "--no-optional-locks", "-C", str(folder), "status", "--porcelain=v2",
                            "--branch", "--untracked-files=no"], _GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired, TooMuchOutputError):
        return None
    if done.status != 0:
        return None
    lines = done.text.splitlines()
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
