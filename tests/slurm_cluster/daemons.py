"""What runs inside the cluster's namespaces: one holder for each machine, munge, the database, Slurm's daemons.

A holder is a sleeping process that keeps a node's network, host name, IPC and mounts, so that daemons can end
and be started again.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from holmes_hpc.emulation.context import WorldContext
from tests.slurm_cluster.configuration import CLUSTER_NAME, DATABASE, DATABASE_PASSWORD, write_configuration
from tests.slurm_cluster.groups import HOLD as HOLD_IN_GROUPS
from tests.slurm_cluster.groups import groups_of
from tests.slurm_cluster.mounts import enter_file_system
from tests.slurm_cluster.settings import HEAD, ClusterSettings

BASE = Path("/run/slurm-cluster")
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_START_SECONDS = 20.0
_HOLD = ('hostname "$0" && mount -t tmpfs -o mode=1777 shm /dev/shm && mount -t sysfs sysfs /sys && echo ready '
         "&& exec sleep infinity")
_MARIADB_OPTIONS = ("--skip-networking", "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M",
                    "--innodb-flush-log-at-trx-commit=2", "--innodb-lock-wait-timeout=900",
                    "--performance-schema=OFF")


_HEARTBEAT = "while sleep 1; do scontrol update NodeName=$0 Comment=beat >/dev/null 2>&1; done"
"""Slurm's backfill, which alone starts heterogeneous jobs, sleeps until something changes; that a requeued job may
start is no change, and goes unnoticed for up to half a minute."""


class StartFailedError(RuntimeError):
    """A daemon did not come up; the message holds the ends of the logs."""


def run_cluster(context: WorldContext, settings: ClusterSettings, shared: Path) -> int:
    """The body of init: start everything, report it, and reap what ends until the cluster is killed."""
    os.environ["PATH"] = SEARCH_PATH
    os.environ.pop("SLURM_CONF", None)
    try:
        machines = _start(context, settings, shared)
    except (OSError, subprocess.SubprocessError, StartFailedError) as error:
        context.send({"event": "failed", "message": f"{error}\n{_log_ends()}"})
        return 1
    context.send({"event": "ready", "holders": {name: machine.pid for name, machine in machines.items()}})
    while True:
        try:
            context.wait()
        except ChildProcessError:
            return 0


class _Machine:
    """The head or a node, as init reaches it."""

    def __init__(self, name: str, network: int, groups: str = "") -> None:
        self.name = name
        script = HOLD_IN_GROUPS if groups else _HOLD
        line = ["nsenter", f"--net=/proc/self/fd/{network}", "unshare", "--uts", "--ipc", "--mount", "sh", "-c", script]
        self._holder = subprocess.Popen([*line, name, groups], pass_fds=[network], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE)
        self.pid = self._holder.pid

    def wait_until_ready(self) -> None:
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"ready\n":
            raise StartFailedError(f"the machine {self.name} could not be made")

    def run(self, *command: str, timeout_seconds: float = 30.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._enter(), *command], capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL, timeout=timeout_seconds)

    def _enter(self) -> list[str]:
        # Entering a mount namespace leaves a changed root and the working folder.
        return ["nsenter", "--target", str(self.pid), "--net", "--uts", "--ipc", "--mount", "--cgroup", "--root",
                "--wd"]

    def start_in_background(self, script: str, *arguments: str) -> None:
        """Run a shell script, whose arguments begin with `$0`; it ends with the cluster."""
        subprocess.Popen([*self._enter(), "sh", "-c", script, *arguments], stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def start_daemon(self, *command: str) -> None:
        """Start a program that puts itself into the background."""
        log = BASE / "log" / f"start.{self.name}.{Path(command[0]).name}"
        with log.open("wb") as stream:
            done = subprocess.run([*self._enter(), *command], stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                                  check=False)
        if done.returncode != 0:
            raise StartFailedError(f"{command[0]} on {self.name} ended with {done.returncode}: {log.read_text()}")


def _start(context: WorldContext, settings: ClusterSettings, shared: Path) -> dict[str, _Machine]:
    enter_file_system(BASE, settings.tree, shared)
    write_configuration(settings, BASE)
    for index in range(settings.gpus_per_node):  # stand-ins for the GPUs' device files, by NVIDIA's number: no driver
        os.mknod(BASE / "devices" / f"gpu{index}", 0o20666, os.makedev(195, index))
    assert context.node_networks is not None
    groups = groups_of(shared) if settings.cgroups else ""
    machines = {name: _Machine(name, network, groups) for name, network in context.node_networks.items()}
    _start_munge()
    for machine in machines.values():
        machine.wait_until_ready()
    head = machines[HEAD]
    if settings.accounting:
        _start_database()
        head.start_daemon("slurmdbd")
        _wait_for("slurmdbd", lambda: head.run("sacctmgr", "-n", "show", "cluster").returncode == 0)
        head.run("sacctmgr", "-i", "-Q", "add", "cluster", CLUSTER_NAME)
    head.start_daemon("slurmctld")
    for node in settings.nodes:
        (BASE / "spool" / node.name).mkdir()
        machines[node.name].start_daemon("slurmd", "-N", node.name)
    _wait_until_idle(head, [node.name for node in settings.nodes])
    head.start_in_background(_HEARTBEAT, settings.nodes[0].name)
    return machines


def _start_munge() -> None:
    folder, runtime = BASE / "munge", Path("/run/munge")
    for path, mode in ((folder, 0o700), (runtime, 0o755)):
        path.mkdir()
        path.chmod(mode)
    key = folder / "munge.key"
    key.touch(mode=0o400)
    key.write_bytes(secrets.token_bytes(64))
    for path in (folder, runtime, key):
        shutil.chown(path, "munge", "munge")
    _run("setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", f"--key-file={key}",
         f"--log-file={folder}/munged.log", f"--pid-file={runtime}/munged.pid", f"--seed-file={folder}/munged.seed")


def _start_database() -> None:
    data, runtime = BASE / "database", Path("/run/mysqld")
    for path in (data, runtime):
        path.mkdir()
        shutil.chown(path, "mysql", "mysql")
    _run("mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={data}", "--skip-test-db",
         "--auth-root-authentication-method=socket")
    with (BASE / "log" / "mariadb.log").open("wb") as log:
        subprocess.Popen(["mariadbd", "--no-defaults", "--user=mysql", f"--datadir={data}",
                          f"--socket={runtime}/mysqld.sock", f"--pid-file={data}/pid", *_MARIADB_OPTIONS],
                         stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    _wait_for("mariadbd", lambda: subprocess.run(["mariadb", "-e", "select 1"], capture_output=True,
                                                 check=False).returncode == 0)
    _run("mariadb", "-e", f"create database {DATABASE}; create user slurm@localhost identified by "
                          f"'{DATABASE_PASSWORD}'; grant all on {DATABASE}.* to slurm@localhost")


def _wait_until_idle(head: _Machine, names: Sequence[str]) -> None:
    said = ""

    def idle() -> bool:
        done = head.run("sinfo", "-h", "-N", "-p", "mixed", "-t", "idle", "-o", "%n")
        return sorted(set(done.stdout.split())) == sorted(names)

    def steps_whole() -> bool:
        # The first step after the start may lose its output.
        nonlocal said
        done = head.run("srun", "-Q", "-t1", "-p", "mixed", f"-N{len(names)}", "hostname")
        said = f"{done.stdout}{done.stderr}"
        return sorted(done.stdout.split()) == sorted(names)

    _wait_for("slurmctld and slurmd", idle)
    _wait_for("a step on all nodes", steps_whole, lambda: said)


def _wait_for(what: str, condition: Callable[[], bool], explain: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise StartFailedError(f"{what} did not come up within {_START_SECONDS:g} s: {explain()}")
        time.sleep(0.03)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise StartFailedError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")


def _log_ends(lines: int = 15) -> str:
    """The last lines of every log; the logs end with the cluster."""
    ends = []
    for log in sorted((BASE / "log").glob("*")):
        last = log.read_text(errors="replace").splitlines()[-lines:]
        if last:
            ends.append("\n".join([f"--- {log.name}", *last]))
    return "\n".join(ends)
