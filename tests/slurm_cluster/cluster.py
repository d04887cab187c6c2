"""The running cluster as tests and people use it: commands on its machines, jobs, counters, failing nodes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holmes_hpc.emulation.world import World, start_world
from tests.slurm_cluster.available import unavailable_reason
from tests.slurm_cluster.daemons import BASE, SEARCH_PATH, StartFailedError, run_cluster
from tests.slurm_cluster.groups import remove_groups
from tests.slurm_cluster.settings import HEAD, ClusterSettings

ORDINARY_USER = 65534  # nobody, in Debian as elsewhere
_START_SECONDS = 120.0
_FINAL_STATES = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL",
                           "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"})


@dataclass(frozen=True)
class Finished:
    """A finished command: its exit status and what it printed."""

    status: int
    stdout: str
    stderr: str


class CommandFailedError(AssertionError):
    """A command on the cluster ended with another status than 0, or not in time."""


def enter(holder: int, words: Sequence[str], *, user: int, folder: Path,
          environment: Mapping[str, str]) -> list[str]:
    """Return the command line that runs `words` on the machine whose holder has this pid."""
    variables = {"PATH": f"{Path(sys.executable).parent}:{SEARCH_PATH}", "LANG": "C.UTF-8",
                 "USER": "root" if user == 0 else "nobody", "PYTHONUNBUFFERED": "1", **environment}
    line = ["nsenter", "--target", str(holder), "--net", "--uts", "--ipc", "--mount", "--pid", "--cgroup",
            "--root", "--wd"]
    if user != 0:
        line += ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return [*line, "env", "-i", f"--chdir={folder}", *(f"{name}={value}" for name, value in variables.items()),
            *words]


def start_cluster(settings: ClusterSettings, shared: Path) -> SlurmCluster:
    """Start a cluster whose machines share the folder `shared`; raises StartFailedError, with the reason.

    The cluster dies with the calling process, however that ends. Call it from the main thread.
    """
    reason = unavailable_reason(settings)
    if reason:
        raise StartFailedError(reason)
    shared.mkdir(parents=True, exist_ok=True)
    shared.chmod(0o1777)
    world = start_world(settings.network, lambda context: run_cluster(context, settings, shared))
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        for event in world.events(timeout_seconds=1.0):
            if event["event"] == "ready":
                pids = world.outer_pids()
                return SlurmCluster(settings, shared.resolve(), world,
                                    {name: pids[inner] for name, inner in event["holders"].items()})
            world.kill()
            raise StartFailedError(event["message"])
        if world.events_ended:
            break
    world.kill()
    raise StartFailedError("the cluster ended, or did not come up, without a reason")


class SlurmCluster:
    """A running cluster. Close it, or use it as a context manager."""

    def __init__(self, settings: ClusterSettings, shared: Path, world: World, holders: Mapping[str, int]) -> None:
        self.settings = settings
        self.shared = shared
        """a folder at the same path outside and on all machines, open to every user"""
        self.holders = dict(holders)
        """machine name to the pid, outside, of the process that holds its namespaces"""
        self.world = world
        self.version = self.run("sinfo --version").stdout.split()[-1]
        """Slurm's version, such as `22.05.8`"""

    def __enter__(self) -> SlurmCluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of the cluster at once."""
        self.world.kill()
        if self.settings.cgroups:
            remove_groups(self.shared)

    def command_line(self, command: str | Sequence[str], machine: str = HEAD, *, user: int = 0,
                     cwd: Path | None = None, environment: Mapping[str, str] | None = None,
                     timeout_seconds: float | None = None) -> list[str]:
        """Return the command line that runs a command (a string: by the shell) on a machine, for subprocess."""
        words = ["sh", "-c", command] if isinstance(command, str) else list(command)
        if timeout_seconds is not None:
            # Killing nsenter would leave the command alive in its PID namespace.
            words = ["timeout", "--kill-after=2", str(timeout_seconds), *words]
        return enter(self.holders[machine], words, user=user, folder=cwd or self.shared,
                     environment={"HOME": str(self.shared), **(environment or {})})

    def run(self, command: str | Sequence[str], machine: str = HEAD, *, user: int = 0, cwd: Path | None = None,
            environment: Mapping[str, str] | None = None, timeout_seconds: float = 60.0, stdin: str = "",
            check: bool = True) -> Finished:
        """Run a command on a machine to its end; raises CommandFailedError where `check` and it failed."""
        line = self.command_line(command, machine, user=user, cwd=cwd, environment=environment,
                                 timeout_seconds=timeout_seconds)
        done = subprocess.run(line, input=stdin, capture_output=True, text=True, check=False,
                              timeout=timeout_seconds + 10)
        if check and done.returncode != 0:
            shown = command if isinstance(command, str) else shlex.join(command)
            raise CommandFailedError(f"{shown!r} on {machine} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return Finished(done.returncode, done.stdout, done.stderr)

    def sbatch(self, script: str, *arguments: str, user: int = 0, cwd: Path | None = None,
               environment: Mapping[str, str] | None = None) -> int:
        """Submit a batch script (its text; the first line is added where it is missing); return the job id."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}"
        done = self.run(["sbatch", "--parsable", *arguments], user=user, cwd=cwd, environment=environment, stdin=text)
        return int(done.stdout.split(";")[0])

    def squeue(self) -> dict[str, str]:
        """Return the state of each job that the controller knows, finished ones too: {"3+0": "RUNNING"}."""
        lines = self.run("squeue --noheader --states=all --format='%i %T'").stdout.splitlines()
        return dict(line.split() for line in lines)

    def states(self, job: int) -> list[str]:
        """Return the states of a job's components (one for a plain job)."""
        own = re.compile(rf"{job}(\+[0-9]+|_.*)?")
        return [state for name, state in self.squeue().items() if own.fullmatch(name)]

    def wait_for(self, job: int, states: Sequence[str] = (), timeout_seconds: float = 60.0) -> list[str]:
        """Wait until all components are in one of these states (by default: in any final one); return them."""
        wanted = set(states) or _FINAL_STATES
        deadline = time.monotonic() + timeout_seconds
        while True:
            found = self.states(job)
            if found and wanted.issuperset(found):
                return found
            if time.monotonic() > deadline:
                raise CommandFailedError(f"job {job} is {found}, not in {sorted(wanted)}, after {timeout_seconds:g} s")
            time.sleep(0.1)

    def sacct(self, job: int, fields: Sequence[str] = ("JobID", "State", "ExitCode")) -> str:
        """Return what sacct prints, `--parsable2` with a header, all runs of a requeued job included."""
        return self.run(["sacct", "--parsable2", "--duplicates", "--jobs", str(job),
                         f"--format={','.join(fields)}"]).stdout

    def sent_bytes(self, machine: str) -> dict[str, int]:
        """Return the bytes that each interface of a machine has sent."""
        lines = Path(f"/proc/{self.holders[machine]}/net/dev").read_text().splitlines()[2:]
        return {name.strip(): int(numbers.split()[8])
                for name, _, numbers in (line.partition(":") for line in lines)}

    def read_log(self, name: str) -> str:
        """Return one of Slurm's logs, such as `slurmctld` or `slurmd.ib-1`."""
        return self.inside(BASE / "log" / f"{name}.log").read_text(errors="replace")

    def inside(self, path: Path) -> Path:
        """Return the path by which this process reaches a file that the machines see at `path`."""
        return Path(f"/proc/{self.holders[HEAD]}/root{path}")

    def fail_node(self, machine: str) -> None:
        """Let a node die: kill its slurmd and everything else that runs in its network."""
        network = os.stat(f"/proc/{self.holders[machine]}/ns/net").st_ino
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != self.holders[machine] and _network_of(name) == network:
                try:
                    os.kill(int(name), signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def start_node(self, machine: str) -> None:
        """Start the slurmd of a node that failed."""
        self.run(["slurmd", "-N", machine], machine)


def _network_of(pid: str) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return None  # it ended meanwhile
