"""The test cluster for people: `python -m tests.slurm_cluster up|down|shell [MACHINE]`, as root."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.slurm_cluster.cluster import ORDINARY_USER, enter, start_cluster
from tests.slurm_cluster.daemons import StartFailedError
from tests.slurm_cluster.settings import HEAD, ClusterSettings, tree_folder

_STATE = "cluster.json"


def main() -> int:
    """Run one of the three commands; the exit status is 0 when it did what it should."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.slurm_cluster", description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path(tempfile.gettempdir()) / "holmes-slurm",
                        help="the folder that all machines share, and that names the cluster (%(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", allow_abbrev=False, help="start a cluster in the background")
    up.add_argument("--accounting", action="store_true", help="with slurmdbd and MariaDB")
    up.add_argument("--tree", action="store_true", help=f"Slurm 24.11 out of {tree_folder()}")
    up.add_argument("--cgroups", action="store_true", help="with control groups")
    up.add_argument("--ib-nodes", type=int, default=2)
    up.add_argument("--roce-nodes", type=int, default=2)
    commands.add_parser("down", allow_abbrev=False, help="end the cluster")
    shell = commands.add_parser("shell", allow_abbrev=False, help="a shell, or a command, on a machine")
    shell.add_argument("--user", action="store_true", help="as an ordinary user")
    shell.add_argument("machine", nargs="?", default=HEAD)
    shell.add_argument("words", nargs=argparse.REMAINDER, help="the command; none: bash")
    arguments = parser.parse_args()
    arguments.shared = arguments.shared.resolve()
    return {"up": _up, "down": _down, "shell": _shell}[arguments.command](arguments)


def _up(arguments: argparse.Namespace) -> int:
    if _running(arguments.shared) is not None:
        return _say(f"a cluster runs already in {arguments.shared}; end it with `down`", 1)
    settings = ClusterSettings(ib_nodes=arguments.ib_nodes, roce_nodes=arguments.roce_nodes,
                               accounting=arguments.accounting, cgroups=arguments.cgroups,
                               tree=tree_folder() if arguments.tree else None)
    reader, writer = os.pipe()
    if os.fork() == 0:
        status = 1
        try:
            os.close(reader)
            status = _keep(settings, arguments.shared, writer)
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as stream:
        said = json.loads(stream.readline() or '["the cluster was killed as it started", 1]')
    return _say(*said)


def _keep(settings: ClusterSettings, shared: Path, writer: int) -> int:
    """Hold the cluster, which dies with this process, until `down` ends it."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    try:
        cluster = start_cluster(settings, shared)
    except StartFailedError as error:
        os.write(writer, json.dumps([str(error), 1]).encode() + b"\n")
        return 1
    state = {"keeper": os.getpid(), "started": _start_time(os.getpid()), "holders": cluster.holders}
    (shared / _STATE).write_text(json.dumps(state))
    said = f"Slurm {cluster.version} with {', '.join(cluster.holders)}; shared folder {shared}"
    os.write(writer, json.dumps([said, 0]).encode() + b"\n")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        while cluster.world.poll() is None:
            time.sleep(0.2)
    finally:
        cluster.close()
        (shared / _STATE).unlink(missing_ok=True)
    return 0


def _down(arguments: argparse.Namespace) -> int:
    state = _running(arguments.shared)
    if state is None:
        return _say(f"no cluster runs in {arguments.shared}", 1)
    os.kill(state["keeper"], signal.SIGTERM)
    while _running(arguments.shared) is not None:
        time.sleep(0.02)
    return _say("the cluster has ended", 0)


def _shell(arguments: argparse.Namespace) -> int:
    state = _running(arguments.shared)
    if state is None:
        return _say(f"no cluster runs in {arguments.shared}; start one with `up`", 1)
    if arguments.machine not in state["holders"]:
        return _say(f"no machine {arguments.machine!r}; there are {', '.join(state['holders'])}", 2)
    environment = {"HOME": str(arguments.shared), "TERM": os.environ.get("TERM", "dumb"),
                   "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    line = enter(state["holders"][arguments.machine], arguments.words or ["bash"], folder=arguments.shared,
                 user=ORDINARY_USER if arguments.user else 0, environment=environment)
    return os.execvp(line[0], line)


def _running(shared: Path) -> dict | None:
    """Return what the keeper wrote, or None when it is gone (its pid may belong to another process now)."""
    try:
        state = json.loads((shared / _STATE).read_text())
        return state if _start_time(state["keeper"]) == state["started"] else None
    except (OSError, ValueError, KeyError):
        return None


def _start_time(pid: int) -> int | None:
    """Return when the process started, in clock ticks; None when it has ended, reaped or not."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    fields = stat[stat.rindex(b")") + 2:].split()
    return int(fields[19]) if fields[0] != b"Z" else None


def _say(message: str, status: int) -> int:
    print(message, file=sys.stderr if status else sys.stdout)
    return status


if __name__ == "__main__":
    sys.exit(main())
