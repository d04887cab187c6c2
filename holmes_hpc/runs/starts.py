"""The files of one start of a Slurm job: how its ranks find each other, and how each of them ended.

Every start has a folder of its own below `starts/`, so what an earlier one left is never taken for this one's.
"""

from __future__ import annotations

import os
import re
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holmes_hpc.errors import HolmesError
from holmes_hpc.foreign import number, read_object, whole_number
from holmes_hpc.redaction import redact
from holmes_hpc.runs.files import write_json_atomic
from holmes_hpc.runs.folder import RunFolder

PUBLISHED = "start.json"
"""What rank 0 leaves once all nodes have reported: the plan, or why there is none."""
_CAUSE = "supervisor.json"
_HANG = "HangError"
_NETWORK_ERRORS = ("NetworkError", "DistBackendError", "RefusedError")
"""What a rank ends with that only lost a neighbour."""
_OWN, _PERHAPS_OWN, _LOST_NEIGHBOUR, _TOLD = range(4)
"""How near an end is to the cause of a run's failure; nodes' clocks differ, so times tell nothing."""


def nearness(report: Any) -> int:
    """Return how near a rank's error (the content of its `rank-N.error.json`) is to the cause, the lowest first."""
    kind = report.get("type") if isinstance(report, dict) else None
    if kind == "RuntimeError":  # torch raises it for nearly everything, a lost connection among it
        return _PERHAPS_OWN
    return _LOST_NEIGHBOUR if kind in (None, *_NETWORK_ERRORS) else _OWN


def start_number(name: str) -> tuple[int, ...]:
    """Return the numbers in a start's name, by which starts are in order: job, task, restart, step."""
    return tuple(int(number) for number in re.findall("[0-9]+", name))


@dataclass(frozen=True)
class Start:
    """One start of a run: the folder `starts/<job id>-<restart>-<step id>`."""

    run: RunFolder
    name: str

    @classmethod
    def newest(cls, run: RunFolder) -> Start | None:
        """Return the start that was made last, None where no rank came as far."""
        found = cls.all(run)
        return found[-1] if found else None

    @classmethod
    def all(cls, run: RunFolder) -> list[Start]:
        """Return all starts in order."""
        return [cls(run, name) for name in sorted((path.name for path in run.starts.glob("*/")), key=start_number)]

    @property
    def path(self) -> Path:
        """The folder."""
        return self.run.starts / self.name

    @property
    def rendezvous_path(self) -> Path:
        """Where rank 0 says how to reach it."""
        return self.path / "rendezvous.json"

    def write(self, name: str, value: Any) -> None:
        """Write a file for the other ranks; they see it whole or not at all."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json_atomic(self.path / name, value)

    def read(self, name: str) -> dict[str, Any] | None:
        """Return what another rank wrote, None where it has not yet."""
        # Opening the folder makes a network file system ask its server; else it may go on for half a minute to say
        # from memory that the file does not exist.
        try:
            os.scandir(self.path).close()
        except OSError:
            return None
        return read_object(self.path / name)

    def write_end(self, rank: int, node: str, status: int, *, told: str | None = None) -> None:
        """Say how a rank ends; `told` names the signal where it was made to. One that is killed says nothing."""
        self.write(f"ended-{rank}.json", {"rank": rank, "node": node, "status": status, "told": told,
                                          "time": time.time()})

    def write_failure(self, rank: int, node: str, error: BaseException) -> None:
        """Say that a rank ends by an error, of whatever kind. What the storage refuses is left."""
        report = {"type": type(error).__name__, "message": redact(str(error)), "ours": isinstance(error, HolmesError),
                  "traceback": redact("".join(traceback.format_exception(error)))}
        with suppress(OSError, HolmesError):
            self.run.write_json(self.run.rank_error_path(rank), report)
        with suppress(OSError, HolmesError):
            self.write_end(rank, node, getattr(error, "exit_status", 1))

    def ranks(self) -> dict[int, str]:
        """Return the node of every rank whose node reported."""
        found: dict[int, str] = {}
        for path in self.path.glob("node-*.json"):
            data = read_object(path) or {}
            report, ranks = data.get("report"), data.get("ranks")
            if isinstance(report, dict) and isinstance(ranks, list):
                found |= {rank: str(report.get("node")) for rank in ranks if whole_number(rank) is not None}
        return dict(sorted(found.items()))

    @property
    def is_published(self) -> bool:
        """Whether all nodes have reported, and the ranks know their plan."""
        return self.read(PUBLISHED) is not None

    def write_cause(self, cause: str) -> None:
        """Leave why the start is ended from outside of its ranks."""
        self.write(_CAUSE, {"cause": cause})

    def anyone_ended(self) -> bool:
        """Say whether a rank has said that it ends, or left an error; this reads no file."""
        return any(self.path.glob("ended-*.json")) or any(self.run.ranks.glob("rank-*.error.json"))

    def ends(self) -> dict[int, Mapping[str, Any]]:
        """Return what each rank said of its end; a rank that left an error and no more ended by that."""
        marks = (read_object(path) for path in self.path.glob("ended-*.json"))
        ends: dict[int, Mapping[str, Any]] = {end["rank"]: end for end in marks if end is not None and _is_end(end)}
        for rank, node in self.ranks().items():
            error = self.run.rank_error_path(rank)
            if rank not in ends and error.exists():
                ends[rank] = {"rank": rank, "node": node, "status": 1, "told": None, "time": error.stat().st_mtime}
        return ends

    def anyone_failed(self) -> bool:
        """Say whether a rank ended by an error; then no step will be finished any more."""
        return any(end["status"] not in (0, 3) and end["told"] is None for end in self.ends().values())

    def cause(self, why_killed: str | None = None) -> str | None:
        """Return what failed first, on which rank and node, and where to read more; None where no rank failed.

        `why_killed` is what others know of why ranks were killed.

        Ranks that were killed come before those that failed by themselves, and these before those that only lost a
        neighbour. Where ranks waited for others in vain, the rank that they name comes first: Slurm kills it
        afterwards. Before all comes why the start was ended from outside of its ranks.
        """
        supervised = (self.read(_CAUSE) or {}).get("cause")
        if isinstance(supervised, str):
            return supervised
        if not self.run.logs.is_dir():  # ranks have written their ends since, but nothing else is left
            return (f"the files of the run folder {self.run.path} were removed while the run was in it; start it "
                    "again, with run.folder at a place that nobody cleans up")
        nodes, ends = self.ranks(), self.ends()
        hang = self._hang(nodes, ends)
        if hang is not None:
            return hang
        silent = {rank: node for rank, node in nodes.items() if rank not in ends}
        if silent:
            return self._describe_silent(silent, nodes, why_killed)
        failed = [end for end in ends.values() if end["status"] not in (0, 3)]
        failed.sort(key=lambda end: (self._nearness(end), end["rank"]))
        return self._describe(failed[0]) if failed else None

    def was_suspended(self) -> bool:
        """Say whether the cause is that the job stood still for longer than a wait may take."""
        cause = self.cause()
        reports = [read_error(self.run, rank) or {} for rank in self.ranks()] if cause else []
        return any(report.get("of_suspension") is True and report["message"] == cause for report in reports)

    def failed_nodes(self) -> list[str]:
        """Return the nodes all of whose ranks ended without a word, where other nodes' ranks did not."""
        nodes, ends = self.ranks(), self.ends()
        alive = {nodes[rank] for rank in ends if rank in nodes}
        return sorted(set(nodes.values()) - alive) if alive else []

    def _describe_silent(self, silent: Mapping[int, str], nodes: Mapping[int, str], why_killed: str | None) -> str:
        first = min(silent)
        if why_killed:
            names = ", ".join(f"rank {rank} on node {node}" for rank, node in silent.items())
            return f"{names} was killed: {why_killed}; log of rank {first}: {self.run.log_path(first)}"
        whole = [node for node in self.failed_nodes() if list(nodes.values()).count(node) > 1]
        if len(silent) == len(nodes):
            return f"all ranks were killed without a word; see {self.run.logs}"
        if whole:
            return (f"all ranks of node {' and of node '.join(whole)} were killed without a word: the node failed, or "
                    f"it has no memory left; log of rank {first}: {self.run.log_path(first)}")
        names = ", ".join(f"rank {rank} on node {node}" for rank, node in silent.items())
        return (f"{names} was ended by SIGKILL, or by a fault of its own (if nobody killed it, the kernel may have: "
                f"out of memory); log: {self.run.log_path(first)}")

    def _hang(self, nodes: Mapping[int, str], ends: Mapping[int, Mapping[str, Any]]) -> str | None:
        """Return what a rank says that waited in vain; None where there is none, or a rank failed by itself."""
        reports = {rank: read_error(self.run, rank) or {} for rank in nodes}
        hangs = [report for report in reports.values() if report.get("type") == _HANG]
        hangs.sort(key=lambda report: report.get("of_suspension") is not True)  # which explains what others saw
        by_themselves = [rank for rank, end in ends.items() if end["status"] not in (0, 3)
                         and self._nearness(end) < _LOST_NEIGHBOUR and reports.get(rank, {}).get("type") != _HANG]
        return str(hangs[0]["message"]) if hangs and not by_themselves else None

    def _nearness(self, end: Mapping[str, Any]) -> int:
        return _TOLD if end["told"] is not None else nearness(read_error(self.run, end["rank"]))

    def _describe(self, end: Mapping[str, Any]) -> str:
        rank = end["rank"]
        who, log = f"rank {rank} on node {end['node']}", f"log: {self.run.log_path(rank)}"
        report = read_error(self.run, rank)
        if end["told"] is not None:
            return f"{who} was ended by {end['told']}; {log}"
        if report is None:
            return f"{who} ended with status {end['status']}; {log}"
        if report.get("names_rank"):
            return str(report["message"])
        words = report["message"] if report.get("ours") else f"{report['type']}: {report['message']}"
        return f"{words} [{who}; {log}]"


def read_error(folder: RunFolder, rank: int) -> dict[str, Any] | None:
    """Return what a rank left of its error: `type`, `message` and what else; None where it left nothing whole."""
    report = read_object(folder.rank_error_path(rank))
    if report is None or not all(isinstance(report.get(key), str) for key in ("type", "message")):
        return None
    return report


def _is_end(end: Mapping[str, Any]) -> bool:
    return (whole_number(end.get("rank")) is not None and type(end.get("status")) is int
            and number(end.get("time")) is not None and isinstance(end.get("told"), str | None))
